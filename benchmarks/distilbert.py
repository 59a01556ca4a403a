"""SED's tables 3 and 5 in shape: CT members, their ensemble, learners and flows of an encoder in DistilBERT's shape.

    ../shared/data/teachers ../teachers
    python benchmarks/distilbert.py            # 20 minutes on two cores
    python benchmarks/distilbert.py --long     # 75 minutes
    python benchmarks/distilbert.py --long --random-weights    # two hours

The encoder is raw and needs no model hub: distilbert_raw.yaml leads the first half of all-mpnet-base-v2 away from what
it has learnt about sentences; with --random-weights, it begins with nothing and learns for an hour. distilbert_ct.yaml
trains the members and all that follows. Each can be run alone. This script runs one after the other and writes
distilbert-results/page.md in --storage. The same command continues.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer

from raysed.config import load_config
from raysed.process import prepare_process
from raysed.report.scores import display_name
from raysed.store.text import Table, number

from harness import ROOT, where
from runs import report_of

RAW, CT, LONG = (ROOT / f"benchmarks/distilbert_{name}.yaml" for name in ("raw", "ct", "ct-long"))
LONG_SENTENCES = 16_000
"""Of the masked language modelling of `--long`."""
EPOCHS = 5
"""Of the masked language modelling of random weights, over the whole corpus: an hour on two cores."""
PAPER_STEPS = 50_000
COLUMNS = {
    "models": lambda row: display_name(row["recipe"], row["kind"], row["n"]),
    "recipe": lambda row: row["recipe"],
    "mean": lambda row: number(row["mean"]),
    "95 %": lambda row: f"{number(row['low'])} to {number(row['high'])}" if "low" in row else "-",
    "max": lambda row: number(row["max"]),
    "std": lambda row: number(row["std"]),
    "n": lambda row: str(row["n"]),
}


def main() -> None:
    """Runs both configs and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="distilbert_ct-long.yaml, and more of the first run")
    parser.add_argument("--random-weights", action="store_true", help="an encoder of random weights instead of mpnet's")
    parser.add_argument("--storage", type=Path, default=Path("runs"), help="directory of the runs and of the page")
    parser.add_argument("--teacher", type=Path, help="all-mpnet-base-v2, if not in ../teachers")
    parser.add_argument("--sentences", type=int, help="of the masked language modelling")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the second run"
    )
    arguments = parser.parse_args()
    prepare_process()
    storage, config = arguments.storage.resolve(), LONG if arguments.long else CT
    raw_config = load_config(RAW)
    teacher = (arguments.teacher or ROOT / raw_config.encoder.path).resolve()
    sentences = arguments.sentences or (LONG_SENTENCES if arguments.long else None)
    suffix, first = "-long" * arguments.long, [f"corpus.sentences={sentences}"] if sentences else []
    if arguments.random_weights:
        suffix, teacher = "-random", random_weights(teacher, storage / "random-weights")
        first = [f"corpus.sentences={arguments.sentences or 'null'}", f"mlm.epochs={EPOCHS}"]
    name = raw_config.run + suffix
    raw = report_of(RAW, name, storage, [*first, f"encoder.path={json.dumps(str(teacher))}"])
    second = [f"encoder.path={json.dumps(str(storage / name / 'model'))}", *arguments.set]
    results = storage / "distilbert-results"
    results.mkdir(exist_ok=True)
    name = load_config(config).run + "-random" * arguments.random_weights
    page = page_of(raw, report_of(config, name, storage, second))
    (results / "page.md").write_text(page, encoding="utf-8")
    print(f"{page}\n{results / 'page.md'}", flush=True)


def random_weights(teacher: Path, target: Path) -> Path:
    """Writes a model of a teacher's shape with random weights, and returns where."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(teacher, local_files_only=True, trust_remote_code=False)
    AutoModel.from_config(config, trust_remote_code=False).save_pretrained(target)
    AutoTokenizer.from_pretrained(teacher, local_files_only=True, trust_remote_code=False).save_pretrained(target)
    return target


def page_of(raw: Mapping[str, Any], trained: Mapping[str, Any]) -> str:
    """Returns the page of both runs, from their `report.json`."""
    settings = trained["config"]
    tasks = ", ".join(settings["evaluation"]["tasks"])
    said = (
        f"{settings['members']['count']} members of {settings['ct']['steps']} steps of Contrastive Tension (the paper: "
        f"{PAPER_STEPS:,}), {settings['sed']['learners']} learners. Spearman x100, mean over {tasks}; "
        f"{settings['encoder']['pool_layers']} layers pooled. Flows were fitted on: {settings['flow']['fit_on']}."
    )
    return (
        "\n\n".join(
            [
                "# SED's tables 3 and 5 in DistilBERT's shape",
                f"{where()}.",
                f"## The encoder, after masked language modelling of {raw['corpus']['kept']:,} sentences",
                *tables(raw),
                "## Ensemble and learners",
                said,
                *tables(trained),
            ]
        )
        + "\n"
    )


def tables(report: Mapping[str, Any]) -> Sequence[str]:
    """Returns a run's scores, differences and times as Markdown."""
    rows = [row for row in report["summary"] if row["task"] == "mean" and row["mean"] is not None]
    seconds = {stage: entry["seconds"] for stage, entry in report["timings"].items()}
    times = Table(["stage", "seconds"], [[stage, f"{each:.0f}"] for stage, each in seconds.items()])
    return [Table.of(rows, COLUMNS, text=2).markdown(), report["findings"], times.markdown()]


if __name__ == "__main__":
    main()

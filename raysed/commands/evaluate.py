"""Scores any models side by side, on the tasks of a config: similarity, and transfer tasks where the config has some.

    python jobs/evaluate.py --model runs/quickstart/model --model bundled:encoder
    python jobs/evaluate.py --model MODEL --config minilm3-cpu --set evaluation.transfer.source=SentEval/data/downstream

A model is a directory or a hub id: one that this project exported, any other of sentence-transformers, or a plain
transformer, whose tokens and --layers are averaged. Of a config, `evaluation`, `encoder.max_length`, `encoder.layers`
and `resources` count.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from raysed.config import Config, Layers
    from raysed.evaluation.similarity import Evaluation
    from raysed.evaluation.transfer import ProbeJob, TransferTask


AFTER_STOP = "the same command starts over"


def parser() -> argparse.ArgumentParser:
    """Returns the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument(
        "--model", dest="models", action="append", required=True, help="directory or hub id; may be repeated"
    )
    result.add_argument("--config", default="quickstart", help="a name from raysed/configs/ or a YAML file")
    result.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a setting"
    )
    result.add_argument("--layers", help="pooled layers of plain transformers: a number or first_last")
    result.add_argument("--output", type=Path, help="JSON file for all scores")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Loads the tasks, scores one model after the other, and prints tables."""
    from raysed.config import find_config, load_config

    layers = [f"encoder.layers={arguments.layers}"] if arguments.layers else []
    path = find_config(arguments.config)
    config = load_config(path, [*arguments.overrides, *layers])
    _check_output(arguments.output)

    from raysed.cluster.process import prepare_process

    prepare_process()
    from raysed.data.graded import load_task
    from raysed.evaluation.similarity import Evaluation
    from raysed.evaluation.transfer import load_transfer
    from raysed.model.load import check_layers

    evaluation = Evaluation(
        [load_task(name, task) for name, task in config.evaluation.tasks.items()], config.evaluation.aggregation
    )
    tasks = load_transfer(config.evaluation.transfer)
    for name in arguments.models:
        check_layers(name, _poolings(config, tasks), asked_for="layers" in config.encoder.model_fields_set)
    models = [score_model(name, config, evaluation, tasks) for name in dict.fromkeys(arguments.models)]
    scored = [*_baselines(evaluation), *models]
    print(f"\n{sts_table(scored, config)}")
    if tasks:
        print(f"\n{transfer_table(models, [task.name for task in tasks])}")
    if arguments.output:
        arguments.output.write_text(json.dumps(_document(scored, config), indent=1) + "\n", encoding="utf-8")


def _check_output(path: Path | None) -> None:
    from raysed.errors import UserError

    if path and (path.is_dir() or not os.access(path.parent, os.W_OK)):
        raise UserError(f"--output {path}: no file can be written there; name one in a directory that exists")


def score_model(name: str, config: "Config", evaluation: "Evaluation", tasks: list["TransferTask"]) -> dict[str, Any]:
    """Embeds every sentence once and scores one model.

    Args:
        name: directory or hub id.
        config: the settings.
        evaluation: its similarity tasks.
        tasks: its transfer tasks.

    Returns:
        `model`, `description`, `layers`, `metrics` by task and, where there are transfer tasks, `transfer` by task and
        `transfer_average`.
    """
    from raysed.evaluation.transfer import score_transfer, sentences_of, transfer_average
    from raysed.model.load import load_model
    from raysed.store.progress import Progress

    poolings = _poolings(config, tasks)
    main, of_transfer = poolings[0], poolings[-1]
    model = load_model(
        name,
        poolings,
        config.encoder.max_length,
        token_budget=config.resources.encode_token_budget,
        device=_device(config),
    )
    print(f"{name}: {model.description}")
    transfer_sentences = sentences_of(tasks)
    sentences = list(dict.fromkeys([*evaluation.sentences, *transfer_sentences]))
    progress = Progress(f"embed with {name}", len(sentences))
    found = model.embed(sentences, lambda done: progress.update(done))
    progress.close()

    def at(layers: "Layers") -> "np.ndarray":
        """A sentence-transformers model has one pooling, whatever was asked for."""
        return dict(zip(model.poolings, found)).get(layers, found[0])

    result = {"model": name, "description": model.description, "layers": list(model.poolings)}
    result["metrics"] = evaluation.score(at(main)[: len(evaluation.sentences)])
    if tasks:
        row = {sentence: i for i, sentence in enumerate(sentences)}
        rows = [row[sentence] for sentence in transfer_sentences]
        seed, run = config.evaluation.transfer.seed, _with_progress(f"probe {name}")
        result["transfer"] = score_transfer(tasks, at(of_transfer)[rows], seed, run)
        result["transfer_average"] = transfer_average(result["transfer"])
    return result


def _poolings(config: "Config", tasks: list["TransferTask"]) -> tuple["Layers", ...]:
    """The pooled layers of the similarities and, where there are transfer tasks, of their features."""
    main, of_transfer = config.encoder.layers, config.evaluation.transfer.layers
    return (main, main if of_transfer is None else of_transfer) if tasks else (main,)


def _device(config: "Config") -> str:
    import torch

    return "cuda" if config.resources.gpu is not False and torch.cuda.is_available() else "cpu"


def _with_progress(title: str) -> Callable[..., Iterator[dict]]:
    """A map that shows its progress."""
    from raysed.store.progress import Progress

    def run(probe: Callable[["ProbeJob"], dict], jobs: list["ProbeJob"]) -> Iterator[dict]:
        progress = Progress(title, len(jobs))
        for count, one in enumerate(jobs, start=1):
            yield probe(one)
            progress.update(count, one.task)
        progress.close()

    return run


def _baselines(evaluation: "Evaluation") -> list[dict[str, Any]]:
    """The scores of words alone, which need no model."""
    from raysed.evaluation.baselines import baselines
    from raysed.report.results import display_name

    return [
        {
            "model": display_name(name, "baseline"),
            "description": "cosine of the words of two sentences",
            "layers": [],
            "metrics": evaluation.score_similarities(similarity_P),
        }
        for name, similarity_P in baselines(evaluation).items()
    ]


def sts_table(scored: list[dict[str, Any]], config: "Config") -> str:
    """Returns Spearman x100 per model: the mean over the headline tasks, and every task; `-` where it is not defined.

    Args:
        scored: what `score_model` returned.
        config: the settings.
    """
    from raysed.store.text import Table, number

    headline, tasks = config.report_tasks(), list(config.evaluation.tasks)
    lines = []
    for model in scored:
        values = {task: model["metrics"][task]["spearman"] for task in tasks}
        of_headline = [values[task] for task in headline]
        mean = None if None in of_headline else statistics.fmean(of_headline)
        lines.append([model["model"], *map(number, (mean, *values.values()))])
    return Table(["models", "mean", *tasks], lines).plain()


def transfer_table(scored: list[dict[str, Any]], tasks: list[str]) -> str:
    """Returns accuracy in %, or Pearson x100 of regressions, per model: the mean over all, and every task.

    Args:
        scored: what `score_model` returned.
        tasks: names of the transfer tasks.
    """
    from raysed.evaluation.transfer import main_score
    from raysed.store.text import Table, number

    lines = []
    for model in scored:
        values = [model["transfer_average"], *(main_score(model["transfer"][task]) for task in tasks)]
        lines.append([model["model"], *map(number, values)])
    return Table(["models", "mean", *tasks], lines).plain()


def _document(scored: list[dict[str, Any]], config: "Config") -> dict[str, Any]:
    return {
        "tasks": config.report_tasks(),
        "aggregation": config.evaluation.aggregation,
        "max_length": config.encoder.max_length,
        "models": scored,
    }

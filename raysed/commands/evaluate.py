"""Compare models with each other and with lexical baselines, on your own files or on the tasks of a config.

    raysed evaluate --models MODEL --task pairs.csv --task my-retrieval/ --task labelled.tsv
    raysed evaluate --models runs/quickstart/model bundled:encoder
    raysed evaluate --models MODEL --config minilm3-cpu

A model is a directory or hub id of a sentence-transformers model or a plain transformer. The embedding of a plain
transformer is the mean over tokens and --pool-layers. A config contributes `evaluation`, `encoder.max_length`,
`encoder.pool_layers`, `resources` and `seed`.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from raysed.cli import check_output, write_output
from raysed.commands import add_names, add_tasks, parser_of, refuse_renamed

if TYPE_CHECKING:
    from raysed.config import Config

AFTER_STOP = "Run the same command again to start over."


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = parser_of(__doc__, "--set")
    add_names(result, "--models", "MODEL", "directories or hub ids", required=True)
    add_tasks(result, "graded pairs, labelled texts or a directory in BEIR's layout, instead of the tasks of a config")
    result.add_argument("--config", help="a name from raysed/configs/ or a YAML file; quickstart if no task is given")
    layers = "average this many last layers of plain transformers, or first_last"
    result.add_argument("--pool-layers", metavar="LAYERS", help=layers)
    refuse_renamed(result, {"--model": "--models", "--layers": "--pool-layers"})
    result.add_argument("--output", type=Path, help="write all scores to this JSON file")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Load the tasks, score one model after another, and print tables."""
    config = _settings(arguments)
    if arguments.output:
        check_output(arguments.output)

    from raysed.process import prepare_process

    prepare_process()
    from raysed.model.load import check_layers
    from raysed.plan.check import load_evaluation
    from raysed.score.tasks import Evaluation
    from raysed.side_by_side import describe, score_baselines, score_model

    evaluation = Evaluation.load(config.evaluation, config.seed) if arguments.tasks else load_evaluation(config)
    for name in arguments.models:
        check_layers(name, config.encoder.pool_layers, asked_for="pool_layers" in config.encoder.model_fields_set)
    models = [score_model(name, evaluation, config) for name in dict.fromkeys(arguments.models)]
    baselines, tasks = score_baselines(evaluation), config.evaluation.report_tasks()
    for text in describe(baselines, models, evaluation, tasks):
        print(f"\n{text}")
    if arguments.output:
        rows = [{key: value for key, value in row.items() if key != "outcomes"} for row in [*baselines, *models]]
        about = {"aggregation": config.evaluation.aggregation, "max_length": config.encoder.max_length}
        write_output(arguments.output, json.dumps({"tasks": tasks, **about, "models": rows}, indent=1) + "\n")


def _settings(arguments: argparse.Namespace) -> "Config":
    """Return the settings; `--task` replaces the tasks of a config."""
    from raysed.config import find_config, load_config

    layers = [f"encoder.pool_layers={arguments.pool_layers}"] if arguments.pool_layers else []
    path = find_config(arguments.config or "quickstart") if arguments.config or not arguments.tasks else None
    config = load_config(path, [*arguments.overrides, *layers])
    if not arguments.tasks:
        return config
    from raysed.score.tasks import with_tasks

    return config.model_copy(update={"evaluation": with_tasks(config.evaluation, arguments.tasks)})

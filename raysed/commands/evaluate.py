"""Compare models with each other, together, and with lexical baselines, on your own files or on the tasks of a config.

    raysed evaluate --models A B C --task pairs.csv --task my-retrieval/ --task labelled.tsv --dev pairs-dev.csv
    raysed evaluate --models runs/quickstart/model vectors.parquet
    raysed evaluate --config tickets-small.yaml

A model is whatever can be a teacher: a sentence-transformers model or a plain transformer (directory or hub id), or a
.parquet file with the columns sentence and embedding. Several are also scored all combined, all except one, and as the
best subset on the dev task. A config contributes `teachers` (unless you name --models), `evaluation`, `combination`,
`resources` and `seed`.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from raysed.cli import check_output, write_output
from raysed.commands import add_names, add_tasks, parser_of
from raysed.errors import UserError

if TYPE_CHECKING:
    from raysed.config import Config
    from raysed.score.tasks import Evaluation

AFTER_STOP = "Run the same command again to start over."


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = parser_of(__doc__, "--set")
    add_names(result, "--models", "MODEL", "models, or .parquet files of embeddings; default: the config's teachers")
    add_tasks(result, "graded pairs, labelled texts, translations or a BEIR directory; instead of a config's tasks")
    result.add_argument("--dev", metavar="TASK", help="choose the best subset on this task; default: all tasks")
    result.add_argument("--config", help="a name from raysed/configs/ or a YAML file; quickstart if no task is given")
    layers = "average this many last layers of plain transformers, or first_last; default: 1, or the config's"
    result.add_argument("--pool-layers", metavar="LAYERS", type=_layers, help=layers)
    result.add_argument("--output", type=Path, help="write all numbers to this JSON file")
    return result


def _layers(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def job(arguments: argparse.Namespace) -> None:
    """Score all models and print tables."""
    from raysed.config import find_config, load_config

    has_tasks = arguments.tasks or arguments.dev
    path = find_config(arguments.config or "quickstart") if arguments.config or not has_tasks else None
    config = load_config(path, arguments.overrides)
    if not (arguments.models or config.teachers):
        raise UserError("there is nothing to score; name --models, or a --config with teachers")
    if arguments.output:
        check_output(arguments.output)

    from raysed.process import prepare_process

    prepare_process()
    from raysed.api import Comparison
    from raysed.side_by_side import compare

    models = _models(arguments, config)
    config, evaluation = _with_tasks(arguments, config)
    comparison = Comparison(*compare(config.model_copy(update={"teachers": models}), evaluation))
    print(f"\n{comparison}")
    if arguments.output:
        write_output(arguments.output, json.dumps(comparison, indent=1) + "\n")


def _models(arguments: argparse.Namespace, config: "Config") -> list:
    """Return the settings of the models: those of `--models`, or the teachers of the config."""
    from raysed.api import models_to_compare
    from raysed.config import make_config

    layers = {} if arguments.pool_layers is None else {"pool_layers": arguments.pool_layers}
    if arguments.models:
        return models_to_compare([{"path": path, **layers} for path in dict.fromkeys(arguments.models)])
    blocks = [{**teacher.model_dump(mode="json", exclude_unset=True), **layers} for teacher in config.teachers]
    return make_config({"teachers": blocks}).teachers


def _with_tasks(arguments: argparse.Namespace, config: "Config") -> tuple["Config", "Evaluation"]:
    """Return the config with the tasks that are named here, if any, and the tasks as they are scored."""
    from raysed.plan.check import load_evaluation
    from raysed.score.seen import without_seen
    from raysed.score.tasks import Evaluation, with_tasks

    if not (arguments.tasks or arguments.dev):
        return config, load_evaluation(config)
    chosen = with_tasks(config.evaluation, arguments.tasks, arguments.dev)
    config = config.model_copy(update={"evaluation": chosen})
    return config, without_seen(Evaluation.load(chosen), chosen, {})

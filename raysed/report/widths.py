"""Learners whose embeddings may be cut short: their scores by the number of coordinates that are kept."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.config import Config
from raysed.plan.artefacts import ScoredModel, load_calibrated
from raysed.report.results import display_name
from raysed.score.tasks import Evaluation, main_score
from raysed.store.storage import Storage
from raysed.store.text import Table, number


def scores_by_width(
    config: Config, evaluation: Evaluation, storage: Storage, models: Sequence[ScoredModel]
) -> list[dict[str, Any]]:
    """Returns the scores of learners at the widths of `sed.widths` and at the full one, on all tasks.

    Each has `recipe`, `index`, `width` and `metrics`, which are those of a row of the report.
    """
    found: list[dict[str, Any]] = []
    if not config.sed.widths:
        return found
    for model in (model for model in models if model.kind == "learner"):
        x_UD = np.asarray(load_calibrated(storage, model.embeddings, config.encoder.layers))
        for width in (*config.sed.widths, x_UD.shape[1]):
            about = {"recipe": model.recipe, "index": model.index, "width": width}
            found.append({**about, "metrics": evaluation.score(x_UD[:, :width])})
    return found


def widths_table(scores: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Table:
    """Returns the mean score of a recipe's learners by width, a line per task.

    Args:
        scores: from `scores_by_width`.
    """
    widths = sorted({entry["width"] for entry in scores})
    lines = []
    for recipe in dict.fromkeys(entry["recipe"] for entry in scores):
        group = [entry for entry in scores if entry["recipe"] == recipe]
        name = display_name(recipe, "learner", len({entry["index"] for entry in group}))
        for task in tasks:
            by_width = [[main_score(e["metrics"][task]) for e in group if e["width"] == width] for width in widths]
            means = [number(statistics.fmean(values) if None not in values else None) for values in by_width]
            lines.append([name, recipe, task, *means])
    return Table(["models", "recipe", "task", *map(str, widths)], lines, text=3)

"""Training curves of members and learners: losses, dev scores and directions of embeddings by update."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysed.recipe import BASE, parse_recipe
from raysed.registry import stages
from raysed.report.charts import LINES, Axis, Chart, Panel, Series
from raysed.report.results import RunResults
from raysed.report.section import Section

Curves = Mapping[str, Sequence[Mapping[str, Any]]]
"""Records by training: `step` and, where measured, `loss`, `dev` (x100) and others."""
_FEW_RECORDS = 15
"""Curves with no more records have a mark at each."""
_MEASURES = {
    "loss": "training loss",
    "held_out": "loss on held-out sentences",
    "dev": "dev score x100",
    "directions": "directions of the embeddings (few: collapsed)",
}


def training_chart(node: str, curves: Curves, references: Mapping[str, float] | None = None) -> Chart | None:
    """Return a node's training curves, a panel per measure; `references` are lines in the panel of dev scores."""
    panels, ends = [], []
    for key, label in _MEASURES.items():
        points = {}
        for name, records in curves.items():
            found = [(record["step"], record[key]) for record in records if record.get(key) is not None]
            xy_2R = np.array([xy for xy in found if math.isfinite(xy[1])], np.float64).T
            if xy_2R.size:
                points[name] = xy_2R
        if not points:
            continue
        are_many, series = len(points) > len(LINES), []
        styles = [LINES[0]] * len(points) if are_many else LINES
        for (name, (x_R, y_R)), (colour, line) in zip(points.items(), styles):
            texts = [f"{name}, update {x:,.0f}: {y:.4g}" for x, y in zip(x_R, y_R)]
            mark = "dot" if len(x_R) <= _FEW_RECORDS else "none"
            series.append(Series(x_R, y_R, colour, "" if are_many else name, texts, mark, line, are_many))
        compared = references or {} if key == "dev" else {}
        x_M, y_M = np.concatenate(list(points.values()), axis=1)
        y = Axis.of(label, [*y_M, *compared.values()], key == "loss" and y_M.min() > 0)
        panels.append(Panel(Axis.of("updates", x_M), y, series, references=compared))
        first, last = (statistics.fmean(xy_2R[1, i] for xy_2R in points.values()) for i in (0, -1))
        ends.append(f"{key} {first:.3g} to {last:.3g}")
    average = ", on average" * (len(curves) > 1)
    return Chart(f"training-{node}", f"Training of {node}{average}: {', '.join(ends)}", panels) if panels else None


def _charts(run: RunResults, data: None) -> Iterator[Chart | None]:
    """Yield a chart for the members of each node, and for the learners of each recipe that distils."""
    of_dev = run.scores.groups_of(run.config.evaluation.dev)
    base = {"base": of_dev[BASE, "base"]["mean"]} if (BASE, "base") in of_dev else {}
    for node, names in run.facts.members.items():
        stage = node.rpartition("-")[2]
        criterion = stages()[stage].criterion(getattr(run.config, stage))
        yield training_chart(node, _curves(run, "member", names), base if criterion == "spearman" else {})
    for text in dict.fromkeys(recipe.uncalibrated for recipe in run.job.recipes if recipe.distils):
        node = parse_recipe(text).ensemble
        others = {"members, mean": (node, "member"), "full ensemble": (node, "ensemble")}
        references = base | {name: of_dev[group]["mean"] for name, group in others.items() if group in of_dev}
        names = [model.weights for model in run.models if model.recipe == text]
        yield training_chart(text, _curves(run, "learner", names), references)


def _curves(run: RunResults, what: str, names: Sequence[str]) -> Curves:
    """Return histories by names such as `member 00`; the models of a grid's winner are its members."""
    return {f"{what} {name.rpartition('/')[2]}": run.history(name) for name in names}


SECTIONS = [Section("training", "Training", 80, charts=_charts)]

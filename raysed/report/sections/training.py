"""Training curves of members and learners: losses, dev scores and directions of embeddings by step."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from raysed.recipe import BASE, parse_recipe
from raysed.report.charts import BLUE, GREY, LINES, PINK, SKY, Chart
from raysed.report.results import RunResults
from raysed.report.section import Section

Curves = Mapping[str, Sequence[Mapping[str, Any]]]
"""Records by training: `step` and, where measured, `loss`, `dev` (x100) and others."""
_FEW_RECORDS, _MAX_RECORDS = 15, 80
"""Curves with few records mark each one; longer curves show an even sample of at most 80."""
_MEASURES = {
    "loss": "training loss",
    "held_out": "loss on held-out sentences",
    "dev": "dev score x100",
    "directions": "directions of the embeddings (few: collapsed)",
}


def training_chart(node: str, curves: Curves, references: Mapping[str, float] | None = None) -> Chart | None:
    """Chart a node's trainings, a panel per measure; `references` are horizontal lines in the dev panel."""
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
        panels.append(partial(_draw, label=label, points=points, references=(references or {}) if key == "dev" else {}))
        first, last = (statistics.fmean(xy_2R[1, i] for xy_2R in points.values()) for i in (0, -1))
        ends.append(f"{key} {first:.3g} to {last:.3g}")
    average = ", on average" * (len(curves) > 1)
    return Chart(f"training-{node}", f"Training of {node}{average}: {', '.join(ends)}", panels) if panels else None


def _draw(axes: Any, label: str, points: Mapping[str, np.ndarray], references: Mapping[str, float]) -> None:
    are_many = len(points) > len(LINES)
    for (name, xy_2R), (colour, line) in zip(points.items(), [(BLUE, "-")] * len(points) if are_many else LINES):
        count = xy_2R.shape[1]
        x_R, y_R = xy_2R[:, np.unique(np.linspace(0, count - 1, _MAX_RECORDS).round().astype(int))]
        look = {"linewidth": 1, "alpha": 0.5} if are_many else {"label": name}
        axes.plot(x_R, y_R, line, color=colour, marker="." if count <= _FEW_RECORDS else None, **look)
    for (name, value), (colour, line) in zip(references.items(), ((GREY, "--"), (PINK, ":"), (SKY, "-."))):
        axes.axhline(value, color=colour, linestyle=line, zorder=1, label=f"{name}: {value:.1f}")
    is_logarithmic = label == _MEASURES["loss"] and min(xy_2R[1].min() for xy_2R in points.values()) > 0
    if is_logarithmic:
        axes.set_yscale("log", subs=(2, 3, 5))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.set(title=label, xlabel="steps")


def _charts(data: None, run: RunResults) -> Iterator[Chart | None]:
    """Yield a chart for each node's members and for each distilling recipe's learners."""
    of_dev = run.scores.groups_of(run.config.evaluation.dev)
    base = {"base": of_dev[BASE, "base"]["mean"]} if (BASE, "base") in of_dev else {}
    for node, names in run.facts.members.items():
        yield training_chart(node, _curves(run, "member", names), base)
    for text in dict.fromkeys(recipe.uncalibrated for recipe in run.job.recipes if recipe.distils):
        node = parse_recipe(text).ensemble
        others = {"members, mean": (node, "member"), "full ensemble": (node, "ensemble")}
        references = base | {name: of_dev[group]["mean"] for name, group in others.items() if group in of_dev}
        names = [model.weights for model in run.models if model.recipe == text]
        yield training_chart(text, _curves(run, "learner", names), references)


def _curves(run: RunResults, what: str, names: Sequence[str]) -> Curves:
    """Return histories by names such as `member 00`; a grid's members are its winner's models."""
    return {f"{what} {name.rpartition('/')[2]}": run.history(name) for name in names}


SECTIONS = [Section("training", "Training", 80, blocks=_charts)]

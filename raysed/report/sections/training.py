"""The trainings of members and learners: losses, dev scores and the directions of embeddings over the updates."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from raysed.recipe import BASE, parse_recipe
from raysed.registry import stages
from raysed.report.charts import Axis, Chart, Colour, Panel, Series, curve_mark
from raysed.report.results import Run
from raysed.report.scores import Group, Scores
from raysed.report.section import Section
from raysed.score.tasks import score_by

Curve = tuple[np.ndarray, np.ndarray]
"""Updates [R] and values [R]."""


@dataclass(frozen=True)
class Training:
    """Like trainings: a chart each, because losses of different kinds do not compare.

    Attributes:
        what: they are, e.g. `member` or `learner`.
        curves: name to the records of a training: `step` and, where measured, `loss`, `dev` (x100) and others.
        references: name to dev score (x100) of models to compare with, three at most.
    """

    what: str
    curves: Mapping[str, Sequence[Mapping[str, Any]]]
    references: Mapping[str, float] = field(default_factory=dict)
    criterion: str = "spearman"

    @cached_property
    def panels(self) -> dict[str, tuple[str, dict[str, Curve]]]:
        """By what was measured its name for an axis, and by training its curve."""
        labels = {
            "loss": "training loss",
            "held_out": "loss on held-out sentences",
            "dev": f"dev {self.criterion.title()} x100",
            "directions": "directions of the embeddings (few: collapsed)",
        }
        panels = {}
        for key, label in labels.items():
            found = {name: _curve(records, key) for name, records in self.curves.items()}
            if curves := {name: curve for name, curve in found.items() if len(curve[0])}:
                panels[key] = (label, curves)
        return panels

    def set_off(self) -> dict[str, tuple[Colour, str]]:
        """Return colour and line of the trainings that end highest and lowest, the same in all panels."""
        _, curves = self.panels.get("dev") or next(iter(self.panels.values()))
        ranked = sorted(curves, key=lambda name: curves[name][1][-1], reverse=True)
        return {ranked[0]: ("orange", "-"), **({ranked[-1]: ("green", "--")} if len(ranked) > 1 else {})}


def _curve(records: Sequence[Mapping[str, Any]], key: str) -> Curve:
    points = [(record["step"], record[key]) for record in records if record.get(key) is not None]
    x_R, y_R = np.array(points, dtype=np.float64).reshape(-1, 2).T
    return x_R[np.isfinite(y_R)], y_R[np.isfinite(y_R)]


def training_chart(node: str, training: Training) -> Chart | None:
    """Return the curves of like trainings of a node, a panel for each thing that was measured."""
    if not training.panels:
        return None
    panels, ends, styles = [], [], training.set_off()
    for key, (label, curves) in training.panels.items():
        others = [name for name in curves if name not in styles]
        series = [_series(name, curves[name], ("blue", "-"), "the others" * (name == others[0])) for name in others]
        for name in (name for name in styles if name in curves):
            series.append(_series(name, curves[name], styles[name], f"{name}, ends at {curves[name][1][-1]:.3g}"))
        references = training.references if key == "dev" else {}
        values = np.concatenate([y_R for _, y_R in curves.values()])
        x = Axis.of("updates", np.concatenate([x_R for x_R, _ in curves.values()]))
        y = Axis.of(label, [*values, *references.values()], key == "loss" and values.min() > 0)
        panels.append(Panel(x, y, series, references=references))
        first, last = (float(np.mean([y_R[i] for _, y_R in curves.values()])) for i in (0, -1))
        ends.append(f"{key} {first:.3g} to {last:.3g}")
    count = len(training.curves)
    of_whom = f"1 {training.what}" if count == 1 else f"{count} {training.what}s, on average"
    title = f"Training of {node}, {of_whom}: {', '.join(ends)}"
    return Chart(f"training-{node}", title, panels, is_stacked=True)


def _series(name: str, curve: Curve, style: tuple[Colour, str], legend: str) -> Series:
    x_R, y_R = curve
    weight = "faint" if style[0] == "blue" else ""
    texts = [f"{name}, update {x:,.0f}: {y:.4g}" for x, y in zip(x_R, y_R)]
    return Series(x_R, y_R, style[0], legend, texts, curve_mark(len(x_R)), style[1], weight)


def dev_scores(
    scores: Scores, dev: str | None, groups: Mapping[str, Group], criterion: str = "spearman"
) -> dict[str, float]:
    """Return the mean dev scores of groups of like models, as far as there are any; equal embeddings have none."""
    found = {}
    for name, group in groups.items():
        rows = [row for row in scores.counted if (row.recipe, row.kind) == group and dev in row.metrics]
        values = [score_by(row.metrics[dev], criterion) for row in rows]
        if values := [value for value in values if value is not None]:
            found[name] = statistics.fmean(values)
    return found


def _charts(run: Run, data: None) -> list[Chart | None]:
    """Return the trainings of the members of every node, and of the learners of every recipe that distils."""
    found, dev = {}, run.config.evaluation.dev
    for node, names in run.facts.members.items():
        stage = node.rpartition("-")[2]
        criterion = stages()[stage].criterion(getattr(run.config, stage))
        base = dev_scores(run.scores, dev, {"base": (BASE, "base")}, criterion)
        found[node] = Training("member", _curves(run, "member", names), base, criterion)
    for text in dict.fromkeys(recipe.uncalibrated for recipe in run.job.recipes if recipe.distils):
        node = parse_recipe(text).ensemble
        others = {"base": (BASE, "base"), "members, mean": (node, "member"), "full ensemble": (node, "ensemble")}
        curves = _curves(run, "learner", [model.weights for model in run.models if model.recipe == text])
        found[text] = Training("learner", curves, dev_scores(run.scores, dev, others))
    return [training_chart(node, training) for node, training in found.items()]


def _curves(run: Run, what: str, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Histories by `member 00` and the like; the models of a grid's winner are its members."""
    return {f"{what} {name.rpartition('/')[2]}": run.history(name) for name in names}


SECTIONS = [Section("training", "Training", 80, charts=_charts)]

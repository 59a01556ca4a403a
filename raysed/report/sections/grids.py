"""Grids of lower bounds: which bound won, by how much, and whether that is more than noise."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysed.report.charts import Axis, Chart, Panel, Series
from raysed.report.document import Report
from raysed.report.section import Block, Section
from raysed.store.text import Table, number

_CRITERIA = {"spearman": "Spearman correlation", "pearson": "Pearson correlation"}


def _tables(grids: Sequence[Mapping[str, Any]], report: Report) -> Iterator[Block]:
    for grid in grids:
        yield _words(grid)
        lines = []
        for bound in sorted(grid["bounds"], key=lambda bound: bound["lower_bound"]):
            note = {grid["winner"]: "chosen", grid["runner_up"]: "next"}.get(bound["lower_bound"], "")
            if bound["stopped_at"] is not None:
                note = f"stopped after update {bound['stopped_at']:,}"
            std = bound["std"] if len(bound["scores"]) > 1 else None
            numbers = [number(bound["max"]), number(bound["mean"]), number(std)]
            lines.append([f"{bound['lower_bound']:g}", str(len(bound["scores"])), *numbers, note])
        yield Table(["lower bound", "models", "max", "mean", "std", "note"], lines)


def _words(grid: Mapping[str, Any]) -> str:
    score = f"{grid['statistic']} {_CRITERIA[grid['criterion']]} of its models on {grid['task']}, {grid['score']:.2f}"
    words = f"`{grid['recipe']}`: the lower bound {grid['winner']:g} was chosen for the {score}"
    if grid["runner_up"] is None:
        words += f"; no other was {'trained to the end' if len(grid['bounds']) > 1 else 'tried'}."
    else:
        words += f"; that is {grid['margin']:.2f} above the next bound, {grid['runner_up']:g}{_noise(grid)}."
    if grid["scheduler"] != "none":
        share = grid["updates"] / grid["updates_full"]
        words += f" Bounds that fell behind were stopped early: {grid['updates']:,} updates were made instead of "
        words += f"{grid['updates_full']:,} ({share:.0%})."
    return words


def _noise(grid: Mapping[str, Any]) -> str:
    """The margin against what chance does to it."""
    bounds = {bound["lower_bound"]: bound for bound in grid["bounds"]}
    winner, next_ = bounds[grid["winner"]], bounds[grid["runner_up"]]
    if min(len(winner["scores"]), len(next_["scores"])) < 2:
        return "; with one model per bound, nothing can be said about chance"
    if grid["statistic"] == "mean":
        error = math.sqrt(sum(bound["std"] ** 2 / len(bound["scores"]) for bound in (winner, next_)))
        measure = f"the standard error of this difference is {error:.2f}"
    else:
        error = winner["std"]
        measure = f"the bound's models have a standard deviation of {error:.2f}"
    if grid["margin"] < error or not grid["margin"]:
        return f"; {measure}, so the choice is within noise"
    return f"; {measure}{', so the choice is clear' if grid['margin'] >= 2 * error else ''}"


def grid_chart(grid: Mapping[str, Any]) -> Chart | None:
    """Return the dev scores against the lower bounds: a dot per model, and a line of means with their spread.

    Bounds that were stopped early are hollow, and not part of the line: their scores are those of fewer updates.
    """
    bounds = sorted((bound for bound in grid["bounds"] if bound["scores"]), key=lambda bound: bound["lower_bound"])
    if len(bounds) < 2:
        return None
    series = []
    whole = [bound for bound in bounds if bound["stopped_at"] is None]
    if len(whole) > 1:
        x, mean, std = (np.array([bound[key] or 0.0 for bound in whole]) for key in ("lower_bound", "mean", "std"))
        texts = [f"{bound['lower_bound']:g}, mean: {bound['mean']:.2f}" for bound in whole]
        name = "mean ± standard deviation" if std.any() else "mean"
        series.append(Series(x, mean, "blue", name, texts, mark="none", line="-", spread=std))
    series += [_bound_series(bound, grid["winner"]) for bound in bounds]
    x = Axis.of("lower bound of the target", [bound["lower_bound"] for bound in bounds])
    y = Axis.of(f"{grid['task']}, {grid['criterion'].title()} x100", [s for bound in bounds for s in bound["scores"]])
    title = f"{grid['recipe']}: lower bound {grid['winner']:g} wins, {grid['statistic']} {grid['score']:.2f}"
    if grid["runner_up"] is not None:
        title += f"; {grid['margin']:.2f} above the next, {grid['runner_up']:g}"
    return Chart(f"grid-{grid['recipe']}", title, [Panel(x, y, series)])


def _bound_series(bound: Mapping[str, Any], winner: float) -> Series:
    stopped, value = bound["stopped_at"], bound["lower_bound"]
    colour, name, mark = ("orange", f"chosen: {value:g}", "dot") if value == winner else ("blue", "a model", "dot")
    if stopped is not None:
        colour, name, mark = "grey", "stopped early (score of fewer updates)", "ring"
    y = np.array(bound["scores"])
    after = "" if stopped is None else f", stopped after update {stopped:,}"
    texts = [f"{value:g}: {score:.2f}{after}" for score in bound["scores"]]
    return Series(np.full(len(y), value), y, colour, name, texts, mark)


SECTIONS = [
    Section(
        "grids",
        "Lower bounds",
        35,
        lambda run: run.facts.grids,
        charts=lambda run, grids: map(grid_chart, grids),
        tables=_tables,
        is_part=True,
    )
]

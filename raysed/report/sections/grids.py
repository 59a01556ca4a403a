"""Grids of lower bounds: which bound won, by how much, and whether that exceeds noise."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raysed.report.charts import BLUE, ORANGE, Chart
from raysed.report.results import RunResults
from raysed.report.section import Block, Section
from raysed.store.text import Table, number


def _grids(run: RunResults) -> list[dict[str, Any]]:
    """Return the grids with the measures of their dev tasks."""
    dev = {grid["task"]: run.evaluation.tasks[grid["task"]] for grid in run.facts.grids}
    measures = {name: "Spearman correlation" if task.kind == "pairs" else task.measure for name, task in dev.items()}
    return [{**grid, "measure": measures[grid["task"]]} for grid in run.facts.grids]


def _blocks(grids: Sequence[Mapping[str, Any]], run: RunResults) -> Iterator[Block]:
    yield from map(grid_chart, grids)
    for grid in grids:
        score = f"mean {grid['measure']} of its models on {grid['task']}, {grid['score']:.2f}"
        words = f"`{grid['recipe']}`: the lower bound {grid['winner']:g} was chosen for the {score}"
        if grid["runner_up"] is not None:
            words += f"; that is {grid['margin']:.2f} above the next bound, {grid['runner_up']:g}{_noise(grid)}"
        yield f"{words}."
        notes = {grid["runner_up"]: "next", grid["winner"]: "chosen"}
        columns = {
            "lower bound": lambda bound: f"{bound['lower_bound']:g}",
            "models": lambda bound: str(len(bound["scores"])),
            "max": lambda bound: number(bound["max"]),
            "mean": lambda bound: number(bound["mean"]),
            "std": lambda bound: number(bound["std"] if len(bound["scores"]) > 1 else None),
            "note": lambda bound, notes=notes: notes.get(bound["lower_bound"], ""),
        }
        yield Table.of(sorted(grid["bounds"], key=lambda bound: bound["lower_bound"]), columns)


def _noise(grid: Mapping[str, Any]) -> str:
    """Compare the margin of means with its standard error if both bounds have several models."""
    bounds = {bound["lower_bound"]: bound for bound in grid["bounds"]}
    pair = [bounds[grid["winner"]], bounds[grid["runner_up"]]]
    if min(len(bound["scores"]) for bound in pair) < 2:
        return ""
    error = sum(bound["std"] ** 2 / len(bound["scores"]) for bound in pair) ** 0.5
    within = ", so the choice is within noise" if grid["margin"] <= error else ""
    return f"; the standard error of this difference is {error:.2f}{within}"


def grid_chart(grid: Mapping[str, Any]) -> Chart | None:
    """Chart dev scores by lower bound: a dot per model, and a line through the means."""
    bounds = sorted((bound for bound in grid["bounds"] if bound["scores"]), key=lambda bound: bound["lower_bound"])
    if len(bounds) < 2:
        return None

    def draw(axes: Any) -> None:
        axes.plot(*zip(*((bound["lower_bound"], bound["mean"]) for bound in bounds)), color=BLUE, label="mean")
        for bound in bounds:
            value, scores = bound["lower_bound"], bound["scores"]
            colour, name = (ORANGE, f"chosen: {value:g}") if value == grid["winner"] else (BLUE, "a model")
            axes.plot([value] * len(scores), scores, "o", markersize=5, color=colour, label=name)
            axes.annotate(f"{bound['mean']:.1f}", (value, max(scores)), (0, 5), textcoords="offset points", ha="center")
        axes.margins(y=0.12)
        axes.set(xlabel="lower bound of the target", title=f"{grid['task']}, {grid['measure']} x100")

    title = f"{grid['recipe']}: lower bound {grid['winner']:g} wins, mean {grid['score']:.2f}"
    return Chart(f"grid-{grid['recipe']}", title, [draw])


SECTIONS = [
    Section(
        "grids",
        "Lower bounds",
        13,
        _grids,
        blocks=_blocks,
        is_part=True,
    )
]

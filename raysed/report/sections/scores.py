"""Scores: the headline table with its chart, and scores by task, pooled layers and width."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raysed.registry import stages_of_pairs
from raysed.report.charts import BLUE, GREEN, GREY, INK, ORANGE, Chart
from raysed.report.results import RunResults
from raysed.report.scores import NO_LABELS, ScoreTable, display_name, labels_of, stages_of, task_names, titled
from raysed.report.section import Block, Section
from raysed.score.tasks import main_score
from raysed.store.text import Table, number

_COLOURS = {"member": BLUE, "ensemble": ORANGE, "learner": GREEN}

_FITTED_ON = {
    "tasks": "the sentences of the tasks (without gold scores): expect less on other text",
    "corpus": "the corpus, not on the tasks",
}


def headline_table(scores: ScoreTable) -> Table:
    """Return the main result as a table (like SED tables 3 and 4), without columns that the run does not fill.

    Groups not scored on all headline tasks come last; baselines scored on none are omitted.
    """
    fitting = [row for row in scores.counted if row.kind != "baseline" or set(scores.tasks) & set(row.metrics)]
    counts = Counter((row.recipe, row.kind) for row in fitting if row.kind != "grid")
    groups = {group: scores.groups.get(group) or {"n": counts[group]} for group in [*scores.groups, *counts]}

    columns = {
        "models": [scores.known_as(group, display_name(*group, entry["n"])) for group, entry in groups.items()],
        "mean": [number(entry.get("mean")) for entry in groups.values()],
        "95 %": [f"{entry['low']:.1f} to {entry['high']:.1f}" if "low" in entry else "-" for entry in groups.values()],
        "max": [number(entry.get("max") if entry["n"] > 1 else None) for entry in groups.values()],
        "std": [number(entry.get("std") if entry["n"] > 1 else None) for entry in groups.values()],
        "n": [str(entry["n"]) for entry in groups.values()],
    }
    tasks = task_names(scores.rows)
    for task in tasks if len(tasks) > 1 else ():
        of_task = scores.groups_of(task)
        columns[task] = [number(of_task.get(group, {}).get("mean")) for group in groups]
    columns |= {
        "recipe": [recipe for recipe, _ in groups],
        "labels": [labels_of(recipe, scores.labels) for recipe, _ in groups],
        "fitted on": [scores.fitted_on or "-" if stages_of(recipe)[1] else "-" for recipe, _ in groups],
    }
    empty = {"labels": {NO_LABELS}} | {head: {"-"} for head in ("fitted on", "95 %", "max", "std")}
    columns = {head: cells for head, cells in columns.items() if not set(cells) <= empty.get(head, set())}
    return Table(list(columns), list(zip(*columns.values())), names=[":".join(["scores", *group]) for group in groups])


def layers_table(scores: ScoreTable) -> Table:
    """Return mean headline scores by pooled layers (SED table 8) for models scored at several depths."""
    depths = {row.layers for row in scores.rows if row.kind != "baseline"}
    by_depth = {
        _depth_name(depth): replace(scores, main_layers=depth, draws={}).groups
        for depth in sorted(depths, key=lambda depth: (isinstance(depth, str), depth))
    }
    several = [group for group in scores.groups if sum(group in groups for groups in by_depth.values()) > 1]
    columns = {
        "models": lambda group: display_name(*group, scores.groups[group]["n"]),
        "recipe": lambda group: group[0],
    }
    for name, groups in by_depth.items():
        columns[name] = lambda group, groups=groups: number(groups.get(group, {}).get("mean"))
    return Table.of([group for group in several if group[1] != "baseline"], columns, text=2)


def widths_table(found: Sequence[Mapping[str, Any]], run: RunResults) -> Table:
    """Return the mean score of each recipe's learners by width, with a line per dev or headline task."""
    widths, lines = sorted({entry["width"] for entry in found}), []
    for recipe in dict.fromkeys(entry["recipe"] for entry in found):
        own = [[entry for entry in found if (entry["recipe"], entry["width"]) == (recipe, width)] for width in widths]
        for task in dict.fromkeys(filter(None, [run.config.evaluation.dev, *run.scores.tasks])):
            scores = [[main_score(entry["metrics"][task]) for entry in of_width] for of_width in own]
            means = [number(None if None in some else statistics.fmean(some)) for some in scores]
            lines.append([display_name(recipe, "learner", len(own[0])), recipe, task, *means])
    return Table(["models", "recipe", "task", *map(str, widths)], lines, text=3)


def _widths(run: RunResults) -> list[dict[str, Any]]:
    """Score learners on all tasks with embeddings cut to `sed.widths`, and in full."""
    found = []
    for model in run.models if run.config.sed.widths else ():
        if model.kind == "learner":
            x_UD = np.asarray(run.embeddings(model))
            for width in (*run.config.sed.widths, x_UD.shape[1]):
                about = {"recipe": model.recipe, "index": model.index, "width": width}
                found.append({**about, "metrics": run.evaluation.score(x_UD[:, :width]).metrics})
    return found


def _depth_name(layers: int | str) -> str:
    if isinstance(layers, str):
        return layers.replace("_", " + ") + " layer"
    return f"{layers} layer{'s' * (layers > 1)}"


def scores_chart(scores: ScoreTable) -> Chart | None:
    """Chart a band per group: a dot per model, the mean as a bar and a number, and its interval as a line."""
    if not scores.groups:
        return None

    def draw(axes: Any) -> None:
        for place, (group, entry) in enumerate(scores.groups.items()):
            y = place + 0.7
            name = scores.known_as(group, titled(*group, entry["n"]))
            for x, text, side in ((0, name, "left"), (1, f"{entry['mean']:.1f}", "right")):
                axes.text(x, place + 0.3, text, transform=axes.get_yaxis_transform(), ha=side, va="center")
            if "low" in entry:
                axes.plot([entry["low"], entry["high"]], [y, y], color=GREY, alpha=0.6)
            averages = [row.average(scores.tasks) for row in scores.rows_of(group)]
            values = sorted(average for average in averages if average is not None)
            # Without a spread, equal scores would hide each other.
            spread_M = y + np.linspace(-0.1, 0.1, len(values)) * (len(values) > 1)
            axes.plot(values, spread_M, "o", markersize=5, color=_COLOURS.get(group[1], GREY), alpha=0.8)
            if len(values) > 1:
                axes.plot(entry["mean"], y, "|", markersize=12, markeredgewidth=1.5, color=INK)
        axes.set(xlabel=f"{scores.measure}; bar: mean, line: its 95 % interval")
        axes.set(ylim=(len(scores.groups), 0), yticks=[])

    means, counts = ({group: entry[key] for group, entry in scores.groups.items()} for key in ("mean", "n"))
    best, own = max(means, key=means.__getitem__), scores.exported
    title = f"Best: {titled(*best, counts[best])} {means[best]:.1f}"
    if own and best != (own.recipe, own.kind) and own.average(scores.tasks) is not None:
        title += f"; this model: {own.average(scores.tasks):.1f}"
    return Chart("scores", title, [draw], 0.8 + 0.36 * len(scores.groups))


def _headline(data: None, run: RunResults) -> Iterator[Block]:
    scores = run.scores
    yield (
        f"{scores.measure}; {_depth_name(scores.main_layers)} pooled. 95 %: the interval of the mean over the sampling "
        "of pairs and seeds."
    )
    yield f"{'; '.join(f'{task}: {size}, {scores.measures[task]}' for task, size in scores.sizes.items())}."
    if scores.fitted_on and any(stages_of(recipe)[1] for recipe, _ in scores.groups):
        text = _FITTED_ON.get(scores.fitted_on, scores.fitted_on)
        if text in stages_of_pairs():
            text = f"the sentences of `{text}.train`, not of the tasks"
        yield f"Calibrations were fitted on {text}."
    yield headline_table(scores)
    yield scores_chart(scores)


SECTIONS = [
    Section("scores", "Scores", 10, blocks=_headline),
    Section("layers", "By pooled layers", 11, blocks=lambda _, run: [layers_table(run.scores)], is_part=True),
    Section(
        "widths",
        "By width",
        12,
        _widths,
        'Scores of embeddings cut to their first coordinates, as with `SentenceTransformer("model", truncate_dim=…)`; '
        "the learners were trained for these widths.",
        lambda found, run: [widths_table(found, run)],
        is_part=True,
    ),
]

"""The scores: the headline table with its chart, and the same by task, pooled layers, width and aggregation."""

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raysed.report.charts import Axis, Chart, Colour, Panel, Series
from raysed.report.document import Report
from raysed.report.findings import anchor
from raysed.report.results import Run
from raysed.report.scores import (
    NO_LABELS,
    Group,
    Groups,
    Scores,
    calibration_of,
    display_name,
    labels_of,
    task_names,
    titled,
)
from raysed.report.section import Block, Section
from raysed.score.tasks import main_score
from raysed.store.text import Table, number

KIND_COLOURS: Mapping[str, Colour] = dict(
    baseline="grey", base="grey", member="blue", ensemble="orange", learner="green"
)
_RETRIEVAL = {"ndcg@10": "nDCG@10", "mrr@10": "MRR@10", "map": "MAP", "recall@10": "recall@10"}
_MEASURES = {
    "retrieval": _RETRIEVAL | {"recall@100": "recall@100"},
    "classification": {"accuracy": "accuracy", "macro_f1": "macro F1"},
}
"""Measures beside the score of a task, by its kind."""


def headline_table(scores: Scores) -> Table:
    """Return the main result as a table (shaped like SED tables 3 and 4), with the columns that the run has.

    Groups that have no score on all headline tasks follow at the end; a baseline that fits none of them is left out.
    """
    tasks = scores.tasks if len(scores.tasks) > 1 else []
    means = {(entry["recipe"], entry["kind"], entry["task"]): entry["mean"] for entry in scores.summary}
    labelled = _has_labels(scores)
    calibrated = scores.fitted_on is not None and any(calibration_of(recipe) for recipe, _ in scores.groups)
    fitting = [row for row in scores.counted if row.kind != "baseline" or set(scores.tasks) & set(row.metrics)]
    counts = Counter((row.recipe, row.kind) for row in fitting if row.kind != "grid")
    groups = [*scores.groups, *(group for group in counts if group not in scores.groups)]
    lines = []
    for recipe, kind in groups:
        entry = scores.groups.get((recipe, kind)) or {"n": counts[recipe, kind]}
        line = [display_name(recipe, kind, entry["n"]), recipe]
        line += [labels_of(recipe, scores.labels)] if labelled else []
        line += [scores.fitted_on if calibration_of(recipe) else "-"] if calibrated else []
        line += [number(entry.get("max")), number(entry.get("mean"))]
        line += [f"{entry['low']:.1f} to {entry['high']:.1f}" if "low" in entry else "-"] if scores.draws else []
        line += [number(entry.get("std") if entry["n"] > 1 else None), str(entry["n"])]
        lines.append([*line, *(number(means.get((recipe, kind, task))) for task in tasks)])
    header = ["models", "recipe", *["labels"] * labelled, *["fitted on"] * calibrated]
    header += ["max", "mean", *["95 %"] * bool(scores.draws), "std", "n", *tasks]
    return Table(header, lines, names=[anchor("scores", *group) for group in groups])


def layers_table(scores: Scores) -> Table:
    """Return the mean headline score by pooled layers (SED table 8) of models that were scored at several depths."""
    cells: dict[Group, dict[int | str, list[float]]] = {}
    for row in scores.rows:
        average = row.average(scores.tasks)
        if row.kind not in ("baseline", "grid") and average is not None and not row.left_out:
            cells.setdefault((row.recipe, row.kind), {}).setdefault(row.layers, []).append(average)
    cells = {group: by_layers for group, by_layers in cells.items() if len(by_layers) > 1}
    depths = {depth for by_layers in cells.values() for depth in by_layers}
    depths = sorted(depths, key=lambda depth: (isinstance(depth, str), depth))
    lines = []
    for (recipe, kind), by_layers in cells.items():
        means = [number(statistics.fmean(by_layers[depth]) if depth in by_layers else None) for depth in depths]
        lines.append([display_name(recipe, kind, max(map(len, by_layers.values()))), recipe, *means])
    return Table(["models", "recipe", *map(_depth_name, depths)], lines)


def widths_table(widths: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Table:
    """Return the mean score of a recipe's learners by width, a line per task."""
    columns = sorted({entry["width"] for entry in widths})
    lines = []
    for recipe in dict.fromkeys(entry["recipe"] for entry in widths):
        group = [entry for entry in widths if entry["recipe"] == recipe]
        name = display_name(recipe, "learner", len({entry["index"] for entry in group}))
        for task in tasks:
            by_width = [[main_score(e["metrics"][task]) for e in group if e["width"] == width] for width in columns]
            means = [number(statistics.fmean(values) if None not in values else None) for values in by_width]
            lines.append([name, recipe, task, *means])
    return Table(["models", "recipe", "task", *map(str, columns)], lines, text=3)


def _widths(run: Run) -> list[dict[str, Any]]:
    """Scores on all tasks of learners whose embeddings may be cut short, at the widths of `sed.widths` and in full."""
    found = []
    for model in run.models if run.config.sed.widths else ():
        if model.kind == "learner":
            x_UD = np.asarray(run.embeddings(model))
            for width in (*run.config.sed.widths, x_UD.shape[1]):
                about = {"recipe": model.recipe, "index": model.index, "width": width}
                found.append({**about, "metrics": run.evaluation.score(x_UD[:, :width])})
    return found


def _has_labels(scores: Scores) -> bool:
    return any(labels_of(recipe, scores.labels) != NO_LABELS for recipe, _ in scores.groups)


def _depth_name(layers: int | str) -> str:
    if isinstance(layers, str):
        return layers.replace("_", " + ") + " layer"
    return f"{layers} layer{'s' * (layers > 1)}"


def _words(data: None, report: Report) -> str:
    scores = report.scores
    words = f"{scores.measure}; {_depth_name(scores.main_layers)} pooled."
    words += " Labels are those that a recipe was trained on." if _has_labels(scores) else ""
    return words + (" 95 %: the interval of the mean over the sampling of pairs and of seeds." if scores.draws else "")


def scores_chart(scores: Scores) -> Chart | None:
    """Return a band per group with a dot per model, the mean as a bar, and its interval as a line."""
    series: list[Series] = []
    bands = []
    for place, ((recipe, kind), entry) in enumerate(scores.groups.items()):
        bands.append(f"{titled(recipe, kind, entry['n'], joint=' · ')}  {entry['mean']:.1f}")
        series += _band(scores, recipe, kind, entry, place + 0.68)
    if not bands:
        return None
    ends = np.concatenate([one.x for one in series])
    x = Axis.of(f"{scores.axis}; bar: mean, line: its 95 % interval", ends)
    means = {group: entry["mean"] for group, entry in scores.groups.items()}
    best, base = max(means, key=means.__getitem__), means.get(("base", "base"))
    title = f"Best: {display_name(*best)}{'' if best[1] in ('baseline', 'base') else f' ({best[0]})'} {means[best]:.1f}"
    title += "" if base is None or best == ("base", "base") else f", base encoder {base:.1f}"
    return Chart("scores", title, [Panel(x, Axis("", len(bands), 0), series, bands=bands)])


def _band(scores: Scores, recipe: str, kind: str, entry: Mapping[str, Any], y: float) -> list[Series]:
    rows = [row for row in scores.counted if (row.recipe, row.kind) == (recipe, kind)]
    averages = [(row.average(scores.tasks), row.index) for row in rows]
    found = [(score, f"{recipe} {index}: {score:.2f}") for score, index in averages if score is not None]
    mean = f"{display_name(recipe, kind, entry['n'])}{', mean' if entry['n'] > 1 else ''}: {number(entry['mean'])}"
    series = []
    if "low" in entry:
        mean += f" ({entry['low']:.1f} to {entry['high']:.1f})"
        ends = np.array([entry["low"], entry["high"]])
        series.append(Series(ends, np.array([y, y]), "grey", mark="none", line="-", weight="faint"))
    if entry["n"] == 1:
        return [*series, Series(np.array([entry["mean"]]), np.array([y]), KIND_COLOURS[kind], texts=[mean])]
    values, texts = zip(*sorted(found))
    spread = y + np.linspace(-0.1, 0.1, len(values))  # equal ones do not hide each other
    series.append(Series(np.array(values), spread, KIND_COLOURS[kind], texts=texts))
    return [*series, Series(np.array([entry["mean"]]), np.array([y]), "grey", texts=[mean], mark="bar")]


def _by_task(data: None, report: Report) -> Iterator[Block]:
    scores = report.scores
    columns = {task: scores.groups_of(task) for task in task_names(scores.rows)}
    yield f"{'; '.join(f'{task}: {_size_of(scores, task)}' for task in columns)}." if columns else ""
    names = [anchor("by-task", *group) for group in scores.groups]
    yield replace(_means_table(scores.groups, columns), names=names)
    for task, kind in scores.kinds.items():  # means over like models
        measures, groups = _MEASURES.get(kind, {}), {}
        for row in (row for row in scores.counted if measures and task in row.metrics and row.kind != "grid"):
            groups.setdefault((row.recipe, row.kind), []).append(row.metrics[task])
        lines = []
        for group, rows in groups.items():
            means = [number(statistics.fmean(metrics[key] for metrics in rows)) for key in measures]
            lines.append([display_name(*group, len(rows)), group[0], *means])
        if lines:
            yield f"Of {task}:"
            yield Table(["models", "recipe", *measures.values()], lines)


def _by_aggregation(data: None, report: Report) -> Iterator[Block]:
    """The headline average under each way of putting subsets together, where a task has several."""
    scores = report.scores
    if not any("subsets" in metrics for row in scores.rows for metrics in row.metrics.values()):
        return
    ways = {}
    for way in ("all", "mean", "wmean"):
        metrics = [{task: found.get(way, found) for task, found in row.metrics.items()} for row in scores.rows]
        rows = [replace(row, metrics=found) for row, found in zip(scores.rows, metrics)]
        ways[way] = replace(scores, rows=rows).groups
    yield (
        "The average of the first table with the subsets of a task put together in three ways: `all`, one correlation "
        "over all pairs; `mean` of the subsets' correlations; `wmean`, weighted by subset size."
    )
    yield _means_table(ways["mean"], ways)


def _means_table(groups: Groups, columns: Mapping[str, Groups]) -> Table:
    """A line per group, with its mean under several names."""
    lines = [
        [display_name(*group, entry["n"]), group[0], *(number(c.get(group, {}).get("mean")) for c in columns.values())]
        for group, entry in groups.items()
    ]
    return Table(["models", "recipe", *columns], lines)


def _size_of(scores: Scores, task: str) -> str:
    metrics = next(row.metrics[task] for row in scores.rows if task in row.metrics)
    if "queries" in metrics:
        without = f" ({metrics['left_out']:,} more have no relevant document)" if "left_out" in metrics else ""
        return f"{metrics['queries']:,} queries{without}, {metrics['documents']:,} documents"
    if "texts" in metrics:
        return f"{metrics['texts']:,} texts, {metrics['classes']} classes"
    pairs, subsets = f"{metrics.get('pairs', '?')} pairs", len(metrics.get("subsets", ()))
    if not subsets:
        return pairs
    left_out = len(metrics.get("subsets_left_out", ())) if metrics["aggregation"] != "all" else 0
    return f"{pairs}, {metrics['aggregation']} over {f'{subsets - left_out} of ' * bool(left_out)}{subsets} subsets"


def by_width(report: Report) -> Table:
    """Return the scores of learners by width, on the dev task and the headline tasks."""
    tasks = dict.fromkeys(filter(None, [report.dev, *report.scores.tasks]))
    return widths_table(report.data.get("widths", ()), list(tasks))


SECTIONS = [
    Section(
        "scores",
        "Scores",
        30,
        words=_words,
        charts=lambda run, _: scores_chart(run.scores),
        tables=lambda _, report: headline_table(report.scores),
    ),
    Section("by-task", "By task", 31, tables=_by_task, is_part=True),
    Section("layers", "By pooled layers", 32, tables=lambda _, report: layers_table(report.scores), is_part=True),
    Section(
        "widths",
        "By width",
        33,
        _widths,
        'Embeddings of which only the first coordinates are kept, as `SentenceTransformer("model", truncate_dim=…)` '
        "does; learners were trained for these widths.",
        tables=lambda _, report: by_width(report),
        is_part=True,
    ),
    Section("by-aggregation", "By aggregation", 34, tables=_by_aggregation, is_part=True),
]

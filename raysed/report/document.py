"""What a run found: `report.json` for programs, `report.html` and `report.md` for people.

The wording of the latter two is in `raysed/templates/`. What they show, `Report.context`, is in no format: texts,
tables as `raysed.store.text.Table`, and charts as `raysed.report.charts.Chart`.
"""

import json
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raysed.recipe import BASE, TEACHERS
from raysed.report.charts import Chart
from raysed.report.failures import changes_table, failures_table
from raysed.report.findings import Finding, Number, conclusions, in_words
from raysed.report.formats import formats_table
from raysed.report.results import (
    BY_TASK,
    LEARNERS,
    LEFT_OUT,
    NO_LABELS,
    SCORES,
    Group,
    Groups,
    Results,
    calibration_of,
    display_name,
    labels_of,
    line_name,
    task_names,
)
from raysed.report.teachers import teachers_table
from raysed.report.widths import widths_table
from raysed.score.transfer import SED_TASKS, main_score
from raysed.score.unlabelled import CANNOT_BE_TOLD
from raysed.store.text import Table, duration, number, render, sentence, size
from raysed.train.collapse import COLLAPSED

_UNTOUCHED = (BASE, "base")
_CRITERIA = {"spearman": "Spearman correlation", "pearson": "Pearson correlation"}


@dataclass(frozen=True)
class Report:
    """All that the report files say."""

    run: str
    results: Results
    timings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Stage or node to what it took, see `raysed.cluster.usage`."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions and devices."""
    config: Mapping[str, Any] = field(default_factory=dict)
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """Counts: lines, empty, duplicates, too long, truncated sentences and tokens."""
    members: Sequence[Mapping[str, Any]] = ()
    """Members that were left out: recipe, index and reason."""
    views: Mapping[str, str] = field(default_factory=dict)
    """By kind of views, what is in their table and what was left out of it."""
    grids: Sequence[Mapping[str, Any]] = ()
    """A grid of lower bounds each: `recipe`; `task`, `criterion` and `statistic` that chose; `scheduler`, `updates`
    trained and `updates_full` of a whole grid; `winner`, `score`, `runner_up` and `margin` (None where there is one
    bound only); and `bounds`, each with `lower_bound`, `scores`, `mean`, `std`, `max` and `stopped_at`, the update
    after which it was not trained further, or None."""
    transfer: Sequence[Mapping[str, Any]] = ()
    """A model's transfer tasks each: `recipe`, `kind`, `index`, `layers`, `scores` (what `score_transfer` returned) and
    `average`. TF-IDF is among them, without `layers`."""
    analysis: Mapping[str, Any] = field(default_factory=dict)
    """Of the embedding space, each part where there is one: `isotropy`, by model what `analysis.isotropy` returned;
    `edit_distance`, with `task` and, as `models`, what `edit_distance_table` returned; `qnli`, the AUC by
    recipe, or by e.g. `nli/01` where there are several models of one; `frequency`, what `frequency_table` returned; and
    `unlabelled`, by model what `unlabelled_scores` returned."""
    dev: str | None = None
    """The task that choices are made on."""
    exported: str | None = None
    """Recipe of the exported model."""
    export: str = ""
    """Which model that is, or would be, and why, in a line."""
    refusal: str = ""
    """Why no model is exported, in a sentence; empty where one is."""
    worth: str = ""
    """What it is worth against the best that needs no training, in a sentence."""
    sanity: Mapping[str, int] = field(default_factory=dict)
    """`triples` of the sanity list, and how many of them `exported`, `base` and `words` answer as a person does."""
    learners: Sequence[Mapping[str, Any]] = ()
    """Of each group of learners `recipe`, `updates`, `distance` from the members' mean, and `members_distance`."""
    widths: Sequence[Mapping[str, Any]] = ()
    """Of learners whose embeddings may be cut short, see `raysed.report.widths.scores_by_width`."""
    teachers: Sequence[Mapping[str, Any]] = ()
    """Teachers from outside and what was made of them, see `raysed.report.teachers.compare`."""
    choices: Sequence[str] = ()
    """What was chosen of the teachers on the dev task, in a line each."""
    formats: Sequence[Mapping[str, Any]] = ()
    """Formats of the exported model, where others than torch's were asked for, see `raysed.report.formats`."""
    failures: Mapping[str, Any] = field(default_factory=dict)
    """Where there are graded pairs: `task`, `model` and `pairs`, what `worst_pairs` returned."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Where there are graded pairs and the chosen model is not the untouched encoder: `task`, `model`, and `better` and
    `worse`, what `changed_pairs` returned."""
    command: str = ""
    """What was typed to start the run."""
    repeat: str = ""
    """What to type to repeat it, see `how_to_repeat`."""
    plots: Mapping[str, str] = field(default_factory=dict)
    """Path relative to the report to what the picture shows."""
    charts: Mapping[str, Chart] = field(default_factory=dict)
    """By the same path, the same numbers as a chart for `report.html`."""
    status: str = "complete"

    def findings(self) -> str:
        """Returns the conclusion in words; see `raysed.report.findings.conclusions`."""
        return in_words(self.conclusions())

    def conclusions(self) -> list[list[Finding]]:
        """Returns the conclusion as paragraphs of sentences, which know the numbers that they rest on."""
        *paragraphs, last = conclusions(self.results, self.dev, self.exported, self.learners)
        collapsed = [member for member in self.members if member["reason"].startswith(COLLAPSED)]
        if not collapsed:
            return [*paragraphs, last]
        by_recipe = Counter(member["recipe"] for member in collapsed)
        counts = ", ".join(f"{count} of {recipe}" for recipe, count in by_recipe.items())
        numbers = [Number(_name_of_left_out(m), f"{m['recipe']} {m['index']}", "collapsed") for m in collapsed]
        about = Finding(f"Collapsed members, left out of every mean: {counts}.", tuple(numbers))
        return [*paragraphs, [*last, about]]

    def by_width(self) -> Table:
        """Returns the scores of learners by width, on the dev task and the headline tasks."""
        return widths_table(self.widths, list(dict.fromkeys(filter(None, [self.dev, *self.results.tasks]))))

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of report.json: plain types only, a number that is not finite as None."""
        names = ("recipe", "kind", "index", "lower_bound", "layers", "metrics", "left_out")
        always = {name: getattr(self, name) for name in ("timings", "environment", "config", "corpus", "members")}
        names_of_parts = (
            "views",
            "grids",
            "transfer",
            "analysis",
            "learners",
            "widths",
            "teachers",
            "choices",
            "formats",
            "failures",
            "changes",
            "sanity",
        )
        parts = {name: getattr(self, name) for name in names_of_parts}
        parts["exported"] = {"recipe": self.exported, "why": self.export} if self.exported else {}
        parts["refused"] = {"chosen": self.export, "why": self.refusal} if self.refusal else {}
        return _plain(
            {
                "run": self.run,
                "status": self.status,
                "rows": [{name: getattr(row, name) for name in names} for row in self.results.rows],
                "summary": self.results.summary,
                **always,
                **{name: part for name, part in parts.items() if part},
                "findings": self.findings(),
            }
        )

    def to_json(self) -> str:
        """Returns report.json as text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Returns report.md as text: the findings first, then what they rest on."""
        return render("report.md", **self.context())

    def to_html(self) -> str:
        """Returns report.html as text: the same in one file, with charts, and links from sentences to numbers."""
        return render("report.html", **self.context())

    def context(self) -> dict[str, Any]:
        """Returns what a template shows, whatever it makes of it; a part that the run lacks is false."""
        results, analysis = self.results, self.analysis
        by_task = {task: results.groups_of(task) for task in task_names(results.rows)}
        edit_distance = analysis.get("edit_distance") or {"task": None, "models": {}}
        return {
            "run": self.run,
            "status": self.status,
            "findings": self.findings(),
            "conclusions": self.conclusions(),
            "export": self.export,
            "refusal": sentence(self.refusal),
            "sanity": sentence(sanity_words(self.sanity)) if self.sanity else "",
            "worth": self.worth,
            "measure": results.measure,
            "measures": _further_measures(results),
            "depth": _depth_name(results.main_layers),
            "has_labels": any(labels_of(row.recipe, results.labels) != NO_LABELS for row in results.rows),
            "has_intervals": bool(results.draws),
            "scores": headline_table(results),
            "pictures": list(self.plots.items()),
            "charts": self.charts,
            "learners": learners_table(self.learners),
            "by_layers": layers_table(results),
            "by_width": self.by_width(),
            "pairs": [f"{task}: {_size_of(results, task)}" for task in by_task],
            "unlabelled": unlabelled_table(analysis.get("unlabelled") or {}),
            "unlabelled_sentences": f"{_sentences_of(analysis.get('unlabelled') or {}):,}",
            "neighbours": neighbours_table(analysis.get("unlabelled") or {}),
            "nearest": _nearest(analysis.get("unlabelled") or {}),
            "exported": self.exported,
            "cannot_be_told": CANNOT_BE_TOLD,
            "by_task": _by_task_table(results, by_task),
            "by_aggregation": _aggregation_table(results),
            "grids": [{"words": _grid_words(grid), "table": _grid_table(grid)} for grid in self.grids],
            "teachers": teachers_table(self.teachers),
            "choices": self.choices,
            "searches": any("searches" in model for model in self.teachers),
            "formats": formats_table(self.formats, self.dev),
            "failures": failures_table(self.failures.get("pairs", ())),
            "failures_of": f"{self.failures['model']} on {self.failures['task']}" if self.failures else "",
            "changes_of": f"{self.changes['model']} on {self.changes['task']}" if self.changes else "",
            "changes": {kind: changes_table(self.changes.get(kind, ())) for kind in ("better", "worse")},
            "transfer": _transfer_table(self.transfer),
            "isotropy": _isotropy_table(analysis.get("isotropy") or {}),
            "edit_distance_task": edit_distance["task"],
            "edit_distance": _edit_distance_table(edit_distance["models"]),
            "qnli": _qnli_table(analysis.get("qnli") or {}),
            "frequency": _frequency_table(analysis.get("frequency") or []),
            "corpus": Table(["what", "count"], [[key.replace("_", " "), count] for key, count in _flat(self.corpus)]),
            "views": Table(["kind", "what"], list(self.views.items())),
            "left_out": Table(
                ["recipe", "member", "reason"],
                [[str(member.get(key, "")) for key in ("recipe", "index", "reason")] for member in self.members],
                names=[_name_of_left_out(member) for member in self.members],
            ),
            "time": _time_table(self.timings),
            "environment": Table(["what", "value"], _flat(self.environment)),
            "repeat": self.repeat,
            "command": self.command,
        }


# -- tables of scores ------------------------------------------------------------------------------------------------


def headline_table(results: Results) -> Table:
    """Returns the main result as a table (shaped like SED table 3).

    Where a recipe trains on labels, a column says which (SED table 4); where one ends in a calibration, what that was
    fitted on; with resampled scores one has the 95 % interval of the mean. Where there are several headline tasks, each
    has a column with the mean of its group. Groups that have no score on all of them follow at the end; a baseline that
    fits none of them is left out.
    """
    tasks = results.tasks if len(results.tasks) > 1 else []
    means = {(entry["recipe"], entry["kind"], entry["task"]): entry["mean"] for entry in results.summary}
    labelled = any(labels_of(recipe, results.labels) != NO_LABELS for recipe, _ in results.groups)
    calibrated = results.fitted_on is not None and any(calibration_of(recipe) for recipe, _ in results.groups)
    unscored = _without_score(results)
    lines = []
    for recipe, kind in [*results.groups, *unscored]:
        entry = results.groups.get((recipe, kind)) or {"n": unscored[recipe, kind]}
        line = [display_name(recipe, kind, entry["n"]), recipe]
        line += [labels_of(recipe, results.labels)] if labelled else []
        line += [results.fitted_on if calibration_of(recipe) else "-"] if calibrated else []
        line += [number(entry.get("max")), number(entry.get("mean"))]
        line += [f"{entry['low']:.1f} to {entry['high']:.1f}" if "low" in entry else "-"] if results.draws else []
        line += [number(entry.get("std") if entry["n"] > 1 else None), str(entry["n"])]
        lines.append([*line, *(number(means.get((recipe, kind, task))) for task in tasks)])
    header = ["models", "recipe", *["labels"] * labelled, *["fitted on"] * calibrated]
    header += ["max", "mean", *["95 %"] * bool(results.draws), "std", "n", *tasks]
    return Table(header, lines, names=[line_name(SCORES, *group) for group in (*results.groups, *unscored)])


def _without_score(results: Results) -> Mapping[Group, int]:
    """How many models the groups have of which none has a score on all headline tasks: no correlation is defined.

    A baseline that fits no headline task, as BM25 where only the dev task is retrieval, is not among them.
    """
    fitting = [row for row in results.counted if row.kind != "baseline" or set(results.tasks) & set(row.metrics)]
    counts = Counter((row.recipe, row.kind) for row in fitting if row.kind != "grid")
    return {group: count for group, count in counts.items() if group not in results.groups}


def rows_that_matter(results: Results, recipe: str, kind: str, index: int) -> Table:
    """Returns what a model is to be compared with: the encoder that it comes from, and the best that costs no training.

    Where it has teachers from outside, the best of them is a line, too.
    """
    groups, own = results.groups, (recipe, kind)
    free = [group for group in groups if group[1] in ("baseline", "base") and group not in (own, _UNTOUCHED)]
    best = max(free, key=lambda group: groups[group]["mean"], default=_UNTOUCHED)
    names = {_UNTOUCHED: "the encoder before any training"}
    names |= {best: f"{display_name(*best)}: the best that needs no training"} if best != _UNTOUCHED else {}
    names |= {(TEACHERS, "member"): "the best teacher"} if recipe.startswith(TEACHERS) else {}
    names[own] = "**this model**"
    scores = {group: entry["max" if group == (TEACHERS, "member") else "mean"] for group, entry in groups.items()}
    for row in results.counted:
        if (row.recipe, row.kind, row.index) == (recipe, kind, index):
            scores[own] = row.average(results.tasks)
    lines = []
    for group, name in names.items():
        entry = groups.get(group, {"n": 0})
        ends = f"{entry['low']:.1f} to {entry['high']:.1f}" if "low" in entry and entry["n"] == 1 else "-"
        lines.append([name, number(scores.get(group)), *[ends] * bool(results.draws)])
    return Table(["model", "score", *["95 %"] * bool(results.draws)], lines, text=1)


def layers_table(results: Results) -> Table:
    """Returns the mean headline score by pooled layers (SED table 8) of models that were scored at several depths."""
    cells: dict[Group, dict[int | str, list[float]]] = {}
    for row in results.rows:
        average = row.average(results.tasks)
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


def _depth_name(layers: int | str) -> str:
    if isinstance(layers, str):
        return layers.replace("_", " + ") + " layer"
    return f"{layers} layer{'s' * (layers > 1)}"


def _size_of(results: Results, task: str) -> str:
    metrics = next(row.metrics[task] for row in results.rows if task in row.metrics)
    if "queries" in metrics:
        without = f" ({metrics['left_out']:,} more have no relevant document)" if "left_out" in metrics else ""
        return f"{metrics['queries']:,} queries{without}, {metrics['documents']:,} documents"
    if "texts" in metrics:
        return f"{metrics['texts']:,} texts, {metrics['classes']} classes"
    pairs, subsets = f"{metrics.get('pairs', '?')} pairs", len(metrics.get("subsets", ()))
    if not subsets:
        return pairs
    left_out = len(metrics.get("subsets_left_out", ())) if metrics["aggregation"] != "all" else 0
    counted = f"{subsets - left_out} of {subsets}" if left_out else f"{subsets}"
    return f"{pairs}, {metrics['aggregation']} over {counted} subsets"


def _means_table(groups: Groups, columns: Mapping[str, Groups]) -> Table:
    """A line per group, with its mean under several names."""
    lines = [
        [display_name(*group, entry["n"]), group[0], *(number(c.get(group, {}).get("mean")) for c in columns.values())]
        for group, entry in groups.items()
    ]
    return Table(["models", "recipe", *columns], lines)


def _by_task_table(results: Results, by_task: Mapping[str, Groups]) -> Table:
    table = _means_table(results.groups, by_task)
    return replace(table, names=[line_name(BY_TASK, *group) for group in results.groups])


def learners_table(learners: Sequence[Mapping[str, Any]]) -> Table:
    """Returns how far learners are from their members' mean, see `Report.learners`."""
    lines = [
        [one["recipe"], f"{one['updates']:,}", f"{one['distance']:.2g}", f"{one['members_distance']:.2g}"]
        for one in learners
    ]
    names = [line_name(LEARNERS, one["recipe"]) for one in learners]
    return Table(["recipe", "updates", "distance", "distance of the members"], lines, text=1, names=names)


_FURTHER = {
    "retrieval": {
        "ndcg@10": "nDCG@10",
        "mrr@10": "MRR@10",
        "map": "MAP",
        "recall@10": "recall@10",
        "recall@100": "recall@100",
    },
    "classification": {"accuracy": "accuracy", "macro_f1": "macro F1"},
}
"""Measures beside the score of a task, by its kind."""


def _further_measures(results: Results) -> list[tuple[str, Table]]:
    """Of every task that has several measures, a table with a line per group; means over like models."""
    tables = []
    for task, kind in results.kinds.items():
        measures, groups = _FURTHER.get(kind, {}), {}
        for row in (row for row in results.counted if measures and task in row.metrics and row.kind != "grid"):
            groups.setdefault((row.recipe, row.kind), []).append(row.metrics[task])
        lines = [
            [
                display_name(*group, len(rows)),
                group[0],
                *(number(statistics.fmean(m[key] for m in rows)) for key in measures),
            ]
            for group, rows in groups.items()
        ]
        tables += [(task, Table(["models", "recipe", *measures.values()], lines))] if lines else []
    return tables


def _aggregation_table(results: Results) -> Table:
    """The headline average under each way of putting subsets together, where a task has several."""
    if not any("subsets" in metrics for row in results.rows for metrics in row.metrics.values()):
        return Table([], [])
    ways = {way: _under(way, results).groups for way in ("all", "mean", "wmean")}
    return _means_table(ways["mean"], ways)


def _under(way: str, results: Results) -> Results:
    rows = [
        replace(row, metrics={task: metrics.get(way, metrics) for task, metrics in row.metrics.items()})
        for row in results.rows
    ]
    return replace(results, rows=rows)


# -- lower bounds ----------------------------------------------------------------------------------------------------


def _grid_table(grid: Mapping[str, Any]) -> Table:
    bounds = sorted(grid["bounds"], key=lambda bound: bound["lower_bound"])
    return Table(["lower bound", "models", "max", "mean", "std", "note"], [_bound_line(grid, b) for b in bounds])


def _bound_line(grid: Mapping[str, Any], bound: Mapping[str, Any]) -> list[str]:
    notes = {grid["winner"]: "chosen", grid["runner_up"]: "next"}
    note = notes.get(bound["lower_bound"], "")
    if bound["stopped_at"] is not None:
        note = f"stopped after update {bound['stopped_at']:,}"
    std = bound["std"] if len(bound["scores"]) > 1 else None
    numbers = [number(bound["max"]), number(bound["mean"]), number(std)]
    return [f"{bound['lower_bound']:g}", str(len(bound["scores"])), *numbers, note]


def _grid_words(grid: Mapping[str, Any]) -> str:
    """Which bound won, by how much, and whether that is more than noise."""
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


# -- transfer tasks and the embedding space --------------------------------------------------------------------------


def _transfer_table(transfer: Sequence[Mapping[str, Any]]) -> Table:
    """Means of like models, and how much their averages differ; the columns are in the order of SED table 7."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for model in transfer:
        groups.setdefault((model["recipe"], model["kind"], model["layers"]), []).append(model)
    found = dict.fromkeys(task for model in transfer for task in model["scores"])
    tasks = sorted(found, key=lambda task: SED_TASKS.index(task) if task in SED_TASKS else len(SED_TASKS))
    lines, spreads = [], []
    for (recipe, kind, layers), models in groups.items():
        columns = [[main_score(m["scores"][task]) for m in models if task in m["scores"]] for task in tasks]
        columns.append([m["average"] for m in models if m["average"] is not None])
        means = [number(statistics.fmean(values) if values else None) for values in columns]
        depth = "-" if layers is None else str(layers)
        lines.append([display_name(recipe, kind, len(models)), recipe, depth, *means])
        spreads.append(_spread(columns[-1]))
    head = ["models", "recipe", "layers", *tasks, "average"]
    return _with_spreads(head, lines, spreads)


def _qnli_table(aucs: Mapping[str, float]) -> Table:
    """Means of like models, whose names differ in the number at the end, and how much they differ."""
    groups: dict[str, list[float]] = {}
    for name, auc in aucs.items():
        groups.setdefault(name.partition("/")[0], []).append(auc)
    names = [recipe if len(values) == 1 else f"{recipe} ({len(values)})" for recipe, values in groups.items()]
    lines = [[name, number(statistics.fmean(values))] for name, values in zip(names, groups.values())]
    return _with_spreads(["models", "AUC"], lines, [_spread(values) for values in groups.values()])


def _name_of_left_out(member: Mapping[str, Any]) -> str:
    return line_name(LEFT_OUT, str(member.get("recipe", "")), str(member.get("index", "")))


def _spread(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _with_spreads(head: list[str], lines: list[list[str]], spreads: Sequence[float | None]) -> Table:
    """The table, with a column for standard deviations where there is one."""
    if all(spread is None for spread in spreads):
        return Table(head, lines)
    return Table([*head, "std"], [[*line, number(spread)] for line, spread in zip(lines, spreads)])


def _isotropy_table(models: Mapping[str, Mapping[str, float]]) -> Table:
    lines = []
    for name, found in models.items():
        cosine = round(found["cosine"], 3) + 0.0  # no minus before a zero
        lines.append([name, f"{cosine:.3f}", f"{found['effective_rank']:.1f}", f"{found['first_direction']:.1%}"])
    return Table(["models", "cosine of random pairs", "effective rank", "share of the first direction"], lines)


def _sentences_of(models: Mapping[str, Mapping[str, Any]]) -> int:
    return next((found["sentences"] for found in models.values()), 0)


def unlabelled_table(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns what can be told without labels, a line per model, of what `unlabelled_scores` returned."""
    columns = {
        "near-duplicates found": lambda found: f"{found['found']:.1f}%",
        "alignment": lambda found: f"{found['alignment']:.3f}",
        "uniformity": lambda found: f"{found['uniformity']:.2f}",
        "cosine of random pairs": lambda found: f"{round(found['cosine'], 3) + 0.0:.3f}",
        "effective rank": lambda found: f"{found['effective_rank']:.1f}",
    }
    lines = [[name, *(words(found) for words in columns.values())] for name, found in models.items()]
    return Table(["models", *columns], lines)


def neighbours_table(models: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns some sentences with the nearest other by each model, of what `unlabelled_scores` returned."""
    lines = []
    for entries in _by_sentence(models):
        firsts = [entry["nearest"][0] for entry in entries]
        nearest = [f"{near['sentence']} ({near['cosine']:.2f})" for near in firsts]
        lines.append([entries[0]["sentence"], *nearest])
    header = ["sentence", *(f"nearest by {name}" for name in models)]
    return Table(header, lines, text=len(header))


def _nearest(models: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same with all neighbours: of each `sentence`, by model a list of `sentence` and `cosine`."""
    return [
        {"sentence": entries[0]["sentence"], "by": {name: e["nearest"] for name, e in zip(models, entries)}}
        for entries in _by_sentence(models)
    ]


def _by_sentence(models: Mapping[str, Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], ...]]:
    """The models' neighbours of the same sentences."""
    return list(zip(*(found["neighbours"] for found in models.values())))


def _edit_distance_table(models: Mapping[str, Mapping[str, float]]) -> Table:
    lines = [[name, *(number(row[unit]) for unit in ("characters", "words", "gold"))] for name, row in models.items()]
    return Table(["similarity", "edit distance, characters", "edit distance, words", "gold score"], lines)


def _frequency_table(bins: Sequence[Mapping[str, Any]]) -> Table:
    if not bins:
        return Table([], [])
    lines = [["mean norm", *(number(bin_["norm"]) for bin_ in bins)]]
    measures = {"distance": "mean distance to the {} nearest words", "dot": "mean of the {} largest dot products"}
    for key, name in measures.items():
        lines += [[name.format(k), *(number(bin_[key][k]) for bin_ in bins)] for k in bins[0]["distance"]]
    return Table(["rank of frequency", *("{:,} to {:,}".format(*bin_["ranks"]) for bin_ in bins)], lines)


# -- time and the rest -----------------------------------------------------------------------------------------------

_USAGE: dict[str, tuple[str, Callable[[Mapping[str, float]], str]]] = {
    "sentences": ("sentences/s", lambda usage: f"{usage['sentences'] / max(usage['seconds'], 0.1):.0f}"),
    "object_store_bytes": ("object store", lambda usage: size(usage["object_store_bytes"])),
    "spilled_bytes": ("spilled", lambda usage: size(usage["spilled_bytes"])),
    "gpu_use": ("GPU use", lambda usage: f"{usage['gpu_use']:.0%}"),
}
"""What a stage took beside time, by its key in `timings`: the column's head and words; see `raysed.cluster.usage`."""


def _time_table(timings: Mapping[str, Mapping[str, float]]) -> Table:
    usages = {stage: usage for stage, usage in timings.items() if "seconds" in usage}
    if not usages:
        return Table([], [])
    total = sum(float(usage["seconds"]) for usage in usages.values())
    shown = {name: column for name, column in _USAGE.items() if any(usage.get(name) for usage in usages.values())}
    lines = [
        [
            stage,
            duration(float(usage["seconds"]), in_table=True),
            f"{usage['seconds'] / total:.0%}" if total else "-",
            *(words(usage) if name in usage else "-" for name, (_, words) in shown.items()),
        ]
        for stage, usage in usages.items()
    ]
    lines.append(["total", duration(total, in_table=True), "100%" if total else "-", *["-"] * len(shown)])
    return Table(["stage", "time", "share", *(head for head, _ in shown.values())], lines, has_total=True)


def sanity_words(sanity: Mapping[str, int]) -> str:
    """Returns what the sanity list says of the exported model.

    >>> sanity_words({"triples": 50, "exported": 48, "base": 40, "words": 23})
    'it answers 48 of 50 English triples correctly (untouched encoder 40, TF-IDF 23, guessing 25)'
    """
    return (
        f"it answers {sanity['exported']} of {sanity['triples']} English triples correctly (untouched encoder "
        f"{sanity['base']}, TF-IDF {sanity['words']}, guessing {sanity['triples'] // 2})"
    )


def how_to_repeat(location: str, run: str, job: Sequence[str] = ("python", "jobs/ensemble_then_distill.py")) -> str:
    """Returns what to type to do a run again, under another name, from the settings that lie in its directory.

    Args:
        location: absolute directory or URI under which run directories lie.
    """
    again = f"{run[:94]}-again"  # names have 100 characters at most
    settings, fetch = f"{location}/{run}/config.yaml", []
    if "://" in location:  # a config is a local file
        code = (
            f"from raysed.store.storage import Storage; print(Storage({location!r}, {run!r}).read_text('config.yaml'))"
        )
        settings, fetch = f"{run}.yaml", [f"{shlex.join(['python', '-c', code])} > {run}.yaml"]
    words = [*job, "--config", settings, "--run", again, "--storage", location]
    return "\n".join([*fetch, shlex.join(words)])


def _plain(value: Any) -> Any:
    """JSON types: numpy scalars and arrays unwrapped, tuples as lists, NaN and infinity as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested values by their keys, joined by dots, as text."""
    found = []
    for key, value in _plain(values).items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return found

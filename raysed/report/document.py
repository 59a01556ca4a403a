"""What a run found: `report.json` for programs, `report.md` for people.

Everything here is computed from plain rows, one per scored model, so that a table or a sentence can be
checked without training anything.
"""

import json
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raysed.evaluation.transfer import SED_TASKS, main_score
from raysed.report.findings import (
    LABELS,
    NO_LABELS,
    Draws,
    Groups,
    Row,
    calibration_of,
    display_name,
    findings,
    groups_of,
    labels_of,
    summarise,
    task_names,
)
from raysed.training.collapse import COLLAPSED

_CRITERIA = {"spearman": "Spearman correlation", "pearson": "Pearson correlation"}


def headline_table(
    rows: Sequence[Row],
    tasks: Sequence[str],
    main_layers: int | str,
    markdown: bool = False,
    labels: Mapping[str, str] = LABELS,
    draws: Draws | None = None,
    fitted_on: str | None = None,
    marked: str | None = None,
) -> str:
    """Returns the main result as a table, for the terminal or as Markdown (shaped like SED table 3).

    Where a recipe trains on labels, a column says which (SED table 4); where one ends in a calibration, what that was
    fitted on.

    Args:
        rows: scored models.
        tasks: the headline tasks; where there are several, each has a column with the mean of its group.
        main_layers: pooled layers of the headline numbers.
        markdown: a Markdown table instead of aligned plain text.
        labels: what stages train on, by stage.
        draws: resampled scores; with them a column has the 95 % interval of the mean.
        fitted_on: what calibrations have seen.
        marked: the recipe whose line is this model's own.
    """
    summary = summarise(rows, tasks, main_layers, draws)
    columns = {task: groups_of(summary, task) for task in tasks} if len(tasks) > 1 else {}
    groups = groups_of(summary)
    labelled = any(labels_of(recipe, labels) != NO_LABELS for recipe, _ in groups)
    calibrated = fitted_on is not None and any(calibration_of(recipe) for recipe, _ in groups)
    lines = []
    for (recipe, kind), entry in groups.items():
        used = [labels_of(recipe, labels)] if labelled else []
        seen = [(fitted_on if calibration_of(recipe) else "-")] if calibrated else []
        std = _number(entry["std"] if entry["n"] > 1 else None)
        values = [_mean(by_group, recipe, kind) for by_group in columns.values()]
        ends = [f"{entry['low']:.1f} to {entry['high']:.1f}" if "low" in entry else "-"] if draws else []
        numbers = [_number(entry["max"]), _number(entry["mean"]), *ends, std, str(entry["n"])]
        name = display_name(recipe, kind, entry["n"])
        if recipe == marked and kind != "ensemble":
            name = f"**{name}** (this model)" if entry["n"] == 1 else f"**{name}** (this model is one)"
        lines.append([name, recipe, *used, *seen, *numbers, *values])
    means = {(entry["recipe"], entry["kind"], entry["task"]): entry["mean"] for entry in summary}
    for (recipe, kind), count in _without_score(rows, tasks, main_layers).items():
        used = [labels_of(recipe, labels)] if labelled else []
        seen = [(fitted_on if calibration_of(recipe) else "-")] if calibrated else []
        values = [_number(means.get((recipe, kind, task))) for task in columns]
        dashes = [_number(None)] * (4 if draws else 3)
        lines.append([display_name(recipe, kind, count), recipe, *used, *seen, *dashes, str(count), *values])
    header = ["models", "recipe", *(["labels"] if labelled else []), *(["fitted on"] if calibrated else [])]
    header += ["max", "mean", *(["95 %"] if draws else []), "std", "n", *columns]
    return table_text(header, lines, markdown)


def _without_score(rows: Sequence[Row], tasks: Sequence[str], main_layers: int | str) -> Counter[tuple[str, str]]:
    """How many models the groups have of which none has a score on all headline tasks: no correlation is defined."""
    groups = Counter((row.recipe, row.kind) for row in rows if row.kind != "grid" and row.counts(main_layers))
    scored = {(row.recipe, row.kind) for row in rows if row.counts(main_layers) and row.average(tasks) is not None}
    return Counter({group: count for group, count in groups.items() if group not in scored})


def layers_table(rows: Sequence[Row], tasks: Sequence[str], markdown: bool = False) -> str:
    """Returns the mean headline score by pooled layers (SED table 8) as a table.

    Only models that were scored at more than one depth are in it; without any it is empty.
    """
    cells: dict[tuple[str, str], dict[int | str, list[float]]] = {}
    for row in rows:
        average = row.average(tasks)
        if row.kind not in ("baseline", "grid") and average is not None and not row.left_out:
            cells.setdefault((row.recipe, row.kind), {}).setdefault(row.layers, []).append(average)
    cells = {group: by_layers for group, by_layers in cells.items() if len(by_layers) > 1}
    depths = sorted({depth for by_layers in cells.values() for depth in by_layers}, key=_depth_order)
    lines = []
    for (recipe, kind), by_layers in cells.items():
        means = [statistics.fmean(by_layers[depth]) if depth in by_layers else None for depth in depths]
        n = max(len(averages) for averages in by_layers.values())
        lines.append([display_name(recipe, kind, n), recipe, *map(_number, means)])
    return table_text(["models", "recipe", *map(_depth_name, depths)], lines, markdown) if lines else ""


def _depth_order(layers: int | str) -> tuple[bool, int | str]:
    return isinstance(layers, str), layers


def _depth_name(layers: int | str) -> str:
    if isinstance(layers, str):
        return layers.replace("_", " + ") + " layer"
    return f"{layers} layer{'s' * (layers > 1)}"


def _mean(groups: Groups, recipe: str, kind: str) -> str:
    return _number(groups.get((recipe, kind), {}).get("mean"))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table_text(header: Sequence[str], lines: Sequence[Sequence[str]], markdown: bool) -> str:
    """Aligned columns: text to the left, numbers to the right."""
    table = [[" ".join(cell.split()).replace("|", "/") for cell in line] for line in (header, *lines)]
    columns = list(zip(*table))
    widths = [max(2, *map(len, column)) for column in columns]  # a Markdown rule needs a dash and a colon
    right = [all(map(_is_number, column[1:])) for column in columns]
    first, *rest = [
        [cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right)] for line in table
    ]
    rule = ["-" * (width - (r and markdown)) + ":" * (r and markdown) for width, r in zip(widths, right)]
    if markdown:
        return "\n".join(f"| {' | '.join(line)} |" for line in (first, rule, *rest))
    return "\n".join("  ".join(line).rstrip() for line in (first, rule, *rest))


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.removesuffix("%").replace(".", "", 1).removeprefix("-").isdigit()


@dataclass(frozen=True)
class Report:
    """All that the two report files say."""

    run: str
    rows: Sequence[Row]
    tasks: Sequence[str]
    """The headline tasks."""
    main_layers: int | str
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
    labels: Mapping[str, str] = field(default_factory=lambda: LABELS)
    """The labels that stages train on, by stage."""
    grids: Sequence[Mapping[str, Any]] = ()
    """A grid of lower bounds each: `recipe`; `task`, `criterion` and `statistic` that chose; `scheduler`, `updates`
    trained and `updates_full` of a whole grid; `winner`, `score`, `runner_up` and `margin` (None where there is one
    bound only); and `bounds`, each with `lower_bound`, `scores`, `mean`, `std`, `max` and `stopped_at`, the update
    after which it was not trained further, or None."""
    transfer: Sequence[Mapping[str, Any]] = ()
    """A model's transfer tasks each: `recipe`, `kind`, `index`, `layers`, `scores` (what `score_transfer` returned) and
    `average`."""
    analysis: Mapping[str, Any] = field(default_factory=dict)
    """Of the embedding space, each part where there is one: `isotropy`, by model what `analysis.isotropy` returned;
    `edit_distance`, with `task` and, as `models`, what `edit_distance_table` returned; `qnli`, by model the AUC; and
    `frequency`, what `frequency_table` returned."""
    dev: str | None = None
    """The task that choices are made on."""
    exported: str | None = None
    """Recipe of the exported model."""
    export: str = ""
    """Which model that is, and why, in a line."""
    sanity: Mapping[str, int] = field(default_factory=dict)
    """`triples` of the sanity list, and how many of them `exported`, `base` and `words` answer as a person does."""
    draws: Draws = field(default_factory=dict)
    """Resampled scores by group, see `raysed.report.findings.Draws`."""
    fitted_on: str | None = None
    """What calibrations were fitted on."""
    learners: Sequence[Mapping[str, Any]] = ()
    """Of each group of learners `recipe`, `updates`, `distance` from the members' mean, and `members_distance`."""
    command: str = ""
    """What was typed to start the run."""
    repeat: str = ""
    """What to type to repeat it, see `how_to_repeat`."""
    plots: Mapping[str, str] = field(default_factory=dict)
    """Path relative to the report to what the picture shows."""
    status: str = "complete"

    def findings(self) -> str:
        """Returns the conclusion in words; see `raysed.report.findings.findings`."""
        found = findings(
            self.rows,
            self.tasks,
            self.main_layers,
            self.dev,
            self.exported,
            self.labels,
            self.draws,
            self.fitted_on,
            self.learners,
        )
        collapsed = Counter(m["recipe"] for m in self.members if m["reason"].startswith(COLLAPSED))
        counts = ", ".join(f"{count} of {recipe}" for recipe, count in collapsed.items())
        return f"{found} Collapsed members, which no mean contains: {counts}." if counts else found

    def headline_table(self, markdown: bool = False) -> str:
        """Returns the main result; see `raysed.report.document.headline_table`."""
        return headline_table(
            self.rows, self.tasks, self.main_layers, markdown, self.labels, self.draws, self.fitted_on
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of report.json: plain types only, a number that is not finite as None."""
        names = ("recipe", "kind", "index", "lower_bound", "layers", "metrics", "left_out")
        parts = {name: getattr(self, name) for name in ("views", "grids", "transfer", "analysis", "learners", "sanity")}
        exported = {"recipe": self.exported, "why": self.export} if self.exported else {}
        return _plain(
            {
                "run": self.run,
                "status": self.status,
                "rows": [{name: getattr(row, name) for name in names} for row in self.rows],
                "summary": summarise(self.rows, self.tasks, self.main_layers, self.draws),
                "timings": self.timings,
                "environment": self.environment,
                "config": self.config,
                "corpus": self.corpus,
                "members": self.members,
                **{name: part for name, part in parts.items() if part},
                **({"exported": exported} if exported else {}),
                "findings": self.findings(),
            }
        )

    def to_json(self) -> str:
        """Returns report.json as text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Returns report.md as text: the findings first, then what they rest on."""
        sections = [
            f"# {self.run}: results",
            *([] if self.status == "complete" else [f"Status: {self.status}."]),
        ]
        sections += [self.findings(), *_export_section(self), *_scores_section(self), *_task_section(self)]
        sections += [*_aggregation_section(self), *_grid_section(self)]
        sections += [*_transfer_section(self), *_analysis_section(self)]
        sections += [f"![{caption}]({path})" for path, caption in list(self.plots.items())[1:]]
        sections += [*_corpus_section(self), *_views_section(self), *_members_section(self)]
        sections += [*_timings_section(self), *_environment_section(self)]
        sections += _repeat_section(self)
        return "\n\n".join(sections) + "\n"


def how_to_repeat(location: str, run: str, job: Sequence[str] = ("python", "jobs/ensemble_then_distill.py")) -> str:
    """Returns what to type to do a run again, under another name, from the settings that lie in its directory.

    Args:
        location: absolute directory or URI under which run directories lie.
        run: name of the run.
        job: what starts the main job.
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


def sanity_words(sanity: Mapping[str, int]) -> str:
    """Returns what the sanity list says of the exported model.

    >>> sanity_words({"triples": 50, "exported": 48, "base": 40, "words": 23})
    'it answers 48 of 50 triples of English as a person does (untouched encoder 40, TF-IDF 23, guessing 25)'
    """
    return (
        f"it answers {sanity['exported']} of {sanity['triples']} triples of English as a person does (untouched "
        f"encoder {sanity['base']}, TF-IDF {sanity['words']}, guessing {sanity['triples'] // 2})"
    )


def _export_section(report: Report) -> list[str]:
    if not report.export:
        return []
    note = f"Exported: {report.export}."
    if report.sanity:
        words = sanity_words(report.sanity)
        note += f" Of three sentences, which two mean the same? {words[0].upper()}{words[1:]}."
    return ["## The exported model", note]


def _scores_section(report: Report) -> list[str]:
    tasks = ", ".join(report.tasks)
    depth = _depth_name(report.main_layers)
    note = f"Spearman correlation x100 between cosine and gold score, mean over {tasks}; {depth} pooled."
    if any(labels_of(row.recipe, report.labels) != NO_LABELS for row in report.rows):
        note += " Labels are those that a recipe was trained on."
    if report.draws:
        note += " 95 %: the interval of the mean over the draw of pairs and of seeds."
    table = report.headline_table(markdown=True)
    layers = layers_table(report.rows, report.tasks, markdown=True)
    picture = [f"![{caption}]({path})" for path, caption in list(report.plots.items())[:1]]
    return ["## Scores", note, table, *picture, *(["## By pooled layers", layers] if layers else [])]


def _task_section(report: Report) -> list[str]:
    summary, names = summarise(report.rows, report.tasks, report.main_layers), task_names(report.rows)
    by_task = [groups_of(summary, name) for name in names]
    lines = [
        [display_name(recipe, kind, entry["n"]), recipe, *(_mean(groups, recipe, kind) for groups in by_task)]
        for (recipe, kind), entry in groups_of(summary).items()
    ]
    note = "; ".join(f"{name}: {_aggregation(report.rows, name)}" for name in names) + "."
    return ["## By task", note, table_text(["models", "recipe", *names], lines, markdown=True)]


def _aggregation(rows: Iterable[Row], task: str) -> str:
    metrics = next(row.metrics[task] for row in rows if task in row.metrics)
    pairs, subsets = f"{metrics.get('pairs', '?')} pairs", len(metrics.get("subsets", ()))
    if not subsets:
        return pairs
    left_out = len(metrics.get("subsets_left_out", ())) if metrics["aggregation"] != "all" else 0
    counted = f"{subsets - left_out} of {subsets}" if left_out else f"{subsets}"
    return f"{pairs}, {metrics['aggregation']} over {counted} subsets"


def _aggregation_section(report: Report) -> list[str]:
    """The headline average under each way of putting subsets together, where a task has several."""
    if not any("subsets" in metrics for row in report.rows for metrics in row.metrics.values()):
        return []
    ways = {
        way: groups_of(summarise(_under(way, report.rows), report.tasks, report.main_layers))
        for way in ("all", "mean", "wmean")
    }
    lines = [
        [display_name(recipe, kind, entry["n"]), recipe, *(_mean(ways[way], recipe, kind) for way in ways)]
        for (recipe, kind), entry in ways["mean"].items()
    ]
    note = (
        "The average of the first table with the subsets of a task put together in three ways: `all`, one "
        "correlation over all pairs; `mean` of the subsets' correlations; `wmean`, weighted by subset size."
    )
    return ["## By aggregation", note, table_text(["models", "recipe", *ways], lines, markdown=True)]


def _under(way: str, rows: Iterable[Row]) -> list[Row]:
    return [
        replace(row, metrics={task: metrics.get(way, metrics) for task, metrics in row.metrics.items()}) for row in rows
    ]


def _grid_section(report: Report) -> list[str]:
    sections = ["## Lower bounds"] if report.grids else []
    for grid in report.grids:
        lines = [_bound_line(grid, bound) for bound in sorted(grid["bounds"], key=lambda bound: bound["lower_bound"])]
        header = ["lower bound", "models", "max", "mean", "std", "note"]
        sections += [_grid_words(grid), table_text(header, lines, markdown=True)]
    return sections


def _bound_line(grid: Mapping[str, Any], bound: Mapping[str, Any]) -> list[str]:
    notes = {grid["winner"]: "chosen", grid["runner_up"]: "next"}
    note = notes.get(bound["lower_bound"], "")
    if bound["stopped_at"] is not None:
        note = f"stopped after update {bound['stopped_at']:,}"
    std = bound["std"] if len(bound["scores"]) > 1 else None
    numbers = [_number(bound["max"]), _number(bound["mean"]), _number(std)]
    return [f"{bound['lower_bound']:g}", str(len(bound["scores"])), *numbers, note]


def _grid_words(grid: Mapping[str, Any]) -> str:
    """Which bound won, by how much, and whether that is more than noise."""
    score = f"{grid['statistic']} {_CRITERIA[grid['criterion']]} of its models on {grid['task']}, {grid['score']:.2f}"
    words = f"`{grid['recipe']}`: the lower bound {grid['winner']:g} is chosen by the {score}"
    if grid["runner_up"] is None:
        words += f"; no other was {'trained to the end' if len(grid['bounds']) > 1 else 'tried'}."
    else:
        words += f"; it is {grid['margin']:.2f} above the next, {grid['runner_up']:g}{_noise(grid)}."
    if grid["scheduler"] != "none":
        share = grid["updates"] / grid["updates_full"]
        words += f" Bounds that looked hopeless were stopped: {grid['updates']:,} updates were trained instead of "
        words += f"{grid['updates_full']:,} ({share:.0%})."
    return words


def _noise(grid: Mapping[str, Any]) -> str:
    """The margin against what chance does to it."""
    bounds = {bound["lower_bound"]: bound for bound in grid["bounds"]}
    winner, next_ = bounds[grid["winner"]], bounds[grid["runner_up"]]
    if min(len(winner["scores"]), len(next_["scores"])) < 2:
        return "; with one model per bound nothing can be said of chance"
    if grid["statistic"] == "mean":
        error = math.sqrt(sum(bound["std"] ** 2 / len(bound["scores"]) for bound in (winner, next_)))
        measure = f"the standard error of this difference is {error:.2f}"
    else:
        error = winner["std"]
        measure = f"the bound's models have a standard deviation of {error:.2f}"
    if grid["margin"] < error or not grid["margin"]:
        return f"; {measure}, so the choice is within noise"
    return f"; {measure}{', so the choice is clear' if grid['margin'] >= 2 * error else ''}"


def _transfer_section(report: Report) -> list[str]:
    """Means of like models; the columns are in the order of SED table 7."""
    if not report.transfer:
        return []
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for model in report.transfer:
        groups.setdefault((model["recipe"], model["kind"], model["layers"]), []).append(model)
    found = dict.fromkeys(task for model in report.transfer for task in model["scores"])
    tasks = sorted(found, key=lambda task: SED_TASKS.index(task) if task in SED_TASKS else len(SED_TASKS))
    lines = []
    for (recipe, kind, layers), models in groups.items():
        columns = [[main_score(m["scores"][task]) for m in models if task in m["scores"]] for task in tasks]
        columns.append([m["average"] for m in models if m["average"] is not None])
        means = [_number(statistics.fmean(values) if values else None) for values in columns]
        lines.append([display_name(recipe, kind, len(models)), recipe, str(layers), *means])
    note = (
        "A linear probe on the frozen embeddings: accuracy in %, for SICKRelatedness and STSBenchmark Pearson "
        "correlation x100."
    )
    header = ["models", "recipe", "layers", *tasks, "average"]
    return ["## Transfer tasks", note, table_text(header, lines, markdown=True)]


def _analysis_section(report: Report) -> list[str]:
    parts = {
        "isotropy": _isotropy_part,
        "edit_distance": _edit_distance_part,
        "qnli": _qnli_part,
        "frequency": _frequency_part,
    }
    sections = [part for name, write in parts.items() if report.analysis.get(name) for part in write(report.analysis)]
    return ["## The embedding space", *sections] if sections else []


def _isotropy_part(analysis: Mapping[str, Any]) -> list[str]:
    lines = [
        [
            name,
            f"{round(found['cosine'], 3) + 0.0:.3f}",
            f"{found['effective_rank']:.1f}",
            f"{found['first_direction']:.1%}",
        ]
        for name, found in analysis["isotropy"].items()
    ]
    note = (
        "How evenly the embeddings fill their space: in an even one the mean cosine of random pairs is near 0, the "
        "effective rank near the number of dimensions, and no direction has a large share of the squared lengths."
    )
    header = ["models", "cosine of random pairs", "effective rank", "share of the first direction"]
    return ["### Isotropy", note, table_text(header, lines, markdown=True)]


def _edit_distance_part(analysis: Mapping[str, Any]) -> list[str]:
    found = analysis["edit_distance"]
    units = ("characters", "words", "gold")
    lines = [[name, *(_number(row[unit]) for unit in units)] for name, row in found["models"].items()]
    note = (
        f"Spearman correlation x100 of the similarity of {found['task']}'s pairs with their edit distance and with the "
        "gold score (BERT-flow table 6): a model that follows edit distance more than gold does judges by wording."
    )
    header = ["similarity", "edit distance, characters", "edit distance, words", "gold score"]
    return ["### Edit distance", note, table_text(header, lines, markdown=True)]


def _qnli_part(analysis: Mapping[str, Any]) -> list[str]:
    lines = [[name, _number(auc)] for name, auc in analysis["qnli"].items()]
    note = (
        "How well the cosine of a question and a sentence tells whether the sentence answers it, without training "
        "(QNLI, BERT-flow table 4): area under the ROC curve x100; chance is 50."
    )
    return ["### Question and answer", note, table_text(["models", "AUC"], lines, markdown=True)]


def _frequency_part(analysis: Mapping[str, Any]) -> list[str]:
    bins = analysis["frequency"]
    neighbours = list(bins[0]["distance"])
    lines = [["mean norm", *(_number(bin_["norm"]) for bin_ in bins)]]
    measures = {"distance": "mean distance to the {} nearest words", "dot": "mean of the {} largest dot products"}
    for key, name in measures.items():
        lines += [[name.format(k), *(_number(bin_[key][k]) for bin_ in bins)] for k in neighbours]
    note = (
        "The encoder's input word embeddings by how frequent the words are in the corpus (BERT-flow table 1): where "
        "rare words lie farther out and farther apart, sentences are placed by the frequency of their words."
    )
    header = ["rank of frequency", *(f"{start:,} to {stop:,}" for start, stop in (bin_["ranks"] for bin_ in bins))]
    return ["### Word frequency", note, table_text(header, lines, markdown=True)]


def _corpus_section(report: Report) -> list[str]:
    lines = [[key.replace("_", " "), str(count)] for key, count in _plain(report.corpus).items()]
    return ["## Corpus", table_text(["what", "count"], lines, markdown=True)] if lines else []


def _views_section(report: Report) -> list[str]:
    lines = [[kind, summary] for kind, summary in report.views.items()]
    return ["## Views", table_text(["kind", "what"], lines, markdown=True)] if lines else []


def _members_section(report: Report) -> list[str]:
    lines = [[str(m.get("recipe", "")), str(m.get("index", "")), str(m.get("reason", ""))] for m in report.members]
    return ["## Left out", table_text(["recipe", "member", "reason"], lines, markdown=True)] if lines else []


def _timings_section(report: Report) -> list[str]:
    usages = {stage: usage for stage, usage in report.timings.items() if "seconds" in usage}
    if not usages:
        return []
    total = sum(float(usage["seconds"]) for usage in usages.values())
    shown = [name for name in _USAGE if any(usage.get(name) for usage in usages.values())]
    lines = []
    for stage, usage in usages.items():
        share = f"{usage['seconds'] / total:.0%}" if total else "-"
        known = [_USAGE[name][1](usage) if name in usage else "-" for name in shown]
        lines.append([stage, _duration(float(usage["seconds"])), share, *known])
    lines.append(["together", _duration(total), "100%" if total else "-", *["-"] * len(shown)])
    header = ["stage", "time", "share", *(_USAGE[name][0] for name in shown)]
    return ["## Time", table_text(header, lines, markdown=True)]


def _size(count: float) -> str:
    """Returns a number of bytes as people say it.

    >>> _size(512), _size(5e6), _size(1.25e10)
    ('0.0 MB', '5.0 MB', '12.5 GB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


_USAGE: dict[str, tuple[str, Callable[[Mapping[str, float]], str]]] = {
    "sentences": ("sentences/s", lambda usage: f"{usage['sentences'] / max(usage['seconds'], 0.1):.0f}"),
    "object_store_bytes": ("object store", lambda usage: _size(usage["object_store_bytes"])),
    "spilled_bytes": ("spilled", lambda usage: _size(usage["spilled_bytes"])),
    "gpu_use": ("GPU use", lambda usage: f"{usage['gpu_use']:.0%}"),
}
"""What a stage took beside time, by its key in `timings`: the column's head and words; see `raysed.cluster.usage`."""


def _duration(seconds: float) -> str:
    """Returns a length of time as people say it.

    >>> _duration(9.44), _duration(125), _duration(7384)
    ('9.4 s', '2 min 05 s', '2 h 03 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _repeat_section(report: Report) -> list[str]:
    sections = []
    if report.repeat:
        words = (
            "`config.yaml` beside this report has all settings as they were resolved, paths of local inputs in full. "
            "The same settings and inputs under another name:"
        )
        sections += [words, f"```sh\n{report.repeat}\n```"]
    if report.command:
        sections += ["This run was started, or last continued, by:", f"```sh\n{report.command}\n```"]
    return ["## Repeat", *sections] if sections else []


def _environment_section(report: Report) -> list[str]:
    lines = [[key, value] for key, value in _flat(_plain(report.environment))]
    return ["## Environment", table_text(["what", "value"], lines, markdown=True)] if lines else []


def _flat(value: Any, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for k, v in value.items() for pair in _flat(v, f"{key}.{k}" if key else k)]
    return [(key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))]

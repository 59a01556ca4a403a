"""What a run found: `report.json` for programs, `report.md` for people.

Everything here is computed from plain rows, one per scored model, so that a table or a sentence can be
checked without training anything.
"""

import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

AVERAGE = "sts-avg"
"""Task name in summaries for the mean over the headline tasks."""
CALIBRATIONS = {"flow": "the flow", "sn": "SN", "natsv": "NATSV", "whiten": "whitening"}
"""Last stages of a recipe, and what sentences call them."""
NO_DIFFERENCE = 0.1
"""Score differences smaller than this are reported as none."""

Kind = Literal["baseline", "base", "member", "ensemble", "grid", "learner"]
_KIND_ORDER = ("baseline", "base", "grid", "member", "ensemble", "learner")
_KIND_NAMES = {
    "baseline": "word overlap",
    "base": "base",
    "grid": "grid models",
    "member": "members",
    "ensemble": "full ensemble",
    "learner": "learner",
}


@dataclass(frozen=True)
class Row:
    """One scored model at one pooling depth."""

    recipe: str
    """As in the run's list, e.g. `ct-sed-flow`; `base`, `base-flow`; `word-overlap`."""
    kind: Kind
    index: int
    lower_bound: float | None
    """Of a grid model; None elsewhere."""
    layers: int | str
    """Pooled layers."""
    metrics: Mapping[str, Mapping[str, Any]]
    """Task name to what `Evaluation.score` returned for it."""

    def counts(self, main_layers: int | str) -> bool:
        """Returns whether the row is part of the headline: it is at the main pooling depth, or has none."""
        return self.layers == main_layers or self.kind == "baseline"

    def average(self, tasks: Sequence[str]) -> float | None:
        """Returns the mean Spearman correlation over `tasks`; None where one of them was not scored."""
        values = [self.spearman(task) for task in tasks]
        if not values or any(value is None for value in values):
            return None
        return statistics.fmean(values)

    def spearman(self, task: str) -> float | None:
        """Returns the Spearman correlation (x100) on one task; None where it is missing or not finite."""
        value = self.metrics.get(task, {}).get("spearman")
        return value if value is not None and math.isfinite(value) else None


def summarise(rows: Iterable[Row], tasks: Sequence[str], main_layers: int | str) -> list[dict[str, Any]]:
    """Returns the statistics of every group of like models (SED table 3).

    A group shares recipe, kind and lower bound. Only rows at the main pooling depth count, and baselines,
    which have none.

    Args:
        rows: scored models.
        tasks: the headline tasks; their mean is reported as `sts-avg`.
        main_layers: pooled layers of the headline numbers.

    Returns:
        One dict per group and task: recipe, kind, task, max, mean, std (of the sample; 0 for one model) and
        n; grid models also have lower_bound.
    """
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.counts(main_layers):
            groups.setdefault((row.recipe, row.kind, row.lower_bound), []).append(row)
    summary = []
    for (recipe, kind, lower_bound), members in groups.items():
        bound = {} if lower_bound is None else {"lower_bound": lower_bound}
        columns = {task: [row.spearman(task) for row in members] for task in _task_names(members)}
        columns[AVERAGE] = [row.average(tasks) for row in members]
        for task, values in columns.items():
            present = [value for value in values if value is not None]
            if present:
                summary.append({"recipe": recipe, "kind": kind, **bound, "task": task, **_statistics(present)})
    return summary


def _task_names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(task for row in rows for task in row.metrics))


def _statistics(values: Sequence[float]) -> dict[str, float | int]:
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"max": max(values), "mean": statistics.fmean(values), "std": std, "n": len(values)}


def headline_groups(summary: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns (recipe, kind) of every line of the headline table in reading order, grid models left out.

    From the cheapest to the final model: word overlap, the base, then for every ensemble its members, their
    mean and its learners, each followed by its calibrated version.

    >>> entry = {"task": "sts-avg"}
    >>> learner, base = {"recipe": "ct-sed", "kind": "learner"}, {"recipe": "base", "kind": "base"}
    >>> headline_groups([learner | entry, base | entry])
    [('base', 'base'), ('ct-sed', 'learner')]
    """
    groups = list(dict.fromkeys((entry["recipe"], entry["kind"]) for entry in summary if entry["task"] == AVERAGE))
    families = list(dict.fromkeys(_family(recipe) for recipe, kind in groups if kind not in ("baseline", "base")))

    def place(group: tuple[str, str]) -> tuple:
        recipe, kind = group
        family = families.index(_family(recipe)) if _family(recipe) in families else -1
        return family, _KIND_ORDER.index(kind), len(_calibration(recipe))

    return sorted((group for group in groups if group[1] != "grid"), key=place)


def _stages(recipe: str) -> tuple[list[str], list[str]]:
    """Training stages and calibrations of a recipe."""
    stages = recipe.split("-")
    cut = next((i for i, stage in enumerate(stages) if stage in CALIBRATIONS), len(stages))
    return stages[:cut], stages[cut:]


def _calibration(recipe: str) -> list[str]:
    return _stages(recipe)[1]


def _family(recipe: str) -> str:
    """The recipe of the members that a model goes back to: `ct` for `ct-sed-flow`."""
    return "-".join(stage for stage in _stages(recipe)[0] if stage != "sed")


def display_name(recipe: str, kind: str, n: int = 1) -> str:
    """Returns what a table calls a group of models.

    >>> display_name("ct", "member", 10), display_name("ct-sed-flow", "learner")
    ('members (10)', 'learner + flow')
    """
    name = _KIND_NAMES[kind] if kind != "learner" or n == 1 else "learners"
    count = f" ({n})" if kind in ("member", "grid") or n > 1 else ""
    return " + ".join([name, *_calibration(recipe)]) + count


def headline_table(rows: Sequence[Row], tasks: Sequence[str], main_layers: int | str, markdown: bool = False) -> str:
    """Returns the main result as a table, for the terminal or as Markdown (shaped like SED table 3).

    Args:
        rows: scored models.
        tasks: the headline tasks; where there are several, each has a column with the mean of its group.
        main_layers: pooled layers of the headline numbers.
        markdown: a Markdown table instead of aligned plain text.
    """
    entries = _entries(summarise(rows, tasks, main_layers))
    columns = list(tasks) if len(tasks) > 1 else []
    lines = []
    for recipe, kind, entry in _headlines(entries):
        std = _number(entry["std"] if entry["n"] > 1 else None)
        values = [_mean(entries, recipe, kind, task) for task in columns]
        name = display_name(recipe, kind, entry["n"])
        lines.append([name, recipe, _number(entry["max"]), _number(entry["mean"]), std, str(entry["n"]), *values])
    return _table(["models", "recipe", "max", "mean", "std", "n", *columns], lines, markdown)


def layers_table(rows: Sequence[Row], tasks: Sequence[str], markdown: bool = False) -> str:
    """Returns the mean headline score by pooled layers (SED table 8) as a table.

    Only models that were scored at more than one depth are in it; without any it is empty.
    """
    cells: dict[tuple[str, str], dict[int | str, list[float]]] = {}
    for row in rows:
        average = row.average(tasks)
        if row.kind not in ("baseline", "grid") and average is not None:
            cells.setdefault((row.recipe, row.kind), {}).setdefault(row.layers, []).append(average)
    cells = {group: by_layers for group, by_layers in cells.items() if len(by_layers) > 1}
    depths = sorted({depth for by_layers in cells.values() for depth in by_layers}, key=_depth_order)
    lines = []
    for (recipe, kind), by_layers in cells.items():
        means = [statistics.fmean(by_layers[depth]) if depth in by_layers else None for depth in depths]
        n = max(len(averages) for averages in by_layers.values())
        lines.append([display_name(recipe, kind, n), recipe, *map(_number, means)])
    return _table(["models", "recipe", *map(_depth_name, depths)], lines, markdown) if lines else ""


def _depth_order(layers: int | str) -> tuple[bool, int | str]:
    return isinstance(layers, str), layers


def _depth_name(layers: int | str) -> str:
    if isinstance(layers, str):
        return layers.replace("_", " + ") + " layer"
    return f"{layers} layer{'s' * (layers > 1)}"


def _entries(summary: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, str], Mapping[str, Any]]:
    """Summary entries by (recipe, kind, task), grid models left out."""
    return {(e["recipe"], e["kind"], e["task"]): e for e in summary if e["kind"] != "grid"}


def _headlines(entries: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> list[tuple[str, str, Mapping]]:
    return [(*group, entries[(*group, AVERAGE)]) for group in headline_groups(entries.values())]


def _mean(entries: Mapping, recipe: str, kind: str, task: str) -> str:
    return _number(entries.get((recipe, kind, task), {}).get("mean"))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(header: Sequence[str], lines: Sequence[Sequence[str]], markdown: bool) -> str:
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
    return cell == "-" or cell.replace(".", "", 1).removeprefix("-").isdigit()


def findings(rows: Sequence[Row], tasks: Sequence[str], main_layers: int | str) -> str:
    """Returns in words what helped and what did not, computed from the headline scores.

    For every ensemble: its members against the base, their mean against the best of them, the learner against
    both, every calibration against the same model without it, and the end of the chain against the base under
    the same calibration. What was not part of the run is not mentioned. A group of several models counts with
    its mean, and a difference below 0.1 is called none.
    """
    entries = _entries(summarise(rows, tasks, main_layers))
    scores = {(recipe, kind): entry for recipe, kind, entry in _headlines(entries)}
    families = dict.fromkeys(_family(recipe) for recipe, kind in scores if kind not in ("baseline", "base"))
    sentences = [_join(_calibration_clauses("base", scores))]
    for family in families:
        texts = [
            _join(_ensemble_clauses(family, scores)),
            _join(_learner_clauses(family, scores) + _calibration_clauses(family, scores)),
            _bottom_line(family, scores),
        ]
        label = f"{family.upper()}: " if len(families) > 1 else ""
        sentences += [label + text for text in texts if text]
    if any(sentences):
        return " ".join(filter(None, sentences))
    alone = [f"{display_name(recipe, kind)} {entry['mean']:.1f}" for (recipe, kind), entry in scores.items()]
    return f"Nothing to compare: {', '.join(alone) or 'no model was scored on the headline tasks'}."


def _ensemble_clauses(family: str, scores: Mapping) -> list[str]:
    members, ensemble = scores.get((family, "member")), scores.get((family, "ensemble"))
    base = scores.get(("base", "base"))
    clauses = []
    if members and base:
        effect = _effect(family.upper(), "the base", members["mean"] - base["mean"])
        best = f" on average over {members['n']} members (std {members['std']:.1f}, best {{:+.1f}})"
        clauses.append(effect + (best.format(members["max"] - base["mean"]) if members["n"] > 1 else ""))
    if members and ensemble:
        clauses.append(f"the ensemble is {_position(ensemble['mean'] - members['max'])} its best member")
    return clauses


def _learner_clauses(family: str, scores: Mapping) -> list[str]:
    learner = scores.get((f"{family}-sed".strip("-"), "learner"))
    members, ensemble = scores.get((family, "member")), scores.get((family, "ensemble"))
    others = [(members["max"], "the best member")] if members else []
    others += [(ensemble["mean"], "the ensemble")] if ensemble else []
    if not learner or not others:
        return []
    positions = [f"{_position(learner['mean'] - score)} {name}" for score, name in others]
    return [f"the learner is {' and '.join(positions)}"]


def _calibration_clauses(family: str, scores: Mapping) -> list[str]:
    clauses = []
    for (recipe, kind), calibrated in scores.items():
        stages, calibration = _stages(recipe)
        plain = scores.get(("-".join(stages), kind))
        if calibration and plain and _family(recipe) == family:
            cause = " with ".join(CALIBRATIONS[stage] for stage in calibration)
            what = f"the {_KIND_NAMES[kind].removeprefix('full ')}"
            clauses.append(_effect(cause, what, calibrated["mean"] - plain["mean"]))
    return clauses


def _bottom_line(family: str, scores: Mapping) -> str:
    """The end of the chain against the base under the same calibration: what training brought in all."""
    chain = [group for group in scores if _family(group[0]) == family and group[1] in ("ensemble", "learner")]
    if not chain:
        return ""
    recipe, kind = chain[-1]
    other = "-".join(["base", *_calibration(recipe)])
    final, base, overlap = scores[recipe, kind], scores.get((other, "base")), _baseline(scores)
    if not base:
        return ""
    difference = _position(final["mean"] - base["mean"])
    names = display_name(recipe, kind), display_name(other, "base")
    words = f"; word overlap alone scores {overlap:.1f}" if overlap is not None else ""
    return f"In all, {names[0]} ({final['mean']:.1f}) is {difference} {names[1]} ({base['mean']:.1f}){words}."


def _baseline(scores: Mapping) -> float | None:
    return next((entry["mean"] for (_, kind), entry in scores.items() if kind == "baseline"), None)


def _effect(cause: str, what: str, difference: float) -> str:
    if abs(difference) < NO_DIFFERENCE - 1e-9:
        return f"{cause} made no difference to {what}"
    return f"{cause} {'raised' if difference > 0 else 'lowered'} {what} by {abs(difference):.1f}"


def _position(difference: float) -> str:
    if abs(difference) < NO_DIFFERENCE - 1e-9:
        return "no different from"
    return f"{abs(difference):.1f} {'above' if difference > 0 else 'below'}"


def _join(clauses: Sequence[str]) -> str:
    text = "; ".join(clauses)
    return text[0].upper() + text[1:] + "." if text else ""


@dataclass(frozen=True)
class Report:
    """All that the two report files say."""

    run: str
    rows: Sequence[Row]
    tasks: Sequence[str]
    """The headline tasks."""
    main_layers: int | str
    timings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Stage or node to `{"seconds": ...}`."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions and devices."""
    config: Mapping[str, Any] = field(default_factory=dict)
    corpus: Mapping[str, Any] = field(default_factory=dict)
    """Counts: lines, empty, duplicates, too long, truncated sentences and tokens."""
    members: Sequence[Mapping[str, Any]] = ()
    """Members that were left out: recipe, index and reason."""
    command: str = ""
    """What to type to repeat the run."""
    plots: Mapping[str, str] = field(default_factory=dict)
    """Path relative to the report to what the picture shows."""
    status: str = "complete"

    def findings(self) -> str:
        """Returns the conclusion in words; see `raysed.report.findings`."""
        return findings(self.rows, self.tasks, self.main_layers)

    def to_dict(self) -> dict[str, Any]:
        """Returns the content of report.json: plain types only, a number that is not finite as None."""
        names = ("recipe", "kind", "index", "lower_bound", "layers", "metrics")
        return _plain(
            {
                "run": self.run,
                "status": self.status,
                "rows": [{name: getattr(row, name) for name in names} for row in self.rows],
                "summary": summarise(self.rows, self.tasks, self.main_layers),
                "timings": self.timings,
                "environment": self.environment,
                "config": self.config,
                "corpus": self.corpus,
                "members": self.members,
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
        sections += [self.findings(), *_scores_section(self), *_task_section(self)]
        sections += [*_aggregation_section(self), *_grid_section(self)]
        sections += [f"![{caption}]({path})" for path, caption in list(self.plots.items())[1:]]
        sections += [*_corpus_section(self), *_members_section(self)]
        sections += [*_timings_section(self), *_environment_section(self)]
        if self.command:
            sections += ["## Repeat", f"```sh\n{self.command}\n```"]
        return "\n\n".join(sections) + "\n"


def write_report(directory: Path, report: Report) -> None:
    """Writes report.json and report.md into a directory; each file appears whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (("report.json", report.to_json()), ("report.md", report.to_markdown())):
        partial = directory / f".{name}.partial"
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, directory / name)


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


def _scores_section(report: Report) -> list[str]:
    tasks = ", ".join(report.tasks)
    depth = _depth_name(report.main_layers)
    note = f"Spearman correlation x100 between cosine and gold score, mean over {tasks}; {depth} pooled."
    table = headline_table(report.rows, report.tasks, report.main_layers, markdown=True)
    layers = layers_table(report.rows, report.tasks, markdown=True)
    picture = [f"![{caption}]({path})" for path, caption in list(report.plots.items())[:1]]
    return ["## Scores", note, table, *picture, *(["## By pooled layers", layers] if layers else [])]


def _task_section(report: Report) -> list[str]:
    entries = _entries(summarise(report.rows, report.tasks, report.main_layers))
    names = _task_names(report.rows)
    lines = [
        [
            display_name(recipe, kind, entry["n"]),
            recipe,
            *(_mean(entries, recipe, kind, name) for name in names),
        ]
        for recipe, kind, entry in _headlines(entries)
    ]
    note = "; ".join(f"{name}: {_aggregation(report.rows, name)}" for name in names) + "."
    return ["## By task", note, _table(["models", "recipe", *names], lines, markdown=True)]


def _aggregation(rows: Iterable[Row], task: str) -> str:
    metrics = next(row.metrics[task] for row in rows if task in row.metrics)
    pairs, subsets = f"{metrics.get('pairs', '?')} pairs", len(metrics.get("subsets", ()))
    return f"{pairs}, {metrics['aggregation']} over {subsets} subsets" if subsets else pairs


def _aggregation_section(report: Report) -> list[str]:
    """The headline average under each way of putting subsets together, where a task has several."""
    if not any("subsets" in metrics for row in report.rows for metrics in row.metrics.values()):
        return []
    ways = {
        way: _entries(summarise(_under(way, report.rows), report.tasks, report.main_layers))
        for way in ("all", "mean", "wmean")
    }
    lines = [
        [display_name(recipe, kind, e["n"]), recipe, *(_mean(ways[w], recipe, kind, AVERAGE) for w in ways)]
        for recipe, kind, e in _headlines(ways["mean"])
    ]
    note = (
        "The average of the first table with the subsets of a task put together in three ways: `all`, one "
        "correlation over all pairs; `mean` of the subsets' correlations; `wmean`, weighted by subset size."
    )
    return ["## By aggregation", note, _table(["models", "recipe", *ways], lines, markdown=True)]


def _under(way: str, rows: Iterable[Row]) -> list[Row]:
    return [
        replace(row, metrics={task: metrics.get(way, metrics) for task, metrics in row.metrics.items()}) for row in rows
    ]


def _grid_section(report: Report) -> list[str]:
    summary = summarise(report.rows, report.tasks, report.main_layers)
    bounds = [entry for entry in summary if entry["kind"] == "grid" and "lower_bound" in entry]
    if not bounds:
        return []
    lines = [
        [entry["recipe"], f"{entry['lower_bound']:g}", entry["task"], _number(entry["mean"]), str(entry["n"])]
        for entry in bounds
    ]
    return ["## Lower bounds", _table(["recipe", "lower bound", "task", "mean", "n"], lines, markdown=True)]


def _corpus_section(report: Report) -> list[str]:
    lines = [[key.replace("_", " "), str(count)] for key, count in _plain(report.corpus).items()]
    return ["## Corpus", _table(["what", "count"], lines, markdown=True)] if lines else []


def _members_section(report: Report) -> list[str]:
    lines = [[str(m.get("recipe", "")), str(m.get("index", "")), str(m.get("reason", ""))] for m in report.members]
    return ["## Left out", _table(["recipe", "member", "reason"], lines, markdown=True)] if lines else []


def _timings_section(report: Report) -> list[str]:
    seconds = {stage: float(timing["seconds"]) for stage, timing in report.timings.items() if "seconds" in timing}
    total = sum(seconds.values())
    lines = [[stage, _duration(s), f"{s / total:.0%}" if total else "-"] for stage, s in seconds.items()]
    lines.append(["together", _duration(total), ""])
    return ["## Time", _table(["stage", "time", "share"], lines, markdown=True)] if seconds else []


def _duration(seconds: float) -> str:
    """Returns a length of time as people say it.

    >>> _duration(9.44), _duration(125), _duration(7384)
    ('9.4 s', '2 min 05 s', '2 h 03 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _environment_section(report: Report) -> list[str]:
    lines = [[key, value] for key, value in _flat(_plain(report.environment))]
    return ["## Environment", _table(["what", "value"], lines, markdown=True)] if lines else []


def _flat(value: Any, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for k, v in value.items() for pair in _flat(v, f"{key}.{k}" if key else k)]
    return [(key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))]

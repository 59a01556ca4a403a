"""Values from reports beside published ones, as Markdown and as plain data."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from papers.data import Request
from papers.plan import Place, Plan
from papers.published import Row
from raysed.config import EncoderConfig
from raysed.errors import UserError
from raysed.store.text import Table, number

SMALL_NOTE = (
    "Scale small: a small encoder, little data and few updates. These numbers show that the rows "
    "work; they reproduce nothing, and their differences from the published ones have no meaning."
)
NO_DATA, NO_RESULT = "no data", "no result"
_PARTIAL = " (part)"
"""Beside an average of which a part is missing."""
_ELSEWHERE = "*"
"""As the papers print it, at the end of a row's name."""
_DIRECTIVES = ("run", "section", "value", "tasks", "statistic", "metric", "unit")
_STATISTICS = {"max": max, "mean": statistics.fmean, "median": statistics.median, "std": statistics.stdev}

Reports = Mapping[str, tuple[str, Mapping[str, Any]]]
"""By run, where its report is, and what it says."""


def find_values(report: Mapping[str, Any], place: Place) -> dict[int, float]:
    """Finds one number in a report.

    Args:
        place: `section`, the list of entries, or a mapping with an entry for each model; `value`, the number in an
            entry, keys joined by dots, with other keys of `place` filled in (of a mapping's bare number: `number`).
            Every other key has to be equal in the entry; a key that is None is not looked at.

    Returns:
        The value of each matching entry by its index (0 where it has none), without those of collapsed models.

    >>> report = {"rows": [{"recipe": "ct", "index": 1, "metrics": {"sts12": {"spearman": 70.5}}}]}
    >>> place = {"section": "rows", "value": "metrics.{task}.spearman", "recipe": "ct", "task": "sts12"}
    >>> find_values(report, place), find_values(report, place | {"recipe": "nli"})
    ({1: 70.5}, {})
    """
    filled = {name for _, name, _, _ in Formatter().parse(place["value"]) if name}
    value = place["value"].format(**{name: place.get(name) for name in filled})
    ignored = {*_DIRECTIVES, *filled}
    match = {key: wanted for key, wanted in place.items() if key not in ignored and wanted is not None}
    found = {}
    for entry in _entries(_at(report, place["section"])):
        number = _at(entry, value)
        if entry.get("left_out"):
            continue
        if isinstance(number, int | float) and all(entry.get(key) == wanted for key, wanted in match.items()):
            found[entry.get("index", 0)] = float(number)
    return found


def _entries(section: Any) -> list[Mapping[str, Any]]:
    """The entries of a list; of a mapping by model (`ct-sed`, or `nli/01` for one of several) the same as a list."""
    if not isinstance(section, Mapping):
        return section or []
    entries = []
    for name, content in section.items():
        recipe, _, index = name.partition("/")
        numbers = content if isinstance(content, Mapping) else {"number": content}
        entries.append({**numbers, "recipe": recipe, "index": int(index) if index.isdigit() else 0})
    return entries


def _at(data: Any, keys: str) -> Any:
    for key in keys.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


@dataclass
class Ours:
    """What we have for one cell.

    Attributes:
        values: metric to the value of each like model, by index.
        statistic: the one that the cell asks for; None: all models are shown.
        partial: parts of a mean that are missing.
        reason: why there is nothing.
    """

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    statistic: str | None = None
    partial: list[str] = field(default_factory=list)
    reason: str = ""

    def number(self, metric: str) -> float | None:
        """Returns the number to compare: the statistic that the cell asks for, or the mean."""
        return self.by(self.statistic or "mean", metric)

    def by(self, statistic: str, metric: str) -> float | None:
        """Returns a statistic over like models; None where there are too few.

        Args:
            statistic: `max`, `mean`, `median` or `std`.
        """
        values = list(self.values.get(metric, {}).values())
        return _STATISTICS[statistic](values) if len(values) > (statistic == "std") else None


def compare(plan: Plan, request: Request, reports: Reports) -> "Comparison":
    """Puts the values of the reports beside the published ones."""
    cells = {
        (row.label, name): {
            column: _ours_of(plan, row, plan.places(row, column, variant), reports) for column in plan.table.columns
        }
        for row in plan.table.rows
        if not row.copied
        for name, variant in plan.variants(row).items()
    }
    return Comparison(plan, request, cells, {name: path for name, (path, _) in reports.items()})


def _ours_of(plan: Plan, row: Row, places: Sequence[Place], reports: Reports) -> Ours:
    cell = Ours(statistic=places[0].get("statistic"))
    parts: dict[str, list[dict[int, float]]] = {metric: [] for metric in plan.table.metrics}
    reasons = []
    for place in places:
        found, reason = _values_at(plan, row, place, reports)
        if reason:
            reasons.append(reason)
            cell.partial.append(str(place.get("task", place["value"])))
        for metric, values in found.items():
            parts[metric].append(values)
    if len(reasons) == len(places):
        return Ours(reason=reasons[0])
    cell.values = {metric: _means(values) for metric, values in parts.items() if values}
    return cell


def _values_at(plan: Plan, row: Row, place: Place, reports: Reports) -> tuple[dict[str, dict[int, float]], str]:
    """The values of one place by metric, or why there are none."""
    run = plan.same.get(place["run"], "")
    config = plan.configs.get(run)
    if config is None or place.get("task") in plan.missing_tasks or (row.recipe and row.recipe not in config.recipes):
        return {}, NO_DATA
    if row.recipe:
        place = {"layers": config.encoder.layers, **place}
    _, report = reports[run]
    found = {metric: find_values(report, {**place, "metric": metric}) for metric in plan.table.metrics}
    found = {metric: values for metric, values in found.items() if values}
    # A run scores all transfer tasks that it has data for.
    nothing = NO_DATA if place["section"] == "transfer" and report.get("transfer") else NO_RESULT
    return found, "" if found else nothing


def _means(parts: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean over parts for each model that has all of them."""
    common = [index for index in parts[0] if all(index in part for part in parts)]
    return {index: statistics.fmean(part[index] for part in parts) for index in common}


@dataclass
class Comparison:
    """A table beside its published version.

    Attributes:
        plan: what was run.
        request: what was asked for.
        cells: by row and variant, column to our cell.
        reports: by run, where its report is.
    """

    plan: Plan
    request: Request
    cells: dict[tuple[str, str], dict[str, Ours]]
    reports: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data."""
        table = self.plan.table
        return {
            **{name: getattr(table, name) for name in ("name", "source", "title", "aggregation", "columns", "metrics")},
            "scale": self.request.scale,
            "rows": [self._row(row) for row in table.rows],
            "missing": self.plan.missing,
            "no_result": self._rows_with(NO_RESULT),
            "notes": self._notes(),
            "reports": self.reports,
        }

    def to_markdown(self) -> str:
        """Returns the table with its notes; aligned, so that a terminal can show it, too."""
        table = self.plan.table
        parts = [f"# {table.name}: {table.title}", f"Published in {table.source}."]
        parts += [f"**{SMALL_NOTE}**"] if self.request.small else []
        lines = [line for row in table.rows for line in self._lines(row)]
        parts.append(Table(["row", "what", *table.columns], lines, text=2).markdown())
        parts.append("\n".join(f"- {note}" for note in self._notes()))
        parts.append("\n".join(f"- report of {run}: {path}" for run, path in self.reports.items()))
        return "\n\n".join(part for part in parts if part) + "\n"

    # plain data

    def _row(self, row: Row) -> dict[str, Any]:
        names = ("label", "encoder", "recipe", "copied", "note")
        ours = [
            {
                "variant": variant or None,
                "encoder": self._other_encoder(row, variant, cells) or None,
                "columns": {c: self._cell(row, c, cell) for c, cell in cells.items()},
            }
            for variant, cells in self._of_row(row)
        ]
        return {**{name: getattr(row, name) for name in names}, "published": row.cells, "ours": ours}

    def _cell(self, row: Row, column: str, cell: Ours) -> dict[str, Any]:
        if cell.reason:
            return {"reason": cell.reason}
        result: dict[str, Any] = {"missing": cell.partial} if cell.partial else {}
        for metric, values in cell.values.items():
            result[metric] = {name: cell.by(name, metric) for name in _STATISTICS}
            result[metric] |= {"n": len(values), "compared": cell.statistic or "mean"}
            result[metric]["difference"] = _difference(row, column, cell, metric)
        return result

    # lines of the table

    def _lines(self, row: Row) -> list[list[str]]:
        """The published line, and for every way to compare it ours and the difference."""
        metrics = self.plan.table.metrics
        what = f"published{' elsewhere' * row.copied}"
        lines = [[row.label, what, *(_joined(row.cells[column], metrics) for column in self.plan.table.columns)]]
        for variant, cells in self._of_row(row):
            suffix = f", {variant}" if variant else ""
            encoder = self._other_encoder(row, variant, cells)
            name = f"here: {encoder}" if encoder else ""
            for what, values in self._ours(row, cells):
                lines.append([name, what + suffix, *values])
                name = ""
        return lines

    def _other_encoder(self, row: Row, variant: str, cells: Mapping[str, Ours]) -> str:
        """What stands in for the encoder of a row; empty where it is the published one, or there is no number."""
        if not (self.request.small or self.request.sets("encoder.path")) or all(c.reason for c in cells.values()):
            return ""
        plan = self.plan
        runs = [plan.same.get(run) for run in plan.runs_of(row, plan.variants(row)[variant])]
        encoders = [_describe(plan.configs[run].encoder) for run in runs if run in plan.configs]
        return " and ".join(dict.fromkeys(encoders))

    def _ours(self, row: Row, cells: Mapping[str, Ours]) -> list[tuple[str, list[str]]]:
        count = max((len(v) for cell in cells.values() for v in cell.values.values()), default=0)
        several = count > 1 and not any(cell.statistic for cell in cells.values())
        lines = [(f"ours, mean of {count}" if several else "ours", self._line(cells, Ours.number))]
        if several:
            best = self._best(cells)
            lines += [
                ("ours, std", self._line(cells, lambda cell, metric: cell.by("std", metric))),
                ("ours, best one", self._line(cells, lambda cell, metric: cell.values[metric].get(best))),
            ]
        differences = {c: {m: _difference(row, c, cell, m) for m in cell.values} for c, cell in cells.items()}
        if any(value is not None for column in differences.values() for value in column.values()):
            metrics = self.plan.table.metrics
            lines.append(("difference", [_joined(column, metrics, "+.2f") for column in differences.values()]))
        return lines

    def _line(self, cells: Mapping[str, Ours], number_of: Callable[[Ours, str], float | None]) -> list[str]:
        """The cells with one number per metric."""
        metrics = self.plan.table.metrics
        return [
            cell.reason
            or _joined({m: number_of(cell, m) for m in cell.values}, metrics) + _PARTIAL * bool(cell.partial)
            for cell in cells.values()
        ]

    def _best(self, cells: Mapping[str, Ours]) -> int:
        """Index of the model that is best in the average, or in the last column that there is, by the last metric."""
        metric, columns = self.plan.table.metrics[-1], [self.plan.table.average, *reversed(cells)]
        values = next((cells[c].values[metric] for c in columns if c in cells and metric in cells[c].values), {})
        return max(values, key=values.get, default=0)

    # notes

    def _notes(self) -> list[str]:
        table, cells = self.plan.table, [cell for row in self.cells.values() for cell in row.values()]
        notes = [f"Each cell: {' / '.join(table.metrics)}."]
        notes += [f"Subsets of a year are put together as `{table.aggregation}`."] if table.aggregation else []
        if any(len(values) > 1 for cell in cells if not cell.statistic for values in cell.values.values()):
            notes.append(
                "Where there are several models, their mean is compared. The best one is the model with the highest "
                "score shown here, chosen by the test; a published row of a single model may be of that kind."
            )
        without = dict.fromkeys(part for cell in cells for part in cell.partial)
        notes += [f"(part): an average without {', '.join(without)}; not compared."] if without else []
        if any(row.label.endswith(_ELSEWHERE) for row in table.rows):
            notes.append(f"{_ELSEWHERE} as printed: the paper took the row from elsewhere; it is not run here.")
        notes += [*table.notes, *(f"{row.label}: {row.note}" for row in table.rows if row.note), *self.plan.notes]
        notes += [f"No data: {name} (looked for: {places})." for name, places in self.plan.missing.items()]
        rows = self._rows_with(NO_RESULT)
        return notes + ([f"No result in the reports: {'; '.join(rows)}."] if rows else [])

    def _of_row(self, row: Row) -> list[tuple[str, dict[str, Ours]]]:
        return [(variant, cells) for (label, variant), cells in self.cells.items() if label == row.label]

    def _rows_with(self, reason: str) -> list[str]:
        """Rows, and the columns where it is not all of them."""
        found = []
        for (label, variant), cells in self.cells.items():
            columns = [column for column, cell in cells.items() if cell.reason == reason]
            where = [*([variant] if variant else []), *(columns if len(columns) < len(cells) else [])]
            if columns:
                found.append(f"{label} ({', '.join(where)})" if where else label)
        return found


def _describe(encoder: EncoderConfig) -> str:
    """An encoder by the last part of its path, and its depth where that can be found out.

    >>> _describe(EncoderConfig())
    'bundled encoder, 3 layers'
    """
    from raysed.model.encoder import check_encoder

    name = encoder.path.replace(":", " ") if encoder.path.startswith("bundled:") else Path(encoder.path).name
    try:
        layers = check_encoder(encoder)
    except UserError:  # it is gone since the run: no reason to lose the table
        return name
    return f"{name}, {layers} layer{'s' * (layers > 1)}"


def _difference(row: Row, column: str, cell: Ours, metric: str) -> float | None:
    ours, published = cell.number(metric), row.cells[column][metric]
    if ours is None or published is None or cell.partial:
        return None
    return round(ours - published, 6) + 0.0  # no minus before a zero


def _joined(values: Mapping[str, float | None], metrics: Iterable[str], style: str = ".2f") -> str:
    """The values of a cell in the order of the metrics.

    >>> _joined({"pearson": 69.5, "spearman": None}, ["pearson", "spearman"]), _joined({}, ["auc"])
    ('69.50/-', '-')
    """
    present = [values.get(metric) for metric in metrics]
    if all(value is None for value in present):
        return "-"
    return "/".join(number(value, style) for value in present)

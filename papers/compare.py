"""Values from reports beside published ones, as Markdown and as plain data."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from papers.data import Request
from papers.plan import Place, Plan
from papers.published import Row

SMALL_NOTE = (
    "Scale small: a small encoder, little data and few updates. These numbers show that the rows "
    "work; they do not reproduce the paper, and differences from published numbers mean nothing."
)
NO_DATA, NO_RESULT = "no data", "no result"
_COPIED = "*"
"""Ends the name of a row that a paper took from elsewhere."""
_DIRECTIVES = {"run", "with", "section", "value", "tasks", "statistic", "metric", "unit"}
_STATISTICS = {"max": max, "mean": statistics.fmean, "median": statistics.median, "std": statistics.stdev}

Reports = Mapping[str, tuple[str, Mapping[str, Any]]]
"""By run: path and content of its report."""


def find_values(report: Mapping[str, Any], place: Place) -> dict[int, float]:
    """Return a number for each matching model in a report, by index (default 0); skip collapsed models.

    Args:
        place: `section`, the list of entries; `value`, dotted keys of the number in an entry, filled in from other keys
            of `place`. An entry must equal all other keys, except `_DIRECTIVES` and keys that are None.

    >>> report = {"rows": [{"recipe": "ct", "index": 1, "metrics": {"sts12": {"spearman": 70.5}}}]}
    >>> place = {"section": "rows", "value": "metrics.{task}.spearman", "recipe": "ct", "task": "sts12"}
    >>> find_values(report, place), find_values(report, place | {"recipe": "nli"})
    ({1: 70.5}, {})
    """
    filled = {name for _, name, _, _ in Formatter().parse(place["value"]) if name}
    value = place["value"].format(**{name: place.get(name) for name in filled})
    match = {k: wanted for k, wanted in place.items() if k not in _DIRECTIVES | filled and wanted is not None}
    found = {}
    for entry in report.get(place["section"]) or []:
        number = _lookup(entry, value)
        if isinstance(number, int | float) and not entry.get("left_out") and match.items() <= entry.items():
            found[entry.get("index", 0)] = float(number)
    return found


def _lookup(data: Any, keys: str) -> Any:
    for key in keys.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


@dataclass
class CellValues:
    """Our values for one cell.

    Attributes:
        values: by metric, the models' values by index.
        statistic: the cell's statistic; None: show all models, and compare their mean.
        partial: missing parts of a mean.
        different: tasks whose pairs are not the paper's.
        reason: why the cell is empty.
    """

    values: dict[str, dict[int, float]] = field(default_factory=dict)
    statistic: str | None = None
    partial: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    reason: str = ""

    def number(self, metric: str, statistic: str | None = None) -> float | None:
        """Return a statistic over the models, by default the one to compare; None with too few models."""
        statistic, values = statistic or self.statistic or "mean", list(self.values.get(metric, {}).values())
        return _STATISTICS[statistic](values) if len(values) > (statistic == "std") else None


def compare(plan: Plan, request: Request, reports: Reports) -> "Comparison":
    """Put the reports' values beside the published ones."""
    cells = {
        (row.label, name): {
            c: _cell_values(plan, row, plan.places(row, c, variant), reports) for c in plan.table.columns
        }
        for row in plan.table.rows
        if not row.copied
        for name, variant in plan.variants(row).items()
    }
    return Comparison(plan, request, cells, {name: path for name, (path, _) in reports.items()})


def _cell_values(plan: Plan, row: Row, places: Sequence[Place], reports: Reports) -> CellValues:
    cell = CellValues(statistic=places[0].get("statistic"))
    parts: dict[str, list[dict[int, float]]] = {metric: [] for metric in plan.table.metrics}
    reasons = []
    for place in places:
        found, reason = _values_at(plan, row, place, reports)
        if reason:
            reasons.append(reason)
            cell.partial.append(str(place.get("task", place["value"])))
        elif place.get("task") in plan.different:
            cell.different.append(place["task"])
        for metric, values in found.items():
            parts[metric].append(values)
    if len(reasons) == len(places):
        return CellValues(reason=reasons[0])
    for metric, of_parts in parts.items():
        if of_parts:  # mean over the parts, for each model that has all of them
            common = [index for index in of_parts[0] if all(index in part for part in of_parts)]
            cell.values[metric] = {index: statistics.fmean(part[index] for part in of_parts) for index in common}
    return cell


def _values_at(plan: Plan, row: Row, place: Place, reports: Reports) -> tuple[dict[str, dict[int, float]], str]:
    """Return the values of one place by metric, or the reason for none."""
    run = plan.same.get(place["run"], "")
    config = plan.configs.get(run)
    if config is None or place.get("task") in plan.missing_tasks or (row.recipe and row.recipe not in config.recipes):
        return {}, NO_DATA
    if row.recipe:
        place = {"layers": config.encoder.pool_layers, **place}
    _, report = reports[run]
    found = {metric: find_values(report, {**place, "metric": metric}) for metric in plan.table.metrics}
    found = {metric: values for metric, values in found.items() if values}
    # Runs score all transfer tasks that have data.
    reason = NO_DATA if place["section"] == "transfer" and report.get("transfer") else NO_RESULT
    return found, "" if found else reason


@dataclass
class Comparison:
    """A table beside its published version: our cells by row and variant, and the path of each run's report."""

    plan: Plan
    request: Request
    cells: dict[tuple[str, str], dict[str, CellValues]]
    reports: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        table = self.plan.table
        return {
            **{name: getattr(table, name) for name in ("name", "source", "title", "aggregation", "columns", "metrics")},
            "scale": self.request.scale,
            "rows": [self._row(row) for row in table.rows],
            "missing": self.plan.missing,
            "no_result": self._rows_without_result(),
            "notes": self._notes(),
            "reports": self.reports,
        }

    def to_markdown(self) -> str:
        """Return the table with its notes, aligned for terminals."""
        table = self.plan.table
        lines = [line for row in table.rows for line in self._lines(row)]
        parts = [
            f"# {table.name}: {table.title}",
            f"Published in {table.source}.",
            f"**{SMALL_NOTE}**" if self.request.small else "",
            _aligned([["row", "what", *table.columns], *lines]),
            "\n".join(f"- {note}" for note in self._notes()),
            "\n".join(f"- report of {run}: {path}" for run, path in self.reports.items()),
        ]
        return "\n\n".join(filter(None, parts)) + "\n"

    def _row(self, row: Row) -> dict[str, Any]:
        ours = []
        for variant, cells in self._of_row(row):
            columns = {c: self._cell(row, c, cell) for c, cell in cells.items()}
            encoder = self._other_encoder(row, variant, cells) or None
            ours.append({"variant": variant or None, "encoder": encoder, "columns": columns})
        known = {name: getattr(row, name) for name in ("label", "encoder", "recipe", "copied", "note")}
        return {**known, "published": row.cells, "ours": ours}

    def _cell(self, row: Row, column: str, cell: CellValues) -> dict[str, Any]:
        if cell.reason:
            return {"reason": cell.reason}
        result: dict[str, Any] = {"missing": cell.partial} if cell.partial else {}
        result |= {"different": cell.different} if cell.different else {}
        for metric, values in cell.values.items():
            result[metric] = {name: cell.number(metric, name) for name in _STATISTICS}
            result[metric] |= {"n": len(values), "compared": cell.statistic or "mean"}
            result[metric]["difference"] = _difference(row, column, cell, metric)
        return result

    def _lines(self, row: Row) -> list[list[str]]:
        """Return the published line and, for each variant, ours and the difference."""
        metrics = self.plan.table.metrics
        what = f"published{' elsewhere' * row.copied}"
        lines = [[row.label, what, *(_joined(row.cells[column], metrics) for column in self.plan.table.columns)]]
        for variant, cells in self._of_row(row):
            encoder = self._other_encoder(row, variant, cells)
            names = [f"here: {encoder}" if encoder else ""]
            for what, values in self._ours(row, cells):
                lines.append([names.pop() if names else "", what + (f", {variant}" if variant else ""), *values])
        return lines

    def _other_encoder(self, row: Row, variant: str, cells: Mapping[str, CellValues]) -> str:
        """Return the encoder that replaces a row's published one; empty if none does, or without any number."""
        if not (self.request.small or self.request.sets("encoder.path")) or all(c.reason for c in cells.values()):
            return ""
        plan = self.plan
        runs = [plan.same.get(run) for run in plan.runs_of(row, plan.variants(row)[variant])]
        paths = dict.fromkeys(plan.configs[run].encoder.path for run in runs if run in plan.configs)
        return " and ".join(p.replace(":", " ") if p.startswith("bundled:") else Path(p).name for p in paths)

    def _ours(self, row: Row, cells: Mapping[str, CellValues]) -> list[tuple[str, list[str]]]:
        count = max((len(v) for cell in cells.values() for v in cell.values.values()), default=0)
        several = count > 1 and not any(cell.statistic for cell in cells.values())
        lines = [(f"ours, mean of {count}" if several else "ours", self._line(cells, CellValues.number))]
        if several:
            best = self._best(cells)
            lines += [
                ("ours, std", self._line(cells, lambda cell, metric: cell.number(metric, "std"))),
                ("ours, best one", self._line(cells, lambda cell, metric: cell.values[metric].get(best))),
            ]
        differences = {c: {m: _difference(row, c, cell, m) for m in cell.values} for c, cell in cells.items()}
        if any(value is not None for column in differences.values() for value in column.values()):
            metrics = self.plan.table.metrics
            lines.append(("difference", [_joined(column, metrics, "+.2f") for column in differences.values()]))
        return lines

    def _line(self, cells: Mapping[str, CellValues], number_of: Callable[[CellValues, str], float | None]) -> list[str]:
        metrics = self.plan.table.metrics
        return [
            cell.reason
            or _joined({m: number_of(cell, m) for m in cell.values}, metrics)
            + " (part)" * bool(cell.partial)
            + " (other pairs)" * bool(cell.different)
            for cell in cells.values()
        ]

    def _best(self, cells: Mapping[str, CellValues]) -> int:
        """Return the index of the model with the best average (or else last column), by the last metric."""
        metric, columns = self.plan.table.metrics[-1], [self.plan.table.average, *reversed(cells)]
        values = next((cells[c].values[metric] for c in columns if c in cells and metric in cells[c].values), {})
        return max(values, key=values.get, default=0)

    def _notes(self) -> list[str]:
        table, cells = self.plan.table, [cell for row in self.cells.values() for cell in row.values()]
        notes = [f"Each cell: {' / '.join(table.metrics)}."]
        notes += [f"Subsets of a year are put together as `{table.aggregation}`."] if table.aggregation else []
        if any(len(values) > 1 for cell in cells if not cell.statistic for values in cell.values.values()):
            notes.append(
                "If there are several models, their mean is compared. The best one has the highest score shown here, "
                "so it was chosen by the test, as a single published model may have been."
            )
        without = dict.fromkeys(part for cell in cells for part in cell.partial)
        notes += [f"(part): an average without {', '.join(without)}; not compared."] if without else []
        if self.plan.different:
            found = "; ".join(f"{name}: {how}" for name, how in self.plan.different.items())
            notes.append(f"(other pairs): the data are not the paper's ({found}); not compared.")
        if any(row.label.endswith(_COPIED) for row in table.rows):
            notes.append(f"{_COPIED} as printed: the paper took the row from elsewhere; it is not run here.")
        notes += [*table.notes, *(f"{row.label}: {row.note}" for row in table.rows if row.note), *self.plan.notes]
        notes += [f"No data: {name} (looked for: {places})." for name, places in self.plan.missing.items()]
        rows = self._rows_without_result()
        return notes + ([f"No result in the reports: {'; '.join(rows)}."] if rows else [])

    def _of_row(self, row: Row) -> list[tuple[str, dict[str, CellValues]]]:
        return [(variant, cells) for (label, variant), cells in self.cells.items() if label == row.label]

    def _rows_without_result(self) -> list[str]:
        """Return the rows without an expected result, and their columns unless all lack it."""
        found = []
        for (label, variant), cells in self.cells.items():
            columns = [column for column, cell in cells.items() if cell.reason == NO_RESULT]
            where = [*([variant] if variant else []), *(columns if len(columns) < len(cells) else [])]
            if columns:
                found.append(f"{label} ({', '.join(where)})" if where else label)
        return found


def _difference(row: Row, column: str, cell: CellValues, metric: str) -> float | None:
    ours, published = cell.number(metric), row.cells[column][metric]
    if ours is None or published is None or cell.partial or cell.different:
        return None
    return round(ours - published, 6) + 0.0  # avoids -0.0


def _joined(values: Mapping[str, float | None], metrics: Sequence[str], style: str = ".2f") -> str:
    """Join the values of a cell in the order of the metrics.

    >>> _joined({"pearson": 69.5, "spearman": None}, ["pearson", "spearman"]), _joined({}, ["auc"])
    ('69.50/-', '-')
    """
    present = [values.get(metric) for metric in metrics]
    if all(value is None for value in present):
        return "-"
    return "/".join("-" if value is None else format(value, style) for value in present)


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with two columns to the left and numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    rows = [
        " | ".join(cell.ljust(w) if place < 2 else cell.rjust(w) for place, (cell, w) in enumerate(zip(line, widths)))
        for line in lines
    ]
    rule = "|".join("-" * (w + 2) if place < 2 else "-" * (w + 1) + ":" for place, w in enumerate(widths))
    return "\n".join([f"| {rows[0]} |", f"|{rule}|", *(f"| {row} |" for row in rows[1:])])

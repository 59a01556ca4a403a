"""What the papers print."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

TABLES = Path(__file__).parent / "tables"
"""The published numbers, and how each table is run."""


@dataclass(frozen=True)
class Row:
    """One published row.

    Attributes:
        label: as printed.
        cells: column to metric to value; None where none is printed.
        encoder: which one; None where it is not run.
        recipe: in raysed's words; None for rows without a model.
        copied: whether the paper took it from elsewhere.
        note: what is odd about it.
    """

    label: str
    cells: dict[str, dict[str, float | None]]
    encoder: str | None = None
    recipe: str | None = None
    copied: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Table:
    """One published table.

    Attributes:
        name: e.g. `sed-table-1`.
        source: the paper.
        title: what it shows.
        columns: in order.
        metrics: what every cell has, in order.
        rows: in order.
        average: the column that is the mean of all others, if any.
        aggregation: how subsets become one number, where years of STS are in it.
        notes: the paper's own inconsistencies, and what it leaves open.
        gains: of the text: `gain` is the mean over all columns of the row `of` less that of the row `over`.
    """

    name: str
    source: str
    title: str
    columns: list[str]
    metrics: list[str]
    rows: list[Row]
    average: str | None = None
    aggregation: str | None = None
    notes: list[str] = field(default_factory=list)
    gains: list[dict[str, Any]] = field(default_factory=list)


def load_published() -> dict[str, Table]:
    """Read `published.yaml`; return the tables by name."""
    data = load_yaml(TABLES / "published.yaml")
    return {name: _table_of(name, table, data["papers"]) for name, table in data["tables"].items()}


def list_tables() -> dict[str, str]:
    """Return name and title of each table that can be run."""
    published = load_published()
    return {name: published[name].title for name in load_yaml(TABLES / "runs.yaml")["tables"]}


def load_yaml(path: Path) -> dict[str, Any]:
    """Returns the content of one of the project's own data files."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _table_of(name: str, data: Mapping[str, Any], papers: Mapping[str, str]) -> Table:
    columns, metrics = data["columns"], data["metrics"]
    rows = [
        Row(**{**row, "cells": {c: _cell(cell, metrics) for c, cell in zip(columns, row["cells"].split())}})
        for row in data["rows"]
    ]
    source = f"{papers[data['paper']]}, table {name.rpartition('-')[2]}"
    return Table(name=name, source=source, **{k: v for k, v in data.items() if k not in ("paper", "rows")}, rows=rows)


def _cell(text: str, metrics: Sequence[str]) -> dict[str, float | None]:
    return {metric: None if value == "-" else float(value) for metric, value in zip(metrics, text.split("/"))}

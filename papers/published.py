"""The numbers that the papers print."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

TABLES = Path(__file__).parent / "tables"
"""Published numbers, and how each table is run."""


@dataclass(frozen=True)
class Row:
    """One published row.

    Attributes:
        cells: column to metric to value; None if not printed.
        encoder: None if the row is not run.
        recipe: in raysed's terms; None for rows without a model.
        copied: the paper took it from elsewhere.
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
        metrics: of every cell, in order.
        average: the column that is the mean of all others, if any.
        aggregation: how the subsets of STS years are combined.
        notes: the paper's inconsistencies and omissions.
        gains: from the text: `gain` is the mean over all columns of the row `of` minus that of the row `over`.
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
    tables = {}
    for name, table in data["tables"].items():
        source = f"{data['papers'][table['paper']]}, table {name.rpartition('-')[2]}"
        known = {key: value for key, value in table.items() if key != "paper"}
        rows = []
        for row in table["rows"]:
            cells = zip(table["columns"], row["cells"].split())
            rows.append(Row(**{**row, "cells": {column: _cell(text, table["metrics"]) for column, text in cells}}))
        tables[name] = Table(**{**known, "name": name, "source": source, "rows": rows})
    return tables


def list_tables() -> dict[str, str]:
    """Return the titles of the tables that can be run, by name."""
    published = load_published()
    return {name: published[name].title for name in load_yaml(TABLES / "runs.yaml")["tables"]}


def load_yaml(path: Path) -> dict[str, Any]:
    """Read one of the project's own data files."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _cell(text: str, metrics: Sequence[str]) -> dict[str, float | None]:
    return {metric: None if value == "-" else float(value) for metric, value in zip(metrics, text.split("/"))}

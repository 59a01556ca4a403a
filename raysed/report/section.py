"""Sections of the report: a new file in `sections/` is a new section."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from raysed.registry import discover
from raysed.report.charts import Chart
from raysed.report.findings import Finding
from raysed.report.results import RunResults
from raysed.store.text import Table


@dataclass(frozen=True)
class Code:
    """Text to type, verbatim."""

    text: str
    language: str = "sh"

    @property
    def fenced(self) -> str:
        """Markdown, whose fence is longer than any backticks in the text."""
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", self.text)), 0)
        return f"{fence}{self.language}\n{self.text}\n{fence}"


Block: TypeAlias = str | Table | Code | Chart | Finding | None
"""Text is a paragraph with code between backticks; the report omits None and empty tables."""


@dataclass(frozen=True)
class Section:
    """A part of the report: what to compute from a run, and how to show it.

    Attributes:
        name: key in report.json (`a.b`: key b of a); its last part is the anchor on the page.
        order: sort key.
        data: computes plain types from a run; None if the section only shows scores or heads the parts after it.
        words: a paragraph before the blocks.
        blocks: makes tables, charts and paragraphs of the data and the run.
        empty: value in report.json without data; None omits the key.
    """

    name: str
    title: str
    order: int
    data: Callable[[RunResults], Any] | None = None
    words: str = ""
    blocks: Callable[[Any, RunResults], Iterable[Block]] | None = None
    is_part: bool = False
    empty: Any = None

    @property
    def anchor(self) -> str:
        return self.name.rpartition(".")[2]


@cache
def all_sections() -> tuple[Section, ...]:
    """Return the `SECTIONS` of every file in `raysed.report.sections`, in order."""
    parts = discover("raysed.report.sections", "SECTIONS").values()
    return tuple(sorted((section for part in parts for section in part), key=lambda section: section.order))

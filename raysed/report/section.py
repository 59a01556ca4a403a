"""What a section of the report is, and where all of them are found: a new file in `sections/` is a new section."""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from raysed.report import sections
from raysed.report.charts import Chart
from raysed.report.findings import Finding
from raysed.store.text import Table

if TYPE_CHECKING:
    from raysed.report.document import Report
    from raysed.report.results import Run


@dataclass(frozen=True)
class Code:
    """Something to type, word for word."""

    text: str

    @property
    def fenced(self) -> str:
        """The text in Markdown, whatever backticks it has."""
        fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", self.text)), 0)
        return f"{fence}sh\n{self.text}\n{fence}"


@dataclass(frozen=True)
class Cards:
    """By sentence, lists of (cosine, sentence) under several names, side by side; in Markdown a table of the first."""

    lists: Mapping[str, Mapping[str, Sequence[tuple[float, str]]]]
    table: Table


Block = str | Table | Code | Cards | Chart | list[Finding]
"""A text is a paragraph, in which what stands between backticks is code."""


@dataclass(frozen=True)
class Section:
    """A part of the report: what it computes from a run, and how that is shown.

    A section without data shows what is in the scores, or is the head of the parts that follow it.

    Attributes:
        name: of its data in report.json (`a.b`: the key b of a), and its anchor on the page.
        order: sections stand in the order of these numbers.
        data: computes its data from a run, of plain types.
        words: a paragraph, or what makes one of the data.
        tables: makes of the data what follows the charts: tables, and texts between them.
        is_part: whether it belongs to the section before it.
        empty: what report.json has where there are no data; None: nothing.
    """

    name: str
    title: str
    order: int
    data: "Callable[[Run], Any] | None" = None
    words: "str | Callable[[Any, Report], str]" = ""
    charts: "Callable[[Run, Any], Iterable[Chart | None]] | None" = None
    tables: "Callable[[Any, Report], Iterable[Block]] | None" = None
    is_part: bool = False
    empty: Any = None

    @property
    def anchor(self) -> str:
        """Its name on the page."""
        return self.name.rpartition(".")[2]


@cache
def all_sections() -> tuple[Section, ...]:
    """Return the sections of all files of `raysed.report.sections`, each of which has a list `SECTIONS`."""
    files = [module.name for module in pkgutil.iter_modules(sections.__path__)]
    found = [importlib.import_module(f"{sections.__name__}.{file}").SECTIONS for file in files]
    return tuple(sorted((section for part in found for section in part), key=lambda section: section.order))

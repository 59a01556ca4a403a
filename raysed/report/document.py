"""The results of a run: `report.json` for programs, `report.html` and `report.md` for people."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from raysed.report.charts import Chart
from raysed.report.findings import Finding, findings
from raysed.report.results import RunResults
from raysed.report.scores import titled
from raysed.report.section import Block, Code, Section, all_sections
from raysed.store.text import Table, render

_KINDS = {str: "text", Chart: "chart", Code: "code", Finding: "finding", Table: "table"}
"""Template names of blocks; report_parts.html has a macro for each."""


@dataclass(frozen=True)
class Document:
    """A finished run with the data of each section, by name."""

    run: RunResults
    data: Mapping[str, Any]

    @classmethod
    def of(cls, run: RunResults) -> "Document":
        data = {}
        for section in (section for section in all_sections() if section.data):
            run.begin(f"section {section.name}")
            data[section.name] = section.data(run)
        return cls(run, data)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of report.json: plain types only, None for numbers that are not finite."""
        names = ("recipe", "kind", "index", "lower_bound", "layers", "metrics", "left_out")
        scores = self.run.scores
        found: dict[str, Any] = {"run": self.run.config.run, "status": "complete"}
        found["rows"] = [{name: getattr(row, name) for name in names} for row in scores.rows]
        found["summary"] = scores.summary
        for section in (section for section in all_sections() if section.data):
            data = self.data.get(section.name) or section.empty
            *above, key = section.name.split(".")
            if data is not None:
                (found.setdefault(above[0], {}) if above else found)[key] = data
        return _plain({**found, "findings": "\n\n".join(finding.text for finding in findings(self.run))})

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        return self._rendered("report.md")

    def to_html(self) -> str:
        """Return the page: a single file with charts, whose findings link to table rows."""
        return self._rendered("report.html")

    def charts(self) -> list[Chart]:
        return [block for _, blocks in self.shown for block in blocks if isinstance(block, Chart)]

    @cached_property
    def shown(self) -> list[tuple[Section, list[Block]]]:
        """The sections with blocks, and the heads of parts with blocks."""
        found: list[tuple[Section, list[Block]]] = []
        head: Section | None = None
        for section in all_sections():
            head = head if section.is_part else section
            if blocks := self._blocks(section):
                if section.is_part and head not in [shown for shown, _ in found]:
                    found.append((head, []))
                found.append((section, blocks))
        return found

    def _blocks(self, section: Section) -> list[Block]:
        data = self.data.get(section.name)
        if section.blocks is None or (section.data and not data):
            return []
        blocks = [block for block in section.blocks(data, self.run) if block]
        return [section.words, *blocks] if section.words and blocks else blocks

    def _rendered(self, template: str) -> str:
        scores = self.run.scores
        context = {"run": self.run.config.run, "groups": scores.groups, "titled": titled, "shown": self.shown}
        return render(template, **context, kind=lambda block: _KINDS[type(block)])


def _plain(value: Any) -> Any:
    """Convert to JSON types: numpy unwrapped, tuples as lists, NaN and infinity as None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)

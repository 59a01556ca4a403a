"""The results of a run: `report.json` for programs, `report.html` and `report.md` for people."""

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from raysed.report.charts import Chart
from raysed.report.findings import Finding, finding_paragraphs
from raysed.report.results import RunResults
from raysed.report.scores import ScoreTable, titled
from raysed.report.section import Block, Cards, Code, Section, all_sections
from raysed.store.text import Table, render

log = logging.getLogger(__name__)
_KINDS = {str: "text", Chart: "chart", Code: "code", Cards: "cards", list: "findings", Table: "table"}
"""Template names of blocks; report_parts.html has a macro for each."""


@dataclass(frozen=True)
class Document:
    """Scores of a run, and by section name its data and charts."""

    run: str
    scores: ScoreTable
    data: Mapping[str, Any] = field(default_factory=dict)
    charts: Mapping[str, Sequence[Chart]] = field(default_factory=dict)

    @classmethod
    def of(cls, run: RunResults) -> "Document":
        """Compute all sections of a run."""
        data, charts, has_pictures = {}, {}, find_spec("matplotlib") is not None
        if not has_pictures:
            log.info("the report has no charts; to get them, run pip install 'raysed[plots]'")
        for section in all_sections():
            if section.data:
                run.begin(f"section {section.name}")
                data[section.name] = section.data(run)
            if section.charts and has_pictures and (not section.data or data[section.name]):
                charts[section.name] = [chart for chart in section.charts(run, data.get(section.name)) if chart]
        return cls(run.config.run, run.scores, data, charts)

    @property
    def dev(self) -> str | None:
        """Name of the dev task."""
        return self.data.get("config", {}).get("evaluation", {}).get("dev")

    def finding_paragraphs(self) -> list[list[Finding]]:
        """Return the findings as paragraphs of sentences."""
        exported = (self.data.get("exported") or {}).get("recipe")
        return finding_paragraphs(self.scores, self.dev, exported, self.data.get("members") or ())

    def findings(self) -> str:
        """Return the findings as text."""
        return "\n\n".join(" ".join(finding.text for finding in paragraph) for paragraph in self.finding_paragraphs())

    def to_dict(self) -> dict[str, Any]:
        """Return the content of report.json: plain types only, None for numbers that are not finite."""
        names = ("recipe", "kind", "index", "lower_bound", "layers", "metrics", "left_out")
        found: dict[str, Any] = {"run": self.run, "status": "complete"}
        found["rows"] = [{name: getattr(row, name) for name in names} for row in self.scores.rows]
        found["summary"] = self.scores.summary
        for section in (section for section in all_sections() if section.data):
            data = self.data.get(section.name) or section.empty
            *above, key = section.name.split(".")
            if data is not None:
                (found.setdefault(above[0], {}) if above else found)[key] = data
        return _plain({**found, "findings": self.findings()})

    def to_json(self) -> str:
        """Return report.json."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        """Return report.md."""
        return self._rendered("report.md")

    def to_html(self) -> str:
        """Return report.html: a single file with charts, in which findings link to table rows."""
        return self._rendered("report.html")

    def _rendered(self, template: str) -> str:
        context = {"run": self.run, "groups": self.scores.groups, "titled": titled, "shown": list(self._shown())}
        return render(template, **context, kind=lambda block: _KINDS[type(block)])

    def _shown(self) -> Iterator[tuple[Section, list[Block]]]:
        """Yield the sections that have something to show, each head before its parts."""
        heads = [place for place, section in enumerate(all_sections()) if not section.is_part]
        for first, last in zip(heads, [*heads[1:], None]):
            head, *parts = all_sections()[first:last]
            blocks, others = self._blocks(head), [(part, found) for part in parts if (found := self._blocks(part))]
            if others or (blocks and (head.data or head.tables or self.charts.get(head.name))):
                yield head, blocks
                yield from others

    def _blocks(self, section: Section) -> list[Block]:
        data = self.data.get(section.name)
        if section.data and not data:
            return []
        words = section.words if isinstance(section.words, str) else section.words(data, self)
        tables = section.tables(data, self) if section.tables else ()
        return [block for block in (words, *self.charts.get(section.name, ()), *tables) if block]


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

"""The findings of the run."""

from raysed.report.findings import findings
from raysed.report.section import Section

SECTIONS = [
    Section(
        "findings",
        "Findings",
        15,
        blocks=lambda data, run: findings(run),
    )
]

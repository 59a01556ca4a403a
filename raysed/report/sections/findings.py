"""The findings of the run."""

from raysed.report.findings import findings
from raysed.report.section import Section

SECTIONS = [
    Section(
        "findings",
        "Findings",
        15,
        words="Differences of headline scores, with 95 % intervals over the sampling of pairs and seeds.",
        blocks=lambda data, run: findings(run),
    )
]

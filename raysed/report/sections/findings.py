"""The findings of the run, sentence by sentence."""

from raysed.report.section import Section

SECTIONS = [Section("findings", "Findings", 10, tables=lambda data, report: report.finding_paragraphs())]

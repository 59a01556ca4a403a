"""Sections of the report, one or a few related ones per file; `raysed.report.section` finds them."""

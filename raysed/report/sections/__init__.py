"""The sections of a report, a file for each or for a few that belong together; `raysed.report.section` finds them."""

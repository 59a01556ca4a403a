# raysed/report/sections/lengths.py
"""How long the tasks' sentences are."""

from raysed.report.section import Section
from raysed.store.text import Table


def _lengths(run):
    lengths = sorted(map(len, run.evaluation.sentences))
    return {"shortest": lengths[0], "median": lengths[len(lengths) // 2] * 1.0, "longest": lengths[-1]}


def _blocks(lengths, run):
    yield Table(["what", "characters"], [[what, f"{count:.0f}"] for what, count in lengths.items()])


SECTIONS = [Section("lengths", "Length of sentences", 105, _lengths, "Of the tasks' sentences.", _blocks)]

"""Charts: what they hold of a run, as pictures and on the page."""

import html
import json
import re
from itertools import pairwise

import numpy as np
import pytest
from made_up import full_run, grid, report_of, row, scored
from matplotlib.backends.backend_agg import FigureCanvasAgg

from raysed.report.scores import ScoreTable
from raysed.report.sections.grids import grid_chart
from raysed.report.sections.scores import scores_chart

LONG = "mlm-nli-ct-bsl-contrastive-sed-sn-natsv"
LONG_TASK = "support-tickets-german-2025-$graded$-by-$hand"


CHARTS = {
    "scores": scores_chart(scored(full_run(), exported=row("ct-sed", "learner", 70.0))),
    "grid": grid_chart(grid({0.0: [79.0, 79.4], 0.5: [80.0, 80.2]})),
    "long scores": scores_chart(
        ScoreTable([row(LONG, kind, 60.0) for kind in ("member", "learner")], ["sts12"] * 9, 2)
    ),
    "long grid": grid_chart(grid({0.05 * i: [79.0, 79.4] for i in range(9)}, LONG, task=LONG_TASK)),
    "formula": scores_chart(scored([row(r"$\frac{$", "member", 60.0), row("$x$ & $y", "learner", 61.0)])),
}


@pytest.mark.parametrize("name", CHARTS)
def test_nothing_of_a_chart_is_cut_off(name):
    with CHARTS[name].figure() as figure:
        figure.suptitle(CHARTS[name].title, x=0.01, ha="left", wrap=True)
        FigureCanvasAgg(figure).draw()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert min(box.x0, box.y0) > -0.01 and box.x1 < width + 0.01 and box.y1 < height + 0.01, (box, width, height)
        titles = [axes.title.get_window_extent() for axes in figure.axes if axes.title.get_text()]
        assert all(left.x1 < right.x0 for left, right in pairwise(titles))


@pytest.mark.parametrize("name", CHARTS)
def test_names_and_values_of_a_chart_are_text_on_the_page(name):
    """As they are, in colours that the page defines for light and dark screens."""
    svg = CHARTS[name].svg()
    shown = [" ".join(html.unescape(text).split()) for text in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]
    with CHARTS[name].figure() as figure:
        labels = {label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]}
    assert labels <= set(shown)
    assert not re.search(r"(?:fill|stroke): #(?!ffffff|000000)", svg) and "var(--ink)" in svg


def test_scores_can_be_read_off_a_chart():
    text = CHARTS["scores"].svg()
    for group in ("members (3) of ct", "69.0", "base + flow", "73.0", "word overlap", "60.0"):
        assert f">{group}</text>" in text
    assert CHARTS["scores"].title == "Best: base + flow 73.0; this model: 70.0"
    assert ">80.1</text>" in CHARTS["grid"].svg()


def test_without_numbers_there_is_no_chart():
    assert scores_chart(scored([])) is None
    assert grid_chart(grid({0.0: [79.0, 80.0]})) is None, "one bound alone"


def test_whatever_a_run_lacks_it_has_a_report_whose_links_lead_somewhere():
    """Learners that learnt too little, calibrations that harm, words that are better on a task, collapsed members."""
    rng, rows = np.random.default_rng(0), [*full_run(), row("base-whiten", "base", 75.0)]
    rows += [row("tf-idf", "baseline", 80.0, layers=0)]
    collapsed = {"ct/members/07": "collapsed: all embeddings point one way"}
    for kept in [rows, *([one for one in rows if rng.random() < 0.5] for _ in range(4))]:
        report = report_of(kept, "dev", collapsed)
        text = report.to_html()
        for finding in json.loads(report.to_json())["findings"].split("\n\n"):
            assert finding in report.to_markdown()
        names = re.findall(r' id="([^"]+)"', text)
        assert len(names) == len(set(names))
        links = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)
        assert {link or place for link, place in links} <= set(names)

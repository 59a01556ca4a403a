"""Charts: what they hold of a run, as pictures and on the page."""

import json
import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from made_up import full_run, grid, judged, report_of, row, scored, trainings
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raysed.report.charts import Axis, draw
from raysed.report.document import Document
from raysed.report.scores import ScoreTable
from raysed.report.sections.grids import grid_chart
from raysed.report.sections.pairs import agreement_chart
from raysed.report.sections.scores import scores_chart
from raysed.report.sections.space import spectrum_chart
from raysed.report.sections.training import training_chart
from raysed.score.unlabelled import singular_values

RNG = np.random.default_rng(0)
COSINES, GRADED = RNG.normal(size=50), RNG.integers(0, 6, 50).astype(float)
ODD = {
    "diverged": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": math.nan}],
    "silent": [{"step": 1}],
    "zero": [{"step": 1, "loss": 0.0, "dev": None}],
}
LONG = "mlm-nli-ct-bsl-contrastive-sed-sn-natsv"
LONG_TASK = "support-tickets-german-2025-$graded$-by-$hand"


def spectra(*names):
    return {name: singular_values(RNG.normal(size=(30, 8))) for name in names}


CHARTS = {
    "scores": scores_chart(scored(full_run())),
    "training": training_chart("ct", trainings(3)),
    "odd training": training_chart("ct", ODD),
    "one gold score": agreement_chart(judged(np.array([3.0, 3.0]), np.array([0.1, 0.2]))),
    "grid": grid_chart(grid({0.0: [79.0, 79.4], 0.5: [80.0, 80.2]})),
    "stopped": grid_chart(grid({0.0: [79.0], 0.5: [80.0], 0.6: [50.0]}, stopped=[0.0, 0.6])),
    "disagreement": agreement_chart(judged(np.arange(50.0), -np.arange(50.0))),
    "long scores": scores_chart(
        ScoreTable([row(LONG, kind, 60.0) for kind in ("member", "learner")], ["sts12"] * 9, 2)
    ),
    "long agreement": agreement_chart(judged(GRADED, COSINES, f"{LONG} (exported)", LONG_TASK)),
    "long training": training_chart(LONG, trainings(9), {"base": 55.0, "members, mean": 61.0}),
    "long spectrum": spectrum_chart(spectra("base", "base-sn-natsv", LONG, f"{LONG}-flow")),
    "long grid": grid_chart(grid({0.05 * i: [79.0, 79.4] for i in range(9)}, LONG, task=LONG_TASK)),
    "formula": scores_chart(scored([row(r"$\frac{$", "member", 60.0), row("$x$ & $y", "learner", 61.0)])),
}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be saved, drawn, by name of the file."""
    figures = {}

    def keep(figure, path, **options):
        FigureCanvasAgg(figure).draw()
        figures[Path(path).stem] = figure

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


@pytest.mark.parametrize("name", CHARTS)
def test_all_of_a_chart_lies_within_the_page_and_nothing_of_its_picture_is_cut_off(drawn, name):
    chart = CHARTS[name]
    for panel in chart.panels:
        places = [place for one in panel.series for dot in panel.dots(one) for place in dot[:2]]
        assert places and all(0 <= place <= 100 for place in places)
        assert panel.x.ticks() and all(0 <= panel.x.place(value) <= 100 for value, _ in panel.x.ticks())
    draw(chart, Path("picture.png"))
    figure = drawn["picture"]
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.01 and box.x1 < width + 0.01 and box.y1 < height + 0.01, (box, width, height)
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.title.get_text()]
    assert all(left.x1 < right.x0 for left, right in pairwise(titles))
    assert all(title.y1 < figure._suptitle.get_window_extent().y0 for title in titles)
    assert figure._suptitle.get_text().replace("\n", " ") == chart.title
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    shown = {text.get_text().replace("\n", " ") for legend in legends if legend for text in legend.get_texts()}
    assert shown == {text for panel in chart.panels for text, _ in panel.legend}, "names are shown as they are"


def test_titles_say_what_there_is_to_see():
    titles = {
        "scores": "Best: base + flow 73.0, base encoder 66.0",
        "training": "Training of ct, on average: loss 1 to 0.0244, dev 61 to 65",
        "grid": "sts: lower bound 0.5 wins, mean 80.10",
        "disagreement": "Cosines and graded scores on dev; Spearman: base -100.0, ct (exported) -100.0",
    }
    assert {name: CHARTS[name].title for name in titles} == titles
    three = [row("ct", "member", score, index) for index, score in enumerate([60.0, 61.0, 62.0])]
    assert scores_chart(scored(three)).title == "Best: members (3) of ct 61.0"


def test_without_numbers_there_is_no_chart():
    broken = np.array([math.nan, 0.5, 0.1])
    assert agreement_chart(judged(np.array([1.0, 2.0, 3.0]), broken)) is spectrum_chart({}) is None
    assert scores_chart(scored([])) is training_chart("ct", {"silent": [{"step": 1}]}) is None
    assert grid_chart(grid({0.0: [79.0, 80.0]})) is None, "one bound alone"


def test_a_large_run_has_a_small_page():
    """Whatever the number of pairs and updates: a sample of either, and the note says of how many."""
    count = 2_000
    records = [{"step": step, "loss": 1 / step, "dev": float(step % 7)} for step in range(1, 2001)]
    agreement = agreement_chart(judged(RNG.uniform(0, 5, count), RNG.normal(size=count), text="x" * 500))
    training = training_chart("ct", {f"member {i}": records for i in range(9)})
    assert agreement.note.startswith("500 of 2,000 pairs") and len(agreement.panels[0].series[0].x) == count
    charts = {"pairs": [agreement], "training": [training]}
    text = Document("r", scored(full_run()), charts=charts).to_html()
    assert len(text) < 1_000_000 and "x" * 81 not in text
    panel = training.panels[0]
    assert panel.dots(panel.series[0])[-1][2] == "member 0, update 2,000: 0.0005"


def test_axes_place_values_by_ratio_where_they_are_logarithmic():
    axis = Axis("speed", 1.0, 100.0, is_logarithmic=True)
    assert [axis.place(value) for value in (1, 10, 100)] == [0, 50, 100]
    assert Axis("", 4, 0).place(1) == 75, "bands are counted from the top"


def test_references_are_lines_in_the_panel_of_dev_scores_alone():
    loss, dev = training_chart("ct-sed", trainings(3), {"base": 55.0, "full ensemble": 62.5}).panels
    assert [name for name, _, _ in dev.lines] == ["base: 55.0", "full ensemble: 62.5"] and not loss.lines
    assert [(one.name, one.colour) for one in loss.series] == [(one.name, one.colour) for one in dev.series]


def test_bounds_that_were_stopped_are_no_part_of_the_line_of_means():
    (panel,) = grid_chart(grid({0.0: [79.0, 81.0], 0.3: [80.0, 80.2], 0.5: [60.0]}, stopped=[0.5])).panels
    names = {"mean", "chosen: 0.3", "a model", "stopped early (score of fewer updates)"}
    assert {name for name, _ in panel.legend} == names and panel.series[0].x.tolist() == [0.0, 0.3]


def test_whatever_a_run_lacks_it_has_a_report_whose_links_lead_somewhere():
    """Learners that learnt too little, calibrations that harm, words that are better on a task, collapsed members."""
    rng, rows = np.random.default_rng(0), [*full_run(), row("base-whiten", "base", 75.0)]
    rows += [row("tf-idf", "baseline", 80.0, layers=0)]
    collapsed = [{"recipe": "ct", "index": 7, "reason": "collapsed: all embeddings point one way"}]
    for kept in [rows, *([one for one in rows if rng.random() < 0.5] for _ in range(4))]:
        report = report_of(kept, "dev", members=collapsed)
        text = report.to_html()
        assert report.findings() in report.to_markdown() and json.loads(report.to_json())
        names = re.findall(r' id="([^"]+)"', text)
        assert len(names) == len(set(names))
        assert set(re.findall(r' href="#([^"]+)"', text)) <= set(names)

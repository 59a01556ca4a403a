"""The charts of report.html beside the pictures of report.md, and what of a run they hold."""

import math
import re

import numpy as np
import pytest
from test_report import full_run, grid, of_speed, row, scored, trainings

from raysed.report.charts import Axis, PairTexts, draw_charts
from raysed.report.document import Report
from raysed.report.plots import Pictured, Training, write_plots
from raysed.score.analysis import singular_values

RNG = np.random.default_rng(0)
PAIRS = (RNG.normal(size=50), RNG.integers(0, 6, 50).astype(float))
NUMBERS = [
    {},
    {"trainings": {"ct": trainings(3), "ct-sed": trainings(1)}, "agreement": {"base": PAIRS, "ct": PAIRS}},
    {"trainings": {"ct": Training("member", {"a": [{"step": 1, "loss": 0.0}], "silent": [{"step": 1}]})}},
    {"trainings": {"ct": Training("member", {"silent": [{"step": 1}]})}},
    {"spectra": {"low rank": singular_values(np.ones((6, 4)))}},
    {"grids": [grid({0.0: [79.0, 79.4], 0.5: [80.0, 80.2]}), grid({0.0: [1.0], 0.1: [2.0]}, "nli-sts")]},
    {"grids": [grid({0.0: [79.0], 0.5: [80.0], 0.6: [50.0]}, stopped=[0.0, 0.6])]},
    {"grids": [grid({0.0: [79.0, 80.0]})], "distances": {"gold": (np.array([0.5, 0.5]), np.array([0, 0]))}},
    {"agreement": {"x": (np.array([0.1, 0.2]), np.array([3.0, 3.0]))}, "agreement_task": "sts"},
    {"teachers": [of_speed("large", 80.0, 100.0), of_speed("ours", 78.0, 250.0)]},
    {"teachers": [of_speed("large", 80.0, 100.0), of_speed("ours", None, 250.0)]},
]  # fmt: skip


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("rows", [[], full_run(), [row("base", "base", 66.0)]], ids=["none", "full", "one"])
def test_there_is_a_chart_for_every_picture_and_all_of_it_lies_within(tmp_path, rows, numbers):
    titles = write_plots(tmp_path / "plots", scored(rows), Pictured(**numbers))
    charts = draw_charts(scored(rows), Pictured(**numbers))
    assert {f"plots/{name}" for name in charts} == set(titles)
    for chart in charts.values():
        for panel in chart.panels:
            places = [(panel.x.place(dot.x), panel.y.place(dot.y)) for one in panel.series for dot in one.dots]
            assert places and all(0 <= place <= 100 for dot in places for place in dot)
            assert all(0 <= panel.x.place(value) <= 100 for value, _ in panel.x.ticks())
            assert len(panel.x.ticks()) >= 1


def test_a_large_run_has_a_small_page(tmp_path):
    """Whatever the number of pairs and updates: a sample of either, and the note says of how many."""
    count = 20_000
    texts = PairTexts([f"first {i} " + "x" * 500 for i in range(count)], [f"second {i}" for i in range(count)])
    pairs = (RNG.normal(size=count), RNG.uniform(0, 5, count))
    records = [{"step": step, "loss": 1 / step, "dev": float(step % 7)} for step in range(1, 5001)]
    numbers = {
        "agreement": {"base": pairs, "ours": pairs},
        "distances": {"base": pairs},
        "trainings": {"ct": Training("member", {f"member {i}": records for i in range(20)})},
    }
    charts = draw_charts(scored(full_run()), Pictured(**numbers), texts)
    assert charts["agreement.png"].note.startswith("500 of 20,000 pairs")
    paths = {f"plots/{name}": chart for name, chart in charts.items()}
    text = Report("r", scored(full_run()), plots=dict.fromkeys(paths, "title"), charts=paths).to_html()
    assert len(text) < 2_000_000 and "x" * 81 not in text
    last = charts["training-ct.png"].panels[0].series[0].dots[-1]
    assert last.text == "member 1, update 5,000: 0.0002"


def test_an_embedding_that_is_no_number_has_no_panel():
    broken = (np.array([math.nan, 0.5, 0.1]), np.array([1.0, 2.0, 3.0]))
    assert "agreement.png" not in draw_charts(scored([]), Pictured(agreement={"base": broken}))


def test_equal_spectra_do_not_hide_each_other():
    """A flow makes those of the base and of the learner nearly equal: that below is wider."""
    values = singular_values(RNG.normal(size=(30, 8)))
    spectra = dict.fromkeys(["base", "base-flow", "ct-sed", "ct-sed-flow"], values)
    chart = draw_charts(scored([]), Pictured(spectra=spectra))
    (panel,) = chart["spectrum.png"].panels
    assert [series.is_wide for series in panel.series] == [False, True, False, False]
    assert len({series.colour for series in panel.series}) == 4


def test_axes_place_values_by_ratio_where_they_are_logarithmic():
    axis = Axis("speed", 1.0, 100.0, is_logarithmic=True)
    assert [axis.place(value) for value in (1, 10, 100)] == [0, 50, 100]
    assert [text for _, text in axis.ticks()] == ["1", "2", "5", "10", "20", "50", "100"]
    assert Axis("", 4, 0).place(1) == 75, "bands are counted from the top"


def test_every_link_of_the_page_leads_somewhere_whatever_a_run_lacks():
    """Learners that learnt too little, calibrations that harm, words that are better on a task, collapsed members."""
    rng, rows = np.random.default_rng(0), [*full_run(), row("base-whiten", "base", 75.0)]
    rows += [row("tf-idf", "baseline", 80.0, layers=0)]
    learners = [{"recipe": "ct-sed", "updates": 9, "distance": 2.0, "members_distance": 1.0}]
    collapsed = [{"recipe": "ct", "index": 7, "reason": "collapsed: all embeddings point one way"}]
    for kept in [rows, *([one for one in rows if rng.random() < 0.5] for _ in range(8))]:
        report = Report("r", scored(kept), dev="dev", learners=learners, members=collapsed)
        text = report.to_html()
        names = re.findall(r' id="([^"]+)"', text)
        assert len(names) == len(set(names))
        assert set(re.findall(r' href="#([^"]+)"', text)) <= set(names)
        for finding in (finding for paragraph in report.conclusions() for finding in paragraph):
            assert finding.numbers or not kept, finding.text

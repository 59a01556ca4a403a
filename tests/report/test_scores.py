"""Statistics of scored models, and the tables that show them."""

import math
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from made_up import entry, full_run, row, run_of, scored

from raysed.report.scores import ScoreTable
from raysed.report.sections.scores import headline_table, layers_table, widths_table


def test_summary_equals_the_statistics_module_on_random_scores():
    """Only rows at the main depth count; std is that of a sample."""
    scores = np.random.default_rng(0).normal(70, 3, 7)
    rows = [row("ct", "member", score, i) for i, score in enumerate(scores)]
    summary = scored([*rows, row("ct", "member", 99.0, layers=1), row("base", "base", 66.0)], draws={}).summary
    found = entry(summary, "ct", "member", "mean")
    expected = [statistics.stdev(scores), statistics.fmean(scores), max(scores)]
    assert [found["std"], found["mean"], found["max"]] == pytest.approx(expected) and found["n"] == 7
    assert entry(summary, "ct", "member", "sts12")["mean"] == pytest.approx(statistics.fmean(scores) - 1)
    alone = {"recipe": "base", "kind": "base", "task": "mean", "max": 66.0, "mean": 66.0, "std": 0.0, "n": 1}
    assert entry(summary, "base", "base", "mean") == alone


def test_grid_models_are_summarised_by_lower_bound_and_kept_out_of_the_headline():
    rows = [row("sts", "grid", 80 + 10 * b + i, i, lower_bound=b) for b in (0.0, 0.5) for i in range(2)]
    bounds = [e for e in scored(rows).summary if e["task"] == "mean"]
    assert [(e["lower_bound"], e["mean"], e["n"]) for e in bounds] == [(0.0, 80.5, 2), (0.5, 85.5, 2)]
    assert scored(rows).groups == {}


def test_a_row_without_a_headline_task_has_no_average():
    """A missing or NaN score must not turn into an average over fewer tasks."""
    missing, broken = row("base", "base", 60.0), row("base", "base", 62.0, 1)
    del missing.metrics["sts13"]
    broken.metrics["sts13"]["spearman"] = math.nan
    summary = scored([missing, broken]).summary
    assert "mean" not in {e["task"] for e in summary}
    assert entry(summary, "base", "base", "sts12")["n"] == 2


def test_a_model_without_a_score_is_in_the_headline_with_dashes():
    """Its correlation is not defined on one task, so its mean is not; it does not vanish."""
    flat = row("base-whiten", "base", 70.0)
    flat = replace(flat, metrics={**flat.metrics, "sts12": {**flat.metrics["sts12"], "spearman": None}})
    lines = headline_table(scored([*full_run(), flat, row("sts", "grid", 1.0, layers=2)])).plain().splitlines()
    assert lines[-1].split() == ["base", "+", "whiten", "-", "-", "-", "-", "1", "-", "71.00", "35.00", "base-whiten"]
    assert len(lines) == len(headline_table(scored(full_run())).plain().splitlines()) + 1


def test_headline_table_reads_from_the_cheapest_to_the_final_model():
    lines = headline_table(scored(full_run())).plain().splitlines()
    cells = [re.split(" {2,}", line.strip()) for line in lines]
    rows = ["word overlap", "base", "base + flow", "members (3)", "full ensemble", "learner", "learner + flow"]
    assert [line[0] for line in cells[2:]] == rows
    assert cells[0] == ["models", "mean", "95 %", "max", "std", "n", "sts12", "sts13", "dev", "recipe"]
    assert cells[5] == ["members (3)", "69.00", "69.0 to 69.0", "70.00", "1.00", "3", "68.00", "70.00", "34.50", "ct"]
    assert cells[6] == ["full ensemble", "70.80", "70.8 to 70.8", "-", "-", "1", "69.80", "71.80", "35.40", "ct"]
    cut = headline_table(scored(full_run(), base_name="its layers before training")).plain().splitlines()
    assert cut[3].startswith("its layers before training  66.00"), "a score of no model that a user has"


def test_widths_table_has_means_of_like_learners():
    scores = [
        {"recipe": "teachers-sed", "index": i, "width": width, "metrics": {"dev": {"spearman": 10.0 * i + width}}}
        for i in range(2)
        for width in (8, 16)
    ]
    run = run_of(ScoreTable([], [], 2), "dev")
    table = widths_table(scores, run)
    assert table.lines == [["learners (2)", "teachers-sed", "dev", "13.00", "21.00"]]
    assert not widths_table([], run)


def test_layers_table_shows_models_scored_at_several_depths():
    table = layers_table(scored(full_run())).plain()
    assert table.splitlines()[0].split() == "models recipe 1 layer 2 layers".split()
    assert [line.split()[-2:] for line in table.splitlines()[2:]] == [["99.00", "69.00"], ["71.50", "70.00"]]
    assert not layers_table(scored([row("base", "base", 60.0)]))

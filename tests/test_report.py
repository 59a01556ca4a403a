"""Statistics, tables, sentences and pictures of a report, from made-up rows."""

import json
import math
import statistics

import numpy as np
import pytest

from raysed.evaluation.analysis import singular_values
from raysed.plots import plot_agreement, plot_scores, plot_spectra, plot_training, write_plots
from raysed.report import (
    Report,
    Row,
    findings,
    headline_groups,
    headline_table,
    layers_table,
    summarise,
    write_report,
)

TASKS = ["sts12", "sts13"]


def row(recipe, kind, score, index=0, layers=2, lower_bound=None):
    """A model whose two headline scores are `score` - 1 and `score` + 1; the dev score is far off."""
    metrics = {
        "sts12": {"spearman": score - 1, "pearson": score, "pairs": 20, "aggregation": "mean"},
        "sts13": {"spearman": score + 1, "pearson": score, "pairs": 10, "aggregation": "mean"},
        "dev": {"spearman": score / 2, "pearson": score, "pairs": 5, "aggregation": "mean"},
    }
    return Row(recipe, kind, index, lower_bound, layers, metrics)


def full_run():
    """Shuffled on purpose: no table may depend on the order in which models were scored."""
    return [
        row("ct-sed-flow", "learner", 69.6),
        *(row("ct", "member", score, i) for i, score in enumerate([68.0, 70.0, 69.0])),
        row("base-flow", "base", 73.0),
        row("ct", "member", 99.0, layers=1),
        row("ct-sed", "learner", 70.0),
        row("ct-sed", "learner", 71.5, layers=1),
        row("ct", "ensemble", 70.8),
        row("base", "base", 66.0),
        row("word-overlap", "baseline", 60.0, layers=0),
    ]


def entry(summary, recipe, kind, task):
    (found,) = [e for e in summary if (e["recipe"], e["kind"], e["task"]) == (recipe, kind, task)]
    return found


def test_summary_statistics_of_a_group():
    """Only rows at the main depth count; std is that of a sample."""
    summary = summarise(full_run(), TASKS, 2)
    members = entry(summary, "ct", "member", "sts-avg")
    assert (members["max"], members["mean"], members["n"]) == (70.0, 69.0, 3)
    assert members["std"] == pytest.approx(1.0)
    assert entry(summary, "ct", "member", "sts12")["mean"] == pytest.approx(68.0)
    assert entry(summary, "ct", "member", "dev")["max"] == pytest.approx(35.0)
    group = {"recipe": "ct-sed", "kind": "learner", "task": "sts-avg"}
    alone = {**group, "max": 70.0, "mean": 70.0, "std": 0.0, "n": 1}
    assert entry(summary, "ct-sed", "learner", "sts-avg") == alone


def test_summary_equals_the_statistics_module_on_random_scores():
    rng = np.random.default_rng(0)
    for n in range(2, 12):
        scores = rng.normal(70, 3, n)
        rows = [row("ct", "member", score, i) for i, score in enumerate(scores)]
        found = entry(summarise(rows, TASKS, 2), "ct", "member", "sts-avg")
        assert found["std"] == pytest.approx(statistics.stdev(scores))
        assert found["mean"] == pytest.approx(sum(scores) / n)
        assert found["max"] == pytest.approx(max(scores))


def test_grid_models_are_summarised_by_lower_bound_and_kept_out_of_the_headline():
    rows = [row("sts", "grid", 80 + 10 * b + i, i, lower_bound=b) for b in (0.0, 0.5) for i in range(2)]
    bounds = [e for e in summarise(rows, TASKS, 2) if e["task"] == "sts-avg"]
    assert [(e["lower_bound"], e["mean"], e["n"]) for e in bounds] == [(0.0, 80.5, 2), (0.5, 85.5, 2)]
    assert headline_groups(bounds) == []
    assert "| sts    |         0.5 | sts-avg | 85.50 |  2 |" in Report("r", rows, TASKS, 2).to_markdown()


def test_a_row_without_a_headline_task_has_no_average():
    """A missing or NaN score must not turn into an average over fewer tasks."""
    missing, broken = row("base", "base", 60.0), row("base", "base", 62.0, 1)
    del missing.metrics["sts13"]
    broken.metrics["sts13"]["spearman"] = math.nan
    summary = summarise([missing, broken], TASKS, 2)
    assert "sts-avg" not in {e["task"] for e in summary}
    assert entry(summary, "base", "base", "sts12")["n"] == 2


def test_headline_table_reads_from_the_cheapest_to_the_final_model():
    lines = headline_table(full_run(), TASKS, 2).splitlines()
    cells = [[cell for cell in line.split("  ") if cell] for line in lines]
    assert [line[0].strip() for line in cells[2:]] == [
        "word overlap", "base", "base + flow", "members (3)", "full ensemble", "learner", "learner + flow",
    ]  # fmt: skip
    assert [cell.strip() for cell in cells[0]] == [
        "models", "recipe", "max", "mean", "std", "n", "sts12", "sts13",
    ]  # fmt: skip
    assert [c.strip() for c in cells[5]] == [
        "members (3)",
        "ct",
        "70.00",
        "69.00",
        "1.00",
        "3",
        "68.00",
        "70.00",
    ]
    assert [c.strip() for c in cells[6]][2:] == ["70.80", "70.80", "-", "1", "69.80", "71.80"]


def test_markdown_table_has_the_same_cells_as_the_plain_one():
    plain = headline_table(full_run(), TASKS, 2).split()
    markdown = headline_table(full_run(), TASKS, 2, markdown=True)
    assert len({line.count("|") for line in markdown.splitlines()}) == 1
    words = markdown.replace("|", " ").split()
    assert [w for w in words if set(w) - set("-:")] == [w for w in plain if set(w) - set("-")]


def test_ensembles_of_two_recipes_stay_together():
    learners = [row(recipe, "learner", 70.0) for recipe in ("nli-ct-sed", "ct-sed")]
    rows = [*learners, row("ct", "member", 70.0), row("nli-ct", "member", 70.0), row("ct", "ensemble", 70.0)]
    assert headline_groups(summarise(rows, TASKS, 2)) == [
        ("nli-ct", "member"), ("nli-ct-sed", "learner"),
        ("ct", "member"), ("ct", "ensemble"), ("ct-sed", "learner"),
    ]  # fmt: skip


def test_layers_table_shows_models_scored_at_several_depths():
    table = layers_table(full_run(), TASKS)
    assert table.splitlines()[0].split() == "models recipe 1 layer 2 layers".split()
    assert [line.split()[-2:] for line in table.splitlines()[2:]] == [["99.00", "69.00"], ["71.50", "70.00"]]
    assert layers_table([row("base", "base", 60.0)], TASKS) == ""
    mixed = [row("base", "base", 60.0, layers=depth) for depth in ("first_last", 1)]
    assert "1 layer  first + last layer" in layers_table(mixed, TASKS)


def test_findings_of_a_full_run():
    assert findings(full_run(), TASKS, 2) == (
        "The flow raised the base by 7.0. "
        "CT raised the base by 3.0 on average over 3 members (std 1.0, best +4.0); "
        "the ensemble is 0.8 above its best member. "
        "The learner is no different from the best member and 0.8 below the ensemble; "
        "the flow lowered the learner by 0.4. "
        "In all, learner + flow (69.6) is 3.4 below base + flow (73.0); word overlap alone scores 60.0."
    )


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (0.2, "raised the base by 0.2"),
        (0.1, "raised the base by 0.1"),
        (0.09, "made no difference to the base"),
        (-0.09, "made no difference to the base"),
        (-0.3, "lowered the base by 0.3"),
    ],
)
def test_small_differences_are_called_none(difference, words):
    rows = [row("base", "base", 66.0), row("base-flow", "base", 66.0 + difference)]
    assert findings(rows, TASKS, 2) == f"The flow {words}."


def test_findings_without_some_parts():
    """Whatever a run lacks is not mentioned, and nothing breaks."""
    base, member = row("base", "base", 66.0), row("ct", "member", 65.0)
    assert findings([base, member], TASKS, 2) == "CT lowered the base by 1.0."
    learner = row("ct-sed", "learner", 65.5)
    text = findings([member, learner], TASKS, 2)
    assert text == "The learner is 0.5 above the best member."
    calibrated = [row("ct-flow", "member", 66.0), member, row("ct-sn-natsv", "member", 64.0)]
    assert findings(calibrated, TASKS, 2) == (
        "The flow raised the members by 1.0; SN with NATSV lowered the members by 1.0."
    )
    assert findings([base], TASKS, 2) == "Nothing to compare: base 66.0."
    assert "no model was scored" in findings([], TASKS, 2)
    alone = findings([row("sed", "learner", 70.0), base], TASKS, 2)
    assert alone == "In all, learner (70.0) is 4.0 above base (66.0)."


def test_findings_of_several_ensembles_name_each():
    rows = [row("base", "base", 60.0)]
    rows += [row("ct", "member", 61.0), row("nli-ct", "member", 63.0)]
    assert findings(rows, TASKS, 2) == "CT: CT raised the base by 1.0. NLI-CT: NLI-CT raised the base by 3.0."


def test_every_subset_of_a_run_makes_a_report():
    """No combination of missing rows may break a report."""
    rng, rows = np.random.default_rng(0), full_run()
    for _ in range(60):
        kept = [r for r in rows if rng.random() < 0.5]
        report = Report("part", kept, TASKS, 2)
        assert report.findings() in report.to_markdown()
        json.loads(report.to_json())


def test_report_json_has_the_documented_shape(tmp_path):
    """Numpy values are unwrapped, and what is no number in JSON becomes null."""
    rows = full_run()
    rows[0].metrics["dev"]["spearman"] = np.float32("nan")
    rows[1].metrics["dev"]["spearman"] = np.float64(0.5)
    left_out = [{"recipe": "ct", "index": np.int64(3), "reason": "loss is not finite"}]
    report = Report("r", rows, TASKS, 2, timings={"ct": {"seconds": np.float32(2)}}, members=left_out)
    write_report(tmp_path / "new", report)
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["report.json", "report.md"]

    def refuse(constant):
        raise AssertionError(constant)

    data = json.loads((tmp_path / "new" / "report.json").read_text("utf-8"), parse_constant=refuse)
    assert list(data) == ("run status rows summary timings environment config corpus members findings".split())
    assert all(list(r) == ["recipe", "kind", "index", "lower_bound", "layers", "metrics"] for r in data["rows"])
    assert {tuple(e) for e in data["summary"]} == {("recipe", "kind", "task", "max", "mean", "std", "n")}
    assert data["rows"][0]["metrics"]["dev"]["spearman"] is None
    assert data["rows"][1]["metrics"]["dev"]["spearman"] == 0.5
    assert (data["timings"], data["members"][0]["index"]) == ({"ct": {"seconds": 2.0}}, 3)
    assert data["findings"] == report.findings()


def test_report_md_says_everything_a_reader_needs():
    rows = full_run()
    for r in rows:
        ways = {
            way: {"spearman": r.spearman("sts12") + shift} for way, shift in [("all", 4), ("mean", 0), ("wmean", 2)]
        }
        r.metrics["sts12"].update(ways, subsets={"a": {}, "b": {}})
    text = Report(
        "demo",
        rows,
        TASKS,
        2,
        timings={"ct": {"seconds": 90.0}, "ct-sed": {"seconds": 30.0}},
        environment={"python": "3.11", "versions": {"ray": "2.60.0"}, "devices": ["cpu"]},
        corpus={"lines": 100, "truncated_tokens": 7},
        members=[{"recipe": "ct", "index": 4, "reason": "died\ntwice | for good"}],
        command="python jobs/ensemble_then_distill.py --config demo",
        plots={"plots/scores.png": "Scores", "plots/training.png": "Curves"},
        status="partial",
    ).to_markdown()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# demo: results", "## Scores", "## By pooled layers", "## By task", "## By aggregation", "## Corpus",
        "## Left out", "## Time", "## Environment", "## Repeat",
    ]  # fmt: skip
    assert text.index("Status: partial.") < text.index("CT raised") < text.index("## Scores")
    for part in (
        "sts12: 20 pairs, mean over 2 subsets; sts13: 10 pairs; dev: 5 pairs.",
        "| full ensemble  | ct           | 72.80 | 70.80 | 71.80 |",
        "| truncated tokens |     7 |",
        "| ct     |      4 | died twice / for good |",
        "| ct       | 1 min 30 s | 75%",
        "| together | 2 min 00 s |",
        "| versions.ray | 2.60.0 |",
        "![Scores](plots/scores.png)",
        "![Curves](plots/training.png)",
        "```sh\npython jobs/ensemble_then_distill.py --config demo\n```",
    ):
        assert part in text, part


def is_picture(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def curves(members):
    steps = range(0, 50, 10)
    return {
        f"ct {i}": [{"step": s, "loss": 1 / (1 + s), "dev": 60 + i + s / 10} for s in steps] for i in range(members)
    }


def test_all_pictures_are_written_and_named(tmp_path):
    rng = np.random.default_rng(0)
    titles = write_plots(
        tmp_path / "plots",
        full_run(),
        TASKS,
        2,
        curves=curves(3),
        spectra={"base": singular_values(rng.normal(size=(30, 8))), "flow": singular_values(np.eye(8))},
        agreement={"base": (rng.normal(size=50), rng.integers(0, 6, 50).astype(float))},
    )
    names = ["scores", "training", "spectrum", "agreement"]
    assert list(titles) == [f"plots/{name}.png" for name in names]
    assert all(is_picture(tmp_path / path) for path in titles)
    assert titles["plots/scores.png"] == "Best: base + flow 73.0, base encoder 66.0"
    assert titles["plots/training.png"] == "Training of 3 members, on average: loss 1 to 0.0244, dev 61 to 65"
    assert "flow 8" in titles["plots/spectrum.png"]


def test_pictures_without_numbers_are_skipped(tmp_path):
    assert write_plots(tmp_path / "plots", [], TASKS, 2) == {}
    assert list((tmp_path / "plots").iterdir()) == []


def test_curves_with_gaps_are_drawn(tmp_path):
    """A diverged loss, a member without dev scores, one record only, a loss of zero."""
    odd = {
        "diverged": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": math.nan}],
        "silent": [{"step": 1}],
        "zero": [{"step": 1, "loss": 0.0, "dev": None}],
    }
    title = plot_training(tmp_path / "odd.png", odd)
    assert title == "Training of 3 members, on average: loss 0.25 to 0.25"
    assert is_picture(tmp_path / "odd.png")
    assert plot_training(tmp_path / "one.png", curves(1)).startswith("Training of 1 member: loss 1 to")
    assert plot_training(tmp_path / "none.png", {"silent": [{"step": 1}]}) is None


def test_degenerate_spectra_and_scores_are_drawn(tmp_path):
    """Rank-deficient embeddings (zero singular values), one gold score only, a single model."""
    assert plot_spectra(tmp_path / "a.png", {"low rank": singular_values(np.ones((6, 4)))})
    assert plot_agreement(tmp_path / "b.png", {"x": (np.array([0.1, 0.2]), np.array([3.0, 3.0]))})
    title = plot_scores(tmp_path / "c.png", [row("base", "base", 66.0)], TASKS, 2)
    assert title == "Best: base 66.0"
    assert all(is_picture(tmp_path / name) for name in ("a.png", "b.png", "c.png"))

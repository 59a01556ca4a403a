"""Statistics, tables, sentences and pictures of a report, from made-up rows."""

import json
import math
import re
import shlex
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from raysed.commands.run import parser as run_parser
from raysed.config import dump_config, find_config, load_config, make_config
from raysed.report.document import Report, headline_table, how_to_repeat, layers_table
from raysed.report.findings import findings
from raysed.report.plots import (
    Pictured,
    Training,
    plot_agreement,
    plot_edit_distance,
    plot_grid,
    plot_scores,
    plot_spectra,
    plot_speed,
    plot_training,
    write_plots,
)
from raysed.report.results import Results, Row, headline_groups
from raysed.report.teachers import teachers_table
from raysed.report.widths import widths_table
from raysed.score.analysis import singular_values
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[2]
TASKS = ["sts12", "sts13"]


def row(recipe, kind, score, index=0, layers=2, lower_bound=None):
    """A model whose two headline scores are `score` - 1 and `score` + 1; the dev score is far off."""
    metrics = {
        "sts12": {"spearman": score - 1, "pearson": score, "pairs": 20, "aggregation": "mean"},
        "sts13": {"spearman": score + 1, "pearson": score, "pairs": 10, "aggregation": "mean"},
        "dev": {"spearman": score / 2, "pearson": score, "pairs": 5, "aggregation": "mean"},
    }
    return Row(recipe, kind, index, lower_bound, layers, metrics)


def scored(rows, **more):
    return Results(rows, TASKS, 2, **more)


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
    summary = scored(full_run()).summary
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
        found = entry(scored(rows).summary, "ct", "member", "sts-avg")
        assert found["std"] == pytest.approx(statistics.stdev(scores))
        assert found["mean"] == pytest.approx(sum(scores) / n)
        assert found["max"] == pytest.approx(max(scores))


def test_grid_models_are_summarised_by_lower_bound_and_kept_out_of_the_headline():
    rows = [row("sts", "grid", 80 + 10 * b + i, i, lower_bound=b) for b in (0.0, 0.5) for i in range(2)]
    bounds = [e for e in scored(rows).summary if e["task"] == "sts-avg"]
    assert [(e["lower_bound"], e["mean"], e["n"]) for e in bounds] == [(0.0, 80.5, 2), (0.5, 85.5, 2)]
    assert headline_groups(bounds) == [] and scored(rows).groups == {}


def test_a_row_without_a_headline_task_has_no_average():
    """A missing or NaN score must not turn into an average over fewer tasks."""
    missing, broken = row("base", "base", 60.0), row("base", "base", 62.0, 1)
    del missing.metrics["sts13"]
    broken.metrics["sts13"]["spearman"] = math.nan
    summary = scored([missing, broken]).summary
    assert "sts-avg" not in {e["task"] for e in summary}
    assert entry(summary, "base", "base", "sts12")["n"] == 2


def test_a_model_without_a_score_is_in_the_headline_with_dashes():
    """Its correlation is not defined on one task, so its mean is not; it does not vanish."""
    flat = row("base-whiten", "base", 70.0)
    flat = replace(flat, metrics={**flat.metrics, "sts12": {**flat.metrics["sts12"], "spearman": None}})
    lines = headline_table(scored([*full_run(), flat, row("sts", "grid", 1.0, layers=2)])).plain().splitlines()
    assert lines[-1].split() == ["base", "+", "whiten", "base-whiten", "-", "-", "-", "1", "-", "71.00"]
    assert len(lines) == len(headline_table(scored(full_run())).plain().splitlines()) + 1


@pytest.mark.parametrize(("task", "lines"), [("dev", 0), ("sts12", 1)])
def test_a_baseline_that_fits_no_headline_task_has_no_line(task, lines):
    """With a score on one of two such tasks it has one, without a mean."""
    bm25 = Row("bm25", "baseline", 0, None, 0, {task: {"ndcg@10": 41.0}})
    table = headline_table(scored([*full_run(), bm25])).plain()
    assert sum(line.startswith("BM25") for line in table.splitlines()) == lines
    assert ("41.00" in table) == bool(lines)


def test_subsets_that_are_left_out_are_counted():
    metrics = {"spearman": 1.0, "pearson": 1.0, "pairs": 9, "aggregation": "mean", "subsets_left_out": ["b"]}
    metrics |= {"subsets": {name: {} for name in "abc"}, **{way: {"spearman": 1.0} for way in ("all", "mean", "wmean")}}
    text = Report("r", Results([Row("base", "base", 0, None, 1, {"sts": metrics})], ["sts"], 1)).to_markdown()
    assert "sts: 9 pairs, mean over 2 of 3 subsets." in text


def test_headline_table_reads_from_the_cheapest_to_the_final_model():
    lines = headline_table(scored(full_run())).plain().splitlines()
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
    plain = headline_table(scored(full_run())).plain().split()
    markdown = headline_table(scored(full_run())).markdown()
    assert len({line.count("|") for line in markdown.splitlines()}) == 1
    words = markdown.replace("|", " ").split()
    assert [w for w in words if set(w) - set("-:")] == [w for w in plain if set(w) - set("-")]


def test_ensembles_of_two_recipes_stay_together():
    learners = [row(recipe, "learner", 70.0) for recipe in ("nli-ct-sed", "ct-sed")]
    rows = [*learners, row("ct", "member", 70.0), row("nli-ct", "member", 70.0), row("ct", "ensemble", 70.0)]
    assert headline_groups(scored(rows).summary) == [
        ("nli-ct", "member"), ("nli-ct-sed", "learner"),
        ("ct", "member"), ("ct", "ensemble"), ("ct-sed", "learner"),
    ]  # fmt: skip


def test_searching_a_teacher_is_a_line_that_is_no_teacher():
    about = {"width": 384, "parameters": 9, "sentences_per_second": 5.0}
    models = [
        {"model": "big", **about, "score": 80.0},
        {"model": "teachers-sed searching big", **dict.fromkeys(about), "score": 70.0, "searches": "big"},
        {"model": "teachers-sed (exported)", **about, "score": 72.0},
    ]
    big, line, _ = [text.split() for text in teachers_table(models).plain().splitlines()[2:]]
    assert big[-2:] == ["90.0", "%"] and line[-2:] == ["70.00", "-"]
    for shown in (models, models[::2]):
        text = replace(Report("r", scored(full_run())), teachers=shown).to_markdown()
        assert ("the learner embeds queries, the teacher documents" in text) == (shown is models)


def test_widths_table_has_means_of_like_learners():
    scores = [
        {"recipe": "teachers-sed", "index": i, "width": width, "metrics": {"dev": {"spearman": 10.0 * i + width}}}
        for i in range(2)
        for width in (8, 16)
    ]
    assert widths_table(scores, ["dev"]).lines == [["learners (2)", "teachers-sed", "dev", "13.00", "21.00"]]
    assert not widths_table([], ["dev"])


def test_layers_table_shows_models_scored_at_several_depths():
    table = layers_table(scored(full_run())).plain()
    assert table.splitlines()[0].split() == "models recipe 1 layer 2 layers".split()
    assert [line.split()[-2:] for line in table.splitlines()[2:]] == [["99.00", "69.00"], ["71.50", "70.00"]]
    assert not layers_table(scored([row("base", "base", 60.0)]))
    mixed = [row("base", "base", 60.0, layers=depth) for depth in ("first_last", 1)]
    assert "1 layer  first + last layer" in layers_table(scored(mixed)).plain()


def test_findings_of_a_full_run():
    assert findings(scored(full_run())) == (
        "The flow raised the base by 7.0. "
        "CT raised the base by 3.0 on average over 3 members (std 1.0, best +4.0); "
        "the ensemble is 0.8 above its best member. "
        "The learner is no different from the best member and 0.8 below the ensemble; "
        "the flow lowered the learner by 0.4. "
        "Overall, learner + flow (69.6) is 3.4 below base + flow (73.0), the best row that needs no training. "
        "Baselines without a model: word overlap 60.0."
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
    assert findings(scored(rows)) == f"The flow {words}."


def test_findings_without_some_parts():
    """Whatever a run lacks is not mentioned, and nothing breaks."""
    base, member = row("base", "base", 66.0), row("ct", "member", 65.0)
    assert findings(scored([base, member])) == "CT lowered the base by 1.0."
    learner = row("ct-sed", "learner", 65.5)
    text = findings(scored([member, learner]))
    assert text == "The learner is 0.5 above the best member."
    calibrated = [row("ct-flow", "member", 66.0), member, row("ct-sn-natsv", "member", 64.0)]
    assert findings(scored(calibrated)) == (
        "The flow raised the members by 1.0; SN with NATSV lowered the members by 1.0."
    )
    assert findings(scored([base])) == "Nothing to compare: base 66.0."
    assert "no model was scored" in findings(scored([]))
    alone = findings(scored([row("sed", "learner", 70.0), base]))
    assert alone == "Overall, learner (70.0) is 4.0 above base (66.0), the best row that needs no training."


def test_findings_of_several_ensembles_name_each():
    rows = [row("base", "base", 60.0)]
    rows += [row("ct", "member", 61.0), row("nli-ct", "member", 63.0)]
    assert findings(scored(rows)) == "CT raised the base by 1.0.\n\nNLI-CT raised the base by 3.0."
    rows += [row("ct-sed", "learner", 61.5), row("sed", "learner", 61.0), row("word-overlap", "baseline", 50.0)]
    assert findings(scored(rows[:1] + rows[3:])) == (
        "CT: Overall, learner (61.5) is 1.5 above base (60.0), the best row that needs no training.\n\n"
        "Overall, learner (61.0) is 1.0 above base (60.0), the best row that needs no training.\n\n"
        "Baselines without a model: word overlap 50.0."
    )


def test_the_end_of_the_chain_is_compared_with_the_best_of_what_needs_no_training():
    """Whatever its calibration, and words alone, too: not with a row that is easier to beat."""
    rows = [*full_run(), row("base-whiten", "base", 75.0), row("tf-idf", "baseline", 71.0, layers=0)]
    assert "(69.6) is 5.4 below base + whiten (75.0), the best row that needs no training." in findings(scored(rows))
    assert "Baselines without a model: word overlap 60.0, TF-IDF 71.0." in findings(scored(rows))
    better = [*full_run(), row("tf-idf", "baseline", 80.0, layers=0)]
    assert "(69.6) is 10.4 below TF-IDF (80.0), the best row that needs no training." in findings(scored(better))


def spread(centre, width=1.0):
    """Resampled scores whose 95 % interval is the centre and `width` on both sides."""
    return centre + width * np.linspace(-1, 1, 4001) / 0.95


def test_differences_come_with_their_intervals():
    """Those of paired resamples, in the direction that the sentence gives."""
    rows = [row("base", "base", 66.0), row("ct", "member", 65.0), row("ct-sed", "learner", 66.04)]
    base_R = spread(66.0, 5.0)
    draws = {
        ("base", "base", "mean"): base_R,
        ("ct", "member", "mean"): base_R - spread(1.0, 0.4),
        ("ct", "member", "best"): base_R - spread(1.0, 0.4),
        ("ct-sed", "learner", "mean"): base_R + spread(0.04, 0.32),
    }
    assert findings(scored(rows, draws=draws)) == (
        "CT lowered the base by 1.0 (0.6 to 1.4). "
        "The learner is 1.0 (0.3 to 1.8) above the best member. "
        "Overall, learner (66.0) is no different (-0.3 to 0.4) from base (66.0), the best row that needs no training. "
        "In brackets: 95 % intervals over the sampling of pairs and of seeds."
    )
    draws["ct", "member", "mean"] = base_R - spread(1.0, 1.2)
    assert "CT lowered the base by 1.0 (-0.2 to 2.2: may be chance)." in findings(scored(rows, draws=draws))
    table = headline_table(scored(rows, draws=draws)).plain().splitlines()
    assert table[0].split()[:6] == ["models", "recipe", "max", "mean", "95", "%"]
    assert "61.0 to 71.0" in table[2]
    assert entry(scored(rows, draws=draws).summary, "base", "base", "sts-avg")["low"] == pytest.approx(61.0, abs=0.01)


@pytest.mark.parametrize(
    ("fitted_on", "sentence"),
    [
        ("tasks", "The calibrations were fitted on the sentences of the very tasks that they are scored on"),
        ("corpus", "The calibrations were fitted on the corpus and have not seen the tasks."),
        ("other.txt", "The calibrations were fitted on other.txt."),
        (None, None),
    ],
)
def test_what_calibrations_have_seen_is_said_and_tabled(fitted_on, sentence):
    text = findings(scored(full_run(), fitted_on=fitted_on))
    table = headline_table(scored(full_run(), fitted_on=fitted_on)).plain().splitlines()
    if sentence is None:
        assert "fitted" not in text and "fitted" not in table[0]
        return
    assert sentence in text and "fitted on" in table[0]
    assert {line.split("  ")[0]: fitted_on in line for line in table[2:]} == {
        **dict.fromkeys(["word overlap", "base", "members (3)", "full ensemble", "learner"], False),
        **dict.fromkeys(["base + flow", "learner + flow"], True),
    }
    plain = [row for row in full_run() if "flow" not in row.recipe]
    assert "fitted" not in findings(scored(plain, fitted_on=fitted_on))


def test_a_learner_with_too_few_updates_is_named():
    learner = {"recipe": "ct-sed", "updates": 12, "distance": 0.31, "members_distance": 0.124}
    said = (
        "The learner is still farther from the members' mean than the members are (mean squared distance 0.31 against "
        "0.12) after 12 updates. It needs more updates (raise sed.epochs or enlarge the corpus) or a higher "
        "sed.learning_rate."
    )
    assert said in findings(scored(full_run()), learners=[learner])
    assert "updates" not in findings(scored(full_run()), learners=[{**learner, "distance": 0.12}])


def test_findings_say_what_a_later_stage_brought():
    """Against the members of the longest prefix that was scored, not only against the base."""
    rows = [row("base", "base", 60.0), row("nli-ct-sts", "member", 67.0), row("nli-ct", "member", 70.0)]
    assert "NLI-CT-STS raised the base by 7.0; STS lowered the members of NLI-CT by 3.0." in findings(scored(rows))
    rows[2] = row("nli", "member", 66.0)
    assert "; CT-STS raised the members of NLI by 1.0." in findings(scored(rows))
    assert "members of" not in findings(scored([*rows[:2], row("ct", "member", 66.0)]))


def learners(**scores):
    return [row(recipe.replace("_", "-"), "learner", score) for recipe, score in scores.items()]


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        (
            {"ct_sed": 76.7, "ct_sed_flow": 77.1, "nli_ct_sed": 78.3, "nli_ct_sed_flow": 78.2, "sts_sed": 86.0},
            "Without labels the best learner is ct-sed-flow (77.1); with NLI labels it is nli-ct-sed (78.3), 1.2 above "
            "that; with STS labels it is sts-sed (86.0), 8.9 above that.",
        ),
        (
            {"nli_sts_sed": 70.0, "mlm_ct_sed": 71.5},
            "Without labels the best learner is mlm-ct-sed (71.5); with NLI + STS labels it is nli-sts-sed (70.0), 1.5 "
            "below that.",
        ),
        ({"nli_sed": 70.05, "ct_sed": 70.0}, "with NLI labels it is nli-sed (70.0), no different from that."),
        ({"nli_sed": 70.0, "sts_sed": 80.0}, None),
        ({"ct_sed": 70.0, "mlm_ct_sed": 80.0}, None),
    ],
)
def test_findings_say_what_labels_buy(scores, sentence):
    text = findings(scored([row("base", "base", 60.0), *learners(**scores)]))
    if sentence is None:
        assert "labels" not in text
    else:
        assert sentence in text


def calibrated(plain, after, recipe="ct-sed", kind="learner"):
    """Two models whose dev scores are given; the calibration always helps on the headline tasks."""
    rows = [row(recipe, kind, 70.0), row(f"{recipe}-flow", kind, 75.0)]
    for model, score in zip(rows, (plain, after)):
        model.metrics["dev"]["spearman"] = score
    return rows


def test_findings_say_that_a_calibration_makes_the_dev_score_worse():
    worse = calibrated(80.0, 78.5)
    said = "On dev, the task on which models are chosen, ct-sed-flow scores 1.5 below ct-sed (78.5 against 80.0)"
    assert findings(scored(worse), "dev", "ct-sed").endswith(f"{said}, and ct-sed is exported.")
    assert findings(scored(worse), "dev", "ct-sed-flow").endswith(f"{said}."), "it was asked for by name"
    assert findings(scored(worse), "dev").endswith(f"{said}.")
    base = calibrated(60.0, 59.0, "base", "base")
    assert "base-flow scores 1.0 below base (59.0 against 60.0); ct-sed-flow" in findings(
        scored([*base, *worse]), "dev"
    )
    for rows, dev in ((calibrated(80.0, 80.5), "dev"), (calibrated(80.0, 79.95), "dev"), (worse, None)):
        assert "models are chosen" not in findings(scored(rows), dev)


def test_the_table_names_labels_where_a_recipe_uses_any():
    rows = [*full_run(), *learners(nli_ct_sed=72.0, sts_sed=80.0, nli_sts_sed=81.0)]
    table = headline_table(scored(rows)).plain()
    assert table.splitlines()[0].split()[:4] == ["models", "recipe", "labels", "max"]
    assert [re.split(" {2,}", line)[1:3] for line in table.splitlines()[2:]] == [
        ["word-overlap", "none"], ["base", "none"], ["base-flow", "none"], ["ct", "none"], ["ct", "none"],
        ["ct-sed", "none"], ["ct-sed-flow", "none"], ["nli-ct-sed", "NLI"], ["sts-sed", "STS"],
        ["nli-sts-sed", "NLI + STS"],
    ]  # fmt: skip
    assert "Labels are those" in Report("r", scored(rows)).to_markdown()
    assert "abels" not in Report("r", scored(full_run())).to_markdown()


def grid(scores, recipe="sts", statistic="mean", stopped=(), **changes):
    """A grid as the report takes it, from lower bound to its models' dev scores."""
    bounds = [
        {
            "lower_bound": bound,
            "scores": values,
            "mean": statistics.fmean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            "max": max(values),
            "stopped_at": 1200 if bound in stopped else None,
        }
        for bound, values in scores.items()
    ]
    first, *others = sorted((b for b in bounds if b["stopped_at"] is None), key=lambda b: -b[statistic])
    return {
        "recipe": recipe, "criterion": "spearman", "statistic": statistic, "task": "dev", "scheduler": "none",
        "updates": 3000, "updates_full": 6000, "winner": first["lower_bound"], "score": first[statistic],
        "runner_up": others[0]["lower_bound"] if others else None,
        "margin": first[statistic] - others[0][statistic] if others else None, "bounds": bounds, **changes,
    }  # fmt: skip


def test_grid_section_names_the_choice_and_its_margin():
    clear = grid({0.5: [80.0, 80.2], 0.0: [78.9, 79.1], 0.9: [60.0, 62.0]})
    report = Report("r", scored(full_run()), grids=[clear])
    text = report.to_markdown()
    assert_is_tidy(text)
    assert (
        "`sts`: the lower bound 0.5 was chosen for the mean Spearman correlation of its models on dev, 80.10; that is "
        "1.10 above the next bound, 0; the standard error of this difference is 0.14, so the choice is clear.\n"
    ) in text
    assert [line for line in text.splitlines() if "| chosen" in line or "| next" in line] == [
        "|           0 |      2 | 79.10 | 79.00 | 0.14 | next   |",
        "|         0.5 |      2 | 80.20 | 80.10 | 0.14 | chosen |",
    ]
    assert text.count("## Lower bounds") == 1
    assert json.loads(report.to_json())["grids"] == [clear]
    assert "grids" not in json.loads(Report("r", scored(full_run())).to_json())


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (grid({0.0: [79.0, 81.0], 0.5: [80.0, 80.2]}), "this difference is 1.00, so the choice is within noise."),
        (grid({0.0: [79.0, 81.0], 0.5: [81.4, 81.6]}), "bound, 0; the standard error of this difference is 1.00."),
        (grid({0.0: [80.0, 80.0], 0.5: [80.0, 80.0]}), "this difference is 0.00, so the choice is within noise."),
        (grid({0.0: [79.0, 81.0], 0.5: [70.0, 80.0]}, statistic="max"), "of 1.41, so the choice is within noise."),
        (grid({0.0: [79.0, 81.0], 0.5: [70.0, 75.0]}, statistic="max"), "deviation of 1.41, so the choice is clear."),
        (grid({0.0: [79.0], 0.5: [80.0]}), "bound, 0; with one model per bound, nothing can be said about chance."),
        (grid({0.3: [79.0, 80.0]}), "on dev, 79.50; no other was tried."),
        (grid({0.3: [79.0], 0.4: [70.0]}, stopped=[0.4]), "79.00; no other was trained to the end."),
        (
            grid({0.0: [79.0], 0.5: [80.0], 0.6: [50.0]}, stopped=[0.6], scheduler="asha"),
            "Bounds that fell behind were stopped early: 3,000 updates were made instead of 6,000 (50%).",
        ),
        (grid({0.0: [79.0], 0.5: [80.0], 0.6: [50.0]}, stopped=[0.6]), "| stopped after update 1,200 |"),
    ],
)  # fmt: skip
def test_grid_section_in_other_situations(found, words):
    assert words in Report("r", scored(full_run()), grids=[grid({0.1: [50.0]}, "other"), found]).to_markdown()


def test_transfer_section_has_the_columns_of_the_paper():
    def model(recipe, kind, index, average, **accuracies):
        scores = {task: {"accuracy": accuracy, "C": 1.0} for task, accuracy in accuracies.items()}
        scores["SICKRelatedness"] = {"pearson": 84.0, "spearman": 10.0}
        return {"recipe": recipe, "kind": kind, "index": index, "layers": 1, "scores": scores, "average": average}

    models = [
        model("base", "base", 0, 80.0, TREC=90.0, MR=81.0),
        model("ct-sed", "learner", 0, 82.0, TREC=92.0, MR=82.0),
        model("ct-sed", "learner", 1, None, MR=84.0),
    ]
    report = Report("r", scored(full_run()), transfer=models)
    assert_is_tidy(report.to_markdown())
    lines = report.to_markdown().split("## Transfer tasks")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells[0] == ["models", "recipe", "layers", "MR", "TREC", "SICKRelatedness", "average"]
    assert cells[2] == ["base", "base", "1", "81.00", "90.00", "84.00", "80.00"]
    assert cells[3] == ["learners (2)", "ct-sed", "1", "83.00", "92.00", "84.00", "82.00"]
    assert json.loads(report.to_json())["transfer"][2]["average"] is None
    text = Report("r", scored(full_run()), transfer=[*models, model("ct-sed", "learner", 2, 85.0)]).to_markdown()
    lines = text.split("## Transfer tasks")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert cells[0][-2:] == ["average", "std"]
    assert [line[-2:] for line in cells[2:4]] == [["80.00", "-"], ["83.50", f"{statistics.stdev([82, 85]):.2f}"]]


def test_analysis_section_shows_what_there_is():
    analysis = {
        "isotropy": {"base": {"cosine": 0.57641, "effective_rank": 212.36, "first_direction": 0.58679}},
        "edit_distance": {
            "task": "stsb-dev",
            "models": {"gold": {"characters": -20.2, "words": -24.04, "gold": 100.0}},
        },
        "qnli": {"base": np.float64(70.3)},
        "frequency": [
            {"ranks": [start, stop], "norm": 1.0 + start, "distance": {3: 0.8, 5: 0.9}, "dot": {3: 0.73, 5: 0.72}}
            for start, stop in ((0, 100), (500, 5000))
        ],
    }
    report = Report("r", scored(full_run()), analysis=analysis)
    text = report.to_markdown()
    assert_is_tidy(text)
    for part in (
        "| base   |                  0.576 |          212.4 |                        58.7% |",
        "| gold       |                    -20.20 |               -24.04 |     100.00 |",
        "| base   | 70.30 |",
        "| rank of frequency                    | 0 to 100 | 500 to 5,000 |",
        "| mean norm                            |     1.00 |       501.00 |",
        "| mean distance to the 5 nearest words |     0.90 |         0.90 |",
        "| mean of the 3 largest dot products   |     0.73 |         0.73 |",
    ):
        assert part in text, part
    assert json.loads(report.to_json())["analysis"]["frequency"][0]["dot"] == {"3": 0.73, "5": 0.72}
    headings = [line for line in text.splitlines() if line.startswith("###")]
    assert headings == ["### Isotropy", "### Edit distance", "### Question and answer", "### Word frequency"]
    aucs = {"base": 60.0, "nli/00": 70.0, "nli/03": 73.0}
    text = Report("r", scored(full_run()), analysis={"qnli": aucs}).to_markdown()
    assert_is_tidy(text)
    assert "| nli (2) | 71.50 | 2.12 |" in text and "| base    | 60.00 |    - |" in text
    part = Report("r", scored(full_run()), analysis={"qnli": {"base": 70.3}, "frequency": []}).to_markdown()
    assert [line for line in part.splitlines() if line.startswith("###")] == ["### Question and answer"]
    assert "embedding space" not in Report("r", scored(full_run()), analysis={"frequency": []}).to_markdown()


def assert_is_tidy(text):
    """The template leaves one empty line between any two blocks, and no blanks at ends."""
    assert text.endswith("\n") and not re.search(r" \n|\n\n\n|\n\n$", text)
    lines = text.splitlines()
    starts = [i for i, line in enumerate(lines) if i and line.startswith(("#", "![", "| models", "```sh"))]
    assert all(lines[i - 1] == "" for i in starts), [lines[i - 1 : i + 1] for i in starts if lines[i - 1]]


def test_every_subset_of_a_run_makes_a_report():
    """No combination of missing rows may break a report."""
    rng, rows = np.random.default_rng(0), full_run()
    for _ in range(60):
        kept = [r for r in rows if rng.random() < 0.5]
        report = Report("part", scored(kept))
        text = report.to_markdown()
        assert report.findings() in text
        assert_is_tidy(text)
        json.loads(report.to_json())


def test_report_json_has_the_documented_shape():
    """Numpy values are unwrapped, and what is no number in JSON becomes null."""
    rows = full_run()
    rows[0].metrics["dev"]["spearman"] = np.float32("nan")
    rows[1].metrics["dev"]["spearman"] = np.float64(0.5)
    left_out = [{"recipe": "ct", "index": np.int64(3), "reason": "loss is not finite"}]
    report = Report("r", scored(rows), timings={"ct": {"seconds": np.float32(2)}}, members=left_out)

    def refuse(constant):
        raise AssertionError(constant)

    data = json.loads(report.to_json(), parse_constant=refuse)
    assert list(data) == ("run status rows summary timings environment config corpus members findings".split())
    assert all(
        list(r) == ["recipe", "kind", "index", "lower_bound", "layers", "metrics", "left_out"] for r in data["rows"]
    )
    assert {tuple(e) for e in data["summary"]} == {("recipe", "kind", "task", "max", "mean", "std", "n")}
    assert data["rows"][0]["metrics"]["dev"]["spearman"] is None
    assert data["rows"][1]["metrics"]["dev"]["spearman"] == 0.5
    assert (data["timings"], data["members"][0]["index"]) == ({"ct": {"seconds": 2.0}}, 3)
    assert data["findings"] == report.findings()


def test_report_md_says_everything_a_reader_needs():
    rows = full_run()
    for r in rows:
        ways = {way: {"spearman": r.score("sts12") + shift} for way, shift in [("all", 4), ("mean", 0), ("wmean", 2)]}
        r.metrics["sts12"].update(ways, subsets={"a": {}, "b": {}})
    text = Report(
        "demo",
        scored(rows),
        timings={
            "ct": {"seconds": 90.0, "sentences": 900, "object_store_bytes": 5e6, "spilled_bytes": 0, "gpu_use": 0.5},
            "ct-sed": {"seconds": 30.0, "object_store_bytes": 2e9},
        },
        environment={"python": "3.11", "versions": {"ray": "2.60.0"}, "devices": ["cpu"]},
        corpus={"lines": 100, "truncated_tokens": 7},
        members=[{"recipe": "ct", "index": 4, "reason": "died\ntwice | for good"}],
        command="python jobs/ensemble_then_distill.py --config demo",
        repeat=how_to_repeat("/my runs", "demo"),
        plots={"plots/scores.png": "Scores", "plots/training.png": "Curves"},
        status="partial",
    ).to_markdown()
    assert_is_tidy(text)
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
        "| stage  | time       | share | sentences/s | object store | GPU use |",
        "| ct     | 1 min 30 s |   75% |          10 | 5.0 MB       |     50% |",
        "| ct-sed | 30.0 s     |   25% |           - | 2.0 GB       |       - |",
        "| total  | 2 min 00 s |  100% |",
        "| versions.ray | 2.60.0 |",
        "![Scores](plots/scores.png)",
        "![Curves](plots/training.png)",
        "with:\n\n```sh\npython jobs/ensemble_then_distill.py --config demo\n```",
        "```sh\npython jobs/ensemble_then_distill.py --config '/my runs/demo/config.yaml' --run demo-again "
        "--storage '/my runs'\n```",
    ):
        assert part in text, part


def is_picture(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def trainings(count, **settings):
    steps = range(0, 50, 10)
    curves = {
        f"member {i:02}": [{"step": s, "loss": 1 / (1 + s), "dev": 60 + i + s / 10} for s in steps]
        for i in range(count)
    }
    return Training("member", curves, **settings)


def test_all_pictures_are_written_and_named(tmp_path):
    rng = np.random.default_rng(0)
    titles = write_plots(
        tmp_path / "plots",
        scored(full_run()),
        Pictured(
            trainings={"ct": trainings(3), "ct-sed": replace(trainings(1), what="learner")},
            spectra={"base": singular_values(rng.normal(size=(30, 8))), "flow": singular_values(np.eye(8))},
            agreement={"base": (rng.normal(size=50), rng.integers(0, 6, 50).astype(float))},
            grids=[grid({0.0: [79.0, 79.4], 0.5: [80.0, 80.2]}), grid({0.0: [1.0], 0.1: [2.0]}, "nli-sts")],
            distances={"gold score": (np.arange(9.0), np.arange(9, 0, -1))},
            teachers=[of_speed("large", 80.0, 100.0), of_speed("learner", 78.0, 250.0)],
        ),
    )
    names = ["scores", "speed", "grid-sts", "grid-nli-sts", "training-ct", "training-ct-sed", "spectrum", "agreement"]
    names.append("edit-distance")
    assert list(titles) == [f"plots/{name}.png" for name in names]
    assert all(is_picture(tmp_path / path) for path in titles)
    assert titles["plots/scores.png"] == "Best: base + flow 73.0, base encoder 66.0"
    assert titles["plots/training-ct.png"] == "Training of ct, 3 members, on average: loss 1 to 0.0244, dev 61 to 65"
    assert titles["plots/training-ct-sed.png"] == "Training of ct-sed, 1 learner: loss 1 to 0.0244, dev 60 to 64"
    assert "flow 8" in titles["plots/spectrum.png"]
    assert titles["plots/grid-sts.png"] == "sts: lower bound 0.5 wins, mean 80.10; 0.90 above the next, 0"
    assert titles["plots/edit-distance.png"] == "Similarity and edit distance; Spearman: gold score -100.0"


def of_speed(name, score, speed, width=384):
    return {"model": name, "score": score, "sentences_per_second": speed, "width": width, "parameters": 22_713_216}


def test_the_picture_of_speed_says_how_much_faster_the_exported_model_is(tmp_path):
    together = {**of_speed("all of them together", 81.0, None), "width": None, "parameters": None}
    api = {**of_speed("an API", 83.0, None, 1536), "parameters": None}
    models = [
        of_speed("large", 80.0, 100.0),
        of_speed("small", 70.0, 900.0),
        api,
        together,
        of_speed("ours", 78.0, 250),
    ]
    title = plot_speed(tmp_path / "speed.png", models, scored(full_run()))
    assert title == "ours: 78.0, at 2.5 times the speed of the best teacher (large, 80.0)"
    assert is_picture(tmp_path / "speed.png")
    without = [api, of_speed("ours", 78.0, 250.0)]
    assert plot_speed(tmp_path / "none.png", without, scored(full_run())) is None  # nothing to compare its speed with
    unscored = [of_speed("large", 80.0, 100.0), of_speed("small", 70.0, 900.0), of_speed("ours", None, 250.0)]
    assert plot_speed(tmp_path / "none.png", unscored, scored(full_run())) is None


def test_pictures_without_numbers_are_skipped(tmp_path):
    assert write_plots(tmp_path / "plots", scored([]), Pictured()) == {}
    assert list((tmp_path / "plots").iterdir()) == []


def test_curves_with_gaps_are_drawn(tmp_path):
    """A diverged loss, a member without dev scores, one record only, a loss of zero."""
    odd = {
        "diverged": [{"step": 1, "loss": 0.5}, {"step": 2, "loss": math.nan}],
        "silent": [{"step": 1}],
        "zero": [{"step": 1, "loss": 0.0, "dev": None}],
    }
    title = plot_training(tmp_path / "odd.png", "ct", Training("member", odd))
    assert title == "Training of ct, 3 members, on average: loss 0.25 to 0.25"
    assert is_picture(tmp_path / "odd.png")
    assert plot_training(tmp_path / "one.png", "ct", trainings(1)).startswith("Training of ct, 1 member: loss 1 to")
    assert plot_training(tmp_path / "none.png", "ct", Training("member", {"silent": [{"step": 1}]})) is None


def test_degenerate_spectra_and_scores_are_drawn(tmp_path):
    """Rank-deficient embeddings (zero singular values), one gold score only, a single model."""
    assert plot_spectra(tmp_path / "a.png", {"low rank": singular_values(np.ones((6, 4)))})
    assert plot_agreement(tmp_path / "b.png", {"x": (np.array([0.1, 0.2]), np.array([3.0, 3.0]))})
    title = plot_scores(tmp_path / "c.png", scored([row("base", "base", 66.0)]))
    assert title == "Best: base 66.0"
    assert all(is_picture(tmp_path / name) for name in ("a.png", "b.png", "c.png"))


def test_odd_grids_and_distances_are_drawn(tmp_path):
    """One bound to the end, a bound whose models all failed, only equal distances; one bound alone is no picture."""
    stopped = grid({0.0: [79.0], 0.5: [80.0], 0.6: [50.0]}, stopped=[0.0, 0.6])
    assert plot_grid(tmp_path / "a.png", stopped) == "sts: lower bound 0.5 wins, mean 80.00"
    failed = grid({0.0: [79.0], 0.5: [80.0]})
    failed["bounds"].append({"lower_bound": 0.9, "scores": [], "mean": None, "std": None, "stopped_at": None})
    assert plot_grid(tmp_path / "b.png", failed)
    assert plot_edit_distance(tmp_path / "c.png", {"x": (np.array([0.5, 0.5]), np.array([0, 0]))})
    assert all(is_picture(tmp_path / name) for name in ("a.png", "b.png", "c.png"))
    assert plot_grid(tmp_path / "d.png", grid({0.0: [79.0, 80.0]})) is None
    assert plot_edit_distance(tmp_path / "d.png", {}) is None and not (tmp_path / "d.png").exists()


CONFIGS = sorted(path.stem for path in (ROOT / "raysed/configs").glob("*.yaml"))


@pytest.mark.parametrize(("name", "scheme"), [*((name, "") for name in CONFIGS), ("quickstart", "file://")])
def test_what_the_report_says_to_type_has_the_settings_of_the_run(tmp_path, monkeypatch, name, scheme):
    """Every config, changed by --set, as the job writes it; the words go through the shell and the job's own parser."""
    config = load_config(ROOT / f"raysed/configs/{name}.yaml", ["members.count=4", "sed.learning_rate=1.5e-5"])
    location = f"{scheme}{tmp_path}/{'my-runs' if scheme else 'my runs'}"
    Storage(location, config.run).write_text("config.yaml", dump_config(config))
    monkeypatch.chdir(tmp_path)
    *fetch, line = how_to_repeat(location, config.run).splitlines()
    for command in fetch:
        environment = {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        subprocess.run(command, shell=True, check=True, env=environment)
    python, job, *words = shlex.split(line)
    arguments = run_parser().parse_args(words)
    assert (python, job, len(fetch)) == ("python", "jobs/ensemble_then_distill.py", bool(scheme))
    assert (arguments.run, arguments.storage) == (f"{config.run}-again", location)
    assert load_config(find_config(arguments.config, tmp_path)) == config
    long = how_to_repeat(location, "r" * 100)
    assert make_config({"run": shlex.split(long.splitlines()[-1])[5]}).run == "r" * 94 + "-again"


# -- what a reader sees ----------------------------------------------------------------------------------------------

LONG_RECIPE = "mlm-nli-ct-bsl-contrastive-sed-sn-natsv"
LONG_TASK = "support-tickets-german-2025-graded-by-hand"


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would be saved, drawn, by name of the file."""
    figures = {}

    def keep(figure, path, **options):
        FigureCanvasAgg(figure).draw()
        figures[Path(path).stem] = figure

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def assert_nothing_is_cut_off(figure):
    """All that is drawn lies within the picture, and the titles of panels and of the whole do not touch."""
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.01 and box.x1 < width + 0.01 and box.y1 < height + 0.01, (box, width, height)
    titles = [axes.title.get_window_extent() for axes in figure.axes if axes.title.get_text()]
    assert all(left.x1 < right.x0 for left, right in pairwise(titles))
    assert all(title.y1 < figure._suptitle.get_window_extent().y0 for title in titles)
    axes = figure.axes[0].get_window_extent()
    assert axes.width > 0.35 * figure.bbox.width / len(titles or [1]) and axes.height > 0.2 * figure.bbox.height / 3


def in_legend(figure):
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    return [[text.get_text() for text in legend.get_texts()] for legend in legends if legend]


def many_rows(recipe, count):
    """The rows of `count` recipes of one kind, whose names differ in their last stage."""
    kinds = ("member", "ensemble", "learner")
    return [row(f"{recipe}-{i}", kind, 60.0 + i + k) for i in range(count) for k, kind in enumerate(kinds)]


@pytest.mark.parametrize("recipe", ["ct", LONG_RECIPE])
@pytest.mark.parametrize("task", ["dev", LONG_TASK])
@pytest.mark.parametrize("count", [1, 10])
def test_nothing_is_cut_off_in_any_picture(tmp_path, drawn, recipe, task, count):
    rng = np.random.default_rng(0)
    pairs, texts = (rng.normal(size=50), rng.integers(0, 6, 50)), ["base", "base-sn-natsv", recipe, f"{recipe}-flow"]
    records = trainings(count, references={"base": 55.0, "members, mean": 61.0, "full ensemble": 62.0})
    tasks = [task, f"{task}-other"]
    metrics = {name: {"spearman": 60.0, "pearson": 60.0} for name in tasks}
    rows = [replace(one, metrics=metrics) for one in many_rows(recipe, count)]
    write_plots(
        tmp_path,
        Results([*rows, replace(row("base", "base", 0.0), metrics=metrics)], tasks, 2),
        Pictured(
            trainings={recipe: records},
            spectra={text: singular_values(rng.normal(size=(30, 8))) for text in texts},
            agreement={"base": pairs, f"{recipe} (exported)": pairs},
            agreement_task=task,
            grids=[grid({0.05 * i: [79.0, 79.4] for i in range(count + 1)}, recipe, task=task)],
            distances={"gold score": pairs, "base": pairs, recipe: pairs},
        ),
    )
    assert len(drawn) == 6
    for name, figure in drawn.items():
        print(name)
        assert_nothing_is_cut_off(figure)


def test_titles_say_everything_in_as_many_lines_as_it_takes(tmp_path, drawn):
    pairs = (np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0]))
    found = {"base": pairs, f"{LONG_RECIPE} (exported)": pairs}
    title = plot_agreement(tmp_path / "agreement.png", found, LONG_TASK)
    shown = drawn["agreement"]._suptitle.get_text()
    assert shown.count("\n") and shown.replace("\n", " ") == title
    assert title.endswith(f"on {LONG_TASK}; Spearman: base 100.0, {LONG_RECIPE} (exported) 100.0")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (grid({0.0: [79.0, 81.0], 0.5: [80.0, 80.2]}), ["± standard deviation", "mean", "a model", "chosen: 0"]),
        (grid({0.0: [79.0], 0.5: [80.0]}), ["mean", "a model", "chosen: 0.5"]),
        (
            grid({0.0: [79.0, 80.0], 0.5: [60.0]}, stopped=[0.5]),
            ["chosen: 0", "stopped early (score of fewer updates)"],
        ),
    ],
)
def test_the_legend_of_a_grid_lists_what_is_drawn(tmp_path, drawn, found, words):
    plot_grid(tmp_path / "grid.png", found)
    (legend,) = in_legend(drawn["grid"])
    assert legend == [
        word.replace("chosen: 0", f"chosen: {found['winner']:g}") if word == "chosen: 0" else word for word in words
    ]
    axes = drawn["grid"].axes[0]
    lines = [line for line in axes.lines if len(line.get_xdata()) > 1]
    assert len(lines) == ("mean" in words) and len(axes.collections) == len(words) - len(lines)


def test_trainings_are_drawn_beside_what_they_are_to_be_compared_with(tmp_path, drawn):
    """The same training has the same colour in all panels; references are lines in the panel of dev scores alone."""
    references = {"base": 55.0, "members, mean": 61.0, "full ensemble": 62.5}
    plot_training(tmp_path / "t.png", "ct-sed", trainings(3, references=references, criterion="pearson"))
    loss, dev = drawn["t"].axes
    assert dev.get_ylabel() == "dev Pearson x100"
    flat = {
        line.get_label(): set(line.get_ydata()) for line in dev.lines if line.get_label().split(":")[0] in references
    }
    assert flat == {"base: 55.0": {55.0}, "members, mean: 61.0": {61.0}, "full ensemble: 62.5": {62.5}}
    assert in_legend(drawn["t"]) == [
        ["member 02, ends at 0.0244", "member 00, ends at 0.0244", "the others"],
        [*flat, "member 02, ends at 66", "member 00, ends at 64", "the others"],
    ]
    colours = [
        {line.get_label().split(",")[0]: line.get_color() for line in axes.lines if "member 0" in line.get_label()}
        for axes in (loss, dev)
    ]
    assert colours[0] == colours[1] and len(set(colours[0].values())) == 2


def test_references_are_means_of_like_models_at_the_main_pooling_that_have_not_collapsed():
    from raysed.report.publish import _dev_scores

    results = scored([*full_run(), replace(row("ct", "member", 10.0, 3), left_out=True)])
    groups = {"base": ("base", "base"), "members, mean": ("ct", "member"), "full ensemble": ("ct", "ensemble")}
    found = _dev_scores(results, "dev", {**groups, "nobody": ("nli", "member")})
    assert found == {"base": 33.0, "members, mean": 34.5, "full ensemble": 35.4}
    assert _dev_scores(results, "dev", groups, "pearson")["members, mean"] == 69.0
    assert _dev_scores(results, None, groups) == {}


def test_equal_spectra_do_not_hide_each_other(tmp_path, drawn):
    """A flow makes those of the base and of the learner nearly equal."""
    values = singular_values(np.random.default_rng(0).normal(size=(30, 8)))
    plot_spectra(tmp_path / "s.png", dict.fromkeys(["base", "base-flow", "ct-sed", "ct-sed-flow"], values))
    lines = list(drawn["s"].axes[0].lines)
    widest = max(lines, key=lambda line: line.get_linewidth())
    assert all(line.get_linewidth() < widest.get_linewidth() / 2 for line in lines if line is not widest)
    assert lines[3] is not widest and len({line.get_linestyle() for line in lines}) == 4
    assert in_legend(drawn["s"]) == [["base", "base-flow", "ct-sed", "ct-sed-flow"]]


def test_the_report_shows_where_the_model_fails_its_formats_and_why_there_is_none():
    pair = {"score": 4.6, "cosine": 0.1, "rank_by_score": 95.0, "rank_by_cosine": 5.0}
    pair |= {"sentence1": "A | B", "sentence2": "C"}
    formats = [
        {"format": name, "file": file, "bytes": 5e6, "cosine": 1.0, "difference": 0.0, "sentences_per_second": 1234.5}
        for name, file in (("torch", "model.safetensors"), ("onnx", "onnx/model.onnx"))
    ]
    report = Report(
        "r",
        scored(full_run()),
        dev="dev",
        exported="ct",
        export="ct, the last recipe",
        formats=[{**row, "score": 58.0} for row in formats],
        failures={"task": "sts12", "model": "ct (exported)", "pairs": [pair]},
    )
    text = report.to_markdown()
    assert_is_tidy(text)
    assert "| onnx   | onnx/model.onnx   | 5.0 MB |       1,234 | 58.00 | 1.0000 |" in text
    assert "The pairs that ct (exported) on sts12 ranks most differently than people do." in text
    assert "| A / B | C | 4.60 | 0.10 | 95 | 5 |" in text
    found = json.loads(report.to_json())
    assert found["failures"]["pairs"] == [pair] and found["formats"][1]["file"] == "onnx/model.onnx"
    refused = Report("r", scored(full_run()), export="ct: 40.0", refusal="no model is exported: ct has 40.0")
    text = refused.to_markdown()
    assert_is_tidy(text)
    said = "## No exported model\n\nNo model is exported: ct has 40.0. The model would be: ct: 40.0."
    assert said in text and "## The exported model" not in text
    found = json.loads(refused.to_json())
    assert found["refused"] == {"chosen": "ct: 40.0", "why": "no model is exported: ct has 40.0"}
    assert "exported" not in found


def test_a_model_without_a_dev_score_is_no_reference_of_a_training():
    """Where all embeddings are equal, a correlation is not defined."""
    from raysed.report.publish import _dev_scores

    constant = row("ct", "member", 60.0, 1)
    constant.metrics["dev"]["spearman"] = None
    groups = {"members": ("ct", "member"), "base": ("base", "base")}
    assert _dev_scores(scored([constant]), "dev", groups) == {}
    assert _dev_scores(scored([constant, row("ct", "member", 70.0)]), "dev", groups) == {"members": 35.0}

"""The verdict and the findings in words, from made-up rows."""

import re

import numpy as np
import pytest
from made_up import TASKS, entry, findings, full_run, row, run_of, scored

from raysed.report.document import Document
from raysed.report.findings import MOST_FINDINGS, comparisons, comparisons_table, gain_sentence
from raysed.report.scores import ScoreTable
from raysed.report.sections.scores import headline_table


def test_findings_of_a_full_run():
    assert findings(full_run()) == [
        "Training: members of ct against the base +3.0.",
        "Distillation: ct-sed against the base +4.0; ct-sed against the ensemble -0.8.",
        "Averaging: full ensemble of ct against the best one +0.8.",
        "Calibration: the flow on base +7.0; the flow on learner of ct-sed -0.4.",
        "No clear effect: ct-sed against the best member +0.0.",
    ]


def spread(centre, width=1.0):
    """Resampled scores whose 95 % interval is the centre and `width` on both sides."""
    return centre + width * np.linspace(-1, 1, 4001) / 0.95


def test_differences_come_with_their_intervals():
    """Those of paired resamples, in the direction that the sentence gives; what may be chance is said once."""
    rows = [row("base", "base", 66.0), row("ct", "member", 65.0), row("ct-sed", "learner", 66.04)]
    base_R = spread(66.0, 5.0)
    draws = {
        ("base", "base", "mean"): base_R,
        ("ct", "member", "mean"): base_R - spread(1.0, 0.4),
        ("ct", "member", "best"): base_R - spread(1.0, 0.4),
        ("ct-sed", "learner", "mean"): base_R + spread(0.04, 0.32),
    }
    assert findings(rows, draws=draws) == [
        "Training: members of ct against the base -1.0 (-1.4 to -0.6).",
        "Distillation: ct-sed against the best member +1.0 (+0.3 to +1.8).",
        "No clear effect: ct-sed against the base +0.0 (-0.3 to +0.4).",
    ]
    draws["ct", "member", "mean"] = base_R - spread(1.0, 1.2)
    *_, last = findings(rows, draws=draws)
    unclear = "members of ct against the base -1.0 (-2.2 to +0.2); ct-sed against the base +0.0 (-0.3 to +0.4)"
    assert last == f"No clear effect: {unclear}."
    table = headline_table(scored(rows, draws=draws)).plain().splitlines()
    assert "95 %" in table[0] and "61.0 to 71.0" in table[2]
    assert entry(scored(rows, draws=draws).summary, "base", "base", "mean")["low"] == pytest.approx(61.0, abs=0.01)


def test_there_are_at_most_five_findings_and_collapsed_members_are_one_of_them():
    rows = [*full_run(), row("nli-ct-sed", "learner", 78.0)]
    collapsed = {"ct/members/07": "collapsed: all embeddings point one way", "ct/members/08": "loss is not finite"}
    found = findings(rows, collapsed)
    assert len(found) == MOST_FINDINGS and found[-1] == "Collapsed members, left out of every mean: 1 of ct."
    assert sum(text.startswith("No clear effect") for text in found) == 1


def exported(rows, recipe, kind, index=0, **scores):
    (own,) = [one for one in rows if (one.recipe, one.kind, one.index, one.layers) == (recipe, kind, index, 2)]
    return scored(rows, exported=own, **scores)


def test_a_gain_is_that_of_the_exported_model_not_of_the_end_of_a_chain():
    rows = [*full_run(), row("tf-idf", "baseline", 50.0, layers=0), row("ct-sed", "learner", 76.0, index=1)]
    base_R = spread(66.0, 5.0)
    draws = {("base", "base", "mean"): base_R, ("ct-sed", "learner", "exported"): base_R + spread(10.0, 2.0)}
    scores = exported(rows, "ct-sed", "learner", 1, draws=draws)
    assert [(one["model"], one["score"], one.get("gain")) for one in comparisons(scores)] == [
        ("this model", 76.0, None),
        ("start (base)", 66.0, 10.0),
        ("best member", 70.0, 6.0),
        ("TF-IDF", 50.0, 26.0),
        ("base + flow (best untrained)", 73.0, 3.0),
    ]
    base = comparisons(scores)[1]
    assert (base["low"], base["high"]) == (pytest.approx(8.0, abs=0.01), pytest.approx(12.0, abs=0.01))
    lines = comparisons_table(comparisons(scores)).plain().splitlines()
    assert re.split(" {2,}", lines[3]) == ["start (base)", "66.00", "+10.0", "+8.0 to +12.0"]
    assert gain_sentence(scores) == "It scores 76.0, 3.0 above base + flow (73.0), the best without training."
    assert comparisons(ScoreTable([], TASKS, 2)) == [] and gain_sentence(ScoreTable([], TASKS, 2)) == ""


def test_the_verdict_says_if_it_rests_on_generated_pairs():
    rows = [row("base", "base", 66.0), row("ct-sed", "learner", 67.0)]
    for generated, clause in (
        (TASKS, " on generated pairs"),
        (TASKS[:1], " partly on generated pairs"),
        (["dev"], ""),
    ):
        scores = exported(rows, "ct-sed", "learner", generated=generated)
        assert gain_sentence(scores).startswith(f"It scores 67.0{clause}, 1.0 above base (66.0)")
        text = Document(run_of(scores), {}).to_markdown()
        assert f"{', '.join(generated)}: generated pairs (written and graded by a program)." in text
    assert "generated" not in Document(run_of(exported(rows, "ct-sed", "learner")), {}).to_markdown()


def test_a_gain_that_may_be_chance_is_no_clear_effect():
    rows = [row("base", "base", 66.0), row("ct-sed", "learner", 67.0)]
    draws = {("base", "base", "mean"): spread(66.0), ("ct-sed", "learner", "exported"): spread(66.0) + spread(1.0, 2.0)}
    said = gain_sentence(exported(rows, "ct-sed", "learner", draws=draws))
    assert said.startswith("It scores 67.0: no clear effect compared with base (66.0)")


def test_what_calibrations_have_seen_is_said_and_tabled():
    scores = scored(full_run(), fitted_on="tasks")
    said = "Calibrations were fitted on the sentences of the tasks (without gold scores): expect less"
    assert said in Document(run_of(scores), {}).to_markdown()
    lines = headline_table(scores).plain().splitlines()[2:]
    assert {line.split("  ")[0] for line in lines if "tasks" in line} == {"base + flow", "learner + flow"}


def learners(**scores):
    return [row(recipe.replace("_", "-"), "learner", score) for recipe, score in scores.items()]


def test_findings_say_what_labels_buy():
    """By the best learner of each kind; what external teachers learnt from is not known."""
    rows = [row("base", "base", 60.0), *learners(ct_sed_flow=77.1, nli_ct_sed=78.3, nli_ct_sed_flow=78.2, sts_sed=86.0)]
    labels = "Labels: NLI (nli-ct-sed) against none (ct-sed-flow) +1.2; STS (sts-sed) against none (ct-sed-flow) +8.9."
    assert labels in findings(rows)
    head, _, *lines = [re.split(" {2,}", line) for line in headline_table(scored(rows)).plain().splitlines()]
    assert head[2] == "labels" and {line[1]: line[2] for line in lines}["nli-ct-sed"] == "NLI"
    assert "Labels" not in str(findings([rows[0], *learners(nli_sed=78.0, teachers_sed=80.0)]))


def test_a_model_that_needs_no_training_is_compared_with_the_others():
    rows = [row("base", "base", 60.0), row("base-whiten", "base", 77.0), row("tf-idf", "baseline", 69.0, layers=0)]
    said = gain_sentence(exported(rows, "base-whiten", "base"))
    assert said.startswith("It scores 77.0, 8.0 above TF-IDF (69.0), the best other one without training.")


def test_words_do_better_on_a_task_only_if_they_do():
    base, model = row("base", "base", 60.0), row("ct-sed", "learner", 70.0)
    for words, is_named in ((69.95, False), (70.05, False), (70.1, True)):
        rows = [base, model, row("tf-idf", "baseline", words, layers=0)]
        assert ("A lexical baseline does better" in gain_sentence(exported(rows, "ct-sed", "learner"))) is is_named

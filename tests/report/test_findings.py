"""The findings in words, from made-up rows."""

import re

import numpy as np
import pytest
from made_up import entry, findings, full_run, row, run_of, scored

from raysed.report.document import Document
from raysed.report.findings import MOST_FINDINGS
from raysed.report.sections.scores import headline_table


def test_findings_of_a_full_run():
    assert findings(full_run()) == [
        "Training: members of ct against the base +3.0.",
        "Distillation: ct-sed against the base +4.0; ct-sed against the ensemble -0.8.",
        "Averaging: full ensemble of ct against the best one +0.8.",
        "Calibration: the flow on base +7.0; the flow on learner of ct-sed -0.4.",
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
        ("ct", "member", 0): base_R - spread(1.0, 0.4),
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
    rows = [*full_run(), row("nli-ct-sed", "learner", 78.0), row("ct-sed-sn", "learner", 70.06)]
    collapsed = {"ct/members/07": "collapsed: all embeddings point one way", "ct/members/08": "loss is not finite"}
    found = findings(rows, collapsed)
    assert len(found) == MOST_FINDINGS and found[-1] == "Collapsed members, left out of every mean: 1 of ct."
    assert sum(text.startswith("No clear effect") for text in found) == 1


def test_only_three_comparisons_have_no_clear_effect_and_none_is_of_a_model_with_itself():
    rows = [row("base", "base", 60.0), row("ct", "member", 60.02), row("ct", "ensemble", 60.02)]
    rows += [row(f"ct-sed{end}", "learner", 60.0) for end in ("", "-flow", "-sn", "-whiten")]
    draws = {(one.recipe, one.kind, which): spread(60.0) for one in rows for which in (0, "mean")}
    draws["ct", "member", "mean"] = draws["ct", "member", 0] = draws["ct", "ensemble", "mean"] = spread(60.0, 2.0)
    *_, last = findings(rows, draws=draws)
    assert last.count(";") == 2 and "+0.0 (+0.0 to +0.0)" not in last and "full ensemble" not in last


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
    assert head[-2:] == ["recipe", "labels"] and {line[-2]: line[-1] for line in lines}["nli-ct-sed"] == "NLI"
    assert "Labels" not in str(findings([rows[0], *learners(nli_sed=78.0, teachers_sed=80.0)]))

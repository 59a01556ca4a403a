"""The findings in words, from made-up rows."""

import re

import numpy as np
import pytest
from made_up import entry, findings, full_run, row, scored

from raysed.report.sections.scores import headline_table


def test_findings_of_a_full_run():
    assert findings(scored(full_run())) == (
        "The flow raised the base by 7.0.\n\n"
        "CT raised the base by 3.0 on average over 3 members (std 1.0, best +4.0); "
        "the ensemble is 0.8 above its best member. "
        "The learner is no different from the best member and 0.8 below the ensemble; "
        "the flow lowered the learner by 0.4. "
        "Overall, learner + flow of ct-sed-flow (69.6) is 3.4 below base + flow (73.0), the best row that needs no "
        "training.\n\n"
        "Baselines without a model: word overlap (60.0)."
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
    text = findings(scored([member, row("ct-sed", "learner", 65.5)]))
    assert text == "The learner is 0.5 above the best member."
    calibrated = [row("ct-flow", "member", 66.0), member, row("ct-sn-natsv", "member", 64.0)]
    assert findings(scored(calibrated)) == (
        "The flow raised the members by 1.0; SN with NATSV lowered the members by 1.0."
    )
    assert findings(scored([base])) == findings(scored([])) == "Nothing to compare."


def test_ensembles_have_paragraphs():
    rows = [row("base", "base", 60.0), row("nli", "member", 61.0), row("nli-ct", "member", 63.0)]
    rows.append(row("word-overlap", "baseline", 50.0))
    assert findings(scored(rows)) == (
        "NLI raised the base by 1.0.\n\n"
        "NLI-CT raised the base by 3.0; CT raised the members of NLI by 2.0.\n\n"
        "Baselines without a model: word overlap (50.0)."
    )


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
        "Overall, learner of ct-sed (66.0) is no different (-0.3 to 0.4) from base (66.0), the best row that needs no "
        "training.\n\n"
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
        ("tasks", "The calibrations were fitted on the very sentences that they are scored on"),
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
    assert "labels" not in headline_table(scored(full_run())).header

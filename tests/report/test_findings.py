"""The findings in words, from made-up rows."""

import re

import numpy as np
import pytest
from made_up import entry, findings, full_run, row, scored

from raysed.report.findings import gain_sentence
from raysed.report.sections.scores import headline_table


def test_findings_of_a_full_run():
    assert findings(full_run()) == (
        "The flow raised the base by 7.0.\n\n"
        "CT raised the base by 3.0 on average over 3 members (std 1.0, best +4.0); "
        "the ensemble is 0.8 above its best member. "
        "The learner is no different from the best member and 0.8 below the ensemble; "
        "the flow lowered the learner by 0.4. "
        "Overall, learner + flow of ct-sed-flow (69.6) is 3.4 below base + flow (73.0), the best without "
        "training.\n\n"
        "Baselines without a model: word overlap (60.0)."
    )


def test_small_differences_are_called_none():
    words = {0.1: "raised the base by 0.1", 0.09: "made no difference to the base", -0.3: "lowered the base by 0.3"}
    for difference, found in words.items():
        rows = [row("base", "base", 66.0), row("base-flow", "base", 66.0 + difference)]
        assert findings(rows) == f"The flow {found}."


def test_findings_without_some_parts():
    """Whatever a run lacks is not mentioned, and nothing breaks."""
    base, member = row("base", "base", 66.0), row("ct", "member", 65.0)
    assert findings([base, member]) == "CT lowered the base by 1.0."
    text = findings([member, row("ct-sed", "learner", 65.5)])
    assert text == "The learner is 0.5 above the best member."
    calibrated = [row("ct-flow", "member", 66.0), member, row("ct-sn-natsv", "member", 64.0)]
    assert findings(calibrated) == "The flow raised the members by 1.0; SN with NATSV lowered the members by 1.0."
    chain = [base, row("nli", "member", 67.0), row("nli-ct", "member", 69.0)]
    assert findings(chain).endswith("\n\nNLI-CT raised the base by 3.0; CT raised the members of NLI by 2.0.")
    assert findings([base]) == findings([]) == "Nothing to compare."


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
    assert findings(rows, draws=draws) == (
        "CT lowered the base by 1.0 (0.6 to 1.4). "
        "The learner is 1.0 (0.3 to 1.8) above the best member. "
        "Overall, learner of ct-sed (66.0) is no different (-0.3 to 0.4) from base (66.0), the best without "
        "training.\n\n"
        "In brackets: 95 % intervals over the sampling of pairs and seeds."
    )
    draws["ct", "member", "mean"] = base_R - spread(1.0, 1.2)
    assert "CT lowered the base by 1.0 (-0.2 to 2.2: may be chance)." in findings(rows, draws=draws)
    table = headline_table(scored(rows, draws=draws)).plain().splitlines()
    assert "95 %" in table[0] and "61.0 to 71.0" in table[2]
    assert entry(scored(rows, draws=draws).summary, "base", "base", "sts-avg")["low"] == pytest.approx(61.0, abs=0.01)


@pytest.mark.parametrize(
    ("fitted_on", "sentence"),
    [
        ("tasks", "The calibrations were fitted on the sentences that they are scored on"),
        ("corpus", "The calibrations were fitted on the corpus and have not seen the tasks."),
        ("other.txt", "The calibrations were fitted on other.txt."),
    ],
)
def test_what_calibrations_have_seen_is_said_and_tabled(fitted_on, sentence):
    table = headline_table(scored(full_run(), fitted_on=fitted_on)).plain().splitlines()
    assert sentence in findings(full_run(), fitted_on=fitted_on) and "fitted on" in table[0]
    calibrated = {line.split("  ")[0] for line in table[2:] if fitted_on in line}
    assert calibrated == {"base + flow", "learner + flow"}
    plain = [row for row in full_run() if "flow" not in row.recipe]
    assert "fitted" not in findings(plain, fitted_on=fitted_on) and "fitted" not in findings(full_run())


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
            "; with NLI + STS labels it is nli-sts-sed (70.0), 1.5 below that.",
        ),
        ({"nli_sed": 70.0, "sts_sed": 80.0}, None),
        ({"ct_sed": 70.0, "mlm_ct_sed": 80.0}, None),
    ],
)
def test_findings_say_what_labels_buy(scores, sentence):
    text = findings([row("base", "base", 60.0), *learners(**scores)])
    assert sentence in text if sentence else "labels" not in text


def calibrated(plain, after, recipe="ct-sed", kind="learner"):
    """Two models whose dev scores are given; the calibration always helps on the headline tasks."""
    rows = [row(recipe, kind, 70.0), row(f"{recipe}-flow", kind, 75.0)]
    for model, score in zip(rows, (plain, after)):
        model.metrics["dev"]["spearman"] = score
    return rows


def test_what_external_teachers_learnt_from_is_not_known():
    assert "labels" not in findings([row("base", "base", 60.0), *learners(nli_sed=78.0, teachers_sed=80.0)])


def test_what_a_model_is_worth_is_that_of_its_group():
    base = row("base", "base", 66.0)
    assert gain_sentence(scored([base, row("ct", "member", 67.0)]), "ct", "member").startswith(
        "It is 1.0 above base (66.0)"
    )
    several = scored([base, row("ct", "member", 67.0), row("ct", "member", 69.0, 1)])
    assert gain_sentence(several, "ct", "member").startswith("The 2 members of ct are on average 2.0 above base (66.0)")


def test_a_model_that_needs_no_training_is_compared_with_the_others():
    rows = [row("base", "base", 60.0), row("base-whiten", "base", 77.0), row("tf-idf", "baseline", 69.0, layers=0)]
    said = gain_sentence(scored(rows), "base-whiten", "base")
    assert said.startswith("It is 8.0 above TF-IDF (69.0), the best other one without training.")


def test_words_do_better_on_a_task_only_if_they_do():
    base, model = row("base", "base", 60.0), row("ct-sed", "learner", 70.0)
    for words, is_named in ((69.95, False), (70.05, False), (70.1, True)):
        text = gain_sentence(scored([base, model, row("tf-idf", "baseline", words, layers=0)]), "ct-sed", "learner")
        assert ("A lexical baseline does better" in text) is is_named


def test_findings_say_that_a_calibration_makes_the_dev_score_worse():
    worse = calibrated(80.0, 78.5)
    said = "On dev, the task on which models are chosen, ct-sed-flow scores 1.5 below ct-sed (78.5 against 80.0)"
    assert findings(worse, "dev", "ct-sed").endswith(f"{said}, and ct-sed is exported.")
    assert findings(worse, "dev", "ct-sed-flow").endswith(f"{said}."), "it was asked for by name"
    for rows, dev in ((calibrated(80.0, 80.5), "dev"), (calibrated(80.0, 79.95), "dev"), (worse, None)):
        assert "models are chosen" not in findings(rows, dev)


def test_the_table_names_labels_where_a_recipe_uses_any():
    rows = [*full_run(), *learners(nli_ct_sed=72.0, nli_sts_sed=81.0)]
    head, _, *lines = [re.split(" {2,}", line) for line in headline_table(scored(rows)).plain().splitlines()]
    labels = dict(line[1:3] for line in lines)
    assert head[2] == "labels" and labels["ct-sed"] == "none"
    assert (labels["nli-ct-sed"], labels["nli-sts-sed"]) == ("NLI", "NLI + STS")
    assert "labels" not in headline_table(scored(full_run())).header

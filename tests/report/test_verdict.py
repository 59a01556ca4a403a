"""The verdict and its table, from made-up rows."""

import json
import re

import numpy as np
import pytest
from made_up import TASKS, full_run, row, run_of, scored
from scipy.stats import spearmanr
from started_jobs import artefact

from raysed.config import load_config
from raysed.report.scores import ScoreTable
from raysed.report.verdict import comparisons, comparisons_table, verdict
from raysed.score.tasks import Evaluation

PAIRS = "20 pairs and 20 pairs may miss a difference below about"


def spread(centre, width=1.0):
    """Resampled scores whose 95 % interval is the centre and `width` on both sides."""
    return centre + width * np.linspace(-1, 1, 4001) / 0.95


def run(rows, recipe="teachers-sed", kind="learner", index=0, costs=None, **scores):
    (own,) = [one for one in rows if (one.recipe, one.kind, one.index, one.layers) == (recipe, kind, index, 2)]
    found = run_of(scored(rows, exported=own, **scores))
    found.costs = costs or {}
    return found


def distilled(words=50.0, learner=80.0):
    """A learner of two teachers, of 77 and 75; the layers that it started from score 60."""
    rows = [row("teachers", "member", 75.0), row("teachers", "member", 77.0, 1), row("base", "base", 60.0)]
    return [*rows, row("teachers-sed", "learner", learner), row("tf-idf", "baseline", words, layers=0)]


NAMES = {"teachers": {0: "A", 1: "B"}, "base_name": "its layers before training"}
TEACHER, LEARNER = ("teachers", "member", 1), ("teachers-sed", "learner", 0)


def test_a_learner_is_compared_with_the_best_teacher():
    """With its size, if both are known, and with what the scored pairs can show; never with layers that nobody has."""
    costs = {LEARNER: {"parameters": 77}, TEACHER: {"parameters": 100, "speed": {"ratio": 0.526}}}
    found = verdict(run(distilled(), costs=costs, **NAMES))
    assert found == (
        "3.0 (3.0 to 3.0) above B, the best teacher. 77 % of its parameters, 1.9 times as fast. "
        f"5.0 (5.0 to 5.0) above A. {PAIRS} 0.0 points."
    )
    draws = {TEACHER: spread(77.0, 5.0), LEARNER: spread(77.0, 5.0) + spread(3.0, 4.0)}
    found = verdict(run(distilled(), draws=draws, **NAMES))
    assert found == f"No clear difference from B, the best teacher: +3.0 (-1.0 to +7.0). {PAIRS} 4 points."
    assert verdict(run(distilled(), draws={}, **NAMES)) == (
        "No clear difference from B, the best teacher: +3.0 (no interval from so few items)."
    )
    one = [one for one in distilled() if (one.recipe, one.index) != ("teachers", 1)]
    assert verdict(run(one, **{**NAMES, "teachers": {0: "A"}})).startswith("5.0 (5.0 to 5.0) above A, the teacher.")


def test_tasks_that_say_something_else_than_their_mean_are_named():
    draws = {TEACHER: spread(77.0, 5.0), LEARNER: spread(77.0, 5.0) + spread(3.0, 4.0)}
    by_task = {task: {TEACHER: spread(70.0), LEARNER: spread(70.0) + spread(3.0, width)} for task, width in
               zip(TASKS, (9.0, 1.0))}  # fmt: skip
    found = verdict(run(distilled(), draws=draws, task_draws=by_task, **NAMES))
    assert "+7.0). On sts13, 3.0 (2.0 to 4.0) above it. 20 pairs" in found and "sts12" not in found
    draws[LEARNER] = spread(77.0, 5.0) + spread(3.0, 1.0)
    assert "On sts" not in verdict(run(distilled(), draws=draws, task_draws=by_task, **NAMES)), "it says the same"


def test_words_come_first_if_they_are_above_the_model():
    for words, said in ((82.0, True), (50.0, False)):
        found = verdict(run(distilled(words), **NAMES))
        assert ("2.0 (2.0 to 2.0) below TF-IDF, which needs no model. 3.0" in found) is said
    base, model = row("base", "base", 60.0), row("ct-sed", "learner", 70.0)
    for words, is_named in ((69.95, False), (70.05, False), (70.1, True)):
        rows = [base, model, row("tf-idf", "baseline", words, layers=0)]
        assert verdict(run(rows, "ct-sed")).startswith("A lexical baseline does better on some tasks") is is_named


def test_without_teachers_a_model_is_compared_with_the_original_encoder_and_words():
    rows = [*full_run(), row("ct-sed", "learner", 76.0, index=1)]
    assert verdict(run(rows, "ct-sed", index=1)) == (
        "10.0 (10.0 to 10.0) above the original encoder. 16.0 (16.0 to 16.0) above word overlap, which needs no model. "
        f"{PAIRS} 0.0 points."
    )
    own = verdict(run([row("base", "base", 60.0), row("tf-idf", "baseline", 50.0, layers=0)], "base", "base"))
    assert own.startswith("10.0 (10.0 to 10.0) above TF-IDF"), "the encoder itself, without any training"
    unknown = run_of(ScoreTable([], TASKS, 2))
    assert verdict(unknown) == "" and comparisons(unknown) == []


def test_teachers_without_vectors_of_the_scored_texts_are_no_comparison():
    rows = [one for one in distilled() if one.recipe != "teachers"]
    found = verdict(run(rows, **NAMES))
    assert found.startswith("The teachers have no vectors of the scored texts. 30.0 (30.0 to 30.0) above TF-IDF, ")
    assert "before training" not in found, "a model that nobody has"
    whole = verdict(run(rows, teachers={0: "A"}))
    assert whole.startswith("20.0 (20.0 to 20.0) above the original encoder. 30.0 ")
    assert [one["model"] for one in comparisons(run(rows, **NAMES))][1:] == ["TF-IDF", NAMES["base_name"]]


def test_the_table_names_every_model_that_a_user_has_and_what_was_scored():
    draws = {TEACHER: spread(77.0, 5.0), LEARNER: spread(77.0, 5.0) + spread(3.0, 4.0)}
    speed = {"ratio": 0.5, "low": 0.4, "high": 0.6}
    costs = {LEARNER: {"parameters": 17_390_000, "speed": None}, TEACHER: {"parameters": None, "speed": speed}}
    given = run(distilled(), draws=draws, costs=costs, **NAMES)
    found = comparisons(given)
    assert [(one["model"], one["score"], one.get("gain")) for one in found] == [
        ("this model", 80.0, None),
        ("A", 75.0, 5.0),
        ("B", 77.0, 3.0),
        ("TF-IDF", 50.0, 30.0),
        ("its layers before training", 60.0, 20.0),
    ]
    assert found[2]["low"] == pytest.approx(-1.0, abs=0.01) and found[2]["tasks"] == {"sts12": 76.0, "sts13": 78.0}
    head, _, own, _, best, *_ = [
        re.split(" {2,}", line) for line in comparisons_table(found, given.scores).plain().splitlines()
    ]
    assert head == ["model", "mean", "gain", "95 %", "sts12 (20 pairs)", "sts13 (20 pairs)", "parameters", "speed"]
    assert own[-2:] == ["17.4 M", "-"]
    assert best == ["B", "77.00", "+3.0", "-1.0 to +7.0", "76.00", "78.00", "-", "0.50x (0.40 to 0.60)"]


def test_a_gain_and_its_interval_equal_those_of_scipy_and_plain_resampling(finished_run):
    """From a run's files: the embeddings of the exported model and of the encoder before training."""
    config = load_config(finished_run / "config.yaml", [])
    evaluation = Evaluation.load(config.evaluation)
    names = ("ct-sed-flow/calibrations/00", "base/embeddings/00")
    vectors = [np.load(artefact(finished_run, name) / "layers-1.npy") for name in names]
    own_P, base_P = (evaluation.outcome(x_UD, "generated-test") for x_UD in vectors)
    gold_P = evaluation.tasks["generated-test"].gold

    def gain(rows):
        own, base = (spearmanr(cosine_P[rows], gold_P[rows])[0] for cosine_P in (own_P, base_P))
        return 100 * (own - base)

    report = json.loads((finished_run / "report.json").read_text())
    (found,) = [one for one in report["exported"]["against"] if one["model"] == "its layers before training"]
    assert found["gain"] == pytest.approx(gain(slice(None)), abs=1e-3)
    rng = np.random.default_rng(1)
    low, high = np.quantile([gain(rng.integers(len(gold_P), size=len(gold_P))) for _ in range(1000)], [0.025, 0.975])
    assert (found["low"], found["high"]) == (pytest.approx(low, abs=2), pytest.approx(high, abs=2))

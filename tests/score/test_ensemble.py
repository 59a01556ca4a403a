"""What teachers are worth together: every number is that of the plain concatenation, scored on its own."""

from functools import partial

import numpy as np
import pytest

from raysed.config import CombinationConfig
from raysed.data.graded import StsTask
from raysed.score.ensemble import Ensemble, by_title, summary_lines
from raysed.score.intervals import interval, resample
from raysed.score.kinds.neighbours import Neighbours
from raysed.score.kinds.pairs import Pairs
from raysed.score.metrics import unit
from raysed.score.tasks import Evaluation, main_score

WORDS = [f"sentence {i}" for i in range(60)]


@pytest.fixture(scope="module")
def evaluation() -> Evaluation:
    rng = np.random.default_rng(0)
    gold = [rng.uniform(0, 5, 40) for _ in "ab"]
    pairs = [Pairs(StsTask(name, {"x": (WORDS[:40], WORDS[20:60], of)})) for name, of in zip(("dev", "pairs"), gold)]
    return Evaluation([*pairs, Neighbours("classes", WORDS, np.arange(60) % 3, ["a", "b", "c"])])


@pytest.fixture(scope="module")
def embeddings(evaluation) -> list[np.ndarray]:
    """Each teacher knows a part of the labels, beside noise of its own; none is of unit length."""
    rng, found = np.random.default_rng(1), []
    for width in (5, 8, 3):
        x_UD = rng.normal(size=(len(evaluation.sentences), width)) * 3
        x_UD[:, 0] += 4 * (np.arange(60) % 3 == width % 3)
        found.append(x_UD)
    return found


def plain(evaluation: Evaluation, embeddings: list[np.ndarray], some: list[int], weights: list[float]) -> np.ndarray:
    if len(some) == 1:
        return embeddings[some[0]]
    total = sum(weights[k] for k in some)
    return np.concatenate([np.sqrt(weights[k] / total) * unit(embeddings[k]) for k in some], axis=1)


@pytest.mark.parametrize("weights", [None, [1.0, 3.0, 0.5]])
def test_every_row_is_the_score_of_the_concatenation_and_its_gain(monkeypatch, evaluation, embeddings, weights):
    fewer = partial(resample, resamples=500)
    monkeypatch.setattr("raysed.score.ensemble.resample", fewer)
    ensemble = Ensemble(evaluation, CombinationConfig(weights=weights), embeddings)
    choice = ensemble.choose(["dev"])
    found = ensemble.gain(["pairs", "classes"], choice)
    assert found["kinds"] == {"pairs": ["pairs"], "neighbours": ["classes"]}
    subsets = [[0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]]
    assert [row["teachers"] for row in found["rows"]] == subsets
    outcomes = {}
    for row in found["rows"]:
        x_UD = plain(evaluation, embeddings, row["teachers"], weights or [1.0] * 3)
        scores = {name: main_score(metrics) for name, metrics in evaluation.score(x_UD).metrics.items()}
        assert row["dev"] == pytest.approx(scores["dev"], abs=1e-5)
        assert row["tasks"] == pytest.approx({name: scores[name] for name in ("pairs", "classes")}, abs=1e-5)
        mean = (scores["pairs"] + scores["classes"]) / 2
        expected = {"mean": mean, "pairs": scores["pairs"], "neighbours": scores["classes"]}
        assert row["scores"] == pytest.approx(expected, abs=1e-5)
        outcomes[tuple(row["teachers"])] = evaluation.score(x_UD).outcomes
    alone = {k: row["scores"] for k, row in enumerate(found["rows"][:3])}
    for row in found["rows"]:
        for column, gain in row["gains"].items():
            best = max(alone, key=lambda k, column=column: alone[k][column])
            assert gain["over"] == best
            assert gain["value"] == pytest.approx(row["scores"][column] - alone[best][column])
            assert gain["ends"][0] <= gain["value"] <= gain["ends"][1]
    assert not any(row["gains"] for row in found["rows"][:3])
    # The paired bootstrap of each kind, drawn apart, and of their mean.
    outcomes = {some: [of] for some, of in outcomes.items()}
    draws = [fewer(evaluation, outcomes, [name], seed=seed) for seed, name in enumerate(["pairs", "classes"])]
    for column, shares in {"pairs": (1, 0), "neighbours": (0, 1), "mean": (0.5, 0.5)}.items():
        gain = found["rows"][-1]["gains"][column]
        of_both = [share * (of[0, 1, 2] - of[gain["over"],]) for share, of in zip(shares, draws)]
        assert gain["ends"] == pytest.approx(interval(sum(of_both)), abs=1e-5)


def test_a_score_that_is_not_defined_is_no_gain(evaluation):
    ensemble = Ensemble(evaluation, CombinationConfig(), [np.ones((60, 2)), np.ones((60, 3))])
    found = by_title(ensemble.gain(["pairs"], ensemble.choose(["dev"])), ["A", "B"])
    assert found["rows"][-1]["gains"] == {"mean": None} and found["chosen"] == ["A"]
    said = "On pairs, the score of a teacher is undefined, so teachers cannot be compared."
    assert list(summary_lines(found)) == [said]


def worth_of(chosen: list[str], dev: list[str]) -> dict:
    gain = {"mean": {"over": "A", "value": 1.25, "ends": [0.5, 2.0]}}
    rows = [
        {"teachers": ["A"], "dev": 79.0, "scores": {"mean": 80.0}, "gains": {}},
        {"teachers": ["B"], "dev": 82.0, "scores": {"mean": 70.0}, "gains": {}},
        {"teachers": ["A", "B"], "dev": 81.0, "scores": {"mean": 81.25}, "gains": gain},
    ]
    return {"teachers": ["A", "B"], "tasks": ["t", "u"], "dev": dev, "chosen": chosen, "rows": rows}


def test_what_is_said_of_a_choice_depends_on_what_it_was_made_on():
    for chosen, dev, said in (
        ("AB", "d", "Best on d: both together, with 81.0."),
        ("B", "d", "Best on d: B alone, with 82.0. On the mean over t, u, which did not influence the choice, it "),
        ("AB", "tu", "Best on the mean over t, u: both together, with 81.0. They were chosen by these same scores"),
    ):
        worth, choice = summary_lines(worth_of([*chosen], [*dev]))
        assert worth.endswith("with 80.0; both together score 81.2, 1.2 (0.5 to 2.0) above it.")
        assert choice.startswith(said)


def test_a_chosen_teacher_whose_score_is_undefined_is_named():
    worth = worth_of(["B"], ["d"])
    worth["rows"][1]["scores"]["mean"] = worth["rows"][1]["dev"] = None
    assert list(summary_lines(worth))[1].endswith(", it scores -.")

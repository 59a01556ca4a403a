"""Resampled scores against resampling by hand, and what the intervals promise on simulated data."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from raysed.data.graded import StsTask
from raysed.score.intervals import _over_seeds, interval, resample
from raysed.score.kinds.pairs import Pairs
from raysed.score.tasks import Evaluation


class GivenCounts:
    """In place of the random generator: every resample has the counts that the test wants."""

    def __init__(self, *counts_RP):
        self._counts = list(counts_RP)

    def multinomial(self, total, shares_P, rows):
        counts_RP = self._counts.pop(0)
        assert counts_RP.shape == (rows, len(shares_P)) and (counts_RP.sum(1) == total).all()
        return counts_RP


def task(gold_by_subset, aggregation=None, name="t"):
    subsets = {
        key: ([f"{name}{key}a{i}" for i in range(len(gold))], [f"{name}{key}b{i}" for i in range(len(gold))], gold)
        for key, gold in gold_by_subset.items()
    }
    return Pairs(StsTask(name, subsets, 0, aggregation))


@pytest.mark.parametrize("aggregation", ["all", "mean", "wmean"])
def test_a_resample_scores_as_the_resampled_pairs_do(monkeypatch, aggregation):
    rng = np.random.default_rng(1)
    gold = {"x": rng.integers(0, 6, 30).astype(float), "y": rng.normal(size=12)}
    evaluation = Evaluation([task(gold, aggregation)])
    similarity_P = rng.normal(size=42).round(1)
    parts = [slice(0, 42)] if aggregation == "all" else [slice(0, 30), slice(30, 42)]
    counts = [rng.multinomial(p.stop - p.start, np.full(p.stop - p.start, 1 / (p.stop - p.start)), 4) for p in parts]
    monkeypatch.setattr(np.random, "default_rng", lambda seed: GivenCounts(*counts))
    found_R = resample(evaluation, {"model": [{"t": similarity_P}]}, ["t"], resamples=4)["model"]
    gold_P = np.concatenate(list(gold.values()))
    weights = {"all": [1], "mean": [0.5, 0.5], "wmean": [30 / 42, 12 / 42]}[aggregation]
    for r in range(4):
        drawn = [np.repeat(np.arange(p.start, p.stop), c[r]) for p, c in zip(parts, counts)]
        scores = [100 * spearmanr(similarity_P[rows], gold_P[rows]).statistic for rows in drawn]
        assert found_R[r] == pytest.approx(np.average(scores, weights=weights))


def test_each_pair_once_gives_the_score_itself(monkeypatch):
    """Of two tasks the mean, in the order that is asked for."""
    rng = np.random.default_rng(2)
    tasks = [
        task({"x": rng.normal(size=9), "y": rng.normal(size=7)}, "mean", "a"),
        task({"x": rng.normal(size=11)}, "all", "b"),
    ]
    evaluation, similarity_P = Evaluation(tasks), rng.normal(size=27)
    monkeypatch.setattr(np.random, "default_rng", lambda seed: GivenCounts(*(np.ones((1, n), int) for n in (11, 9, 7))))
    outcomes = {"a": similarity_P[:16], "b": similarity_P[16:]}
    scores = {name: task.metrics(outcomes[name]) for name, task in evaluation.tasks.items()}
    expected = (scores["a"]["spearman"] + scores["b"]["spearman"]) / 2
    assert resample(evaluation, {"m": [outcomes]}, ["b", "a"], resamples=1)["m"] == pytest.approx([expected])


def test_a_subset_that_is_in_no_mean_is_in_no_resample():
    rng = np.random.default_rng(6)
    gold = {"tiny": np.array([1.0, 2.0]), "x": rng.normal(size=40), "constant": np.ones(5)}
    with_it, alone = Evaluation([task(gold, "mean")]), Evaluation([task({"x": gold["x"]}, "mean")])
    similarity_P = rng.normal(size=47)
    found = [
        resample(e, {"m": [{"t": v}]}, ["t"], 50)["m"]
        for e, v in ((with_it, similarity_P), (alone, similarity_P[2:42]))
    ]
    np.testing.assert_array_equal(*found)


def simulated(rng, pairs, noises):
    gold_P = rng.normal(size=pairs)
    return gold_P, [{"t": gold_P + noise * rng.normal(size=pairs)} for noise in noises]


def test_intervals_hold_the_true_score_and_equal_models_differ_at_most_one_time_in_twenty():
    """The true Spearman correlation is measured on a million pairs."""
    rng = np.random.default_rng(3)
    gold_P, (big_P,) = simulated(rng, 10**6, [1.0])
    truth, held, called = 100 * spearmanr(gold_P, big_P["t"]).statistic, 0, 0
    for trial in range(300):
        gold_P, models = simulated(rng, 120, [1.0, 1.0])
        draws = resample(Evaluation([task({"x": gold_P})]), {"a": models[:1], "b": models[1:]}, ["t"], 300, trial)
        low, high = interval(draws["a"])
        held += low <= truth <= high
        low, high = interval(draws["a"] - draws["b"])
        called += not low <= 0 <= high
    assert 0.90 <= held / 300 <= 0.985
    assert called / 300 <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize("count", [2, 10])
def test_models_scatter_as_the_mean_of_so_many_does(count):
    """std / sqrt(K), whatever the models' scores are."""
    scores_K = np.random.default_rng(count).normal(60, 2, count)
    draws_R = _over_seeds(np.tile(scores_K, (40_000, 1)), np.random.default_rng(0))
    assert draws_R.std() == pytest.approx(scores_K.std(ddof=1) / np.sqrt(count), rel=0.02)
    assert draws_R.mean() == pytest.approx(scores_K.mean(), abs=0.05)


def test_a_model_that_says_always_the_same_has_no_interval():
    evaluation = Evaluation([task({"x": np.arange(9.0)})])
    draws_R = resample(evaluation, {"m": [{"t": np.ones(9)}]}, ["t"], 5)["m"]
    assert np.isnan(draws_R).all() and interval(draws_R) is None

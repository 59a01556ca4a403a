"""Resampled scores against resampling by hand, and what the intervals promise on simulated data."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from raysed.data.graded import StsTask
from raysed.score.intervals import _over_seeds, interval, resample
from raysed.score.kinds.neighbours import Neighbours
from raysed.score.kinds.pairs import Pairs
from raysed.score.kinds.retrieval import MEASURES, Retrieval
from raysed.score.kinds.translations import Translations
from raysed.score.tasks import Evaluation, main_score


def task(gold_by_subset, aggregation=None, name="t"):
    subsets = {
        key: ([f"{name}{key}a{i}" for i in range(len(gold))], [f"{name}{key}b{i}" for i in range(len(gold))], gold)
        for key, gold in gold_by_subset.items()
    }
    return Pairs(StsTask(name, subsets, 0, aggregation))


def kinds(rng):
    """A task of each kind, models' outcomes on it, and the plain score of some of its items."""
    # Two pairs and equal scores have no correlation: they are in no mean.
    gold = {"tiny": np.array([1.0, 2.0]), "x": rng.integers(0, 6, 30).astype(float), "y": rng.normal(size=12)}
    gold["constant"] = np.ones(5)
    for aggregation in ("all", "mean", "wmean"):
        pairs = task(gold, aggregation)
        outcomes = rng.normal(size=(2, 49)).round(1)
        yield pairs, outcomes, lambda of, rows, pairs=pairs: spearmanr(of[rows], pairs.gold[rows]).statistic
    texts = Neighbours("topics", [f"text {i}" for i in range(90)], rng.integers(0, 3, 90), [*"abc"])
    yield texts, rng.integers(0, 3, (2, 90)), lambda of, rows: np.mean(of[rows] == texts.labels[rows])
    search = Retrieval("search", [f"query {i}" for i in range(50)], ["a", "b"], ["0", "1"], [{0: 1.0}] * 50)
    yield search, rng.random((2, 50, len(MEASURES))), lambda of, rows: of[rows, 0].mean()
    parallel = Translations("parallel", ["en", "de", "fr"], [(f"a {i}", f"b {i}", f"c {i}") for i in range(40)])
    yield parallel, rng.random((2, 40, 4)) < 0.5, lambda of, rows: of[rows].mean()


@pytest.mark.parametrize("number", range(6))
def test_a_resample_scores_as_the_drawn_items_do(number):
    """Each item once gives the score itself."""
    rng = np.random.default_rng(1)
    of_kind, outcomes, plain = [*kinds(rng)][number]
    whole = 0
    for part, weight in of_kind.strata():
        count = part.stop - part.start
        counts_RP = np.stack([np.ones(count, int), *rng.multinomial(count, np.full(count, 1 / count), 3)])
        found_MR = of_kind.resampled(part, outcomes, counts_RP.T.astype(np.float32))
        drawn = [np.repeat(np.arange(part.start, part.stop), counts_P) for counts_P in counts_RP]
        expected = [[100 * plain(outcome, rows) for rows in drawn] for outcome in outcomes]
        np.testing.assert_allclose(found_MR, expected, atol=1e-4)
        whole += weight * found_MR[0, 0]
    assert whole == pytest.approx(main_score(of_kind.metrics(outcomes[0])), abs=1e-4)


def test_resamples_of_two_tasks_are_of_their_mean():
    """Of 90 texts each, of which a fifth and four fifths are classified as labelled."""
    tasks = [Neighbours(name, [f"{name} {i}" for i in range(90)], np.zeros(90, int), ["a", "b"]) for name in "xy"]
    outcomes = {"x": np.arange(90) >= 18, "y": np.arange(90) >= 72}
    draws_R = resample(Evaluation(tasks), {"m": [outcomes]}, ["y", "x"])["m"]
    assert draws_R.mean() == pytest.approx(50, abs=0.2)
    assert draws_R.std() == pytest.approx(100 * np.sqrt(2 * 0.2 * 0.8 / 90) / 2, rel=0.05)


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

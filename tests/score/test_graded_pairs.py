"""Scores of graded pairs against slow references written here."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysed.data.graded import StsTask
from raysed.errors import UserError
from raysed.score.kinds.pairs import Pairs
from raysed.score.metrics import spearman
from raysed.score.tasks import Evaluation


def slow_pearson(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    top = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b))
    low = (sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b)) ** 0.5
    return top / low if low else 0.0


def slow_ranks(values):
    """The rank of a value: how many are smaller, plus half of the others that are equal."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]


def slow_cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5


def random_task(rng, sizes, name="toy"):
    subsets = {}
    for number, size in enumerate(sizes):
        words = [[f"sentence {i}" for i in rng.integers(40, size=size)] for _ in range(2)]
        subsets[f"part{number}"] = (*words, rng.integers(0, 11, size=size) / 2)
    return StsTask(name, subsets)


def task_of(scores, subsets):
    """Pairs with these scores, in these subsets."""
    of = {}
    for i, (score, subset) in enumerate(zip(scores, subsets)):
        of.setdefault(subset, []).append((f"a {i}", f"b {i}", score))
    return StsTask(
        "toy", {name: (*zip(*[row[:2] for row in rows]), np.array([r[2] for r in rows])) for name, rows in of.items()}
    )


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=30))
@settings(max_examples=60, deadline=None)
def test_spearman_equals_the_slow_reference_with_ties(pairs):
    """Integers from a small range tie often; a constant side gives 0."""
    a, b = zip(*pairs)
    expected = slow_pearson(slow_ranks(a), slow_ranks(b))
    assert spearman(np.array(a), np.array(b)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("aggregation", ["all", "mean", "wmean"])
def test_scores_equal_the_slow_reference_under_every_aggregation(aggregation):
    """Cosines, both correlations and the three aggregations, from loops over the pairs."""
    rng = np.random.default_rng(3)
    tasks = [random_task(rng, [7, 20, 12], "years"), random_task(rng, [15], "single")]
    evaluation = Evaluation([Pairs(task, aggregation) for task in tasks])
    vectors = rng.normal(size=(len(evaluation.sentences), 5))
    of = dict(zip(evaluation.sentences, vectors))
    metrics = evaluation.score(vectors.astype(np.float32)).metrics
    for task in tasks:
        parts = []
        for first, second, gold in task.subsets.values():
            parts.append(([slow_cosine(of[a], of[b]) for a, b in zip(first, second)], list(gold)))
        for key, change in (("pearson", list), ("spearman", slow_ranks)):
            values = [100 * slow_pearson(change(cosine), change(gold)) for cosine, gold in parts]
            sizes = [len(gold) for _, gold in parts]
            whole = [[value for part in parts for value in part[side]] for side in (0, 1)]
            expected = {
                "all": 100 * slow_pearson(change(whole[0]), change(whole[1])),
                "mean": sum(values) / len(values),
                "wmean": sum(v * n for v, n in zip(values, sizes)) / sum(sizes),
            }
            found = metrics[task.name]
            assert found[key] == pytest.approx(expected[aggregation], abs=1e-3)
            assert (found["pairs"], found["aggregation"]) == (sum(sizes), aggregation)
            if len(parts) > 1:
                assert {way: found[way][key] for way in expected} == pytest.approx(expected, abs=1e-3)
                assert [found["subsets"][s][key] for s in task.subsets] == pytest.approx(values, abs=1e-3)
            else:
                assert set(found) == {"spearman", "pearson", "pairs", "aggregation"}


@pytest.mark.parametrize("aggregation", ["all", "mean"])
def test_a_score_between_two_models_is_the_mean_of_both_directions(aggregation):
    rng = np.random.default_rng(0)
    task = random_task(rng, [9, 14])
    evaluation = Evaluation([Pairs(task, aggregation)])
    x_UD, y_UD = rng.normal(size=(2, len(evaluation.sentences), 5))
    of = [dict(zip(evaluation.sentences, embeddings)) for embeddings in (x_UD, y_UD)]
    pairs = [pair for first, second, _ in task.subsets.values() for pair in zip(first, second)]
    ways = [np.array([slow_cosine(x[a], y[b]) for a, b in pairs]) for x, y in (of, of[::-1])]
    expected = np.mean([evaluation.tasks["toy"].metrics(way)["spearman"] for way in ways])
    assert evaluation.score_between(x_UD, y_UD, ["toy"]) == pytest.approx(expected)
    assert evaluation.score_between(x_UD, np.zeros_like(y_UD), ["toy"]) is None


def test_what_tells_no_pairs_apart_has_no_score():
    """Constant and zero embeddings; and pairs of equal sentences, which rounding must not rank."""
    evaluation = Evaluation([Pairs(random_task(np.random.default_rng(0), [12]))])
    for value in (0.0, 0.1):
        metrics = evaluation.score(np.full((len(evaluation.sentences), 3), value)).metrics["toy"]
        assert (metrics["spearman"], metrics["pearson"]) == (None, None)
    words = [f"w{i}" for i in range(50)]
    evaluation = Evaluation([Pairs(StsTask("toy", {"all": (words, words, np.arange(50.0))}))])
    assert evaluation.score(np.random.default_rng(0).normal(size=(50, 7))).metrics["toy"]["spearman"] is None


def test_embeddings_that_are_not_finite_are_refused_by_sentence():
    evaluation = Evaluation([Pairs(StsTask("toy", {"all": (["a", "b"], ["c", "d"], np.array([1.0, 2.0]))}))])
    x = np.ones((4, 2))
    x[3, 1] = np.inf
    with pytest.raises(UserError, match=r"1 of 4 embeddings.*'d'"):
        evaluation.score(x)


def test_subsets_without_a_correlation_are_in_no_mean(caplog):
    """A pair alone, two pairs (always 1 or -1), and equal scores: left out, counted and said."""
    caplog.set_level("INFO", "raysed")
    scores = [1, 2, 3, 4, 5, 3, 1, 4, 2, 2, 2, 2]
    subsets = [*"aaaaa", "one", "two", "two", *["same"] * 4]
    task = task_of(scores, subsets)
    similarity = np.array([0.2, 0.1, 0.3, 0.4, 0.5, 0.9, 0.8, 0.7, 0.1, 0.2, 0.3, 0.4])
    metrics = Pairs(task).metrics(similarity)
    assert metrics["spearman"] == metrics["wmean"]["spearman"] == pytest.approx(90)
    assert metrics["subsets_left_out"] == ["one", "two", "same"]
    assert [metrics["subsets"][name]["spearman"] for name in ("one", "two", "same")] == [None] * 3
    assert metrics["all"]["spearman"] == pytest.approx(100 * slow_pearson(slow_ranks(similarity), slow_ranks(scores)))
    assert "task toy: the mean leaves out subsets with" in caplog.text and "one, two, same" in caplog.text


def test_a_mean_over_subsets_of_which_none_has_a_correlation_is_refused():
    """A column of numbers, for example, that was taken for the subset."""
    task = task_of([1, 2, 3, 4], "abcd")
    with pytest.raises(UserError, match=r"task toy: each of its 4 subsets .*; set .*\.toy\.aggregation to all"):
        Pairs(task)
    metrics = Pairs(task, "all").metrics(np.array([0.1, 0.2, 0.3, 0.4]))
    assert metrics["spearman"] == pytest.approx(100) and metrics["mean"]["spearman"] is None


def test_a_model_that_fails_on_a_subset_has_no_mean():
    """Without that subset its mean could not be compared with that of another model."""
    task = random_task(np.random.default_rng(0), [6, 9])
    similarity = np.concatenate([np.full(6, 0.5), np.arange(9)])
    metrics = Pairs(task).metrics(similarity)
    assert (metrics["spearman"], metrics["mean"]["pearson"], metrics["wmean"]["spearman"]) == (None, None, None)
    assert metrics["all"]["spearman"] is not None and "subsets_left_out" not in metrics

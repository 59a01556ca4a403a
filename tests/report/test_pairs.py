"""The pairs on which a model fails most, against a plain count of ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.report.results import PairComparison
from raysed.report.sections.pairs import changed_pairs, pairs_table, worst_pairs


def judged(first, second, gold_P, after_P, before_P=None):
    return PairComparison("dev", "ct", first, second, gold_P, after_P if before_P is None else before_P, after_P)


def rank(values: list[float], place: int) -> float:
    """0 for the least of all, 100 for the greatest; equal ones share their mean."""
    less = sum(other < values[place] for other in values)
    equal = sum(other == values[place] for other in values) - 1
    return 100 * (less + equal / 2) / max(len(values) - 1, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3)), min_size=1, max_size=30), st.integers(1, 12))
def test_they_are_those_with_the_largest_difference_of_ranks(pairs, count):
    gold, cosine = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    names = [str(place) for place in range(len(pairs))]
    found = worst_pairs(judged(names, names[::-1], np.array(gold), np.array(cosine)), count)
    differences = {name: abs(rank(gold, place) - rank(cosine, place)) for place, name in enumerate(names)}
    shown = [pair["sentence1"] for pair in found]
    expected = sorted((d for d in differences.values() if d > 1e-9), reverse=True)[:count]
    assert [differences[name] for name in shown] == pytest.approx(expected) and len(set(shown)) == len(shown)
    for pair in found:
        place = int(pair["sentence1"])
        assert pair["sentence2"] == names[::-1][place]
        assert (pair["score"], pair["cosine"]) == (gold[place], cosine[place])
        assert pair["rank_by_score"] == pytest.approx(rank(gold, place))
        assert pair["rank_by_cosine"] == pytest.approx(rank(cosine, place))


@given(st.lists(st.tuples(*[st.integers(0, 4)] * 3), min_size=1, max_size=30), st.integers(1, 12))
def test_those_that_changed_most_are_those_whose_error_of_ranks_did(pairs, count):
    columns = [[float(value) for value in column] for column in zip(*pairs)]
    names = [str(place) for place in range(len(pairs))]
    found = changed_pairs(judged(names, names, *map(np.array, columns)), count)
    gold, after, before = ([rank(column, place) for place in range(len(pairs))] for column in columns)
    gains = [abs(b - g) - abs(a - g) for g, a, b in zip(gold, after, before)]
    for kind, sign in (("better", 1), ("worse", -1)):
        expected = sorted((sign * gain for gain in gains if sign * gain > 1e-9), reverse=True)[:count]
        shown = [int(pair["sentence1"]) for pair in found[kind]]
        assert [sign * gains[place] for place in shown] == pytest.approx(expected) and len(set(shown)) == len(shown)
        for pair, place in zip(found[kind], shown):
            assert (pair["score"], pair["cosine_after"], pair["cosine_before"]) == tuple(c[place] for c in columns)
            assert (pair["rank_before"], pair["rank_after"]) == pytest.approx((before[place], after[place]))


def test_long_sentences_are_cut_and_what_is_no_number_shows_nothing():
    long, gold_P = "word " * 30, np.array([1.0, 2.0])
    (pair, _) = worst_pairs(judged([long, "a"], ["x" * 80, "b"], gold_P, np.array([0.9, 0.1])))
    assert len(pair["sentence1"]) == 80 and pair["sentence1"].endswith("…") and pair["sentence2"] == "x" * 80
    assert pairs_table([pair]).lines[0][2:] == ["1.00", "0.90", "0", "100"]
    broken = judged(["a", "b"], ["c", "d"], gold_P, np.array([0.9, np.nan]))
    assert worst_pairs(broken) == [] and changed_pairs(broken) == {"better": [], "worse": []}

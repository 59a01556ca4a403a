"""Pairs that say most about a model: those on which it fails, and those that it judges better or worse than another.

A model's error on a pair is the difference of two ranks: that of its cosine, and that of the graded score.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.score.metrics import ranks
from raysed.store.text import Table, shortened

_LONGEST = 80
"""Characters of a sentence that are shown."""


def worst_pairs(
    first: Sequence[str], second: Sequence[str], gold_P: np.ndarray, cosine_P: np.ndarray, count: int = 10
) -> list[dict[str, Any]]:
    """Returns the pairs with the largest differences of ranks, the worst first.

    Args:
        first: P sentences, of which 80 characters are kept.
        count: so many pairs, fewer where no more are ranked differently.

    Returns:
        Of each pair `score`, `cosine`, and its rank by either, `rank_by_score` and `rank_by_cosine`: from 0, the least
        alike, to 100, the most alike, equal values sharing their mean; `sentence1` and `sentence2`. Nothing where a
        cosine is not a number.

    >>> a = ["It rains.", "It snows.", "It hails."]
    >>> found = worst_pairs(a, a, np.array([1.0, 2.0, 3.0]), np.array([0.2, 0.3, 0.1]))
    >>> [(pair["sentence1"], pair["rank_by_score"], pair["rank_by_cosine"]) for pair in found]
    [('It hails.', 100.0, 0.0), ('It rains.', 0.0, 50.0), ('It snows.', 50.0, 100.0)]
    """
    if not np.isfinite(cosine_P).all():
        return []
    ranks_2P = _ranks(gold_P, cosine_P)
    differences_P = np.abs(ranks_2P[0] - ranks_2P[1])
    worst = [row for row in np.argsort(-differences_P, kind="stable")[:count] if differences_P[row] > 0]
    return [
        {
            "score": float(gold_P[row]),
            "cosine": float(cosine_P[row]),
            "rank_by_score": float(ranks_2P[0, row]),
            "rank_by_cosine": float(ranks_2P[1, row]),
            "sentence1": shortened(first[row], _LONGEST),
            "sentence2": shortened(second[row], _LONGEST),
        }
        for row in worst
    ]


def changed_pairs(
    first: Sequence[str],
    second: Sequence[str],
    gold_P: np.ndarray,
    before_P: np.ndarray,
    after_P: np.ndarray,
    count: int = 5,
) -> dict[str, list[dict[str, Any]]]:
    """Returns the pairs whose error another model lowered most, as `better`, and raised most, as `worse`.

    Args:
        first: P sentences, of which 80 characters are kept.
        before_P: cosines of the model that is compared with.
        count: so many pairs of either kind, fewer where no more have changed.

    Returns:
        Of each pair `score`, `cosine_before`, `cosine_after`, the ranks `rank_by_score`, `rank_before` and
        `rank_after`, see `worst_pairs`, `sentence1` and `sentence2`; the largest change first. Nothing where a cosine
        is not a number.

    >>> a = ["It rains.", "It snows.", "It hails."]
    >>> gold, before, after = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1]), np.array([0.1, 0.3, 0.2])
    >>> found = changed_pairs(a, a, gold, before, after)
    >>> {kind: [pair["sentence1"] for pair in pairs] for kind, pairs in found.items()}
    {'better': ['It rains.', 'It hails.'], 'worse': ['It snows.']}
    """
    if not (np.isfinite(before_P).all() and np.isfinite(after_P).all()):
        return {"better": [], "worse": []}
    ranks_3P = _ranks(gold_P, before_P, after_P)
    gains_P = np.abs(ranks_3P[1] - ranks_3P[0]) - np.abs(ranks_3P[2] - ranks_3P[0])

    def pair(row: int) -> dict[str, Any]:
        ranks = dict(zip(("rank_by_score", "rank_before", "rank_after"), ranks_3P[:, row].tolist()))
        cosines = {"cosine_before": float(before_P[row]), "cosine_after": float(after_P[row])}
        texts = {"sentence1": shortened(first[row], _LONGEST), "sentence2": shortened(second[row], _LONGEST)}
        return {"score": float(gold_P[row]), **cosines, **ranks, **texts}

    ways = {"better": gains_P, "worse": -gains_P}
    largest = {kind: np.argsort(-by_P, kind="stable")[:count] for kind, by_P in ways.items()}
    return {kind: [pair(row) for row in rows if ways[kind][row] > 0] for kind, rows in largest.items()}


def _ranks(*values_P: np.ndarray) -> np.ndarray:
    """Ranks [., P] from 0, the least, to 100, the most; equal values share their mean."""
    return (np.stack([ranks(of_one_P) for of_one_P in values_P]) - 1) / max(len(values_P[0]) - 1, 1) * 100


def failures_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """Returns pairs as a table.

    Args:
        pairs: from `worst_pairs`.
    """
    lines = [
        [
            pair["sentence1"],
            pair["sentence2"],
            f"{pair['score']:.2f}",
            f"{pair['cosine']:.2f}",
            f"{pair['rank_by_score']:.0f}",
            f"{pair['rank_by_cosine']:.0f}",
        ]
        for pair in pairs
    ]
    return Table(["sentence", "other sentence", "graded", "cosine", "rank, graded", "rank, cosine"], lines, text=2)


def changes_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """Returns pairs as a table.

    Args:
        pairs: `better` or `worse` from `changed_pairs`.
    """
    numbers = {
        "graded": ("score", ".2f"),
        "cosine before": ("cosine_before", ".2f"),
        "cosine after": ("cosine_after", ".2f"),
        "rank, graded": ("rank_by_score", ".0f"),
        "rank before": ("rank_before", ".0f"),
        "rank after": ("rank_after", ".0f"),
    }
    lines = [
        [pair["sentence1"], pair["sentence2"], *(format(pair[key], style) for key, style in numbers.values())]
        for pair in pairs
    ]
    return Table(["sentence", "other sentence", *numbers], lines, text=2)

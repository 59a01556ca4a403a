"""The pairs on which a model fails most: those that its cosine and their graded score rank most differently."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import rankdata

from raysed.store.text import Table

_LONGEST = 80
"""Characters of a sentence that are shown."""


def worst_pairs(
    first: Sequence[str], second: Sequence[str], gold_P: np.ndarray, cosine_P: np.ndarray, count: int = 10
) -> list[dict[str, Any]]:
    """Returns the pairs with the largest differences of ranks, the worst first.

    Args:
        first: P sentences, of which 80 characters are kept.
        second: likewise.
        gold_P: graded scores.
        cosine_P: the model's.
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
    ranks_2P = (rankdata([gold_P, cosine_P], axis=1) - 1) / max(len(gold_P) - 1, 1) * 100
    differences_P = np.abs(ranks_2P[0] - ranks_2P[1])
    worst = [row for row in np.argsort(-differences_P, kind="stable")[:count] if differences_P[row] > 0]
    return [
        {
            "score": float(gold_P[row]),
            "cosine": float(cosine_P[row]),
            "rank_by_score": float(ranks_2P[0, row]),
            "rank_by_cosine": float(ranks_2P[1, row]),
            "sentence1": _short(first[row]),
            "sentence2": _short(second[row]),
        }
        for row in worst
    ]


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


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"

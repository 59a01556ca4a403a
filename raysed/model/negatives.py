"""Mine negatives: texts near a query that answer it worse than its own text."""

from dataclasses import dataclass

import numpy as np

from raysed.data.candidates import NONE
from raysed.data.queries import UNKNOWN

NEAREST = 64
"""Nearest texts per query to choose from."""
_CELLS = 2**24  # cosines at once


@dataclass(frozen=True)
class MinedNegatives:
    """Row numbers, int64, for Q queries.

    Attributes:
        negatives_QN: nearest first, filled up with `NONE`.
        spared: number of texts left out because they are as good as the query's own.
    """

    own_Q: np.ndarray
    negatives_QN: np.ndarray
    spared: int


def mine(
    x_ND: np.ndarray,
    queries_Q: np.ndarray,
    own_Q: np.ndarray,
    texts_P: np.ndarray,
    count: int,
    margin: float,
) -> MinedNegatives:
    """Take as negatives the texts nearest to each query that are not as good as the query's own.

    A text is as good if its cosine is at least that of the query's own text less the share `margin`. No text is a
    negative of itself or of its own queries.

    Args:
        x_ND: unit vectors to compare by cosine; may be mapped from a file.
        own_Q: row of each query's own text; `UNKNOWN`: the text nearest to the query.
        texts_P: rows of the texts to choose from, ascending.
    """
    pool_PD = np.asarray(x_ND[texts_P], np.float32)
    own_Q, negatives_QN = own_Q.copy(), np.full((len(queries_Q), count), NONE)
    step, near, spared = max(1, _CELLS // max(len(texts_P), 1)), min(NEAREST + 2, len(texts_P)), 0
    for start in range(0, len(queries_Q), step):
        part = slice(start, start + step)
        rows_B = queries_Q[part]
        of_query_BD = np.asarray(x_ND[rows_B], np.float32)
        cosine_BP = of_query_BD @ pool_PD.T
        place_BK = np.argpartition(-cosine_BP, near - 1, axis=1)[:, :near]
        order_BK = np.argsort(-np.take_along_axis(cosine_BP, place_BK, 1), axis=1, kind="stable")
        place_BK = np.take_along_axis(place_BK, order_BK, 1)
        found_BK = texts_P[place_BK]
        other_BK = found_BK != rows_B[:, None]
        first_B = found_BK[np.arange(len(rows_B)), other_BK.argmax(1)]
        own_B = own_Q[part] = np.where(own_Q[part] == UNKNOWN, first_B, own_Q[part])
        other_BK &= found_BK != own_B[:, None]
        of_own_B = (of_query_BD * np.asarray(x_ND[own_B], np.float32)).sum(1)
        as_good_BK = np.take_along_axis(cosine_BP, place_BK, 1) >= (of_own_B - margin * np.abs(of_own_B))[:, None]
        nearest_BK = other_BK & (other_BK.cumsum(1) <= count)
        spared += int((nearest_BK & as_good_BK).sum())
        fit_BK = other_BK & ~as_good_BK
        fit_BK &= fit_BK.cumsum(1) <= count
        row, column = np.nonzero(fit_BK)
        negatives_QN[start + row, fit_BK.cumsum(1)[row, column] - 1] = found_BK[row, column]
    return MinedNegatives(own_Q, negatives_QN, spared)

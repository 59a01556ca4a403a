"""Correlations, cosines and ranks; importing `scipy.stats` would cost each worker half a second."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def pearson(a_P: np.ndarray, b_P: np.ndarray) -> float:
    """Return the Pearson correlation, -1 to 1; 0 if a side is constant (as SentEval reports it)."""
    return float(np.clip(_standardise(a_P) @ _standardise(b_P), -1.0, 1.0))


def spearman(a_P: np.ndarray, b_P: np.ndarray) -> float:
    """Return the Spearman correlation, -1 to 1; ties share their mean rank, and a constant side gives 0."""
    return pearson(ranks(a_P), ranks(b_P))


def ranks(values_P: np.ndarray) -> np.ndarray:
    """Return ranks from 1, the lowest, float64 [P]; ties share their mean, and any NaN makes all NaN."""
    if np.isnan(values_P).any():
        return np.full(len(values_P), np.nan)
    values = pa.array(values_P)
    first_P, last_P = (pc.rank(values, tiebreaker=which).to_numpy() for which in ("min", "max"))
    return (first_P + last_P) / 2


def _standardise(values_P: np.ndarray) -> np.ndarray:
    """Scale to mean 0 and length 1: dot products are then correlations. A constant gives zeros."""
    values_P = np.asarray(values_P, dtype=np.float64)
    if np.ptp(values_P) == 0:
        return np.zeros_like(values_P)
    centred_P = values_P - values_P.mean()
    return centred_P / np.linalg.norm(centred_P)


def unit(x_ND: np.ndarray) -> np.ndarray:
    """Scale rows to length 1; zero rows stay zero."""
    return x_ND / np.maximum(np.linalg.norm(x_ND, axis=1, keepdims=True), 1e-12)


def pair_cosines(x_UD: np.ndarray, y_UD: np.ndarray, rows_P2: np.ndarray, block: int = 4096) -> np.ndarray:
    """Return the cosine of x and y for each pair of rows, float64 [P]; 0 for a zero vector.

    Rounded to 12 digits: pairs that are equal in exact arithmetic (a sentence with itself) must tie.
    """
    cosines_P = np.zeros(len(rows_P2))
    for start in range(0, len(rows_P2), block):
        rows = rows_P2[start : start + block]
        a_BD, b_BD = (e_UD[rows[:, side]].astype(np.float64) for side, e_UD in enumerate((x_UD, y_UD)))
        dot_B = np.einsum("bd,bd->b", a_BD, b_BD)
        norm_B = np.linalg.norm(a_BD, axis=1) * np.linalg.norm(b_BD, axis=1)
        np.divide(dot_B, norm_B, out=cosines_P[start : start + block], where=norm_B > 0)
    return cosines_P.round(12)


class Order:
    """The order of values, which gives their ranks in any resample without sorting."""

    def __init__(self, values_P: np.ndarray):
        self._order_P = np.argsort(values_P, kind="stable")
        sorted_P = values_P[self._order_P]
        new_P = np.append(True, sorted_P[1:] != sorted_P[:-1])
        self.place_P = np.empty(len(values_P), np.int64)
        self.place_P[self._order_P] = np.cumsum(new_P) - 1
        """Index of each value among the K distinct values, from the smallest."""
        self._starts = np.flatnonzero(new_P)

    def sums(self, values_PR: np.ndarray) -> np.ndarray:
        """Return sums over equal values, smallest value first, [K, R]."""
        sorted_PR = values_PR[self._order_P]
        return sorted_PR if len(self._starts) == len(sorted_PR) else np.add.reduceat(sorted_PR, self._starts, axis=0)

    def centred_ranks(self, counts_PR: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the centred rank of each distinct value, [K, R], and the sum of squares over all values, [R]."""
        ties_KR = self.sums(counts_PR)
        ranks_KR = np.cumsum(ties_KR, axis=0)
        total_R = ranks_KR[-1].astype(np.float64)
        ranks_KR -= ties_KR / 2 + total_R.astype(np.float32) / 2  # last rank - (ties - 1) / 2 - (n + 1) / 2
        return ranks_KR, (ties_KR * np.square(ranks_KR)).sum(0, dtype=np.float64)

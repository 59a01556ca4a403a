"""Combine several teachers into one target per sentence: an affine map of their concatenated vectors.

One pass over the corpus fits the map on moments of the teachers' embeddings, another applies it. Memory does not depend
on the number of sentences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

MOST_EXHAUSTIVE = 6
"""Score every subset of up to this many teachers: 63 subsets of 6."""


@dataclass(frozen=True, eq=False)
class Combination:
    """The map from the teachers' vectors of a sentence to its target.

    Attributes:
        is_unit: normalise each teacher's vector to length 1 first.
        kept: share (0 to 1) of the combined vectors' squared length that fits into the target's width.
    """

    is_unit: bool
    weight_ED: np.ndarray
    kept: float = 1.0

    @property
    def width(self) -> int:
        """Size D of the targets."""
        return self.weight_ED.shape[1]

    def target(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Map the teachers' embeddings [B, D_k] of the same sentences to targets, float32 [B, D]."""
        return (side_by_side(parts, self.is_unit) @ self.weight_ED).astype(np.float32)

    @property
    def is_identity(self) -> bool:
        """Whether targets are a single teacher's own vectors, up to their lengths."""
        rows, columns = self.weight_ED.shape
        return rows == columns and np.allclose(self.weight_ED, np.eye(rows))

    def turned(self, products_DD: np.ndarray) -> "Combination":
        """Rotate the targets towards other vectors, see `turn`."""
        return replace(self, weight_ED=self.weight_ED @ turn(products_DD))

    def save(self, path: Path) -> None:
        np.savez(path, is_unit=self.is_unit, weight_ED=self.weight_ED, kept=self.kept)

    @classmethod
    def load(cls, path: Path) -> "Combination":
        with np.load(path) as file:
            return cls(bool(file["is_unit"]), file["weight_ED"], float(file["kept"]))


def side_by_side(parts: Sequence[np.ndarray], is_unit: bool) -> np.ndarray:
    """Concatenate teachers' embeddings [B, D_k], float64 [B, E]; `is_unit` normalises rows first (zeros stay zero)."""
    columns = [np.asarray(part, np.float64) for part in parts]
    if is_unit:
        columns = [x_BD / np.maximum(np.linalg.norm(x_BD, axis=1, keepdims=True), 1e-12) for x_BD in columns]
    return np.concatenate(columns, axis=1)


def needs_products(how: str, widths: Sequence[int], width: int | None, is_ordered: bool) -> bool:
    """Return whether `fit_combination` needs `products_EE`, which it does to project or to order."""
    return is_ordered or (width is not None and (widths[0] if how == "mean" else sum(widths)) > width)


def fit_combination(
    how: str,
    weights: Sequence[float],
    widths: Sequence[int],
    products_EE: np.ndarray,
    width: int | None,
    is_ordered: bool = False,
) -> Combination:
    """Fit the map from teachers' vectors to targets.

    Args:
        weights: one per teacher, above 0.
        products_EE: X' X of the rows X of `side_by_side`, uncentred; unit rows unless `how` is `mean`. See
            `needs_products`.
        width: D of the targets; None: the combined width. Wider vectors are projected onto their uncentred principal
            directions, which preserve dot products best. Narrower ones are padded with zeros.
        is_ordered: rotate to the principal directions even without projection.
    """
    weights_K = np.asarray(weights, np.float64) / np.sum(weights)
    if how == "mean":
        whole_EF = np.concatenate([weight * np.eye(widths[0]) for weight in weights_K])
    else:  # square roots make the dot product of two targets the weighted mean of the teachers' cosines
        whole_EF = np.diag(np.repeat(np.sqrt(weights_K), widths))
    found = whole_EF.shape[1]
    width = width or found
    reduce_FD, share = np.eye(found, width), 1.0
    if needs_products(how, widths, width, is_ordered):
        directions_FG, share = principal_directions(whole_EF.T @ products_EE @ whole_EF, min(width, found))
        reduce_FD = np.pad(directions_FG, ((0, 0), (0, max(width - found, 0))))
    return Combination(how != "mean", whole_EF @ reduce_FD, share)


def principal_directions(products_FF: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """Return the top principal directions [F, count] and the share of the rows' squared length that they keep.

    They are orthonormal, strongest first.
    """
    values_F, vectors_FF = np.linalg.eigh(products_FF)
    share = values_F[::-1][:count].sum() / values_F.sum() if count < len(values_F) else 1.0
    return with_fixed_signs(vectors_FF[:, ::-1][:, :count]), float(share)


def with_fixed_signs(directions_FG: np.ndarray) -> np.ndarray:
    """Flip directions so that the coordinate of largest magnitude is positive in each.

    >>> with_fixed_signs(np.array([[0.6, 0.8], [-0.8, 0.6]])).tolist()
    [[-0.6, 0.8], [0.8, 0.6]]
    """
    largest_G = np.abs(directions_FG).argmax(0)
    return directions_FG * np.sign(directions_FG[largest_G, np.arange(directions_FG.shape[1])])


def turn(products_DF: np.ndarray) -> np.ndarray:
    """Solve orthogonal Procrustes: return the R [D, F], orthonormal in rows or columns, of largest trace(R' products).

    `products_DF` sums, over sentences, the outer products of vectors [D] and their goals [F].
    """
    import scipy.linalg  # not needed by every worker

    return scipy.linalg.polar(products_DF)[0]


# -- combining and choosing teachers ---------------------------------------------------------------------------------


def prepared(how: str, x_ND: np.ndarray) -> np.ndarray:
    """Normalise a teacher's embeddings for `combined`."""
    return x_ND if how == "mean" else side_by_side([x_ND], is_unit=True)


def combined(how: str, weights: Sequence[float], parts: Sequence[np.ndarray]) -> np.ndarray:
    """Combine prepared embeddings [B, D_k] to [B, E], as `fit_combination` does before projection."""
    if how == "mean":
        return np.average(parts, axis=0, weights=weights)
    roots_K = np.sqrt(np.asarray(weights) / np.sum(weights))
    return np.concatenate([root * part for root, part in zip(roots_K, parts)], axis=1)


def choose_teachers(
    count: int, score: Callable[[tuple[int, ...]], float], least: float
) -> tuple[tuple[int, ...], dict[tuple[int, ...], float]]:
    """Return the subset of teachers to keep, and the score of every subset tried.

    Above `MOST_EXHAUSTIVE` teachers, greedy forward selection adds the best one each time. The smallest subset less
    than `least` below the best score wins: of equal sizes the best, of equal scores the first.
    """
    everyone, tried = range(count), {}
    if count <= MOST_EXHAUSTIVE:
        tried = {some: score(some) for size in range(1, count + 1) for some in combinations(everyone, size)}
    else:
        best: tuple[int, ...] = ()
        while len(best) < count:
            options = {some: score(some) for some in (tuple(sorted({*best, k})) for k in everyone if k not in best)}
            best = max(options, key=options.__getitem__)
            tried |= options
    enough = max(tried.values()) - least + 1e-9  # 1e-9: rounding must not decide
    return min((some for some in tried if tried[some] > enough), key=lambda some: (len(some), -tried[some])), tried

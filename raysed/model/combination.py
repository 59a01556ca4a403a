"""What several teachers together say of a sentence: one vector that is linear in theirs.

Every way of combining is a matrix and an offset, fitted on the moments of the teachers' embeddings over the corpus, so
two passes over them suffice and memory does not depend on the number of sentences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import scipy.linalg

from raysed.config import CombinationConfig
from raysed.model.directions import principal_directions

UNIT = ("unit_mean", "aligned_mean", "generalised_mean", "concatenated")
"""Ways of combining that see directions only: each teacher's vectors are brought to length 1 first."""
OF_EQUAL_WIDTHS = ("mean", "unit_mean", "standardised_mean", "whitened_mean")
"""Ways of combining that add up dimension by dimension."""
_WEAK = 1e-10
"""Directions whose variance is a smaller part of the largest one are rounding, and are not enlarged."""
_ROUNDS, _SETTLED = 100, 1e-12
_MOST_STEPS = 12
"""Of a search for weights; none that is of use takes so many."""


@dataclass
class Moments:
    """Count, sum and second moments, not centred, of rows that come in blocks."""

    width: int
    count: int = 0
    sum_E: np.ndarray = field(init=False)
    products_EE: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.sum_E = np.zeros(self.width)
        self.products_EE = np.zeros((self.width, self.width))

    def add(self, x_BE: np.ndarray) -> None:
        """Takes a block of rows into account, in float64."""
        x_BE = x_BE.astype(np.float64)
        self.count += len(x_BE)
        self.sum_E += x_BE.sum(0)
        self.products_EE += x_BE.T @ x_BE

    def of(self, columns_F: np.ndarray) -> "Moments":
        """Returns the moments of some of the columns."""
        found = Moments(len(columns_F), self.count)
        found.sum_E, found.products_EE = self.sum_E[columns_F], self.products_EE[np.ix_(columns_F, columns_F)]
        return found

    def after(self, weight_EF: np.ndarray, offset_F: np.ndarray) -> np.ndarray:
        """Returns the second moments [F, F] of the rows after an affine map."""
        shift_FF = np.outer(self.sum_E @ weight_EF, offset_F)
        products_FF = weight_EF.T @ self.products_EE @ weight_EF
        return products_FF + shift_FF + shift_FF.T + self.count * np.outer(offset_F, offset_F)


@dataclass(frozen=True, eq=False)
class Combination:
    """The map from the teachers' vectors of a sentence to its target.

    Attributes:
        is_unit: whether each teacher's vector is brought to length 1 first.
        weight_ED: applied to the teachers' vectors side by side.
        offset_D: added to the result.
        kept: share of the squared length of the combined vectors that the target's width keeps, 0 to 1.
    """

    is_unit: bool
    weight_ED: np.ndarray
    offset_D: np.ndarray
    kept: float = 1.0

    def target(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the targets, float32 [B, D].

        Args:
            parts: the teachers' embeddings [B, D_k] of the same sentences.
        """
        return (side_by_side(parts, self.is_unit) @ self.weight_ED + self.offset_D).astype(np.float32)

    @property
    def is_identity(self) -> bool:
        """Whether targets are the teachers' vectors themselves, but for their lengths: those of a single teacher."""
        rows, columns = self.weight_ED.shape
        return rows == columns and np.allclose(self.weight_ED, np.eye(rows)) and not self.offset_D.any()

    def turned(self, products_DD: np.ndarray) -> "Combination":
        """Returns the same, turned as a whole, so that targets come as close as can be to other vectors.

        Args:
            products_DD: targets' times the other vectors, summed over sentences.
        """
        turn_DD = turn(products_DD)
        return replace(self, weight_ED=self.weight_ED @ turn_DD, offset_D=self.offset_D @ turn_DD)

    def save(self, path: Path) -> None:
        """Writes it to a `.npz` file."""
        np.savez(path, is_unit=self.is_unit, weight_ED=self.weight_ED, offset_D=self.offset_D, kept=self.kept)

    @classmethod
    def load(cls, path: Path) -> "Combination":
        """Reads it from the file that `save` has written."""
        with np.load(path) as file:
            return cls(bool(file["is_unit"]), file["weight_ED"], file["offset_D"], float(file["kept"]))


def side_by_side(parts: Sequence[np.ndarray], is_unit: bool) -> np.ndarray:
    """Returns the teachers' embeddings of the same sentences next to each other, float64 [B, E].

    Args:
        parts: [B, D_k] each.
        is_unit: whether rows are brought to length 1 first; a zero row stays.
    """
    columns = [np.asarray(part, np.float64) for part in parts]
    if is_unit:
        columns = [x_BD / np.maximum(np.linalg.norm(x_BD, axis=1, keepdims=True), 1e-12) for x_BD in columns]
    return np.concatenate(columns, axis=1)


def fit_combination(
    config: CombinationConfig,
    widths: Sequence[int],
    moments: Moments,
    width: int | None,
    kept: Sequence[int] | None = None,
    is_ordered: bool = False,
) -> Combination:
    """Fits a way of combining.

    Args:
        config: which one, and the teachers' weights; equal ones where they are yet to be chosen.
        moments: of `side_by_side`, with unit rows for the ways in `UNIT`.
        width: D of the targets, that of the learner; None: that of the combination. Wider combinations are turned to
            their principal directions, not centred, which lose least of all dot products; narrower ones get zeros,
            which change none.
        kept: the teachers that count, in ascending order; None: all. The first of them is the reference of
            `aligned_mean`.
        is_ordered: whether combinations that are not wider are turned to these directions, too, so that the first so
            many coordinates of a target keep as much as possible of all dot products.
    """
    chosen = list(range(len(widths)) if kept is None else kept)
    given = config.weights if isinstance(config.weights, list) else [1.0] * len(widths)
    weights_K = _weights([given[k] for k in chosen])
    columns_F = np.concatenate([np.arange(moments.width)[_places(widths)[k]] for k in chosen])
    own = moments.of(columns_F)
    own_FG, offset_G = _WAYS[config.how](own, [widths[k] for k in chosen], weights_K)
    weight_GD, share = _to_width(own.after(own_FG, offset_G), width, is_ordered)
    weight_ED = np.zeros((moments.width, weight_GD.shape[1]))
    weight_ED[columns_F] = own_FG @ weight_GD
    return Combination(config.how in UNIT, weight_ED, offset_G @ weight_GD, share)


def choose_teachers(count: int, score: Callable[[list[int]], float], least: float) -> list[tuple[list[int], float]]:
    """Adds teachers one by one, each time the one that raises a score most.

    Args:
        score: of some of them together, by their numbers in ascending order.
        least: by how much one more has to raise it.

    Returns:
        The chosen ones and their score after every step; the last is the choice.
    """
    trace: list[tuple[list[int], float]] = []
    while len(trace) < count:
        before, reached = trace[-1] if trace else ([], -np.inf)
        options = [sorted([*before, k]) for k in range(count) if k not in before]
        best, value = max(((option, score(option)) for option in options), key=lambda found: found[1])
        if value - reached < least:
            break
        trace.append((best, value))
    return trace


def choose_weights(count: int, score: Callable[[list[float]], float], least: float) -> list[tuple[list[float], float]]:
    """Doubles or halves one weight after the other, each time the one that raises a score most.

    Args:
        score: of all of them together with these weights.
        least: by how much a step has to raise it.

    Returns:
        The weights and their score, from equal ones on; the last are the choice.
    """
    trace = [([1.0] * count, score([1.0] * count))]
    for _ in range(_MOST_STEPS if count > 1 else 0):
        before, reached = trace[-1]
        options = [[*before[:k], before[k] * factor, *before[k + 1 :]] for k in range(count) for factor in (0.5, 2.0)]
        best, value = max(((option, score(option)) for option in options), key=lambda found: found[1])
        if value - reached < least:
            break
        trace.append((best, value))
    return trace


def _weights(given: Sequence[float]) -> np.ndarray:
    """The teachers' weights with a sum of 1."""
    weights_K = np.asarray(given, np.float64)
    return weights_K / weights_K.sum()


def _to_width(products_FF: np.ndarray, width: int | None, is_ordered: bool) -> tuple[np.ndarray, float]:
    """The map [F, D] to the wanted width, and the share of the squared length that it keeps."""
    found = len(products_FF)
    width = width or found
    if found <= width and not is_ordered:
        return np.eye(found, width), 1.0
    directions_FG, share = principal_directions(products_FF, min(width, found))
    return np.pad(directions_FG, ((0, 0), (0, max(width - found, 0)))), share


# -- ways of combining: moments, widths and weights -> weight [E, F] and offset [F] ----------------------------------


def _mean(moments: Moments, widths: list[int], weights_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """SED section 4, where the weights are equal."""
    return np.concatenate([weight * np.eye(widths[0]) for weight in weights_K]), np.zeros(widths[0])


def _standardised_mean(moments: Moments, widths: list[int], weights_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    means_E, covariance_EE = _centred(moments)
    variances_E = covariance_EE.diagonal()
    maps, offset_D = [], np.zeros(widths[0])
    for place, weight in zip(_places(widths), weights_K):
        scales_D = weight * _inverse_root(variances_E[place])
        maps.append(np.diag(scales_D))
        offset_D -= means_E[place] * scales_D
    return np.concatenate(maps), offset_D


def _whitened_mean(moments: Moments, widths: list[int], weights_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """By the symmetric root (ZCA), which turns no teacher's axes."""
    means_E, covariance_EE = _centred(moments)
    maps, offset_D = [], np.zeros(widths[0])
    for place, weight in zip(_places(widths), weights_K):
        values_D, vectors_DD = np.linalg.eigh(covariance_EE[place, place])
        map_DD = weight * (vectors_DD * _inverse_root(values_D)) @ vectors_DD.T
        maps.append(map_DD)
        offset_D -= means_E[place] @ map_DD
    return np.concatenate(maps), offset_D


def _aligned_mean(moments: Moments, widths: list[int], weights_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each teacher is turned towards the first one (orthogonal Procrustes)."""
    places = _places(widths)
    turns = [np.eye(widths[0])]
    turns += [turn(moments.products_EE[place, places[0]]) for place in places[1:]]
    return _weighted(turns, weights_K), np.zeros(widths[0])


def _generalised_mean(moments: Moments, widths: list[int], weights_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """All are turned towards their mean until it stands still (generalised Procrustes); it starts at the first one."""
    weight_EF, offset_F = _aligned_mean(moments, widths, weights_K)
    for _ in range(_ROUNDS):
        before_EF = weight_EF
        turns = [turn((moments.products_EE @ weight_EF)[place]) for place in _places(widths)]
        weight_EF = _weighted(turns, weights_K)
        if np.abs(weight_EF - before_EF).max() < _SETTLED:
            break
    return weight_EF, offset_F


def _concatenated(moments: Moments, widths: list[int], weights_K: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Roots of the weights, so that a dot product of two targets is the weighted mean of the teachers' cosines."""
    roots_E = np.repeat(np.sqrt(weights_K), widths)
    return np.diag(roots_E), np.zeros(len(roots_E))


_Way = Callable[[Moments, list[int], np.ndarray], tuple[np.ndarray, np.ndarray]]
_WAYS: dict[str, _Way] = {
    "mean": _mean,
    "unit_mean": _mean,
    "standardised_mean": _standardised_mean,
    "whitened_mean": _whitened_mean,
    "aligned_mean": _aligned_mean,
    "generalised_mean": _generalised_mean,
    "concatenated": _concatenated,
}


def _places(widths: Sequence[int]) -> list[slice]:
    """Where each teacher's columns are."""
    ends = np.cumsum(widths).tolist()
    return [slice(end - width, end) for end, width in zip(ends, widths)]


def _centred(moments: Moments) -> tuple[np.ndarray, np.ndarray]:
    """Mean [E] and covariance [E, E]."""
    means_E = moments.sum_E / moments.count
    return means_E, moments.products_EE / moments.count - np.outer(means_E, means_E)


def _inverse_root(values_D: np.ndarray) -> np.ndarray:
    """1 / sqrt of variances; 0 for those that are rounding."""
    is_real_D = values_D > _WEAK * max(values_D.max(), 0)
    return np.where(is_real_D, 1 / np.sqrt(np.where(is_real_D, values_D, 1)), 0.0)


def turn(products_DF: np.ndarray) -> np.ndarray:
    """Returns the R [D, F] with orthonormal rows or columns for which the trace of R' products is largest.

    Args:
        products_DF: vectors times those that they are turned towards, summed over sentences.
    """
    left_DR, _, right_RF = scipy.linalg.svd(products_DF, full_matrices=False)
    return left_DR @ right_RF


def _weighted(turns: Sequence[np.ndarray], weights_K: np.ndarray) -> np.ndarray:
    return np.concatenate([weight * turn_DF for weight, turn_DF in zip(weights_K, turns)])

"""Linear probes of frozen features, as in SentEval (Conneau and Kiela, LREC 2018)."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, issparse

SPLIT_GRID = tuple(2.0**exponent for exponent in range(-2, 4))
"""Candidate values of C, as in SentEval."""
_TOLERANCE, _MAX_ITERATIONS = 1e-5, 1000

Features = np.ndarray | csr_matrix
"""float32 [N, D]."""


class Labelled(NamedTuple):
    """Features [N, D] and labels [N]."""

    features: Features
    labels: np.ndarray

    def at(self, rows: np.ndarray) -> "Labelled":
        return Labelled(self.features[rows], self.labels[rows])

    def folds(self, seed: int | None, count: int) -> "Iterator[tuple[Labelled, Labelled]]":
        """Yield (train, test) for each fold, see `stratified_folds`."""
        for fit, held_out in stratified_folds(self.labels, seed, count):
            yield self.at(fit), self.at(held_out)


class Classified(NamedTuple):
    """Predicted test classes, the best C with its dev accuracy x100, and whether the last fit converged."""

    predicted: np.ndarray
    c: float
    dev: float
    converged: bool


def stratified_folds(labels_N: np.ndarray, seed: int | None, folds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (train rows, test rows) per fold, each class spread evenly; not shuffled without a seed."""
    from sklearn.model_selection import StratifiedKFold  # takes a second; most processes never need it

    state = None if seed is None else seed % 2**32  # its largest
    splitter = StratifiedKFold(folds, shuffle=seed is not None, random_state=state)
    return list(splitter.split(np.zeros((len(labels_N), 1)), labels_N))


def classify(
    train: Labelled,
    test_ND: Features,
    grid: Sequence[float],
    parts: Iterable[tuple[Labelled, Labelled]],
    on_fit: Callable[[], None] = lambda: None,
) -> Classified:
    """Fit on `train` with the best C of `grid`, and predict the test rows.

    The best C has the highest mean accuracy over `parts`, pairs of (train, test).

    Dense features are centred and divided by a scalar s, which makes fits several times faster. The solution does not
    change: the unpenalised intercept absorbs the shift, and C is multiplied by s * s.
    """
    from sklearn.linear_model import LogisticRegression  # takes a second; most processes never need it

    mean_D, size = 0.0, 1.0
    if not issparse(train.features):
        mean_D = train.features.mean(axis=0, dtype=np.float64).astype(np.float32)
        size = math.sqrt(np.square(train.features - mean_D).mean(dtype=np.float64)) or 1.0

    def scaled(x_ND: Features) -> Features:
        return x_ND if issparse(x_ND) else (x_ND - mean_D) / np.float32(size)

    accuracies = []
    for fit, held_out in parts:
        # Start each fit from the solution for the next smaller C.
        model = LogisticRegression(tol=_TOLERANCE, max_iter=_MAX_ITERATIONS, warm_start=True)
        x_ND, held_out_ND = scaled(fit.features), scaled(held_out.features)
        accuracies.append([])
        for c in grid:
            model.set_params(C=c * size**2).fit(x_ND, fit.labels)
            accuracies[-1].append(100 * np.mean(model.predict(held_out_ND) == held_out.labels))
            on_fit()
    # As in SentEval: round to two decimals, then take the smallest C.
    means = np.mean(accuracies, axis=0).round(2)
    best = int(means.argmax())
    model = LogisticRegression(C=grid[best] * size**2, tol=_TOLERANCE, max_iter=_MAX_ITERATIONS)
    model.fit(scaled(train.features), train.labels)
    converged = bool(model.n_iter_.max() < _MAX_ITERATIONS)
    return Classified(model.predict(scaled(test_ND)), grid[best], float(means[best]), converged)

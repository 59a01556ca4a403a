"""What a linear classifier reads out of frozen features, as in SentEval (Conneau and Kiela, LREC 2018).

A probe is a function of features, labels, settings and seed only.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix, issparse

SPLIT_GRID = tuple(2.0**exponent for exponent in range(-2, 4))
"""Values of C to choose from, as SentEval has them."""
_TOLERANCE, _MAX_ITERATIONS = 1e-5, 1000

Features = np.ndarray | csr_matrix
"""float32 [N, D]."""


class Labelled(NamedTuple):
    """Features [N, D] and labels [N]."""

    features: Features
    labels: np.ndarray

    def at(self, rows: np.ndarray) -> "Labelled":
        """Return the rows at these positions."""
        return Labelled(self.features[rows], self.labels[rows])

    def folds(self, seed: int | None, count: int) -> "Iterator[tuple[Labelled, Labelled]]":
        """Yield what to train on and what to test on, see `stratified_folds`."""
        for fit, held_out in stratified_folds(self.labels, seed, count):
            yield self.at(fit), self.at(held_out)


class Classified(NamedTuple):
    """The classes of test rows by the C that had the accuracy `dev` (x100), and whether its last fit converged."""

    predicted: np.ndarray
    c: float
    dev: float
    converged: bool


def stratified_folds(labels_N: np.ndarray, seed: int | None, folds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (rows to train on, rows to test on) per fold; each class is spread evenly over the folds.

    Without a seed rows are not shuffled.
    """
    from sklearn.model_selection import StratifiedKFold  # takes a second, and most processes need none of it

    splitter = StratifiedKFold(folds, shuffle=seed is not None, random_state=seed)
    return list(splitter.split(np.zeros((len(labels_N), 1)), labels_N))


def classify(
    train: Labelled,
    test_ND: Features,
    grid: Sequence[float],
    parts: Iterable[tuple[Labelled, Labelled]],
    on_fit: Callable[[], None] = lambda: None,
) -> Classified:
    """Predict the test rows by a fit on `train`, with the best C of a grid.

    That is the one whose fits on the first of each of `parts` have the best mean accuracy on the second.

    Dense features are centred and divided by one number s, which makes a fit several times faster; its solution stays
    that of the plain features, because the intercept, which is not penalised, takes in the shift, and C is multiplied
    by s * s.
    """
    from sklearn.linear_model import LogisticRegression  # takes a second, and most processes need none of it

    mean_D, size = 0.0, 1.0
    if not issparse(train.features):
        mean_D = train.features.mean(axis=0, dtype=np.float64).astype(np.float32)
        size = math.sqrt(np.square(train.features - mean_D).mean(dtype=np.float64)) or 1.0

    def scaled(x_ND: Features) -> Features:
        return x_ND if issparse(x_ND) else (x_ND - mean_D) / np.float32(size)

    accuracies = []
    for fit, held_out in parts:
        # Each fit starts where the one with the smaller C ended.
        model = LogisticRegression(tol=_TOLERANCE, max_iter=_MAX_ITERATIONS, warm_start=True)
        x_ND, held_out_ND = scaled(fit.features), scaled(held_out.features)
        accuracies.append([])
        for c in grid:
            model.set_params(C=c * size**2).fit(x_ND, fit.labels)
            accuracies[-1].append(100 * np.mean(model.predict(held_out_ND) == held_out.labels))
            on_fit()
    # Two decimals and then the smallest of equals, as SentEval: far digits do not decide.
    means = np.mean(accuracies, axis=0).round(2)
    best = int(means.argmax())
    model = LogisticRegression(C=grid[best] * size**2, tol=_TOLERANCE, max_iter=_MAX_ITERATIONS)
    model.fit(scaled(train.features), train.labels)
    converged = bool(model.n_iter_.max() < _MAX_ITERATIONS)
    return Classified(model.predict(scaled(test_ND)), grid[best], float(means[best]), converged)

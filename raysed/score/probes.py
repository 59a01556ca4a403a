"""What a linear classifier reads out of frozen features, as in SentEval (Conneau and Kiela, LREC 2018).

A probe is a function of features, labels, settings and seed only. The classifiers of all folds are solved together:
scikit-learn, one fit after the other, took 1.8 to 13 times as long on the bundled encoder's embeddings of SICK and
SNLI, with accuracies within 0.1.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize
from scipy.sparse import csr_matrix, hstack, issparse
from scipy.special import log_softmax

SPLIT_GRID = tuple(2.0**exponent for exponent in range(-2, 4))
"""Values of C to choose from, as SentEval has them."""

_TOLERANCE, _MAX_ITERATIONS = 1e-8, 1000

Features = np.ndarray | csr_matrix
"""float32 [N, D]."""


class Labelled(NamedTuple):
    """Features [N, D] and labels [N]."""

    features: Features
    labels: np.ndarray

    def at(self, rows: np.ndarray) -> "Labelled":
        """Return the rows at these positions."""
        return Labelled(self.features[rows], self.labels[rows])


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


def classify_by_folds(
    train: Labelled, test_ND: Features, grid: Sequence[float], seed: int | None, folds: int
) -> Classified:
    """Choose C by cross-validation on `train`, fit on all of it, and predict the test rows."""
    held_out = [rows for _, rows in stratified_folds(train.labels, seed, folds)]
    return _choose(train, test_ND, grid, held_out, [train.at(rows) for rows in held_out])


def classify_by_dev(train: Labelled, dev: Labelled, test_ND: Features, grid: Sequence[float]) -> Classified:
    """Choose C by the accuracy on `dev`, fit on `train` alone, and predict the test rows."""
    return _choose(train, test_ND, grid, [], [dev])


def _choose(
    train: Labelled, test_ND: Features, grid: Sequence[float], held_out: Sequence[np.ndarray], parts: Sequence[Labelled]
) -> Classified:
    """The fit with the best mean accuracy over the parts, each predicted by the fit of its number."""
    best = None
    for c, fits in zip(grid, _path(train, grid, held_out)):
        hits = [fits.predict(part.features, which) == part.labels for which, part in enumerate(parts)]
        # Two decimals and then the smallest of equals, as SentEval: far digits do not decide.
        dev = round(float(np.mean([100 * np.mean(hit_N) for hit_N in hits])), 2)
        if best is None or dev > best.dev:
            best = Classified(fits.predict(test_ND), c, dev, fits.converged)
    return best


# -- logistic regressions, many at a time ----------------------------------------------------------------------------


class _Fits(NamedTuple):
    """F classifiers of K classes, or of two classes by one column; the last one is fitted on all rows."""

    weights_DFK: np.ndarray
    """For the features as they are; the last row holds the intercepts."""
    classes_K: np.ndarray
    converged: bool

    def predict(self, features_ND: Features, which: int = -1) -> np.ndarray:
        weights_DK = self.weights_DFK[:, which]
        logit_NK = features_ND.astype(np.float64) @ weights_DK[:-1] + weights_DK[-1]
        return self.classes_K[logit_NK.argmax(1) if logit_NK.shape[1] > 1 else (logit_NK[:, 0] > 0).astype(int)]


def _path(train: Labelled, grid: Sequence[float], held_out: Sequence[np.ndarray] = ()) -> Iterator[_Fits]:
    """Yield per value of the rising grid a fit without each of the sets of rows, and one on all rows.

    All of them are solved together, each started where it ended at the value before. Dense features are centred and
    divided by one number s, so that float32 will do; the solution stays that of the plain features, because the
    intercept, which is not penalised, takes in the shift, and C is multiplied by s * s.
    """
    classes_K, label_N = np.unique(train.labels, return_inverse=True)
    kept_NF = np.ones((len(label_N), len(held_out) + 1), np.float32)
    for fold, rows in enumerate(held_out):
        kept_NF[rows, fold] = 0
    x_ND, mean_D, size = _with_ones(train.features), np.zeros(train.features.shape[1]), 1.0
    if not issparse(x_ND):
        mean_D = x_ND[:, :-1].mean(axis=0, dtype=np.float64)
        x_ND[:, :-1] -= mean_D.astype(np.float32)
        size = math.sqrt(np.square(x_ND[:, :-1]).mean(dtype=np.float64)) or 1.0
        x_ND[:, :-1] /= size
    weights_DFK = np.zeros((x_ND.shape[1], kept_NF.shape[1], len(classes_K) if len(classes_K) > 2 else 1))
    for c in grid:
        weights_DFK, converged = _solve(x_ND, label_N, kept_NF, weights_DFK, c * size**2)
        plain_DFK = weights_DFK / size
        plain_DFK[-1] = weights_DFK[-1] - np.tensordot(mean_D, plain_DFK[:-1], 1)
        yield _Fits(plain_DFK, classes_K, converged)


def _solve(
    x_ND: Features, label_N: np.ndarray, kept_NF: np.ndarray, start_DFK: np.ndarray, c: float
) -> tuple[np.ndarray, bool]:
    """Minimise C times the sum of losses plus half the squared weights, of F regressions at once, by L-BFGS.

    It looks for the way from given first weights, in units in which the Hessian that all have about in common is 1, so
    that a few steps do, however the features are correlated; of sparse features, in units of its diagonal.
    """
    shape, target_N1K = start_DFK.shape, np.eye(label_N.max() + 1, dtype=np.float32)[label_N][:, None]
    unit = _units(x_ND, np.exp(_log_shares(x_ND, start_DFK)), kept_NF, c)

    def objective(way: np.ndarray) -> tuple[float, np.ndarray]:
        weights_DFK = start_DFK + _times(unit, way.reshape(shape))
        log_share_NFK = _log_shares(x_ND, weights_DFK)
        own_NF1 = np.take_along_axis(log_share_NFK, label_N[:, None, None], axis=2)
        error_NFK = ((np.exp(log_share_NFK) - target_N1K) * kept_NF[:, :, None])[:, :, -shape[2] :]
        gradient_DFK = c * (x_ND.T @ error_NFK.reshape(len(label_N), -1)).astype(np.float64).reshape(shape)
        gradient_DFK[:-1] += weights_DFK[:-1]
        value = np.square(weights_DFK[:-1]).sum() / 2 - c * (own_NF1[:, :, 0] * kept_NF).sum(dtype=np.float64)
        return value, _times(unit.T, gradient_DFK).ravel()

    options = {"maxiter": _MAX_ITERATIONS, "ftol": _TOLERANCE, "gtol": 0.0}
    found = minimize(objective, np.zeros(start_DFK.size), jac=True, method="L-BFGS-B", options=options)
    # Where only rounding is left to gain, it finds no better place (status 2); at the limit it has status 1.
    return start_DFK + _times(unit, found.x.reshape(shape)), found.status != 1


def _log_shares(x_ND: Features, weights_DFK: np.ndarray) -> np.ndarray:
    """The logarithms of the classes' probabilities, float32 [N, F, K]; one column stands for two classes."""
    width, fits, columns = weights_DFK.shape
    logit_NFK = (x_ND @ weights_DFK.astype(np.float32).reshape(width, -1)).reshape(-1, fits, columns)
    if columns == 1:
        logit_NFK = np.concatenate([np.zeros_like(logit_NFK), logit_NFK], axis=2)
    return log_softmax(logit_NFK, axis=2)


def _units(x_ND: Features, share_NFK: np.ndarray, kept_NF: np.ndarray, c: float) -> np.ndarray:
    """The inverse root of the Hessian with the mean curvature of folds and classes, [D, D], or of its diagonal, [D]."""
    curvature_N = (share_NFK * (1 - share_NFK)).mean(axis=(1, 2)) * kept_NF.mean()
    penalty_D = np.ones(x_ND.shape[1])
    penalty_D[-1] = 1e-7  # next to nothing for the intercept, so that there is an inverse
    if issparse(x_ND):
        return 1 / np.sqrt(c * (x_ND.multiply(x_ND).T @ curvature_N) + penalty_D)
    weighted_ND = x_ND * np.sqrt(curvature_N)[:, None]
    hessian_DD = c * (weighted_ND.T @ weighted_ND).astype(np.float64) + np.diag(penalty_D)
    hessian_DD.flat[:: len(hessian_DD) + 1] *= 1 + 1e-7
    root_DD = cholesky(hessian_DD, lower=True, overwrite_a=True, check_finite=False)
    return solve_triangular(root_DD, np.eye(len(root_DD)), lower=True, check_finite=False).T


def _times(unit: np.ndarray, x_DFK: np.ndarray) -> np.ndarray:
    """A matrix or a diagonal times columns."""
    if unit.ndim == 1:
        return unit[:, None, None] * x_DFK
    return (unit @ x_DFK.reshape(len(unit), -1)).reshape(x_DFK.shape)


def _with_ones(features_ND: Features) -> Features:
    """Add a column for the intercept, float32."""
    ones_N1 = np.ones((features_ND.shape[0], 1), np.float32)
    if issparse(features_ND):
        return hstack([features_ND, ones_N1], "csr", np.float32)
    return np.concatenate([features_ND, ones_N1], axis=1, dtype=np.float32)

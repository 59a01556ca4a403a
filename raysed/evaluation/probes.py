"""What a linear model reads out of frozen features: classifiers and the relatedness regression of SentEval.

A probe is a function of features, labels, settings and seed only. Nothing here knows tasks or sentences.

Source: Conneau and Kiela, "SentEval: An Evaluation Toolkit for Universal Sentence Representations", LREC 2018; the
regression is that of Tai, Socher and Manning 2015, section 4.2.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from torch import nn

from raysed.evaluation.similarity import pearson

FOLDS = 10
"""Of every cross-validation (the literature's setting of SentEval)."""
SPLIT_GRID = tuple(2.0**exponent for exponent in range(-2, 4))
"""Values of C where a dev set or the inner folds of a nested search choose."""
FOLD_GRID = tuple(2.0**exponent for exponent in range(-1, 6))
"""Values of C where folds of the training set choose, and a test set is apart."""

_TOLERANCE, _MAX_ITERATIONS = 1e-5, 1000
_GRADES = 5
_BATCH, _ROUND_EPOCHS, _MAX_EPOCHS, _PATIENCE = 64, 50, 1000, 3


class Labelled(NamedTuple):
    """Features float32 [N, D] and labels [N]: classes, or scores of a regression."""

    features: np.ndarray
    labels: np.ndarray

    def at(self, rows: np.ndarray) -> "Labelled":
        """Returns the rows at these positions."""
        return Labelled(self.features[rows], self.labels[rows])


class Classified(NamedTuple):
    """What a search ended in.

    Attributes:
        predicted: class of every test row, [N].
        c: the chosen inverse strength of regularisation.
        dev: the accuracy (x100) that it was chosen by.
        converged: whether the last fit ended before the limit of iterations.
    """

    predicted: np.ndarray
    c: float
    dev: float
    converged: bool


def pair_features(a_ND: np.ndarray, b_ND: np.ndarray) -> np.ndarray:
    """Returns [|a - b|, a * b], the features of a sentence pair, [N, 2 D].

    Args:
        a_ND: embeddings of the first sentences.
        b_ND: of the second ones.

    >>> pair_features(np.array([[1.0, 2.0]]), np.array([[3.0, 1.0]])).tolist()
    [[2.0, 1.0, 3.0, 2.0]]
    """
    return np.concatenate([np.abs(a_ND - b_ND), a_ND * b_ND], axis=1)


def stratified_folds(labels_N: np.ndarray, seed: int, folds: int = FOLDS) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns (rows to train on, rows to test on) per fold; each class is spread evenly over the folds.

    Args:
        labels_N: classes.
        seed: of the shuffle.
        folds: how many.
    """
    splitter = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return list(splitter.split(np.zeros((len(labels_N), 1)), labels_N))


def classify_by_folds(
    train: Labelled, test_ND: np.ndarray, grid: Sequence[float], seed: int, folds: int = FOLDS
) -> Classified:
    """Chooses C by cross-validation on `train`, fits on all of it, and predicts the test rows.

    Args:
        train: features and classes.
        test_ND: features to predict for.
        grid: values of C.
        seed: of the folds.
        folds: how many.
    """
    accuracies_FC = [
        _accuracies(train.at(fit), train.at(held_out), grid)
        for fit, held_out in stratified_folds(train.labels, seed, folds)
    ]
    return _fit_chosen(train, test_ND, grid, np.mean(accuracies_FC, axis=0))


def classify_by_dev(train: Labelled, dev: Labelled, test_ND: np.ndarray, grid: Sequence[float]) -> Classified:
    """Chooses C by the accuracy on `dev`, fits on `train` alone, and predicts the test rows.

    Args:
        train: features and classes.
        dev: likewise.
        test_ND: features to predict for.
        grid: values of C.
    """
    return _fit_chosen(train, test_ND, grid, _accuracies(train, dev, grid))


def _fit_chosen(train: Labelled, test_ND: np.ndarray, grid: Sequence[float], accuracy_C: np.ndarray) -> Classified:
    # Two decimals and then the smallest of equals, as SentEval: far digits do not decide.
    rounded_C = accuracy_C.round(2)
    best = int(rounded_C.argmax())
    ((model, space),) = _path(train, grid[best : best + 1])
    converged = int(model.n_iter_.max()) < _MAX_ITERATIONS
    return Classified(model.predict(space.of(test_ND)), grid[best], float(rounded_C[best]), converged)


def _accuracies(train: Labelled, held_out: Labelled, grid: Sequence[float]) -> np.ndarray:
    """Accuracy (x100) on the held-out rows per value of the grid, [C]."""
    found = []
    for model, space in _path(train, grid):
        found.append(100 * np.mean(model.predict(space.of(held_out.features)) == held_out.labels))
    return np.array(found)


class _Space(NamedTuple):
    """A change of variables under which the solver converges fast, and which leaves the solution as it is.

    The intercept is not penalised, so it takes in a shift of the features; and dividing them by s is the same as
    multiplying C by s * s.
    """

    mean_D: np.ndarray
    size: float

    @classmethod
    def of_training(cls, features_ND: np.ndarray) -> "_Space":
        mean_D = features_ND.mean(axis=0, dtype=np.float64)
        size = math.sqrt(np.square(features_ND - mean_D).mean())
        return cls(mean_D, size or 1.0)

    def of(self, features_ND: np.ndarray) -> np.ndarray:
        return ((features_ND - self.mean_D) / self.size).astype(np.float32)


def _path(train: Labelled, grid: Sequence[float]) -> Iterator[tuple[LogisticRegression, _Space]]:
    """Yields the fitted model per value of the rising grid, each started where the one before ended.

    It is one object all the time: use it before asking for the next.
    """
    space = _Space.of_training(train.features)
    x_ND = space.of(train.features)
    model = LogisticRegression(solver="lbfgs", tol=_TOLERANCE, max_iter=_MAX_ITERATIONS, warm_start=True)
    for c in grid:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # `Classified.converged` tells it
            model.set_params(C=c * space.size**2).fit(x_ND, train.labels)
        yield model, space


def soft_labels(score_N: np.ndarray) -> np.ndarray:
    """Returns a distribution over the grades 1 to 5 per score, float32 [N, 5] (Tai et al. 2015, equation 15).

    A score between two grades is shared by them, so that the expected grade is the score. SentEval does the same to
    the scores 0 to 5 of STS-B: one below 1 has no lower grade, and what that would get is left out.

    >>> soft_labels(np.array([5.0, 2.25, 0.5])).tolist()
    [[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.75, 0.25, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0, 0.0]]
    """
    distance_NG = np.abs(np.asarray(score_N, np.float64)[:, None] - np.arange(1, _GRADES + 1))
    return np.maximum(1 - distance_NG, 0).astype(np.float32)


def regress(train: Labelled, dev: Labelled, test_ND: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """Learns scores as expected grades: a linear layer and a softmax over five grades.

    Mean squared error to the soft labels, Adam at 1e-3, batches of 64. After every 50 epochs the Pearson correlation
    on `dev` is taken; the fourth time that it is no new best ends the training (the count never goes back), and so do
    1,050 epochs. The best state predicts.

    Args:
        train: features and scores, 0 to 5.
        dev: likewise.
        test_ND: features to predict for.
        seed: of the first weights and the order of rows.

    Returns:
        The predicted scores float64 [N], and the best correlation on `dev` (x100).
    """
    generator = torch.Generator().manual_seed(seed)
    linear = _linear(train.features.shape[1], generator)
    optimizer = torch.optim.Adam(linear.parameters(), fused=True)
    x_ND, y_NG = torch.tensor(train.features), torch.from_numpy(soft_labels(train.labels))
    best, best_prediction, misses = -math.inf, np.zeros(len(test_ND)), 0
    for _ in range(0, _MAX_EPOCHS + 1, _ROUND_EPOCHS):
        _round_of_epochs(linear, optimizer, x_ND, y_NG, generator)
        correlation = pearson(_expected_grade(linear, dev.features), dev.labels)
        if correlation > best:
            best, best_prediction = correlation, _expected_grade(linear, test_ND)
            continue
        misses += 1
        if misses > _PATIENCE:
            break
    return best_prediction, 100 * best


def _linear(width: int, generator: torch.Generator) -> nn.Linear:
    """Returns a linear layer that starts as torch's own do, but from this generator."""
    linear = nn.utils.skip_init(nn.Linear, width, _GRADES)
    bound = 1 / math.sqrt(width)
    with torch.no_grad():
        for parameter in (linear.weight, linear.bias):
            parameter.uniform_(-bound, bound, generator=generator)
    return linear


def _round_of_epochs(
    linear: nn.Linear,
    optimizer: torch.optim.Optimizer,
    x_ND: torch.Tensor,
    y_NG: torch.Tensor,
    generator: torch.Generator,
) -> None:
    for _ in range(_ROUND_EPOCHS):
        for rows in torch.randperm(len(x_ND), generator=generator).split(_BATCH):
            loss = nn.functional.mse_loss(linear(x_ND[rows]).softmax(dim=1), y_NG[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@torch.inference_mode()
def _expected_grade(linear: nn.Linear, features_ND: np.ndarray) -> np.ndarray:
    share_NG = linear(torch.tensor(features_ND)).softmax(dim=1).double()
    return (share_NG @ torch.arange(1, _GRADES + 1, dtype=torch.float64)).numpy()

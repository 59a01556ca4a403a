"""SentEval's regression: scores of pairs as expected grades (Tai, Socher and Manning 2015, section 4.2)."""

import math

import numpy as np
import torch

from papers.probes import Labelled
from raysed.score.metrics import pearson

_GRADES = 5
_BATCH, _ROUND_EPOCHS, _MAX_EPOCHS, _PATIENCE = 64, 50, 1000, 3


def soft_labels(score_N: np.ndarray) -> np.ndarray:
    """Return a distribution over the grades 1 to 5 for each score, float32 [N, 5] (Tai et al. 2015, equation 15).

    As in SentEval, scores of STS-B (0 to 5) get the same; below 1, the share of the lower grade is lost.
    """
    distance_NG = np.abs(np.asarray(score_N, np.float64)[:, None] - np.arange(1, _GRADES + 1))
    return np.maximum(1 - distance_NG, 0).astype(np.float32)


def regress(train: Labelled, dev: Labelled, test_ND: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """Fit a linear layer and softmax over five grades; return test scores and the best dev correlation x100.

    Mean squared error to the soft labels, Adam at 1e-3, batches of 64. The Pearson correlation on `dev` is taken every
    50 epochs; training ends the fourth time that it is no new best (the count never resets), or after 1,050 epochs. The
    best state predicts.
    """
    generator = torch.Generator().manual_seed(seed)
    x_NF, dev_NF, test_NF = (_with_ones(features_NF) for features_NF in (train.features, dev.features, test_ND))
    weights = _Weights(x_NF.shape[1] - 1, generator)
    y_NG = soft_labels(train.labels)
    best, best_prediction, misses = -math.inf, np.zeros(test_NF.shape[0]), 0
    for _ in range(0, _MAX_EPOCHS + 1, _ROUND_EPOCHS):
        _round_of_epochs(weights, x_NF, y_NG, generator)
        correlation = pearson(_expected_grade(weights, dev_NF), dev.labels)
        if correlation > best:
            best, best_prediction = correlation, _expected_grade(weights, test_NF)
            continue
        misses += 1
        if misses > _PATIENCE:
            break
    return best_prediction, 100 * best


class _Weights:
    """Weights [D + 1, 5] of a linear layer, intercepts last; initialised as in torch, Adam with its defaults.

    In NumPy: torch takes six times as long for a step on a batch of 64.
    """

    def __init__(self, width: int, generator: torch.Generator):
        bound = 1 / math.sqrt(width)
        parts = [
            torch.empty(shape).uniform_(-bound, bound, generator=generator) for shape in ((_GRADES, width), (_GRADES,))
        ]
        self.values = np.ascontiguousarray(np.concatenate([parts[0].numpy().T, parts[1].numpy()[None]]))
        self._mean, self._square, self._steps = np.zeros_like(self.values), np.zeros_like(self.values), 0

    def step(self, gradient: np.ndarray) -> None:
        self._steps += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.001 * (gradient * gradient - self._square)
        # Both bias corrections, as one factor and a scaled epsilon.
        correction = math.sqrt(1 - 0.999**self._steps)
        factor = 1e-3 * correction / (1 - 0.9**self._steps)
        self.values -= factor * self._mean / (np.sqrt(self._square) + 1e-8 * correction)


def _round_of_epochs(weights: _Weights, x_NF: np.ndarray, y_NG: np.ndarray, generator: torch.Generator) -> None:
    for _ in range(_ROUND_EPOCHS):
        order = torch.randperm(len(y_NG), generator=generator).numpy()
        shuffled_NF, shuffled_NG = x_NF[order], y_NG[order]
        for start in range(0, len(order), _BATCH):
            x_BF, y_BG = shuffled_NF[start : start + _BATCH], shuffled_NG[start : start + _BATCH]
            share_BG = _softmax(x_BF @ weights.values)
            error_BG = share_BG - y_BG
            error_BG *= share_BG
            error_BG -= share_BG * error_BG.sum(1, keepdims=True)
            error_BG *= 2 / error_BG.size
            weights.step(x_BF.T @ error_BG)


def _softmax(logit_NG: np.ndarray) -> np.ndarray:
    logit_NG -= logit_NG.max(1, keepdims=True)
    np.exp(logit_NG, out=logit_NG)
    logit_NG /= logit_NG.sum(1, keepdims=True)
    return logit_NG


def _expected_grade(weights: _Weights, x_NF: np.ndarray) -> np.ndarray:
    return _softmax(x_NF @ weights.values).astype(np.float64) @ np.arange(1, _GRADES + 1)


def _with_ones(features_ND: np.ndarray) -> np.ndarray:
    """Append a column for the intercept, float32."""
    ones_N1 = np.ones((len(features_ND), 1), np.float32)
    return np.concatenate([features_ND, ones_N1], axis=1, dtype=np.float32)

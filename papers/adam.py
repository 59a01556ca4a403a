"""SentEval's classifier: softmax regression by Adam with early stopping (`usepytorch` with `nhid: 0`).

Published transfer scores use it. It stops before convergence, so its choice of weight decay and its seed matter; on
SICK entailment it is 1.0 to 2.4 points below a converged logistic regression (papers/README.md).
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch.nn import functional as F

from papers.probes import Classified, Labelled
from papers.senteval import SEED

DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)
"""Candidate weight decays, added to the gradient."""
_BATCH, _EPOCHS_AT_ONCE, _TENACITY, _MOST_EPOCHS = 64, 4, 5, 200
_RATE, _BETAS, _EPS = 1e-3, (0.9, 0.999), 1e-8
_HELD_OUT = 0.05
"""Share of the rows that stop the last fit if there is no dev split."""


def classify(
    train: Labelled, test_ND: np.ndarray, parts: Iterable[tuple[Labelled, Labelled]], dev: Labelled | None = None
) -> Classified:
    """Fit on `train` with the best weight decay, and predict the test rows; see `probes.classify`.

    `parts` are pairs: rows to fit, and rows that stop and score the fit. `dev`, or else a random part of `train`, stops
    the last fit.
    """
    classes = int(train.labels.max()) + 1
    means = np.mean([100 * _fit(*part, DECAYS, classes)[1] for part in parts], axis=0).round(2)
    best = int(means.argmax())
    weights, _ = _fit(train, dev, DECAYS[best : best + 1], classes)
    predicted = _logits(torch.from_numpy(np.ascontiguousarray(test_ND)), weights)[0].argmax(1).numpy()
    return Classified(predicted, DECAYS[best], float(means[best]), converged=False)


def _fit(
    train: Labelled, dev: Labelled | None, decays: Sequence[float], classes: int
) -> tuple[torch.Tensor, np.ndarray]:
    """Return the weights [K, D + 1, C] with the best accuracy on `dev` for each of K decays, and that accuracy [K].

    Accuracy is checked every four epochs. A fit ends at the sixth check without improvement (not in a row), or after
    204 epochs. SentEval's seed sets the initial weights and the batches, so all decays share them.
    """
    torch.manual_seed(SEED)
    rng = np.random.RandomState(SEED)
    if dev is None:
        order, count = rng.permutation(len(train.labels)), int(_HELD_OUT * len(train.labels))
        train, dev = train.at(order[count:]), train.at(order[:count])
    x_ND, y_N = torch.from_numpy(np.ascontiguousarray(train.features)), torch.from_numpy(train.labels)
    dev_ND, dev_N = torch.from_numpy(np.ascontiguousarray(dev.features)), torch.from_numpy(dev.labels)
    one_hot_NC = F.one_hot(y_N, classes).float()
    start = torch.nn.Linear(x_ND.shape[1], classes)
    start_EC = torch.cat([start.weight.detach().T, start.bias.detach()[None]])
    weights_KEC, decay_K = start_EC.repeat(len(decays), 1, 1), torch.tensor(decays)[:, None, None]
    mean_KEC, square_KEC, step = torch.zeros_like(weights_KEC), torch.zeros_like(weights_KEC), 0
    best_KEC, best_K = weights_KEC, torch.full((len(decays),), -1.0, dtype=torch.float64)
    epochs, misses_K = 0, torch.zeros(len(decays))
    while (misses_K <= _TENACITY).any() and epochs <= _MOST_EPOCHS:
        for _ in range(_EPOCHS_AT_ONCE):
            order = torch.from_numpy(rng.permutation(len(y_N)))
            for rows in order.split(_BATCH):
                step += 1
                x_BD = x_ND[rows]
                error_KBC = _logits(x_BD, weights_KEC).softmax(2) - one_hot_NC[rows]
                gradient_KEC = torch.cat([x_BD.T @ error_KBC, error_KBC.sum(1, keepdim=True)], dim=1) / len(rows)
                gradient_KEC += decay_K * weights_KEC
                mean_KEC.lerp_(gradient_KEC, 1 - _BETAS[0])
                square_KEC.mul_(_BETAS[1]).addcmul_(gradient_KEC, gradient_KEC, value=1 - _BETAS[1])
                scale_KEC = square_KEC.sqrt().div_(math.sqrt(1 - _BETAS[1] ** step)).add_(_EPS)
                weights_KEC = weights_KEC.addcdiv(mean_KEC, scale_KEC, value=-_RATE / (1 - _BETAS[0] ** step))
        epochs += _EPOCHS_AT_ONCE
        accuracy_K = (_logits(dev_ND, weights_KEC).argmax(2) == dev_N).double().mean(1)
        better_K = (accuracy_K > best_K) & (misses_K <= _TENACITY)
        best_KEC = torch.where(better_K[:, None, None], weights_KEC, best_KEC)
        best_K = torch.where(better_K, accuracy_K, best_K)
        misses_K += ~better_K
    return best_KEC, best_K.numpy()


def _logits(x_ND: torch.Tensor, weights_KEC: torch.Tensor) -> torch.Tensor:
    return x_ND @ weights_KEC[:, :-1] + weights_KEC[:, -1:]

"""SentEval's own classifier: softmax regression by Adam with early stopping, as `usepytorch` with `nhid: 0` has it.

Published transfer scores are of this one. It ends before it has converged, so that its choice of weight decay and its
seed matter, and it scores one to two points from a logistic regression that has (see docs/transfer.md).
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from torch.nn import functional as F

from papers.senteval import SEED
from raysed.score.probes import Classified, Labelled

DECAYS = (1e-5, 1e-4, 1e-3, 1e-2)
"""Weight decays to choose from, added to the gradient."""
_BATCH, _EPOCHS_AT_ONCE, _TENACITY, _MOST_EPOCHS = 64, 4, 5, 200
_RATE, _BETAS, _EPS = 1e-3, (0.9, 0.999), 1e-8
_HELD_OUT = 0.05
"""Share of the rows that stop the last fit where there is no dev split."""


def classify(
    train: Labelled, test_ND: np.ndarray, parts: Iterable[tuple[Labelled, Labelled]], dev: Labelled | None = None
) -> Classified:
    """Predict the test rows by a fit on `train`, with the best weight decay, see `probes.classify`.

    Args:
        parts: what fits are tried on, and what stops and scores them.
        dev: what stops the last fit; without it a drawn part of `train` does.
    """
    classes = int(train.labels.max()) + 1
    accuracies = [[100 * _fit(*part, decay, classes)[1] for decay in DECAYS] for part in parts]
    means = np.mean(accuracies, axis=0).round(2)
    best = int(means.argmax())
    weights, _ = _fit(train, dev, DECAYS[best], classes)
    predicted = _logits(torch.from_numpy(np.ascontiguousarray(test_ND)), weights).argmax(1).numpy()
    return Classified(predicted, DECAYS[best], float(means[best]), converged=False)


def _fit(train: Labelled, dev: Labelled | None, decay: float, classes: int) -> tuple[torch.Tensor, float]:
    """The weights [D + 1, C] with the best accuracy on `dev`, and that accuracy.

    Four epochs lie between two looks at it; the training ends at the sixth look in all that brings nothing better.
    Draws and the start are those of SentEval's seed.
    """
    torch.manual_seed(SEED)
    rng = np.random.RandomState(SEED)
    if dev is None:
        order, count = rng.permutation(len(train.labels)), int(_HELD_OUT * len(train.labels))
        train, dev = train.at(order[count:]), train.at(order[:count])
    x_ND, y_N = torch.from_numpy(np.ascontiguousarray(train.features)), torch.from_numpy(train.labels)
    dev_ND, dev_N = torch.from_numpy(np.ascontiguousarray(dev.features)), torch.from_numpy(dev.labels)
    start = torch.nn.Linear(x_ND.shape[1], classes)
    weights = torch.cat([start.weight.detach().T, start.bias.detach()[None]])
    mean, square, step = torch.zeros_like(weights), torch.zeros_like(weights), 0
    best, best_accuracy, epochs, in_vain = weights, -1.0, 0, 0
    while in_vain <= _TENACITY and epochs <= _MOST_EPOCHS:
        for _ in range(_EPOCHS_AT_ONCE):
            order = torch.from_numpy(rng.permutation(len(y_N)))
            for rows in order.split(_BATCH):
                step += 1
                x_BD = x_ND[rows]
                error_BC = _logits(x_BD, weights).softmax(1) - F.one_hot(y_N[rows], classes)
                gradient = torch.cat([x_BD.T @ error_BC, error_BC.sum(0, keepdim=True)]) / len(rows) + decay * weights
                mean.lerp_(gradient, 1 - _BETAS[0])
                square.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
                scale = square.sqrt().div_(math.sqrt(1 - _BETAS[1] ** step)).add_(_EPS)
                weights = weights.addcdiv(mean, scale, value=-_RATE / (1 - _BETAS[0] ** step))
        epochs += _EPOCHS_AT_ONCE
        accuracy = (_logits(dev_ND, weights).argmax(1) == dev_N).double().mean().item()
        if accuracy > best_accuracy:
            best, best_accuracy = weights, accuracy
        else:
            in_vain += 1
    return best, best_accuracy


def _logits(x_ND: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.addmm(weights[-1], x_ND, weights[:-1])

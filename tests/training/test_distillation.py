"""Losses of distillation against their plain definitions."""

import numpy as np
import pytest
import torch

from raysed.training.objectives.distillation import LOSSES

PLAIN = {
    "mse": lambda x, t: ((x - t) ** 2).mean(),
    "unit_mse": lambda x, t: np.mean([((a / _length(a) - b / _length(b)) ** 2).sum() for a, b in zip(x, t)]),
    "cosine": lambda x, t: np.mean([1 - a @ b / _length(a) / _length(b) for a, b in zip(x, t)]),
    "similarity": lambda x, t: np.mean(
        [(_cosine(x, i, j) - _cosine(t, i, j)) ** 2 for i in range(7) for j in range(7)]
    ),
}


def _length(vector: np.ndarray) -> float:
    return np.sqrt((vector**2).sum())


def _cosine(x: np.ndarray, i: int, j: int) -> float:
    return x[i] @ x[j] / _length(x[i]) / _length(x[j])


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_plain_definition(name):
    x, t = np.random.default_rng(0).normal(size=(2, 7, 5))
    assert LOSSES[name](torch.tensor(x), torch.tensor(t)).item() == pytest.approx(PLAIN[name](x, t), rel=1e-9)


def test_losses_of_directions_do_not_see_lengths():
    x, t = torch.randn(2, 7, 5, generator=torch.manual_seed(0), dtype=torch.float64)
    for name in ("unit_mse", "cosine", "similarity"):
        torch.testing.assert_close(LOSSES[name](3 * x, t), LOSSES[name](x, 5 * t))

"""Losses of distillation against their plain definitions."""

from typing import get_args

import numpy as np
import pytest
import torch
from learners import tiny_learner, write_targets

from raysed.data.targets import TargetBatches
from raysed.train.stages.sed import LOSSES, Distillation, LossName

PLAIN = {
    "mse": lambda x, t: ((x - t) ** 2).mean(),
    "unit_mse": lambda x, t: np.mean([((a / _length(a) - b / _length(b)) ** 2).sum() for a, b in zip(x, t)]),
}


def _length(vector: np.ndarray) -> float:
    return np.sqrt((vector**2).sum())


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_plain_definition(name):
    x, t = np.random.default_rng(0).normal(size=(2, 7, 5))
    assert LOSSES[name](torch.tensor(x), torch.tensor(t)).item() == pytest.approx(PLAIN[name](x, t), rel=1e-9)
    assert set(LOSSES) == set(get_args(LossName)) == set(PLAIN)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("widths", [[], [1, 5, 12]])
def test_with_widths_the_loss_is_the_mean_of_those_of_shorter_embeddings(tmp_path, loss, widths):
    write_targets(tmp_path, 32, 32)
    batch, learner = TargetBatches(tmp_path, 7, seed=1)(0), tiny_learner().eval()
    x, t = (part.detach().double().numpy() for part in (learner(batch.tokens), batch.targets))
    expected = [PLAIN[loss](x[:, :d], t[:, :d]) for d in [*widths, x.shape[1]]]
    found = Distillation(learner, loss=loss, widths=widths)(batch)
    assert found.item() == pytest.approx(np.mean(expected), rel=1e-4)


def test_a_head_is_trained_with_the_learner(tmp_path):
    write_targets(tmp_path, 32, 32, width=24)
    batch, learner = TargetBatches(tmp_path, 7, seed=1)(0), tiny_learner().eval()
    x_BH, weight_HD = learner(batch.tokens).detach(), torch.randn(16, 24, generator=torch.manual_seed(0))
    learner.set_head(weight_HD.numpy())
    objective = Distillation(learner)
    objective(batch).backward()
    expected_HD = 2 * x_BH.T @ (x_BH @ weight_HD - batch.targets) / batch.targets.numel()
    torch.testing.assert_close(learner.head.weight.grad.T, expected_HD)
    assert learner.transformer.encoder.layer[0].output.dense.weight.grad.abs().max() > 0

"""Losses of distillation against their plain definitions."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
import torch
from learners import tiny_learner, write_targets
from scipy.stats import norm
from stopping import stop_after

from raysed.data.targets import TargetBatches
from raysed.model.head import START, VARIANCE
from raysed.store.storage import Storage
from raysed.train.setup import set_up
from raysed.train.stage import Start
from raysed.train.stages.sed import LOSSES, STAGE, Distillation, LossName, SedConfig

PLAIN = {
    "mse": lambda x, t, *_: ((x - t) ** 2).mean(),
    "unit_mse": lambda x, t, *_: np.mean([((a / _length(a) - b / _length(b)) ** 2).sum() for a, b in zip(x, t)]),
    "nll": lambda x, t, others, variance: -np.mean(norm.logpdf(t, x, np.sqrt(variance))) - np.log(2 * np.pi) / 2,
    "contrastive": lambda x, t, others, _=None: np.mean(
        [-np.log(np.exp(_cos(a, b) / 0.07) / sum(np.exp(_cos(a, c) / 0.07) for c in others)) for a, b in zip(x, t)]
    ),
}


def _length(vector: np.ndarray) -> float:
    return np.sqrt((vector**2).sum())


def _cos(a: np.ndarray, b: np.ndarray) -> float:
    return (a * b).sum() / _length(a) / _length(b)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_its_plain_definition(name):
    x, t, more = np.random.default_rng(0).normal(size=(3, 7, 5))
    others, variance = np.concatenate([more, t]), np.random.default_rng(1).uniform(0.1, 3, 5)
    about = {"all_GD": torch.tensor(others), "log_variance_D": torch.tensor(variance).log()}
    found = LOSSES[name](torch.tensor(x), torch.tensor(t), **about)
    assert found.item() == pytest.approx(PLAIN[name](x, t, others, variance), rel=1e-9)
    assert set(LOSSES) == set(get_args(LossName)) == set(PLAIN)


@pytest.mark.parametrize("widths", [[], [1, 5, 12]])
def test_with_widths_the_loss_is_the_mean_of_those_of_shorter_embeddings(tmp_path, widths):
    write_targets(tmp_path, 32, 32)
    batch, learner = TargetBatches(tmp_path, 7, seed=1)(0), tiny_learner().eval()
    x, t = (part.detach().double().numpy() for part in (learner(batch.tokens), batch.targets))
    names = ["mse", "unit_mse", "contrastive"]
    expected = [sum(PLAIN[name](x[:, :d], t[:, :d], t[:, :d]) for name in names) for d in [*widths, x.shape[1]]]
    found = Distillation(learner, losses=names, widths=widths)(batch)
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


def _with_heads(directory, losses):
    """A learner of width 16 with heads to targets of width 24, the numbers that these start with, and a batch."""
    write_targets(directory, 32, 32, width=24)
    rng = np.random.default_rng(0)
    heads_HD = rng.normal(size=(16, 24)).astype(np.float32)
    variance_D = rng.uniform(0.2, 4, 24).astype(np.float32)
    objective = Distillation(tiny_learner(), False, losses, (), heads_HD, variance_D).eval()
    return objective, heads_HD, variance_D, TargetBatches(directory, 32, seed=1)(0)


@pytest.mark.parametrize("losses", [["mse"], list(LOSSES)])
def test_losses_are_added_up_behind_the_heads(tmp_path, losses):
    """Heads take the learner's unit vector, so its length counts for nothing, as in a cosine."""
    objective, heads_HD, variance_D, batch = _with_heads(tmp_path, losses)
    x, t = (part.detach().double().numpy() for part in (objective.learner(batch.tokens), batch.targets))
    x = np.stack([row / _length(row) for row in x]) @ heads_HD
    expected = sum(PLAIN[name](x, t, t, variance_D) for name in losses)
    assert objective(batch).item() == pytest.approx(expected, rel=1e-4)


def test_the_variances_that_are_learnt_are_the_mean_squared_errors(tmp_path):
    """Which is where the likelihood is largest, whatever they start from; one that has no error ends somewhere."""
    objective, _, variance_D, batch = _with_heads(tmp_path, ["nll"])
    batch.targets[:, 3] = 0
    objective.learner.requires_grad_(False)
    with torch.no_grad():
        objective.heads_HD[:, 3] = 0
        x = torch.nn.functional.normalize(objective.learner(batch.tokens)) @ objective.heads_HD
    errors = (batch.targets - x).square().mean(0).numpy()
    optimizer = torch.optim.Adam([objective.log_change_D])
    for step in range(150):
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 150)
        optimizer.zero_grad()
        objective(batch).backward()
        optimizer.step()
    found = objective.log_variance().exp().detach().numpy()
    np.testing.assert_allclose(np.delete(found, 3), np.delete(errors, 3), rtol=0.02)
    assert found[3] == pytest.approx(variance_D[3] * np.exp(-10), rel=1e-3)


def test_heads_and_variances_go_on_as_if_nothing_had_happened(tmp_path):
    """Stopped after three of eight updates, and set up anew from the numbers that they started with."""
    _, heads_HD, variance_D, _ = _with_heads(tmp_path, ["nll"])
    np.save(tmp_path / START, heads_HD)
    np.save(tmp_path / VARIANCE, variance_D)
    sed = SedConfig(head="drop", loss=["nll", "contrastive"], batch_size=4, learning_rate=1e-2, warmup=0)
    states, ends = Storage(str(tmp_path), "states"), []
    for name, stop in (("whole", None), ("parts", 3)):
        first, run = (
            replace(
                set_up(STAGE, sed, sed, Start(tiny_learner(), None, {"targets": tmp_path}, seed=5)),
                checkpoints=states.checkpoints(name, {}),
            )
            for _ in range(2)
        )
        if stop:
            stop_after(first, stop)
        assert run.train().resumed_at == (stop or 0)
        ends.append(run.objective.state_dict())
    assert {"heads_HD", "log_change_D", "log_start_D"} < ends[0].keys()
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    assert (ends[0]["heads_HD"] != torch.tensor(heads_HD)).any() and ends[0]["log_change_D"].abs().min() > 0
    assert not any("heads" in key or "log" in key for key in run.objective.candidates()["learner"].state_dict())

"""Regression of the cosine against a plain loop of padded sentences."""

import copy

import numpy as np
import pytest
import torch

from raysed.data.pairs import PairBatches, PairTable
from raysed.train.stages.sts import CosineRegression, target_of


@pytest.fixture
def pairs(make_table) -> PairTable:
    return PairTable(make_table(12, seed=1), make_table(12, seed=2), np.random.default_rng(0).uniform(size=12))


def mean_of_last_layer(transformer, side, row):
    """Padded by five places that the mask hides."""
    tokens = side.input_ids[side.offsets[row] : side.offsets[row + 1]].tolist()
    mask = torch.tensor([[1] * len(tokens) + [0] * 5])
    states = transformer(input_ids=torch.tensor([tokens + [0] * 5]), attention_mask=mask).last_hidden_state[0]
    return states[: len(tokens)].sum(0) / len(tokens)


@pytest.mark.parametrize("bound", [0.0, 0.35, 0.95])
def test_loss_and_gradient_equal_the_plain_loop(make_encoder, pairs, bound):
    batch = PairBatches(pairs, 7, seed=5)(0)
    objective = CosineRegression(make_encoder("bert", layers=2).double(), bound).eval()
    model = copy.deepcopy(objective.encoder.transformer)
    losses = []
    for row in (pairs.first.ids.tolist().index(id_) for id_ in batch.ids):
        u, v = (mean_of_last_layer(model, side, row) for side in (pairs.first, pairs.second))
        cosine = (u * v).sum() / ((u * u).sum().sqrt() * (v * v).sum().sqrt())
        losses.append((cosine - (bound + (1 - bound) * pairs.labels[row])) ** 2)
    expected = sum(losses) / 7
    loss = objective.loss(batch)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    expected.backward()
    loss.backward()
    for found, parameter in zip(objective.encoder.transformer.parameters(), model.parameters()):
        if parameter.grad is not None and parameter.requires_grad:
            torch.testing.assert_close(found.grad, parameter.grad, rtol=1e-7, atol=1e-10)


def test_targets_run_from_the_lower_bound_to_one():
    """Bound 0 is SBERT's score / 5; others squeeze the same line."""
    for score in (0.0, 0.5, 2.2, 5.0):
        assert target_of(score / 5, 0.0) == score / 5
        for bound in np.arange(20) / 20:
            assert target_of(score / 5, bound) == pytest.approx(1 - (1 - bound) * (1 - score / 5))
    np.testing.assert_allclose(target_of(np.array([0.0, 1.0]), 0.2), [0.2, 1.0])


def test_the_loss_is_in_full_precision_under_autocast(make_encoder, pairs):
    batch = PairBatches(pairs, 7, seed=5)(0)
    objective = CosineRegression(make_encoder("bert"), 0.3).eval()
    with torch.autocast("cpu", torch.bfloat16):
        u, v = objective.encoder(batch.tokens).chunk(2)
        loss = objective.loss(batch)
    cosines = torch.nn.functional.cosine_similarity(u.double(), v.double())
    expected = (cosines - 0.3 - 0.7 * batch.labels).square().mean()
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(expected.item(), abs=1e-6)

"""Regression of the cosine against a plain loop of padded sentences."""

import copy

import numpy as np
import pytest
import torch

from raysed.data.pair_table import PairBatches, PairTable
from raysed.data.pairs import load_graded
from raysed.data.tokens import tokenize
from raysed.train.engine import TorchEngine
from raysed.train.loop import train
from raysed.train.optimizers import bert_optimizer
from raysed.train.plan import Plan
from raysed.train.stages.sts import CosineRegression, StsConfig, target_of


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


def test_the_lower_bound_of_equal_sentences_does_not_matter(make_encoder, make_table):
    """Their cosine is 1; with score 1 the loss is 0 for any bound, with score 0 it is (1 - bound) squared."""
    table = make_table(6)
    for bound in (0.0, 0.4):
        objective = CosineRegression(make_encoder("bert"), bound).eval()
        for score, expected in ((1.0, 0.0), (0.0, (1 - bound) ** 2)):
            batch = PairBatches(PairTable(table, table, np.full(6, score)), 6, seed=0)(0)
            assert objective.loss(batch).item() == pytest.approx(expected, abs=1e-6)


def test_dropout_is_a_setting(make_encoder, pairs):
    batch = PairBatches(pairs, 7, seed=5)(0)
    for dropout in (True, False):
        objective = CosineRegression(make_encoder("bert"), 0.0, dropout).train()
        assert torch.equal(objective.loss(batch), objective.loss(batch)) is not dropout
        assert objective.candidates() == {"encoder": objective.encoder}


def test_the_loss_is_in_full_precision_under_autocast(make_encoder, pairs):
    batch = PairBatches(pairs, 7, seed=5)(0)
    objective = CosineRegression(make_encoder("bert"), 0.3).eval()
    with torch.autocast("cpu", torch.bfloat16):
        u, v = objective.encoder(batch.tokens).chunk(2)
        loss = objective.loss(batch)
    cosines = torch.nn.functional.cosine_similarity(u.double(), v.double())
    expected = (cosines - 0.3 - 0.7 * batch.labels).square().mean()
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(expected.item(), abs=1e-6)


def test_real_pairs_can_be_learned(make_encoder, tiny_tokenizer, data_dir):
    """A few passes over 96 pairs of STS-B's news: below the variance of their scores, the loss of a constant."""
    rows = load_graded(StsConfig(train=[str(data_dir / "sts" / "stsb-train.tsv")]).train)
    assert len(rows) == 5749
    table = PairTable(*(tokenize(tiny_tokenizer, side, 30) for side in (rows.first, rows.second)), rows.labels)
    table = table.take(np.arange(5749 - 96, 5749))
    objective = CosineRegression(make_encoder("bert", layers=2, width=32), 0.0, dropout=False)
    batches = PairBatches(table, 16, seed=0)
    plan = Plan(20 * batches.per_epoch, lambda step: 3e-4, log_every=1, keep="encoder")
    result = train(objective, batches, plan, TorchEngine(objective, bert_optimizer(objective, 0.01), clip=1.0))
    losses = [entry["loss"] for entry in result.history]
    variance = table.labels.var()
    assert np.mean(losses[:6]) > 2 * variance and np.mean(losses[-6:]) < 0.75 * variance

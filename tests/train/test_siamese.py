"""Stages of labelled pairs against plain loops: one padded sentence at a time through transformers, pair by pair."""

import copy

import numpy as np
import pytest
import torch

from raysed.data.pairs import PairBatches, PairTable
from raysed.train.stages.nli import SiameseNLI
from raysed.train.stages.sts import CosineRegression


def labelled(make_table, labels):
    """Twelve pairs, and a batch of seven of them."""
    pairs = PairTable(make_table(12, seed=1), make_table(12, seed=2), labels)
    return pairs, PairBatches(pairs, 7, seed=5)(0)


@pytest.fixture
def classified(make_table):
    return labelled(make_table, np.arange(12) % 3)


@pytest.fixture
def graded(make_table):
    return labelled(make_table, np.random.default_rng(0).uniform(size=12))


def plain_examples(transformer, pairs, batch):
    """The embeddings of both sentences and the label, of the pairs of a batch."""
    for row in [pairs.first.ids.tolist().index(id_) for id_ in batch.ids]:
        yield *(mean_of_last_layer(transformer, side, row) for side in (pairs.first, pairs.second)), pairs.labels[row]


def mean_of_last_layer(transformer, side, row):
    """Padded by five places that the mask hides."""
    tokens = side.input_ids[side.offsets[row] : side.offsets[row + 1]].tolist()
    ids, mask = tokens + [transformer.config.pad_token_id] * 5, [1] * len(tokens) + [0] * 5
    states = transformer(input_ids=torch.tensor([ids]), attention_mask=torch.tensor([mask])).last_hidden_state[0]
    return states[: len(tokens)].sum(0) / len(tokens)


def assert_same_gradients(objective, loss, model, expected):
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)
    expected.backward()
    loss.backward()
    for name, parameter in model.named_parameters():
        if "pooler" not in name:
            found = objective.encoder.transformer.get_parameter(name).grad
            torch.testing.assert_close(found, parameter.grad, rtol=1e-7, atol=1e-10, msg=name)
            assert "key.bias" in name or parameter.grad.abs().max() > 1e-6


@pytest.mark.parametrize(("kind", "bias"), [("bert", True), ("roberta", False)])
def test_classification_equals_the_plain_loop(make_encoder, classified, kind, bias):
    pairs, batch = classified
    objective = SiameseNLI(make_encoder(kind, layers=2), bias).double().eval()
    model, head = copy.deepcopy(objective.encoder.transformer), copy.deepcopy(objective.classifier)
    losses = []
    for u, v, label in plain_examples(model, pairs, batch):
        features = [*u, *v, *(abs(a - b) for a, b in zip(u, v))]
        biases = head.bias if bias else [0.0] * 3
        logits = [sum(w * x for w, x in zip(row, features)) + b for row, b in zip(head.weight, biases)]
        losses.append(-torch.log(torch.exp(logits[label]) / sum(torch.exp(logit) for logit in logits)))
    assert_same_gradients(objective, objective.loss(batch), model, sum(losses) / 7)
    for found, parameter in zip(objective.classifier.parameters(), head.parameters()):
        torch.testing.assert_close(found.grad, parameter.grad)


@pytest.mark.parametrize("bound", [0.0, 0.35])
def test_regression_equals_the_plain_loop(make_encoder, graded, bound):
    pairs, batch = graded
    objective = CosineRegression(make_encoder("bert", layers=2).double(), bound).eval()
    model, losses = copy.deepcopy(objective.encoder.transformer), []
    for u, v, label in plain_examples(model, pairs, batch):
        cosine = (u * v).sum() / ((u * u).sum().sqrt() * (v * v).sum().sqrt())
        losses.append((cosine - (bound + (1 - bound) * label)) ** 2)
    assert_same_gradients(objective, objective.loss(batch), model, sum(losses) / 7)


def test_without_bias_it_starts_as_in_bert_flow(make_encoder):
    """Normal, deviation 0.02, cut at two deviations: 0.88 of the deviation is left."""
    torch.manual_seed(0)
    objective = SiameseNLI(make_encoder("bert", width=256), bias=False)
    weight = objective.classifier.weight.detach()
    assert objective.classifier.bias is None
    assert 0.039 < weight.abs().max() <= 0.04
    assert weight.std().item() == pytest.approx(0.0176, rel=0.05) and abs(weight.mean()) < 0.002
    assert (weight.abs() < 0.02).float().mean() == pytest.approx(0.6827 / 0.9545, abs=0.05)


def under_autocast(objective, batch):
    with torch.autocast("cpu", torch.bfloat16):
        u, v = objective.encoder(batch.tokens).double().chunk(2)
        loss = objective.loss(batch)
    assert loss.dtype == torch.float32
    return u, v, loss.item()


def test_the_classifier_is_exact_under_autocast(make_encoder, classified):
    """With bf16 in the classifier its logits, and so the loss, would be off by a thousandth."""
    objective = SiameseNLI(make_encoder("bert")).eval()
    u, v, loss = under_autocast(objective, classified[1])
    logits = objective.classifier.double()(torch.cat([u, v, (u - v).abs()], dim=1))
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(logits, classified[1].labels).item(), abs=1e-5)


def test_the_regression_is_exact_under_autocast(make_encoder, graded):
    u, v, loss = under_autocast(CosineRegression(make_encoder("bert"), 0.3).eval(), graded[1])
    cosines = torch.cosine_similarity(u, v)
    assert loss == pytest.approx((cosines - 0.3 - 0.7 * graded[1].labels).square().mean().item(), abs=1e-6)

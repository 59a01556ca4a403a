"""Siamese NLI against a plain loop: one padded sentence at a time through transformers, one pair at a time."""

import copy

import numpy as np
import pytest
import torch

from raysed.data.pairs import LabelledBatch, PairBatches, PairTable
from raysed.train.stages.nli import SiameseNLI


@pytest.fixture
def pairs(make_table) -> PairTable:
    return PairTable(make_table(12, seed=1), make_table(12, seed=2), np.arange(12) % 3)


@pytest.fixture
def batch(pairs) -> LabelledBatch:
    return PairBatches(pairs, 7, seed=5)(0)


def sentences(pairs, ids):
    """The tokens of both sentences and the label, of the pairs with these ids."""
    for row in [pairs.first.ids.tolist().index(id_) for id_ in ids]:
        sides = (pairs.first, pairs.second)
        yield *(side.input_ids[side.offsets[row] : side.offsets[row + 1]].tolist() for side in sides), pairs.labels[row]


def mean_of_last_layer(transformer, tokens):
    """Padded by five places that the mask hides."""
    pad = transformer.config.pad_token_id
    mask = torch.tensor([[1] * len(tokens) + [0] * 5])
    states = transformer(input_ids=torch.tensor([tokens + [pad] * 5]), attention_mask=mask).last_hidden_state[0]
    return states[: len(tokens)].sum(0) / len(tokens)


def plain_loss(transformer, weight, bias, examples):
    losses = []
    for first, second, label in examples:
        u, v = mean_of_last_layer(transformer, first), mean_of_last_layer(transformer, second)
        logits = [
            sum(w * x for w, x in zip(row, [*u, *v, *(abs(a - b) for a, b in zip(u, v))])) + b
            for row, b in zip(weight, bias)
        ]
        total = sum(torch.exp(logit) for logit in logits)
        losses.append(-torch.log(torch.exp(logits[label]) / total))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("kind", "bias"), [("bert", True), ("roberta", False)])
def test_loss_and_gradient_equal_the_plain_loop(make_encoder, pairs, batch, kind, bias):
    objective = SiameseNLI(make_encoder(kind, layers=2), bias).double().eval()
    model = copy.deepcopy(objective.encoder.transformer)
    weight = objective.classifier.weight.detach().clone().requires_grad_()
    biases = objective.classifier.bias.detach().clone().requires_grad_() if bias else torch.zeros(3)
    expected = plain_loss(model, weight, biases, list(sentences(pairs, batch.ids)))
    loss = objective.loss(batch)
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-10)

    expected.backward()
    loss.backward()
    torch.testing.assert_close(objective.classifier.weight.grad, weight.grad)
    if bias:
        torch.testing.assert_close(objective.classifier.bias.grad, biases.grad)
    found = dict(objective.encoder.transformer.named_parameters())
    for name, parameter in model.named_parameters():
        if "pooler" not in name:
            torch.testing.assert_close(found[name].grad, parameter.grad, rtol=1e-7, atol=1e-10, msg=name)
            assert "key.bias" in name or parameter.grad.abs().max() > 1e-6


def test_the_classifier_starts_as_it_does_in_sentence_transformers(make_encoder):
    """Uniform within 1 / sqrt(3 D), bias too."""
    torch.manual_seed(0)
    objective = SiameseNLI(make_encoder("bert", width=64))
    bound = (3 * 64) ** -0.5
    weight, bias = objective.classifier.weight.detach(), objective.classifier.bias.detach()
    assert weight.shape == (3, 192) and bias.shape == (3,)
    assert 0.98 * bound < weight.abs().max() <= bound and bias.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


def test_without_bias_it_starts_as_in_bert_flow(make_encoder):
    """Normal, deviation 0.02, cut at two deviations: 0.88 of the deviation is left."""
    torch.manual_seed(0)
    objective = SiameseNLI(make_encoder("bert", width=256), bias=False)
    weight = objective.classifier.weight.detach()
    assert objective.classifier.bias is None
    assert 0.039 < weight.abs().max() <= 0.04
    assert weight.std().item() == pytest.approx(0.0176, rel=0.05) and abs(weight.mean()) < 0.002
    assert (weight.abs() < 0.02).float().mean() == pytest.approx(0.6827 / 0.9545, abs=0.05)


def test_the_classifier_is_exact_under_autocast(make_encoder, batch):
    """With bf16 in the classifier its logits, and so the loss, would be off by a thousandth."""
    objective = SiameseNLI(make_encoder("bert")).eval()
    with torch.autocast("cpu", torch.bfloat16):
        u, v = objective.encoder(batch.tokens).chunk(2)
        loss = objective.loss(batch)
    features = torch.cat([u, v, (u - v).abs()], dim=1).double()
    logits = features @ objective.classifier.weight.double().T + objective.classifier.bias.double()
    expected = (logits.logsumexp(1) - logits.gather(1, batch.labels[:, None])[:, 0]).mean()
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(expected.item(), abs=1e-5)

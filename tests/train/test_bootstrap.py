"""BSL against a plain loop: one sentence at a time, the predictor written out, the average by formula."""

import copy

import pytest
import torch
from torch import nn

from raysed.data.tokens import TokenTable, pack
from raysed.train.stages.bsl import Bootstrap, BslConfig, make_predictor


@pytest.fixture
def batch(make_table):
    """Five pairs: the first views, then the second ones."""
    return pack(TokenTable.concatenate([make_table(5, seed=1), make_table(5, seed=2)]))


def objective_of(encoder, momentum=0.9, **settings):
    torch.manual_seed(0)
    predictor = make_predictor(BslConfig(**settings), encoder.width)
    return Bootstrap(encoder, predictor, momentum, settings.get("predictor") == "released", dropout=False)


def embed(transformer, tokens):
    return transformer(input_ids=tokens[None]).last_hidden_state[0].sum(0) / len(tokens)


def plain_mlp(rows, layers):
    """Linear layers, normalisations with the statistics of these rows, and ReLUs as they come."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            rows = [layer.weight @ row + layer.bias for row in rows]
        elif isinstance(layer, nn.BatchNorm1d):
            mean = sum(rows) / len(rows)
            variance = sum((row - mean) ** 2 for row in rows) / len(rows)
            rows = [(row - mean) / torch.sqrt(variance + 1e-5) * layer.weight + layer.bias for row in rows]
        else:
            rows = [row * (row > 0) for row in rows]
    return rows


def plain_loss(online, target, layers, first, second, squared):
    """Mean over pairs and directions, in sentences one by one."""

    def predictions(views):
        return plain_mlp([embed(online, tokens) for tokens in views], layers)

    def cosine(a, b):
        return (a * b).sum() / (a.square().sum().sqrt() * b.square().sum().sqrt())

    with torch.no_grad():
        targets = [[embed(target, tokens) for tokens in views] for views in (first, second)]
    forth = [cosine(z, h) for z, h in zip(predictions(first), targets[1])]
    back = [cosine(z, h) for z, h in zip(predictions(second), targets[0])]
    if squared:
        return sum((2 - 2 * a) + (2 - 2 * b) for a, b in zip(forth, back)) / len(first)
    return sum(-0.5 * a - 0.5 * b for a, b in zip(forth, back)) / len(first)


@pytest.mark.parametrize(("kind", "predictor"), [("bert", "paper"), ("roberta", "released"), ("bert", "none")])
def test_loss_and_gradients_equal_the_plain_loop(make_encoder, batch, kind, predictor):
    objective = objective_of(make_encoder(kind, layers=2), predictor=predictor, expansion=3).double().train()
    online, target = (copy.deepcopy(encoder.transformer) for encoder in (objective.online, objective.target))
    head = copy.deepcopy(objective.predictor)
    layers = [module for module in head.modules() if isinstance(module, nn.Linear | nn.BatchNorm1d | nn.ReLU)]
    sentences = [batch.input_ids[batch.segments == index] for index in range(len(batch))]
    expected = plain_loss(online, target, layers, sentences[:5], sentences[5:], predictor == "released")
    expected.backward()
    found = objective.loss(batch)
    found.backward()
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=0, atol=1e-10)
    for plain, own in ((online, objective.online.transformer), (head, objective.predictor)):
        for name, parameter in plain.named_parameters():
            if parameter.grad is not None:
                found_grad = own.get_parameter(name).grad
                torch.testing.assert_close(found_grad, parameter.grad, rtol=1e-7, atol=1e-10, msg=name)
    assert all(parameter.grad is None for parameter in objective.target.parameters())


@pytest.mark.parametrize(("predictor", "count"), [("paper", 47.2e6), ("released", 212.4e6), ("none", 0)])
def test_predictors_have_the_published_sizes(predictor, count):
    with torch.device("meta"):
        made = make_predictor(BslConfig(predictor=predictor), 768)
    assert sum(p.numel() for p in made.parameters()) == pytest.approx(count, abs=1e5)


@pytest.mark.parametrize(
    ("momentum", "dtype"),
    [(0.0, torch.float32), (0.9, torch.float32), (0.999, torch.float32), (0.999, torch.bfloat16), (1.0, torch.float32)],
)
def test_the_average_has_its_closed_form_after_100_updates(make_encoder, momentum, dtype):
    """In single precision also beside an encoder in half: increments of a thousandth must not be lost."""
    objective = objective_of(make_encoder("bert").to(dtype), momentum=momentum)
    assert objective.candidates() == {"encoder": objective.online}
    generator = torch.Generator().manual_seed(0)
    name, weight = next((n, p) for n, p in objective.online.named_parameters() if p.ndim == 2)
    expected = weight.detach().double().clone() * momentum**100
    for step in range(100):
        with torch.no_grad():
            weight.add_(0.01 * torch.randn(weight.shape, generator=generator))
        objective.after_update()
        expected += (1 - momentum) * momentum ** (99 - step) * weight.detach().double()
    target = objective.target.get_parameter(name)
    assert target.dtype == torch.float32
    torch.testing.assert_close(target.double(), expected, rtol=0, atol=1e-6 if 0 < momentum < 1 else 0)

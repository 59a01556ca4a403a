"""BSL against a plain loop: one sentence at a time, the predictor and Adam written out, the average by formula."""

import copy

import pytest
import torch

from raysed.data.tokens import TokenTable, pack
from raysed.train.engine import TorchEngine
from raysed.train.loop import Run
from raysed.train.optimizers import adam_optimizer
from raysed.train.stage import Plan
from raysed.train.stages.bsl import Bootstrap, BslConfig, make_predictor


@pytest.fixture
def batch(make_table):
    """Five pairs: the first views, then the second ones."""
    return pack(TokenTable.concatenate([make_table(5, seed=1), make_table(5, seed=2)]))


def objective_of(encoder, seed=0, momentum=0.9, dropout=False, **settings):
    torch.manual_seed(seed)
    predictor = make_predictor(BslConfig(**settings), encoder.width)
    return Bootstrap(encoder, predictor, momentum, settings.get("predictor") == "released", dropout)


def embed(transformer, tokens):
    states = transformer(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    return states.sum(0) / len(tokens)


def sentences_of(batch):
    """Token ids of every sentence of a packed batch."""
    ids, segments = batch.input_ids.reshape(-1), batch.segments.reshape(-1)
    return [ids[segments == index].tolist() for index in range(len(batch))]


def normalised(rows, layer):
    """Batch normalisation with the statistics of these rows."""
    mean = sum(rows) / len(rows)
    variance = sum((row - mean) ** 2 for row in rows) / len(rows)
    return [(row - mean) / torch.sqrt(variance + 1e-5) * layer.weight + layer.bias for row in rows]


def plain_mlp(rows, layers):
    """Linear layers, normalisations and ReLUs as they come."""
    for layer in layers:
        if isinstance(layer, torch.nn.Linear):
            rows = [layer.weight @ row + layer.bias for row in rows]
        elif isinstance(layer, torch.nn.BatchNorm1d):
            rows = normalised(rows, layer)
        else:
            rows = [row * (row > 0) for row in rows]
    return rows


def plain_loss(online, target, mlps, first, second, squared):
    """Mean over pairs and directions, in sentences one by one."""

    def predictions(views):
        rows = [embed(online, tokens) for tokens in views]
        for mlp in mlps:
            rows = plain_mlp(rows, mlp)
        return rows

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
def test_one_update_equals_the_plain_loop(make_encoder, batch, kind, predictor):
    """Loss, Adam's step with its decay, and the target after it."""
    objective = objective_of(make_encoder(kind, layers=2), predictor=predictor, expansion=3).double().train()
    online, target = (copy.deepcopy(encoder.transformer) for encoder in (objective.online, objective.target))
    head = copy.deepcopy(objective.predictor)
    mlps = {"paper": [head], "released": list(head) if predictor == "released" else [], "none": []}[predictor]
    before = {name: p.detach().clone() for name, p in objective.named_parameters()}
    sentences = sentences_of(batch)
    expected = plain_loss(online, target, mlps, sentences[:5], sentences[5:], predictor == "released")
    expected.backward()

    engine = TorchEngine(objective, adam_optimizer(objective, weight_decay=0.1))
    assert engine.update(batch, 1e-3) == pytest.approx(expected.item(), abs=1e-10)

    gradients = {f"online.transformer.{name}": p.grad for name, p in online.named_parameters()}
    gradients |= {f"predictor.{name}": p.grad for name, p in head.named_parameters()}
    for name, parameter in objective.named_parameters():
        if name.startswith("target") or gradients.get(name) is None:
            continue
        gradient = gradients[name]
        decayed = before[name] * (1 - 1e-3 * (0.1 if parameter.ndim > 1 else 0.0))
        # After one update the corrected moments are the gradient and its square.
        wanted = decayed - 1e-3 * gradient / (gradient.abs() + 1e-6)
        # Where the true gradient is zero, Adam turns rounding into a step of unknown sign.
        sure = gradient.abs() > 1e-9
        torch.testing.assert_close(parameter[sure], wanted[sure], rtol=0, atol=1e-5, msg=name)
    for name, parameter in objective.target.named_parameters():
        wanted = 0.9 * before[f"target.{name}"] + 0.1 * dict(objective.online.named_parameters())[name]
        torch.testing.assert_close(parameter.data, wanted, rtol=0, atol=1e-12, msg=name)


def test_the_target_gets_no_gradient(make_encoder, batch):
    objective = objective_of(make_encoder("bert"))
    objective.train().loss(batch).backward()
    assert all(p.grad is None and not p.requires_grad for p in objective.target.parameters())
    assert all(p.grad is not None for name, p in objective.online.named_parameters() if "pooler" not in name)


@pytest.mark.parametrize(("momentum", "which"), [(0.0, "online"), (1.0, "start")])
def test_momentum_at_its_ends(make_encoder, batch, momentum, which):
    """0 copies the online network, 1 leaves the target as it was; both exactly."""
    objective = objective_of(make_encoder("bert"), momentum=momentum).train()
    start = copy.deepcopy(objective.target.state_dict())
    engine = TorchEngine(objective, adam_optimizer(objective, 0.0))
    for _ in range(3):
        engine.update(batch, 1e-3)
    wanted = start if which == "start" else objective.online.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in objective.target.state_dict().items())
    assert any(not torch.equal(value, start[name]) for name, value in objective.online.state_dict().items())


def test_the_average_stays_in_full_precision_beside_a_half_precision_encoder(make_encoder):
    objective = objective_of(make_encoder("bert").bfloat16(), momentum=0.999)
    weight = next(p for p in objective.target.parameters() if p.ndim == 2)
    before = weight.clone()
    with torch.no_grad():
        for parameter in objective.online.parameters():
            parameter.add_(1.0)
    objective.after_update()
    assert weight.dtype == torch.float32
    assert (weight - before).min() > 0.0009 and (weight - before).max() < 0.0011


def test_only_the_encoder_is_kept(make_encoder):
    objective = objective_of(make_encoder("bert"))
    assert objective.candidates() == {"encoder": objective.online}


@pytest.mark.parametrize(
    ("predictor", "width", "count"),
    [
        # d -> kd -> kd -> d with biases, and two numbers per normalised channel.
        ("paper", 32, (32 * 256 + 256) + (256 * 256 + 256) + (256 * 32 + 32) + 2 * 2 * 256),
        ("released", 32, 3 * ((32 * 320 + 320) + (320 * 320 + 320) + (320 * 32 + 32) + 2 * 320)),
        ("none", 32, 0),
        ("paper", 768, pytest.approx(47.2e6, abs=1e5)),
        ("released", 768, pytest.approx(212.4e6, abs=1e5)),
    ],
)
def test_predictors_have_the_published_sizes(predictor, width, count):
    with torch.device("meta"):
        made = make_predictor(BslConfig(predictor=predictor), width)
    assert sum(p.numel() for p in made.parameters()) == count


@pytest.mark.parametrize("momentum", [0.999, 0.9])
def test_the_average_has_its_closed_form_after_100_updates(make_encoder, momentum):
    """Single precision; increments of a thousandth must not be lost."""
    objective = objective_of(make_encoder("bert"), momentum=momentum)
    generator = torch.Generator().manual_seed(0)
    name, weight = next((n, p) for n, p in objective.online.named_parameters() if p.ndim == 2)
    expected = weight.detach().double().clone() * momentum**100
    for step in range(100):
        with torch.no_grad():
            weight.add_(0.01 * torch.randn(weight.shape, generator=generator))
        objective.after_update()
        expected += (1 - momentum) * momentum ** (99 - step) * weight.detach().double()
    target = dict(objective.target.named_parameters())[name]
    assert target.dtype == torch.float32
    torch.testing.assert_close(target.double(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_is_on_in_both_networks_or_in_none_and_the_predictor_always_trains(make_encoder, dropout):
    objective = objective_of(make_encoder("bert"), dropout=dropout).train()
    assert objective.predictor.training
    assert objective.online.training == objective.target.training == dropout
    objective.eval()
    assert not any(module.training for module in objective.modules())


def plan(steps, **options):
    return Plan(steps=steps, learning_rate=lambda step: 1e-3 / (step + 1), seed=3, keep="encoder", **options)


def test_the_loss_falls_and_the_spread_is_logged_from_the_first_update(make_encoder, make_table):
    table = make_table(8, seed=0)
    one = pack(TokenTable.concatenate([table, table]))
    objective = objective_of(make_encoder("bert"), momentum=0.99)
    engine = TorchEngine(objective, adam_optimizer(objective, 0.0))
    history = Run(objective, lambda step: one, plan(30, log_every=10), engine).train().history
    assert [entry["step"] for entry in history] == [1, 10, 20, 30]
    assert history[-1]["loss"] < history[0]["loss"] < 0.5
    assert all(0 <= entry["spread"] <= 1.01 and 0 <= entry["directions"] <= 7.01 for entry in history)

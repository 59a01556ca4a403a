"""Contrastive Tension against a plain loop: one sentence at a time, the optimizer written out."""

import copy
import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch

from raysed.config import MembersConfig
from raysed.data.tokens import FlatTokens
from raysed.model.encoding import encode
from raysed.train.engine import TorchEngine
from raysed.train.loop import Run
from raysed.train.selection import Selection
from raysed.train.stage import Plan, Start
from raysed.train.stages.ct import (
    STAGE,
    ContrastiveTension,
    CtConfig,
    PairSampler,
)

UPDATES = 20
CONFIG = CtConfig(
    steps=UPDATES, groups=2, negatives=7, boundaries=[3, 8, 12, 16], learning_rates=[1e-4, 8e-5, 6e-5, 4e-5, 2e-5]
)


def rate_of(step: int) -> float:
    """The paper's five rates, changed after updates 3, 8, 12 and 16."""
    if step <= 3:
        return 1e-4
    if step <= 8:
        return 8e-5
    if step <= 12:
        return 6e-5
    return 4e-5 if step <= 16 else 2e-5


def mean_of_last_layer(transformer, tokens: list[int]) -> torch.Tensor:
    """Padded by five places that the mask hides."""
    mask = torch.tensor([[1] * len(tokens) + [0] * 5])
    states = transformer(input_ids=torch.tensor([tokens + [0] * 5]), attention_mask=mask).last_hidden_state[0]
    return states[: len(tokens)].sum(0) / len(tokens)


def plain_loss(models, sentences, first, second) -> torch.Tensor:
    """-log of the probability of the right answer, for 2 groups of a positive pair and 7 negative ones."""
    total = torch.zeros(())
    for place, (a, b) in enumerate(zip(first, second)):
        x, y = mean_of_last_layer(models[0], sentences[a]), mean_of_last_layer(models[1], sentences[b])
        logit = (x * y).sum()
        probability = torch.sigmoid(logit if place % 8 == 0 else -logit)
        total = total - torch.log(probability)
    return total / 16


def plain_training(transformer, sentences, sampler) -> tuple[list, list[float]]:
    """Two models, RMSprop as TensorFlow has it, in float64."""
    models = [copy.deepcopy(transformer).double().eval() for _ in range(2)]
    parameters = [p for model in models for name, p in model.named_parameters() if "pooler" not in name]
    squares = [torch.zeros_like(p) for p in parameters]
    losses = []
    for step in range(UPDATES):
        loss = plain_loss(models, sentences, *sampler.rows(step))
        gradients = torch.autograd.grad(loss, parameters)
        losses.append(loss.item())
        with torch.no_grad():
            for parameter, square, gradient in zip(parameters, squares, gradients):
                square.copy_(0.9 * square + 0.1 * gradient**2)
                parameter.sub_(rate_of(step) * gradient / (square.sqrt() + 1e-7))
    return models, losses


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_training_equals_the_plain_loop(make_encoder, make_table, dtype, tolerance):
    """Every loss and every weight of both models; the weights move a hundred times further than they may differ."""
    encoder, table = make_encoder("bert", layers=2).to(dtype), make_table(50, longest=12)
    # Smaller outputs: with logits of a hundred the loss would be all rounding.
    with torch.no_grad():
        encoder.transformer.encoder.layer[-1].output.LayerNorm.weight.mul_(0.2)
    start = copy.deepcopy(encoder.transformer)
    sentences = [table.input_ids[a:b].tolist() for a, b in zip(table.offsets, table.offsets[1:])]
    sampler = PairSampler(table, CONFIG, seed=11)
    models, losses = plain_training(start, sentences, sampler)

    objective, found = ContrastiveTension(encoder), []
    engine = TorchEngine(objective, STAGE.optimizer(CONFIG, objective))
    plan = Plan(UPDATES, STAGE.schedule(CONFIG, UPDATES), log_every=1, keep="second")
    Run(objective, sampler, plan, engine, on_metrics=lambda entry: found.append(entry["loss"])).train()

    np.testing.assert_allclose(found, losses, rtol=0, atol=tolerance)
    assert losses[-1] < losses[0]
    moved = []
    for side, model in zip((objective.first, objective.second), models):
        for (name, expected), original in zip(model.named_parameters(), start.parameters()):
            weights = side.transformer.get_parameter(name)
            # Attention does not depend on the key's bias, so in float32 its gradient is rounding and nothing else.
            if dtype == torch.float64 or "key.bias" not in name:
                torch.testing.assert_close(weights.double(), expected, rtol=0, atol=tolerance, msg=name)
            moved.append((expected - original).abs().max().item())
    assert np.median(moved) > 1e-3
    assert not torch.equal(
        objective.first.transformer.embeddings.word_embeddings.weight, models[1].embeddings.word_embeddings.weight
    )


def test_the_second_model_is_the_one_given(make_encoder):
    """Both start equal, and both are trained: only the poolers are left alone."""
    encoder = make_encoder("bert")
    objective = ContrastiveTension(encoder)
    assert objective.second is encoder and list(objective.candidates()) == ["first", "second"]
    assert all(torch.equal(a, b) for a, b in zip(objective.first.parameters(), encoder.parameters()))
    optimized = {id(p) for group in STAGE.optimizer(CONFIG, objective).param_groups for p in group["params"]}
    left = [name for name, p in objective.named_parameters() if id(p) not in optimized]
    assert len(left) == 4 and all("pooler" in name for name in left)


def test_the_loss_takes_dot_products_and_their_mean(make_encoder, make_table):
    """Not cosines: with embeddings that are twice as long the logits are four times as large."""
    objective, batch = ContrastiveTension(make_encoder("bert")), PairSampler(make_table(30), CONFIG, seed=0)(0)
    a_PD, b_PD = (side(tokens) for side, tokens in zip(objective.encoders(), (batch.first, batch.second)))
    logits_P = (a_PD * b_PD).sum(1)
    for factor in (0.1, 0.2):
        for side in objective.encoders():
            side.set_head(factor * np.eye(side.width, dtype=np.float32))
        expected = torch.log1p(torch.exp(torch.where(batch.labels == 1, -1, 1) * factor**2 * logits_P)).mean()
        torch.testing.assert_close(objective.loss(batch), expected)


def test_the_loss_is_in_full_precision_under_autocast(make_encoder, make_table):
    """What the two models give is in bf16; the products and the cross entropy of it are not."""
    batch = PairSampler(make_table(30), CONFIG, 0)(0)
    objective = STAGE.objective(CONFIG, Start(make_encoder("bert"), None, {}, 0))
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective.loss(batch)
        x_BD, y_BD = (
            model(tokens).double() for model, tokens in zip(objective.encoders(), (batch.first, batch.second))
        )
    signs = torch.where(batch.labels == 1, -1, 1)
    expected = torch.nn.functional.softplus(signs * (x_BD * y_BD).sum(1)).mean()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "batch"), [({}, 16), ({"dropout": True}, 16), ({"groups": 3, "negatives": 1, "dropout": False}, 6)]
)
def test_the_settings_are_followed(make_encoder, make_table, monkeypatch, settings, batch):
    encoder, table = make_encoder("bert"), make_table(30)
    monkeypatch.setattr("raysed.data.tokens.read_tokens", lambda path: table)
    config = CtConfig(**settings)
    starts = [Start(encoder, None, {"corpus": None}, seed) for seed in (4, 5)]
    objective, batch_at = STAGE.objective(config, starts[0]), STAGE.batches(config, starts[0])
    assert objective.second is encoder
    objective.train()
    assert objective.first.training is objective.second.training is settings.get("dropout", False)
    found = batch_at(2)
    assert len(found.labels) == batch
    other = STAGE.batches(config, starts[1])(2)
    assert found.ids.tolist() == batch_at(2).ids.tolist() != other.ids.tolist()
    optimized = {id(p) for group in STAGE.optimizer(CONFIG, objective).param_groups for p in group["params"]}
    assert optimized == {id(p) for p in objective.parameters() if p.requires_grad}


# -- sampling --------------------------------------------------------------------------------------------------------


def test_a_group_is_one_positive_pair_and_independent_negatives(make_table):
    """15 sentences per group of the default settings: no negative shares a sentence with the positive one."""
    table = make_table(100_000, longest=4)
    config = CtConfig()
    batch = PairSampler(table, config, seed=3)(0)
    first, second = (ids.reshape(2, 8) for ids in (batch.first.ids, batch.second.ids))
    for a, b in zip(first, second):
        assert a[0] == b[0]
        assert len({*a, *b}) == 15  # of 100,000, so that chance repeats none
    assert batch.labels.tolist() == [1.0, *[0.0] * 7] * 2
    assert len(batch.first) == len(batch.second) == 16
    assert batch.ids.tolist() == [*batch.first.ids, *batch.second.ids]


def test_draws_are_uniform_with_replacement_and_independent(make_table):
    """Chi-square over every place of a batch; pairs that are equal by chance are not avoided."""
    size, steps = 20, 4000
    sampler = PairSampler(make_table(size), CONFIG, seed=1)
    first, second = (np.stack(side) for side in zip(*(sampler.rows(step) for step in range(steps))))
    free = np.concatenate([first, np.delete(second, [0, 8], axis=1)], axis=1)  # 30 draws per batch
    counts = np.stack([np.bincount(column, minlength=size) for column in free.T])
    chi2 = ((counts - steps / size) ** 2 / (steps / size)).sum(1)
    assert chi2.max() < 55 and 15 < chi2.mean() < 23  # 19 degrees of freedom: mean 19, 1 in 40,000 beyond 55
    same = [float((free[:, a] == free[:, b]).mean()) for a in range(30) for b in range(a)]
    assert max(abs(share - 1 / size) for share in same) < 5 * math.sqrt(0.05 * 0.95 / steps)
    assert Counter(len(set(row)) for row in free)[30] == 0  # 30 draws of 20 rows: with replacement


def test_a_batch_is_a_function_of_seed_and_step(make_table):
    table = make_table(200)
    rows = {(seed, step): PairSampler(table, CONFIG, seed).rows(step) for seed in (0, 1, 2**61) for step in (0, 1, 500)}
    again = PairSampler(table, CONFIG, 2**61)
    again.rows(3)
    for step in (500, 0):
        assert all(np.array_equal(a, b) for a, b in zip(again.rows(step), rows[2**61, step]))
    assert len({first.tobytes() for first, _ in rows.values()}) == len(rows)


def test_batches_hold_the_tokens_of_their_rows(make_table):
    table = make_table(40)
    sampler = PairSampler(table, CONFIG, seed=3)
    batch = sampler(5)
    for side, rows in zip((batch.first, batch.second), sampler.rows(5)):
        assert side.ids.tolist() == table.ids[rows].tolist()
        for place, row in enumerate(rows):
            wanted = table.input_ids[table.offsets[row] : table.offsets[row + 1]]
            assert side.input_ids[side.segments == place].tolist() == wanted.tolist()


@pytest.mark.parametrize(("groups", "negatives"), [(1, 1), (3, 2), (2, 7)])
def test_other_shapes_of_batches(make_table, groups, negatives):
    sampler = PairSampler(make_table(30), CtConfig(groups=groups, negatives=negatives), seed=0)
    first, second = (side.reshape(groups, 1 + negatives) for side in sampler.rows(0))
    assert (first[:, 0] == second[:, 0]).all()
    labels = sampler(0).labels.reshape(groups, 1 + negatives)
    assert labels[:, 0].all() and not labels[:, 1:].any()


# -- schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [50_000, 300, 2_001])
def test_boundaries_belong_to_the_rate_before(steps):
    """501 updates at the first rate, 500 at each of the next three, and the rest at the last, whatever `steps` is."""
    rate = STAGE.schedule(CtConfig(steps=steps), steps)
    counts = Counter(rate(step) for step in range(50_000))
    assert counts == {1e-5: 501, 8e-6: 500, 6e-6: 500, 4e-6: 500, 2e-6: 47_999}


@pytest.mark.parametrize("steps", [5, 17, 500, 50_000])
def test_a_scaled_schedule_gives_a_fifth_to_each_rate(steps):
    config = CtConfig(steps=steps, schedule="scaled")
    rates = [STAGE.schedule(config, steps)(step) for step in range(steps)]
    assert rates == sorted(rates, reverse=True)
    counts = [rates.count(rate) for rate in config.learning_rates]
    assert sum(counts) == steps and all(abs(count - steps / 5) <= 2 for count in counts)


# -- through the loop ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "scores", "kept"),
    [
        ("second", [9.0, 5.0, 1.0], ("second", 20, 1.0)),
        ("best", [9.0, 3.0, 9.5, 4.0, 2.0, 1.0], ("first", 16, 9.5)),  # both models at updates 8, 16 and 20
    ],
)
def test_second_is_kept_as_trained_to_the_end_or_the_better_at_its_best(make_encoder, make_table, keep, scores, kept):
    objective, asked = ContrastiveTension(make_encoder("bert", layers=1)), iter(scores)
    plan = Plan(UPDATES, STAGE.schedule(CONFIG, UPDATES), evaluate_every=8, keep=keep)
    engine = TorchEngine(objective, STAGE.optimizer(CONFIG, objective))
    result = Run(
        objective, PairSampler(make_table(50), CONFIG, 2), plan, engine, evaluate=lambda _: next(asked)
    ).train()
    assert (result.kept, result.kept_step, result.score) == kept and not list(asked)


@pytest.mark.parametrize("spread_out", ["first", "second"])
def test_without_labels_the_model_is_kept_that_spreads_sentences_more(make_encoder, make_table, tmp_path, spread_out):
    """By the cosines of all pairs of a sample, in a plain loop."""
    flat = FlatTokens(tmp_path)
    flat.add(make_table(40, longest=9))
    flat.close()
    settings, encoder = CtConfig(steps=3, schedule="scaled"), make_encoder("bert", layers=1)
    run = STAGE.set_up(settings, MembersConfig(), Start(encoder, None, {"corpus": tmp_path}, 5))
    assert STAGE.keeps(settings, has_dev=True) == "best_on_dev" and run.plan.keep == "isotropic"
    other = run.objective.candidates()["second" if spread_out == "first" else "first"]
    with torch.no_grad():  # one offset for all sentences
        other.transformer.encoder.layer[-1].output.LayerNorm.bias += 3
    result = run.train()
    means = {}
    for name, trained in run.objective.candidates().items():
        vectors = encode(trained, run.plan.sample)[0].tolist()
        products = [
            sum(map(math.prod, zip(x, y))) / math.hypot(*x) / math.hypot(*y) for x, y in combinations(vectors, 2)
        ]
        means[name] = sum(products) / len(products)
        assert Selection(run.objective, run.plan, None)._mean_cosine(trained) == pytest.approx(means[name], abs=1e-6)
    assert (result.kept, result.kept_step) == (min(means, key=means.get), 3) == (spread_out, 3)
    assert len(run.plan.sample) > 30

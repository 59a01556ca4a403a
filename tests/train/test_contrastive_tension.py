"""Contrastive Tension against a plain loop: one sentence at a time, the optimizer written out."""

import copy
import math
import statistics
from collections import Counter
from contextlib import closing
from itertools import combinations

import numpy as np
import pytest
import torch

from raysed.config import MembersConfig
from raysed.data.tokens import FlatTokens
from raysed.model.encoding import encode
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.setup import set_up
from raysed.train.stage import Start, TrainingPlan
from raysed.train.stages.ct import STAGE, ContrastiveTension, CtConfig, PairSampler

UPDATES = 20
CONFIG = CtConfig(
    steps=UPDATES, groups=2, negatives=7, boundaries=[3, 8, 12, 16], learning_rates=[1e-4, 8e-5, 6e-5, 4e-5, 2e-5]
)
# One rate per update: they change after updates 3, 8, 12 and 16, counted from 0.
RATES = [1e-4] * 4 + [8e-5] * 5 + [6e-5] * 4 + [4e-5] * 4 + [2e-5] * 3


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
    """Two models, and RMSprop as TensorFlow has it."""
    models = [copy.deepcopy(transformer).eval() for _ in range(2)]
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
                parameter.sub_(RATES[step] * gradient / (square.sqrt() + 1e-7))
    return models, losses


def test_training_equals_the_plain_loop(make_encoder, make_table):
    """Every loss and every weight of both models; the given encoder becomes the second."""
    encoder, table = make_encoder("bert", layers=2).double(), make_table(50, longest=12)
    # Smaller outputs: with logits of a hundred the loss would be all rounding.
    with torch.no_grad():
        encoder.transformer.encoder.layer[-1].output.LayerNorm.weight.mul_(0.2)
    start = copy.deepcopy(encoder.transformer)
    sentences = [table.input_ids[a:b].tolist() for a, b in zip(table.offsets, table.offsets[1:])]
    sampler = PairSampler(table, CONFIG, seed=11)
    models, losses = plain_training(start, sentences, sampler)

    objective, found = ContrastiveTension(encoder), []
    engine = TorchEngine(objective, STAGE.optimizer(CONFIG, objective))
    plan = TrainingPlan(UPDATES, STAGE.schedule(CONFIG, UPDATES), log_every=1, keep="second")
    TrainingLoop(objective, sampler, plan, engine, on_metrics=lambda entry: found.append(entry["loss"])).train()

    np.testing.assert_allclose(found, losses, rtol=0, atol=1e-9)
    assert losses[-1] < losses[0] and objective.second is encoder
    moved = []
    for side, model in zip((objective.first, objective.second), models):
        for (name, expected), original in zip(model.named_parameters(), start.parameters()):
            weights = side.transformer.get_parameter(name)
            torch.testing.assert_close(weights, expected, rtol=0, atol=1e-9, msg=name)
            moved.append((expected - original).abs().max().item())
    assert np.median(moved) > 1e-3
    first, second = (model.get_input_embeddings().weight for model in models)
    assert not torch.equal(first, second)


def test_the_loss_is_in_full_precision_under_autocast(make_encoder, make_table):
    """What the two models give is in bf16; the products and the cross entropy of it are not."""
    batch, objective = PairSampler(make_table(30), CONFIG, 0)(0), ContrastiveTension(make_encoder("bert"))
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective.loss(batch)
        x_BD, y_BD = objective.first(batch.first).double(), objective.second(batch.second).double()
    signs = torch.where(batch.labels == 1, -1, 1)
    expected = torch.nn.functional.softplus(signs * (x_BD * y_BD).sum(1)).mean()
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)


# -- sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("groups", "negatives"), [(2, 7), (3, 1)])
def test_a_group_is_one_positive_pair_and_independent_negatives(make_table, groups, negatives):
    """No negative shares a sentence with the positive pair: 15 sentences per group of the default settings."""
    sampler = PairSampler(make_table(100_000, longest=4), CtConfig(groups=groups, negatives=negatives), seed=3)
    batch = sampler(0)
    for a, b in zip(*(side.ids.reshape(groups, 1 + negatives) for side in (batch.first, batch.second))):
        assert a[0] == b[0]
        assert len({*a, *b}) == 1 + 2 * negatives  # of 100,000, so that chance repeats none
    assert batch.labels.tolist() == [1.0, *[0.0] * negatives] * groups
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


def test_a_batch_is_a_function_of_seed_and_step(make_table):
    table = make_table(200)
    rows = {(seed, step): PairSampler(table, CONFIG, seed).rows(step) for seed in (0, 1, 2**61) for step in (0, 1, 500)}
    again = PairSampler(table, CONFIG, 2**61)
    for step in (500, 0):
        assert all(np.array_equal(a, b) for a, b in zip(again.rows(step), rows[2**61, step]))
    assert len({first.tobytes() for first, _ in rows.values()}) == len(rows)


# -- schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [300, 50_000])
def test_boundaries_belong_to_the_rate_before(steps):
    """501 updates at the first rate, 500 at each of the next three, and the rest at the last, whatever `steps` is."""
    counts = Counter(map(STAGE.schedule(CtConfig(steps=steps), steps), range(50_000)))
    assert counts == {1e-5: 501, 8e-6: 500, 6e-6: 500, 4e-6: 500, 2e-6: 47_999}


@pytest.mark.parametrize("steps", [5, 17, 500])
def test_a_scaled_schedule_gives_a_fifth_to_each_rate(steps):
    config = CtConfig(steps=steps, schedule="scaled")
    rates = list(map(STAGE.schedule(config, steps), range(steps)))
    assert rates == sorted(rates, reverse=True)
    counts = [rates.count(rate) for rate in config.learning_rates]
    assert sum(counts) == steps and all(abs(count - steps / 5) <= 2 for count in counts)


# -- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["first", "second"])
def test_without_labels_the_model_is_kept_that_changed_cosines_less(make_encoder, make_table, tmp_path, kept):
    """By those of all pairs of a sample, in a plain loop; an offset that all sentences share counts little."""
    with closing(FlatTokens(tmp_path)) as flat:
        flat.add(make_table(40, longest=9))
    settings, start = CtConfig(steps=3), Start(make_encoder("bert", layers=1), None, {"corpus": tmp_path}, 5)
    assert STAGE.keeps(settings, has_dev=True) == "best_on_dev"
    assert set_up(STAGE, CtConfig(copy="best_on_dev"), MembersConfig(), start).plan.keep == "best"
    run = set_up(STAGE, settings, MembersConfig(), start)
    models = run.objective.candidates()
    before, likeness = cosines(models["first"], run.plan.sample), {}
    with torch.no_grad():
        models[kept].transformer.encoder.layer[-1].output.LayerNorm.bias += 3
        other = models["second" if kept == "first" else "first"].transformer.encoder.layer[-1].output.LayerNorm
        other.weight *= torch.linspace(0, 2, len(other.weight))
    result = run.train()
    for name, model in models.items():
        likeness[name] = statistics.correlation(cosines(model, run.plan.sample), before)
    assert (result.kept, result.kept_step) == (max(likeness, key=likeness.get), 3) == (kept, 3)
    assert len(run.plan.sample) > 30


def cosines(model, sample) -> list[float]:
    rows = encode(model, sample)[0].tolist()
    mean = [statistics.fmean(column) for column in zip(*rows)]
    pairs = combinations([[value - offset for value, offset in zip(row, mean)] for row in rows], 2)
    return [sum(map(math.prod, zip(x, y))) / math.hypot(*x) / math.hypot(*y) for x, y in pairs]

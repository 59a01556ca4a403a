"""Contrastive Tension against a plain loop: one sentence at a time, the optimizer written out."""

import copy
import math
import statistics
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch

from raysed.model.encoding import encode
from raysed.train.engine import TorchEngine
from raysed.train.stages.ct import STAGE, ContrastiveTension, CtConfig, PairSampler

CONFIG = CtConfig(steps=20, groups=2, negatives=7)


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


def test_an_update_equals_the_plain_one(make_encoder, make_table):
    """The loss and every weight of both models, by RMSprop as TensorFlow has it; the given encoder is the second."""
    encoder, table = make_encoder("bert", layers=2).double(), make_table(50, longest=12)
    # Smaller outputs: with logits of a hundred the loss would be all rounding.
    with torch.no_grad():
        encoder.transformer.encoder.layer[-1].output.LayerNorm.weight.mul_(0.2)
    models = [copy.deepcopy(encoder.transformer).eval() for _ in range(2)]
    sentences = [table.input_ids[a:b].tolist() for a, b in zip(table.offsets, table.offsets[1:])]
    sampler = PairSampler(table, CONFIG, seed=11)
    expected = plain_loss(models, sentences, *sampler.rows(0))
    expected.backward()

    objective = ContrastiveTension(encoder)
    assert objective.second is encoder
    loss = TorchEngine(objective, STAGE.optimizer(CONFIG, objective)).update(sampler(0), 1e-3)
    assert loss == pytest.approx(expected.item(), abs=1e-9)
    for side, model in zip((objective.first, objective.second), models):
        for name, start in model.named_parameters():
            if start.grad is not None:
                wanted = start - 1e-3 * start.grad / ((0.1 * start.grad**2).sqrt() + 1e-7)
                found = side.transformer.get_parameter(name)
                torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8, msg=name)


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


# -- schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [300, 50_000])
def test_boundaries_belong_to_the_rate_before(steps):
    """501 updates at the first rate, 500 at each of the next three, and the rest at the last, whatever `steps` is."""
    counts = Counter(map(STAGE.schedule(CtConfig(steps=steps), steps), range(50_000)))
    assert counts == {1e-5: 501, 8e-6: 500, 6e-6: 500, 4e-6: 500, 2e-6: 47_999}


# -- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["first", "second"])
def test_without_labels_the_model_is_kept_that_changed_cosines_less(setup, kept):
    """By those of all pairs of a sample, in a plain loop; an offset that all sentences share counts little."""
    assert STAGE.keeps(CtConfig(), has_dev=True) == "best_on_dev"
    assert setup("ct", copy="best_on_dev").plan.keep == "best"
    run = setup("ct")
    models = run.objective.candidates()
    before, likeness = cosines(models["first"], run.plan.sample), {}
    with torch.no_grad():
        models[kept].transformer.encoder.layer[-1].output.LayerNorm.bias += 3
        other = models["second" if kept == "first" else "first"].transformer.encoder.layer[-1].output.LayerNorm
        other.weight *= torch.linspace(0, 2, len(other.weight))
    result = run.train()
    for name, model in models.items():
        likeness[name] = statistics.correlation(cosines(model, run.plan.sample), before)
    assert (result.kept, result.kept_step) == (max(likeness, key=likeness.get), 8) == (kept, 8)
    assert len(run.plan.sample) > 30


def cosines(model, sample) -> list[float]:
    rows = encode(model, sample)[0].tolist()
    mean = [statistics.fmean(column) for column in zip(*rows)]
    pairs = combinations([[value - offset for value, offset in zip(row, mean)] for row in rows], 2)
    return [sum(map(math.prod, zip(x, y))) / math.hypot(*x) / math.hypot(*y) for x, y in pairs]

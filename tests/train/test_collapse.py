"""The watch for collapse: its numbers against plain sums, and what it says of good and bad trainings."""

import math

import numpy as np
import pytest
import torch

from raysed.data.tokens import TokenTable, pack
from raysed.train.collapse import collapse, spread_of
from raysed.train.engine import TorchEngine
from raysed.train.loop import Run
from raysed.train.optimizers import adam_optimizer
from raysed.train.stage import Plan
from raysed.train.stages.bsl import Bootstrap, BslConfig, make_predictor


def unit(row):
    norm = math.sqrt(sum(x * x for x in row))
    return [x / norm for x in row]


@pytest.mark.parametrize("seed", range(5))
def test_numbers_equal_plain_sums(seed):
    generator = np.random.default_rng(seed)
    matrix = generator.normal(size=(7, 5)) + generator.normal(size=5)
    rows = [unit(row) for row in matrix.tolist()]
    pairs = [(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    cosine = sum(sum(x * y for x, y in zip(a, b)) for a, b in pairs) / len(pairs)
    deviations = [np.std([row[d] for row in rows]) for d in range(5)]
    found = spread_of(torch.tensor(matrix))
    assert found["cosine"] == pytest.approx(cosine, abs=1e-5)
    assert found["spread"] == pytest.approx(sum(deviations) / 5 * math.sqrt(5), abs=1e-5)
    variances = np.linalg.eigvalsh(np.cov(np.array(rows).T))
    assert found["directions"] == pytest.approx(variances.sum() ** 2 / (variances**2).sum(), abs=1e-4)


def history(*spreads, directions=None):
    return [
        {"step": i, "spread": value, "directions": (directions or [9.0] * 9)[i], "cosine": 1 - value}
        for i, value in enumerate(spreads)
    ]


def test_what_counts_as_collapsed():
    assert "the spread of the embeddings fell from 0.80 to 0.02 (" in collapse(history(0.8, 0.4, *[0.02] * 5))
    flat = history(*[0.5] * 6, directions=[11.0, *[1.5] * 5])
    assert "the number of directions of the embeddings fell from 11.00 to 1.50 (" in collapse(flat)
    assert collapse(history(0.8, 0.02, *[0.7] * 5)) is None, "it has recovered"
    assert collapse(history(0.1, *[0.09] * 5)) is None, "some encoders start narrow"
    assert collapse([{"step": 1, "loss": 2.0}]) is None, "not watched"
    assert collapse([]) is None


def trained(make_encoder, make_table, momentum, predictor):
    """Some updates on pairs of equal sentences at a high rate."""
    table = make_table(32, seed=0)
    encoder = make_encoder("bert")
    torch.manual_seed(0)
    head = make_predictor(BslConfig(predictor=predictor, expansion=4), encoder.width)
    objective = Bootstrap(encoder, head, momentum, squared=False, dropout=True)
    engine = TorchEngine(objective, adam_optimizer(objective, 0.0), clip=1.0)
    views = pack(TokenTable.concatenate([table, make_table(32, seed=1)]))
    plan = Plan(steps=80, learning_rate=lambda step: 2e-3, keep="encoder", log_every=5)
    return Run(objective, lambda step: views, plan, engine).train().history


def test_a_missing_predictor_collapses_and_is_noticed(make_encoder, make_table):
    reason = collapse(trained(make_encoder, make_table, 0.0, "none"))
    assert reason is not None and reason.startswith("collapsed: the spread of the embeddings fell from ")


def test_the_paper_s_predictor_and_momentum_do_not(make_encoder, make_table):
    assert collapse(trained(make_encoder, make_table, 0.999, "paper")) is None

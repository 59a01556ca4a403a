"""The watch for collapse: its numbers against plain sums, and what it says of good and bad trainings."""

import math

import numpy as np
import pytest
import torch

from raysed.data.tokens import TokenTable, pack
from raysed.train.collapse import collapse, spread_of
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.optimizers import adam_optimizer
from raysed.train.stage import TrainingPlan
from raysed.train.stages.bsl import Bootstrap, BslConfig, make_predictor


def test_numbers_equal_plain_sums():
    generator = np.random.default_rng(0)
    matrix = generator.normal(size=(7, 5)) + generator.normal(size=5)
    rows = [[x / math.hypot(*row) for x in row] for row in matrix.tolist()]
    pairs = [(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
    cosine = sum(sum(x * y for x, y in zip(a, b)) for a, b in pairs) / len(pairs)
    deviations = [np.std([row[d] for row in rows]) for d in range(5)]
    variances = np.linalg.eigvalsh(np.cov(np.array(rows).T))
    assert spread_of(torch.tensor(matrix)) == {
        "cosine": pytest.approx(cosine, abs=1e-5),
        "spread": pytest.approx(sum(deviations) / 5 * math.sqrt(5), abs=1e-5),
        "directions": pytest.approx(variances.sum() ** 2 / (variances**2).sum(), abs=1e-4),
    }


def history(*spreads, directions=(9.0,) * 9):
    return [{"spread": spread, "directions": count, "cosine": 0} for spread, count in zip(spreads, directions)]


def test_what_counts_as_collapsed():
    assert "the spread of the embeddings fell from 0.80 to 0.02 (" in collapse(history(0.8, 0.4, *[0.02] * 5))
    flat = history(*[0.5] * 6, directions=[11.0, *[1.5] * 5])
    assert "the number of directions of the embeddings fell from 11.00 to 1.50 (" in collapse(flat)
    assert collapse(history(0.8, 0.02, *[0.7] * 5)) is None, "it has recovered"
    assert collapse(history(0.1, *[0.09] * 5)) is None, "some encoders start narrow"
    assert collapse([{"step": 1, "loss": 2.0}]) is None, "not watched"


@pytest.mark.parametrize(("momentum", "predictor", "collapses"), [(0.0, "none", True), (0.999, "paper", False)])
def test_a_missing_predictor_collapses_and_is_noticed(make_encoder, make_table, momentum, predictor, collapses):
    encoder, table = make_encoder("bert"), TokenTable.concatenate([make_table(32, seed=seed) for seed in (0, 1)])
    torch.manual_seed(0)
    head = make_predictor(BslConfig(predictor=predictor, expansion=4), encoder.width)
    objective = Bootstrap(encoder, head, momentum, squared=False, dropout=True)
    engine = TorchEngine(objective, adam_optimizer(objective, 0.0), clip=1.0)
    plan = TrainingPlan(steps=40, learning_rate=lambda step: 2e-3, keep="encoder", log_every=5)
    found = TrainingLoop(objective, lambda step: pack(table), plan, engine).train().history
    assert [entry["step"] for entry in found] == [1, *range(5, 45, 5)], "watched from the first update"
    assert (collapse(found) or "").startswith("collapsed: the spread of the embeddings fell from ") is collapses

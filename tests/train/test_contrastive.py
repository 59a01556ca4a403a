"""In-batch contrastive learning against plain sums over pairs."""

import math

import pytest
import torch

from raysed.data.tokens import pack
from raysed.train.stages.contrastive import Contrastive


class Fixed(torch.nn.Module):
    """An encoder whose embeddings are given."""

    def __init__(self, embeddings):
        super().__init__()
        self.transformer = torch.nn.Linear(1, 1)
        self.transformer.device = torch.device("cpu")
        self.embeddings = torch.nn.Parameter(embeddings.clone())

    def forward(self, tokens):
        return self.embeddings


@pytest.fixture
def batch(make_table):
    return pack(make_table(8))


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)


def plain_loss(first, second, temperature, both_views):
    """Every searching view against its candidates, one after the other."""
    everything, losses = [*first, *second], []
    for place, view in enumerate(everything if both_views else first):
        own = (place + len(first)) % len(everything)
        candidates = range(len(everything)) if both_views else range(len(first), len(everything))
        weights = {i: math.exp(cosine(view, everything[i]) / temperature) for i in candidates if i != place}
        losses.append(-math.log(weights[own] / sum(weights.values())))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("both_views", [False, True])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_loss_equals_plain_sums(batch, both_views, temperature):
    embeddings = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    rows = embeddings.tolist()
    expected = plain_loss(rows[:4], rows[4:], temperature, both_views)
    found = Contrastive(Fixed(embeddings), temperature, both_views).loss(batch)
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_measures_are_of_the_first_views(batch):
    objective = Contrastive(Fixed(torch.cat([torch.ones(4, 6), torch.randn(4, 6)])))
    objective.loss(batch)
    assert objective.measures() == pytest.approx({"spread": 0.0, "directions": 0.0, "cosine": 1.0}, abs=1e-5)

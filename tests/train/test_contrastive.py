"""In-batch contrastive learning against plain sums over pairs, and against sentence-transformers."""

import math

import pytest
import torch

from raysed.data.tokens import TokenTable, pack
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
    return pack(TokenTable.concatenate([make_table(4, seed=1), make_table(4, seed=2)]))


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def plain_loss(first, second, temperature, both_views):
    """Every searching view against its candidates, one after the other."""
    everything = [*first, *second]
    losses = []
    for place, view in enumerate(everything if both_views else first):
        own = (place + len(first)) % len(everything)
        candidates = (
            [i for i in range(len(everything)) if i != place] if both_views else range(len(first), 2 * len(first))
        )
        weights = {i: math.exp(cosine(view, everything[i]) / temperature) for i in candidates}
        losses.append(-math.log(weights[own] / sum(weights.values())))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("both_views", [False, True])
@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_loss_equals_plain_sums(batch, both_views, temperature, seed):
    embeddings = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    objective = Contrastive(Fixed(embeddings), temperature, both_views)
    rows = embeddings.double().tolist()
    expected = plain_loss(rows[:4], rows[4:], temperature, both_views)
    assert objective.loss(batch).item() == pytest.approx(expected, abs=1e-5)


def test_loss_equals_that_of_sentence_transformers(batch):
    losses = pytest.importorskip("sentence_transformers.losses")
    embeddings = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    theirs = losses.MultipleNegativesRankingLoss(torch.nn.Module(), scale=20.0)
    expected = theirs.compute_loss_from_embeddings(list(embeddings.chunk(2)), None)
    assert Contrastive(Fixed(embeddings), 0.05).loss(batch).item() == pytest.approx(expected.item(), abs=1e-5)


def test_the_same_sentence_twice_differs_by_dropout_alone(make_encoder, make_table):
    table = make_table(6, seed=3)
    batch = pack(TokenTable.concatenate([table, table]))
    with_dropout = Contrastive(make_encoder("bert")).train()
    without = Contrastive(make_encoder("bert"), dropout=False).train()
    for objective, differs in ((with_dropout, True), (without, False)):
        first, second = objective.encoder(batch).chunk(2)
        assert torch.allclose(first, second, atol=1e-5) != differs


def test_measures_are_of_the_first_views(batch):
    embeddings = torch.cat([torch.ones(4, 6), torch.randn(4, 6)])
    objective = Contrastive(Fixed(embeddings))
    objective.loss(batch)
    assert objective.measures() == pytest.approx({"spread": 0.0, "directions": 0.0, "cosine": 1.0}, abs=1e-5)

"""SentEval's regression of scores, compared with torch's own training, and tried on planted data."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from papers import regression
from papers.probes import Labelled
from papers.transfer import pair_features


def parted(data: Labelled, *sizes: int) -> list[Labelled]:
    ends = np.cumsum(sizes)
    return [data.at(np.arange(end - size, end)) for size, end in zip(sizes, ends)]


@given(st.floats(0, 5))
def test_soft_labels_are_those_of_the_definition(score):
    """One score at a time, by its whole part and the rest."""
    (label,) = regression.soft_labels(np.array([score]))
    whole = int(np.floor(score))
    grades = {whole: 1 - (score - whole), whole + 1: score - whole}
    assert label == pytest.approx([grades.get(grade, 0.0) for grade in range(1, 6)], abs=1e-6)


def pairs(rows: int, width: int = 8, seed: int = 0) -> Labelled:
    """Unit vectors whose cosine, from 0 to 1, is the score from 1 to 5."""
    rng = np.random.default_rng(seed)
    a_ND, other_ND = rng.normal(size=(2, rows, width))
    a_ND /= np.linalg.norm(a_ND, axis=1, keepdims=True)
    other_ND -= (other_ND * a_ND).sum(1, keepdims=True) * a_ND
    other_ND /= np.linalg.norm(other_ND, axis=1, keepdims=True)
    cosine_N = rng.uniform(size=rows)[:, None]
    b_ND = cosine_N * a_ND + np.sqrt(1 - cosine_N**2) * other_ND
    features_NF = pair_features(a_ND.astype(np.float32), b_ND.astype(np.float32))
    return Labelled(features_NF, 1 + 4 * cosine_N[:, 0])


def torch_regression(train: Labelled, test_ND: np.ndarray, seed: int, epochs: int) -> np.ndarray:
    """The same training by torch's own layer, loss and optimizer."""
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(train.features.shape[1], 5)
    with torch.no_grad():
        for parameter in (linear.weight, linear.bias):
            parameter.uniform_(-(linear.in_features**-0.5), linear.in_features**-0.5, generator=generator)
    optimizer = torch.optim.Adam(linear.parameters())
    x_ND, y_NG = torch.tensor(train.features), torch.from_numpy(regression.soft_labels(train.labels))
    for _ in range(epochs):
        for rows in torch.randperm(len(x_ND), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.mse_loss(linear(x_ND[rows]).softmax(dim=1), y_NG[rows]).backward()
            optimizer.step()
    return (linear(torch.tensor(test_ND)).softmax(dim=1).double() @ torch.arange(1.0, 6).double()).detach().numpy()


def test_regression_equals_torchs(monkeypatch):
    monkeypatch.setattr(regression, "_MAX_EPOCHS", 0)
    train, dev, test = parted(pairs(400), 210, 90, 100)
    predicted_N, _ = regression.regress(train, dev, test.features, seed=3)
    assert np.abs(predicted_N - torch_regression(train, test.features, 3, regression._ROUND_EPOCHS)).max() < 1e-4


@pytest.mark.parametrize(
    ("correlations", "ended", "kept"),
    [
        ([0.1, 0.3, 0.2, 0.2, 0.4, 0.2, 0.2, 0.9], 7, 5),  # the fourth miss in all ends it
        (np.linspace(0, 0.9, 100), 21, 21),  # 1,050 epochs
    ],
)
def test_regression_keeps_its_best_state_and_counts_misses_for_good(monkeypatch, correlations, ended, kept):
    script, rounds = iter(correlations), []
    monkeypatch.setattr(regression, "pearson", lambda *sides: next(script))
    monkeypatch.setattr(regression, "_round_of_epochs", lambda *arguments: rounds.append(1))
    monkeypatch.setattr(regression, "_expected_grade", lambda linear, features: np.full(len(features), len(rounds)))
    train, dev, test = parted(pairs(30), 10, 10, 10)
    predicted_N, best = regression.regress(train, dev, test.features, seed=0)
    assert len(rounds) == ended and regression._ROUND_EPOCHS == 50
    assert set(predicted_N) == {kept} and best == pytest.approx(100 * correlations[kept - 1])

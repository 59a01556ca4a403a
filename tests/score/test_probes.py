"""Linear probes, compared with plain references, and tried on data in which the answer is planted."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from torch import nn

from raysed.score import probes
from raysed.score.metrics import pearson
from raysed.score.probes import FOLD_GRID, SPLIT_GRID, Labelled


def classes(rows: int, width: int, count: int, noise: float, seed: int = 0, size: float = 1.0) -> Labelled:
    """Points around `count` centres, with an offset and columns of very different size, as embeddings have.

    The smaller `size`, the more it matters how strong the regularisation is.
    """
    rng = np.random.default_rng(seed)
    labels_N = np.arange(rows) % count
    x_ND = 3 * rng.normal(size=(count, width))[labels_N] + noise * rng.normal(size=(rows, width))
    x_ND[:, 0] = 20 + 15 * x_ND[:, 0]
    return Labelled((size * (x_ND + 5)).astype(np.float32), labels_N)


def parted(data: Labelled, *sizes: int) -> list[Labelled]:
    ends = np.cumsum(sizes)
    return [data.at(np.arange(end - size, end)) for size, end in zip(sizes, ends)]


def exact(train: Labelled, c: float) -> LogisticRegression:
    """A plain fit of the features as they are, in double precision and to the end."""
    model = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-12, max_iter=500)
    return model.fit(train.features.astype(np.float64), train.labels)


def accuracy(train: Labelled, test: Labelled, c: float) -> float:
    return 100 * np.mean(exact(train, c).predict(test.features.astype(np.float64)) == test.labels)


# -- classification --------------------------------------------------------------------------------------------------


def plain_weights(fits: probes._Fits, which: int) -> np.ndarray:
    """Weights and, last, centred intercepts, [D + 1, K]."""
    return centred(fits.weights_DFK[:, which].copy())


def centred(weights_DK: np.ndarray) -> np.ndarray:
    """Intercepts of several classes are defined up to a common shift."""
    weights_DK[-1] -= weights_DK[-1].mean() if weights_DK.shape[1] > 1 else 0
    return weights_DK


def exact_weights(train: Labelled, c: float) -> np.ndarray:
    model = exact(train, c)
    return centred(np.vstack([model.coef_.T, model.intercept_]))


def far(found: np.ndarray, expected: np.ndarray) -> float:
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("sparse", [False, True])
def test_every_fit_is_that_of_the_plain_features(count, sparse):
    """Centring, scaling, single precision, warm starts and company change how fast it is, not what it is."""
    train = classes(300, 10, count, noise=6.0, size=0.1)
    folds = probes.stratified_folds(train.labels, 1, 3)
    given = Labelled(csr_matrix(train.features), train.labels) if sparse else train
    path = probes._path(given, SPLIT_GRID, [held_out for _, held_out in folds])
    for c, fits in zip(SPLIT_GRID, path, strict=True):
        assert fits.converged
        for which, rows in enumerate([*(fit for fit, _ in folds), np.arange(300)]):
            assert far(plain_weights(fits, which), exact_weights(train.at(rows), c)) < 1e-3


@pytest.mark.parametrize("count", [2, 3])
def test_more_features_than_rows(count):
    """As pairs of wide embeddings have; correlated, with outlying columns and a wide range of sizes."""
    rng = np.random.default_rng(2)
    mix_DD = rng.normal(size=(300, 300)) * np.geomspace(3, 0.03, 300)
    x_ND = (rng.normal(size=(120, 300)) @ mix_DD / 10 + 2).astype(np.float32)
    x_ND[:, 7] *= 30
    train = Labelled(x_ND, rng.integers(0, count, 120))
    for c, fits in zip(FOLD_GRID, probes._path(train, FOLD_GRID), strict=True):
        assert fits.converged
        assert far(plain_weights(fits, -1), exact_weights(train, c)) < 5e-3


def test_memory_is_that_of_a_few_copies_however_many_folds():
    train, test = parted(classes(4200, 300, 2, noise=9.0, size=0.05), 4000, 200)
    probes.classify_by_folds(train, test.features, [1.0], 1)  # what is imported or kept
    tracemalloc.start()
    probes.classify_by_folds(train, test.features, [1.0, 2.0], 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * train.features.nbytes


@pytest.mark.parametrize("seed", range(4))
def test_c_by_folds_equals_brute_force(seed):
    train, test = parted(classes(260, 40, 2, noise=9.0, seed=seed, size=0.02), 160, 100)
    folds = probes.stratified_folds(train.labels, seed, folds=4)
    table = [
        np.mean([accuracy(train.at(fit), train.at(held_out), c) for fit, held_out in folds]).round(2) for c in FOLD_GRID
    ]
    found = probes.classify_by_folds(train, test.features, FOLD_GRID, seed, folds=4)
    assert len(set(table)) > 1, "nothing to choose"
    assert found.c == FOLD_GRID[int(np.argmax(table))]
    assert found.dev == pytest.approx(max(table))
    reference = exact(train, found.c).predict(test.features.astype(np.float64))
    assert (found.predicted == reference).mean() > 0.98


@pytest.mark.parametrize("seed", range(4))
def test_c_by_dev_equals_brute_force(seed):
    train, dev, test = parted(classes(300, 40, 3, noise=12.0, seed=seed, size=0.03), 100, 100, 100)
    table = [accuracy(train, dev, c) for c in SPLIT_GRID]
    found = probes.classify_by_dev(train, dev, test.features, SPLIT_GRID)
    assert len(set(table)) > 1, "nothing to choose"
    assert found.c == SPLIT_GRID[int(np.argmax(table))]
    assert found.dev == pytest.approx(max(table))
    assert (found.predicted == exact(train, found.c).predict(test.features.astype(np.float64))).mean() > 0.97


def test_of_equal_values_the_smallest_is_taken():
    train, dev, test = parted(classes(120, 4, 2, noise=0.01), 60, 30, 30)
    assert probes.classify_by_dev(train, dev, test.features, SPLIT_GRID).c == SPLIT_GRID[0]


def test_a_fit_that_was_cut_says_so(monkeypatch):
    monkeypatch.setattr(probes, "_MAX_ITERATIONS", 1)
    train, dev, test = parted(classes(120, 4, 2, noise=5.0), 60, 30, 30)
    assert not probes.classify_by_dev(train, dev, test.features, SPLIT_GRID).converged


def test_constant_features_do_no_harm():
    train, dev, test = parted(Labelled(np.ones((30, 3), np.float32), np.arange(30) % 2), 10, 10, 10)
    assert set(probes.classify_by_dev(train, dev, test.features, SPLIT_GRID).predicted) <= {0, 1}


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(2, 6))
def test_folds_are_stratified_disjoint_and_complete(seed, count, folds):
    rng = np.random.default_rng(seed)
    labels_N = rng.permutation(np.repeat(np.arange(count), rng.integers(folds, 40, count)))
    found = probes.stratified_folds(labels_N, seed, folds)
    assert sorted(np.concatenate([held_out for _, held_out in found])) == list(range(len(labels_N)))
    for fit, held_out in found:
        assert not set(fit) & set(held_out) and len(fit) + len(held_out) == len(labels_N)
        expected = np.bincount(labels_N, minlength=count) / folds
        assert (np.abs(np.bincount(labels_N[held_out], minlength=count) - expected) <= 1).all()


def test_folds_are_shuffled_by_the_seed():
    labels_N = np.arange(60) % 2
    first, again, other = (probes.stratified_folds(labels_N, seed)[0][1] for seed in (1, 1, 2))
    assert list(first) == list(again) != list(other)
    assert list(first) != list(range(6))


def soft_label(score: float) -> list[float]:
    """One score at a time, by its whole part and the rest."""
    whole = int(np.floor(score))
    grades = {whole: 1 - (score - whole), whole + 1: score - whole}
    return [grades.get(grade, 0.0) for grade in range(1, 6)]


@given(st.floats(0, 5))
def test_soft_labels_are_those_of_the_definition(score):
    (label,) = probes.soft_labels(np.array([score]))
    assert label == pytest.approx(soft_label(score), abs=1e-6)
    if score >= 1:
        assert label.sum() == pytest.approx(1, abs=1e-6)
        assert label @ np.arange(1, 6) == pytest.approx(score, abs=1e-5)


# -- regression ------------------------------------------------------------------------------------------------------


def pairs(rows: int, width: int = 8, seed: int = 0) -> Labelled:
    """Unit vectors whose cosine, from 0 to 1, is the score from 1 to 5."""
    rng = np.random.default_rng(seed)
    a_ND, other_ND = rng.normal(size=(2, rows, width))
    a_ND /= np.linalg.norm(a_ND, axis=1, keepdims=True)
    other_ND -= (other_ND * a_ND).sum(1, keepdims=True) * a_ND
    other_ND /= np.linalg.norm(other_ND, axis=1, keepdims=True)
    cosine_N = rng.uniform(size=rows)[:, None]
    b_ND = cosine_N * a_ND + np.sqrt(1 - cosine_N**2) * other_ND
    features_NF = probes.pair_features(a_ND.astype(np.float32), b_ND.astype(np.float32))
    return Labelled(features_NF, 1 + 4 * cosine_N[:, 0])


def test_regression_learns_a_planted_cosine():
    train, dev, test = parted(pairs(700), 400, 100, 200)
    predicted_N, best = probes.regress(train, dev, test.features, seed=0)
    assert pearson(predicted_N, test.labels) > 0.97 and best > 97
    assert predicted_N.min() >= 1 and predicted_N.max() <= 5


def torch_regression(train: Labelled, test_ND: np.ndarray, seed: int, epochs: int) -> np.ndarray:
    """The same training by torch's own layer, loss and optimizer."""
    generator = torch.Generator().manual_seed(seed)
    linear = nn.Linear(train.features.shape[1], 5)
    with torch.no_grad():
        for parameter in (linear.weight, linear.bias):
            parameter.uniform_(-(linear.in_features**-0.5), linear.in_features**-0.5, generator=generator)
    optimizer = torch.optim.Adam(linear.parameters())
    x_ND, y_NG = torch.tensor(train.features), torch.from_numpy(probes.soft_labels(train.labels))
    for _ in range(epochs):
        for rows in torch.randperm(len(x_ND), generator=generator).split(64):
            optimizer.zero_grad()
            nn.functional.mse_loss(linear(x_ND[rows]).softmax(dim=1), y_NG[rows]).backward()
            optimizer.step()
    return (linear(torch.tensor(test_ND)).softmax(dim=1).double() @ torch.arange(1.0, 6).double()).detach().numpy()


@pytest.mark.parametrize("sparse", [False, True])
def test_regression_equals_torchs(monkeypatch, sparse):
    monkeypatch.setattr(probes, "_MAX_EPOCHS", 0)
    train, dev, test = parted(pairs(400), 210, 90, 100)
    given = [Labelled(csr_matrix(data.features), data.labels) if sparse else data for data in (train, dev, test)]
    predicted_N, _ = probes.regress(*given[:2], given[2].features, seed=3)
    assert np.abs(predicted_N - torch_regression(train, test.features, 3, probes._ROUND_EPOCHS)).max() < 1e-4


def test_pairs_of_sparse_rows_have_the_features_of_dense_ones():
    a_ND, b_ND = np.random.default_rng(0).normal(size=(2, 5, 4)).round() / 2
    assert (
        probes.pair_features(csr_matrix(a_ND), csr_matrix(b_ND)).toarray() == probes.pair_features(a_ND, b_ND)
    ).all()


def test_regression_is_a_function_of_its_arguments(monkeypatch):
    monkeypatch.setattr(probes, "_MAX_EPOCHS", 100)
    train, dev, test = parted(pairs(120), 60, 30, 30)
    first = probes.regress(train, dev, test.features, seed=3)
    torch.rand(7)
    again, other = (probes.regress(train, dev, test.features, seed=seed) for seed in (3, 4))
    assert (first[0] == again[0]).all() and first[1] == again[1]
    assert (first[0] != other[0]).any()


def test_regression_keeps_its_best_state_and_counts_misses_for_good(monkeypatch):
    """Dev correlations 1, 3, 2, 2, 4, 2, 2: the fourth miss ends it, and the best, the fifth, predicts."""
    script = iter([0.1, 0.3, 0.2, 0.2, 0.4, 0.2, 0.2, 0.9])
    rounds = []
    monkeypatch.setattr(probes, "pearson", lambda *sides: next(script))
    monkeypatch.setattr(probes, "_round_of_epochs", lambda *arguments: rounds.append(1))
    monkeypatch.setattr(probes, "_expected_grade", lambda linear, features: np.full(len(features), len(rounds)))
    train, dev, test = parted(pairs(30), 10, 10, 10)
    predicted_N, best = probes.regress(train, dev, test.features, seed=0)
    assert len(rounds) == 7
    assert set(predicted_N) == {5} and best == pytest.approx(40)


def test_regression_ends_after_1050_epochs(monkeypatch):
    rising = iter(np.linspace(0, 0.9, 100))
    rounds = []
    monkeypatch.setattr(probes, "pearson", lambda *sides: next(rising))
    monkeypatch.setattr(probes, "_round_of_epochs", lambda *arguments: rounds.append(1))
    train, dev, test = parted(pairs(30), 10, 10, 10)
    probes.regress(train, dev, test.features, seed=0)
    assert len(rounds) * probes._ROUND_EPOCHS == 1050

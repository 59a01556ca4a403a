"""Linear probes, compared with plain references."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from raysed.score import probes
from raysed.score.probes import SPLIT_GRID, Labelled

FOLD_GRID = tuple(2.0**exponent for exponent in range(-1, 6))


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


@pytest.mark.parametrize("count", [2, 3])
def test_more_features_than_rows(count):
    """As pairs of wide embeddings have; correlated, with outlying columns and a wide range of sizes."""
    rng = np.random.default_rng(2)
    mix_DD = rng.normal(size=(300, 300)) * np.geomspace(3, 0.03, 300)
    x_ND = (rng.normal(size=(220, 300)) @ mix_DD / 10 + 2).astype(np.float32)
    x_ND[:, 7] *= 30
    train, test = parted(Labelled(x_ND, rng.integers(0, count, 220)), 120, 100)
    for c in FOLD_GRID:
        found = probes.classify(train, test.features, [c], [(train, test)])
        assert found.converged
        assert (found.predicted == exact(train, c).predict(test.features.astype(np.float64))).mean() > 0.95


def test_memory_is_that_of_a_few_copies_however_many_folds():
    train, test = parted(classes(4200, 300, 2, noise=9.0, size=0.05), 4000, 200)
    probes.classify(train, test.features, [1.0], train.folds(1, 10))  # what is imported or kept
    tracemalloc.start()
    probes.classify(train, test.features, [1.0, 2.0], train.folds(1, 10))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * train.features.nbytes


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_c_by_folds_equals_brute_force(seed, sparse):
    """Centring, scaling, single precision and warm starts change how fast it is, not what it is."""
    train, test = parted(classes(260, 40, 2, noise=9.0, seed=seed, size=0.02), 160, 100)
    folds = probes.stratified_folds(train.labels, seed, folds=4)
    table = [
        np.mean([accuracy(train.at(fit), train.at(held_out), c) for fit, held_out in folds]).round(2) for c in FOLD_GRID
    ]
    given, test_ND = (Labelled(csr_matrix(train.features), train.labels), csr_matrix(test.features))
    given, test_ND = (given, test_ND) if sparse else (train, test.features)
    found = probes.classify(given, test_ND, FOLD_GRID, given.folds(seed, 4))
    assert len(set(table)) > 1, "nothing to choose"
    assert found.c == FOLD_GRID[int(np.argmax(table))]
    assert found.dev == pytest.approx(max(table))
    reference = exact(train, found.c).predict(test.features.astype(np.float64))
    assert (found.predicted == reference).mean() > 0.98


@pytest.mark.parametrize("seed", range(4))
def test_c_by_dev_equals_brute_force(seed):
    train, dev, test = parted(classes(300, 40, 3, noise=12.0, seed=seed, size=0.03), 100, 100, 100)
    table = [accuracy(train, dev, c) for c in SPLIT_GRID]
    found = probes.classify(train, test.features, SPLIT_GRID, [(train, dev)])
    assert len(set(table)) > 1, "nothing to choose"
    assert found.c == SPLIT_GRID[int(np.argmax(table))]
    assert found.dev == pytest.approx(max(table))
    assert (found.predicted == exact(train, found.c).predict(test.features.astype(np.float64))).mean() > 0.97


def test_of_equal_values_the_smallest_is_taken():
    train, dev, test = parted(classes(120, 4, 2, noise=0.01), 60, 30, 30)
    assert probes.classify(train, test.features, SPLIT_GRID, [(train, dev)]).c == SPLIT_GRID[0]


def test_a_fit_that_was_cut_says_so(monkeypatch):
    monkeypatch.setattr(probes, "_MAX_ITERATIONS", 1)
    train, dev, test = parted(classes(120, 4, 2, noise=5.0), 60, 30, 30)
    assert not probes.classify(train, test.features, SPLIT_GRID, [(train, dev)]).converged


def test_constant_features_do_no_harm():
    train, dev, test = parted(Labelled(np.ones((30, 3), np.float32), np.arange(30) % 2), 10, 10, 10)
    assert set(probes.classify(train, test.features, SPLIT_GRID, [(train, dev)]).predicted) <= {0, 1}


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
    first, again, other = (probes.stratified_folds(labels_N, seed, 10)[0][1] for seed in (1, 1, 2))
    assert list(first) == list(again) != list(other)
    assert list(first) != list(range(6))

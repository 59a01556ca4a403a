"""Linear probes, compared with plain references."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from papers import probes
from papers.probes import SPLIT_GRID, Labelled

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


@pytest.mark.parametrize("by", ["folds", "folds of sparse features", "dev"])
@pytest.mark.parametrize("seed", range(2))
def test_the_choice_of_c_equals_brute_force(seed, by):
    """Centring, scaling, single precision and warm starts change how fast it is, not what it is."""
    if by == "dev":
        train, dev, test = parted(classes(300, 40, 3, noise=12.0, seed=seed, size=0.03), 100, 100, 100)
        pairs, grid = [(train, dev)], SPLIT_GRID
    else:
        train, test = parted(classes(260, 40, 2, noise=9.0, seed=seed, size=0.02), 160, 100)
        pairs, grid = list(train.folds(seed, 4)), FOLD_GRID
    table = [np.mean([accuracy(*pair, c) for pair in pairs]).round(2) for c in grid]
    given, test_ND, parts = train, test.features, pairs
    if "sparse" in by:
        given, test_ND = Labelled(csr_matrix(train.features), train.labels), csr_matrix(test.features)
        parts = given.folds(seed, 4)
    found = probes.classify(given, test_ND, grid, parts)
    one_row = 100 / sum(len(dev.labels) for _, dev in pairs) + 0.01  # which single precision may put on the other side
    assert max(table) - min(table) > 2 * one_row, "nothing to choose"
    assert max(table) - table[grid.index(found.c)] < one_row and found.dev == pytest.approx(max(table), abs=one_row)
    assert (found.predicted == exact(train, found.c).predict(test.features.astype(np.float64))).mean() > 0.97


def test_of_equal_values_the_smallest_is_taken():
    train, dev, test = parted(classes(120, 4, 2, noise=0.01), 60, 30, 30)
    assert probes.classify(train, test.features, SPLIT_GRID, [(train, dev)]).c == SPLIT_GRID[0]


def test_a_fit_that_was_cut_says_so(monkeypatch):
    monkeypatch.setattr(probes, "_MAX_ITERATIONS", 1)
    train, dev, test = parted(classes(120, 4, 2, noise=5.0), 60, 30, 30)
    assert not probes.classify(train, test.features, SPLIT_GRID, [(train, dev)]).converged

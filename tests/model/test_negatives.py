"""Negatives against their plain definition."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from raysed.data.candidates import NONE
from raysed.data.queries import UNKNOWN
from raysed.model import negatives
from raysed.model.negatives import mine


def plain(x_ND, query, own, texts_P, count, margin):
    """One query and one text at a time."""
    near = sorted((row for row in texts_P if row != query), key=lambda row: -(x_ND[query] @ x_ND[row]))
    own = near[0] if own == UNKNOWN else own
    near = [row for row in near if row != own][: negatives.NEAREST]

    def is_as_good(row: int) -> bool:
        best = x_ND[query] @ x_ND[own]
        return x_ND[query] @ x_ND[row] >= best - margin * abs(best)

    found = [row for row in near if not is_as_good(row)][:count]
    return own, found + [NONE] * (count - len(found)), sum(map(is_as_good, near[:count]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(4, 30), st.integers(0, 3), st.floats(0, 0.5), st.booleans())
def test_negatives_are_those_of_the_plain_definition(seed, texts, count, margin, in_blocks):
    rng = np.random.default_rng(seed)
    rows = texts + 9
    x_ND = _unit(rng.normal(size=(rows, 5)) + 0.5)
    texts_P = np.sort(rng.choice(rows, texts, replace=False))
    queries_Q = rng.choice(rows, 9, replace=False)
    own_Q = np.array([rng.choice([row for row in [*texts_P, UNKNOWN] if row != query]) for query in queries_Q])
    cells, negatives._CELLS = negatives._CELLS, 2 * texts if in_blocks else 2**24
    try:
        found = mine(x_ND, queries_Q, own_Q, texts_P, count, margin)
    finally:
        negatives._CELLS = cells
    expected = [plain(x_ND, *each, texts_P, count, margin) for each in zip(queries_Q, own_Q)]
    assert found.own_Q.tolist() == [own for own, _, _ in expected]
    assert found.negatives_QN.tolist() == [rows for _, rows, _ in expected]
    assert found.spared == sum(spared for _, _, spared in expected)


def _unit(x_ND: np.ndarray) -> np.ndarray:
    return (x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)).astype(np.float32)

"""Ways of combining teachers against their plain definitions, over all rows at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes

from raysed.model.combination import (
    Combination,
    choose_teachers,
    combined,
    fit_combination,
    prepared,
    side_by_side,
    turn,
)

ROWS = 100


def teachers(*widths: int, seed: int = 0) -> list[np.ndarray]:
    """Different views of one latent vector, with offsets and scales of their own."""
    rng = np.random.default_rng(seed)
    latent_NL = rng.normal(size=(ROWS, 5))
    return [
        latent_NL @ rng.normal(size=(5, width)) * rng.uniform(0.5, 2, width)
        + rng.normal(size=width)
        + 0.1 * rng.normal(size=(ROWS, width))
        for width in widths
    ]


def fitted(how: str, parts: list[np.ndarray], width: int | None, is_ordered=False, weights=None) -> Combination:
    widths, rows_NE = [x_ND.shape[1] for x_ND in parts], side_by_side(parts, how != "mean")
    return fit_combination(how, weights or [1.0] * len(parts), widths, rows_NE.T @ rows_NE, width, is_ordered)


def unit(x_ND: np.ndarray) -> np.ndarray:
    return x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)


def best_products(x_NE: np.ndarray, width: int) -> np.ndarray:
    """The dot products of all rows at a lower rank, as close as can be."""
    left, values, _ = np.linalg.svd(x_NE, full_matrices=False)
    return left[:, :width] * values[:width] ** 2 @ left[:, :width].T


def test_a_mean_is_the_mean():
    parts = teachers(12, 12, 12)
    np.testing.assert_allclose(fitted("mean", parts, 12).target(parts), np.mean(parts, axis=0), atol=1e-6, rtol=1e-6)
    weighted = fitted("mean", parts, 12, weights=[1.0, 2.0, 5.0]).target(parts)
    np.testing.assert_allclose(weighted, np.average(parts, axis=0, weights=[1, 2, 5]), atol=1e-6, rtol=1e-6)


@given(seed=st.integers(0, 100), widths=st.lists(st.integers(6, 20), min_size=1, max_size=4))
def test_cosines_of_a_concatenation_are_the_weighted_mean_of_the_teachers(seed, widths):
    parts, weights = teachers(*widths, seed=seed), np.arange(1, len(widths) + 1)
    target_ND = fitted("concatenated", parts, None, weights=weights.tolist()).target(parts)
    expected_NN = sum(w * unit(x) @ unit(x).T for w, x in zip(weights / weights.sum(), parts))
    assert target_ND.shape[1] == sum(widths)
    np.testing.assert_allclose(target_ND @ target_ND.T, expected_NN, atol=1e-6)


@pytest.mark.parametrize(("width", "is_ordered"), [(4, False), (30, False), (10, True), (21, True), (30, True)])
def test_a_target_has_the_best_dot_products_of_its_width(width, is_ordered):
    """An ordered one also in its first coordinates. A learner wider than both teachers gets zeros."""
    parts = teachers(12, 9)
    together_NE = np.concatenate([unit(x_ND) for x_ND in parts], 1) / np.sqrt(2)
    combination = fitted("concatenated", parts, width, is_ordered)
    target_ND = combination.target(parts).astype(np.float64)
    for d in (1, 4, width) if is_ordered else (width,):
        found_NN = target_ND[:, :d] @ target_ND[:, :d].T
        np.testing.assert_allclose(found_NN, best_products(together_NE, d), atol=1e-5)
    assert target_ND.shape[1] == width and not target_ND[:, 21:].any()
    values = np.linalg.svd(together_NE, compute_uv=False) ** 2
    assert combination.kept == pytest.approx(values[:width].sum() / values.sum())


def test_a_turn_is_orthogonal_procrustes():
    rng = np.random.default_rng(0)
    x_ND, y_ND = rng.normal(size=(2, ROWS, 6))
    found_DD = turn(x_ND.T @ y_ND)
    np.testing.assert_allclose(found_DD, orthogonal_procrustes(x_ND, y_ND)[0], atol=1e-12)
    np.testing.assert_allclose(found_DD @ found_DD.T, np.eye(6), atol=1e-12)


def test_a_turn_changes_no_dot_product_and_comes_as_close_as_can_be():
    parts, rng = teachers(8, 8), np.random.default_rng(0)
    plain = fitted("concatenated", parts, 8)
    target_ND = plain.target(parts).astype(np.float64)
    other_ND = target_ND @ np.linalg.qr(rng.normal(size=(8, 8)))[0]
    turned = plain.turned(target_ND.T @ other_ND)
    np.testing.assert_allclose(turned.target(parts), other_ND, atol=1e-6)


@pytest.mark.parametrize("how", ["mean", "concatenated"])
def test_a_target_is_its_only_teachers_vector_where_it_is_said_to_be(how):
    """But for its length."""
    (x_ND,) = teachers(12)
    combination = fitted(how, [x_ND], None)
    assert combination.is_identity
    np.testing.assert_allclose(unit(combination.target([x_ND])), unit(x_ND), atol=1e-6)
    others = [fitted(how, [x_ND], 11), fitted(how, [x_ND], 13), fitted(how, [x_ND], 12, is_ordered=True)]
    assert not any(other.is_identity for other in [*others, fitted(how, [x_ND, x_ND], None)])


def test_what_is_saved_is_what_is_loaded(tmp_path):
    parts = teachers(12, 9)
    kept = fitted("concatenated", parts, 4)
    kept.save(tmp_path / "kept.npz")
    np.testing.assert_array_equal(Combination.load(tmp_path / "kept.npz").target(parts), kept.target(parts))


@pytest.mark.parametrize(("how", "widths"), [("concatenated", (5, 9, 3)), ("mean", (5, 5, 5))])
def test_what_teachers_say_together_is_the_combination_before_it_is_reduced(how, widths):
    parts, weights = teachers(*widths), [1.0, 2.0, 0.5]
    target_ND = fitted(how, parts, None, weights=weights).target(parts)
    together_ND = combined(how, weights, [prepared(how, x_ND) for x_ND in parts])
    np.testing.assert_allclose(together_ND, target_ND, atol=1e-6)


@pytest.mark.parametrize("count", [1, 4, 6, 8])
@pytest.mark.parametrize("seed", range(3))
def test_the_smallest_subset_close_to_the_best_is_kept(count, seed):
    """Of those of its size the best; up to six teachers all subsets are scored, each once."""
    rng, scores = np.random.default_rng(seed), {}

    def score(some: tuple[int, ...]) -> float:
        assert list(some) == sorted(set(some)) and some not in scores
        scores[some] = round(float(rng.uniform(70, 70.4)), 2)
        return scores[some]

    chosen, tried = choose_teachers(count, score, least=0.1)
    assert tried == scores and tuple(range(count)) in tried
    assert len(tried) == (2**count - 1 if count <= 6 else count * (count + 1) // 2)
    close = [some for some in tried if round(max(tried.values()) - tried[some], 6) < 0.1]
    level = [some for some in close if len(some) == min(map(len, close))]
    assert chosen in level and tried[chosen] == max(tried[some] for some in level)


def test_of_many_teachers_each_is_added_after_the_best_before():
    """The score is a sum, so the way of adding the best one first is known."""
    worth = [3, 9, 1, 7, 5, 2, 8]
    chosen, tried = choose_teachers(7, lambda some: sum(worth[k] for k in some), least=0.1)
    assert chosen == tuple(range(7)) and (1, 6) in tried and (1, 3, 6) in tried and (0, 2) not in tried

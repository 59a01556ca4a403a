"""Ways of combining teachers against their plain definitions, over all rows at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.model.combination import Combination, choose_teachers, combined, fit_combination, side_by_side

ROWS = 500


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


def fitted(how: str, parts: list[np.ndarray], width: int, is_ordered: bool = False, weights=None) -> Combination:
    widths, rows_NE = [x_ND.shape[1] for x_ND in parts], side_by_side(parts, how != "mean")
    return fit_combination(how, weights or [1.0] * len(parts), widths, rows_NE.T @ rows_NE, width, is_ordered)


def unit(x_ND: np.ndarray) -> np.ndarray:
    return x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)


def test_a_mean_is_the_mean():
    parts = teachers(12, 12, 12)
    np.testing.assert_allclose(fitted("mean", parts, 12).target(parts), np.mean(parts, axis=0), atol=1e-6, rtol=1e-6)
    weighted = fitted("mean", parts, 12, weights=[1.0, 2.0, 5.0]).target(parts)
    np.testing.assert_allclose(weighted, np.average(parts, axis=0, weights=[1, 2, 5]), atol=1e-6, rtol=1e-6)


@given(seed=st.integers(0, 100), widths=st.lists(st.integers(6, 20), min_size=1, max_size=4))
def test_cosines_of_a_concatenation_are_the_weighted_mean_of_the_teachers(seed, widths):
    parts, weights = teachers(*widths, seed=seed), np.arange(1, len(widths) + 1)
    target_ND = fitted("concatenated", parts, sum(widths), weights=weights.tolist()).target(parts)
    expected_NN = sum(w * unit(x) @ unit(x).T for w, x in zip(weights / weights.sum(), parts))
    np.testing.assert_allclose(target_ND @ target_ND.T, expected_NN, atol=1e-6)


def test_a_narrow_learner_gets_the_best_low_rank_of_all_dot_products():
    parts = teachers(12, 9)
    together_NE = np.concatenate([unit(x_ND) for x_ND in parts], 1) / np.sqrt(2)
    combination = fitted("concatenated", parts, 4)
    left, values, _ = np.linalg.svd(together_NE, full_matrices=False)
    best_NN = left[:, :4] * values[:4] ** 2 @ left[:, :4].T
    target_ND = combination.target(parts).astype(np.float64)
    np.testing.assert_allclose(target_ND @ target_ND.T, best_NN, atol=1e-6)
    assert combination.kept == pytest.approx((values[:4] ** 2).sum() / (values**2).sum())


def test_a_wide_learner_gets_zeros_which_change_no_cosine():
    (x_ND,) = teachers(6)
    target_ND = fitted("concatenated", [x_ND], 10).target([x_ND])
    np.testing.assert_allclose(target_ND[:, :6], unit(x_ND), atol=1e-6)
    assert not target_ND[:, 6:].any()


@pytest.mark.parametrize("width", [10, 21, 30])
def test_the_first_coordinates_of_an_ordered_target_are_the_best_of_their_width(width):
    """Whether combinations are wider than the learner, as wide or narrower; none but wider ones lose a dot product."""
    parts = teachers(12, 9)
    plain_NE, target_ND = (
        fitted("concatenated", parts, *options).target(parts).astype(np.float64) for options in ((21,), (width, True))
    )
    left, values, _ = np.linalg.svd(plain_NE, full_matrices=False)
    for d in (1, 4, width):
        best_NN = left[:, :d] * values[:d] ** 2 @ left[:, :d].T
        np.testing.assert_allclose(target_ND[:, :d] @ target_ND[:, :d].T, best_NN, atol=1e-5)


def test_a_turn_changes_no_dot_product_and_comes_as_close_as_can_be():
    parts, rng = teachers(8, 8), np.random.default_rng(0)
    plain = fitted("concatenated", parts, 8)
    target_ND = plain.target(parts).astype(np.float64)
    other_ND = target_ND @ np.linalg.qr(rng.normal(size=(8, 8)))[0]
    turned = plain.turned(target_ND.T @ other_ND)
    np.testing.assert_allclose(turned.target(parts), other_ND, atol=1e-6)


def test_without_a_width_a_target_keeps_that_of_the_combination():
    parts = teachers(12, 9)
    plain = fitted("concatenated", parts, 21)
    np.testing.assert_array_equal(fitted("concatenated", parts, None).target(parts), plain.target(parts))
    assert not plain.is_identity


@pytest.mark.parametrize("how", ["mean", "concatenated"])
def test_a_target_is_its_only_teachers_vector_where_it_is_said_to_be(how):
    """But for its length."""
    (x_ND,) = teachers(12)
    combination = fitted(how, [x_ND], None)
    assert combination.is_identity
    np.testing.assert_allclose(unit(combination.target([x_ND])), unit(x_ND), atol=1e-6)
    assert not fitted(how, [x_ND], 11).is_identity and not fitted(how, [x_ND], 13).is_identity
    assert not fitted(how, [x_ND], 12, is_ordered=True).is_identity


def test_what_is_saved_is_what_is_loaded(tmp_path):
    parts = teachers(12, 9)
    combination = fitted("concatenated", parts, 4)
    combination.save(tmp_path / "combination.npz")
    np.testing.assert_array_equal(
        Combination.load(tmp_path / "combination.npz").target(parts), combination.target(parts)
    )


@pytest.mark.parametrize("how", ["mean", "concatenated"])
def test_without_a_teacher_all_is_as_if_it_had_not_been_there(how):
    parts = teachers(8, 8, 8)
    without = fitted(how, parts, 8, weights=[1.0, 0.0, 2.0])
    alone = fitted(how, [parts[0], parts[2]], 8, weights=[1.0, 2.0])
    np.testing.assert_allclose(without.target(parts), alone.target([parts[0], parts[2]]), atol=1e-6)


@pytest.mark.parametrize(("how", "widths"), [("concatenated", (5, 9, 3)), ("mean", (5, 5, 5))])
def test_what_teachers_say_together_is_the_combination_before_it_is_reduced(how, widths):
    parts, weights = teachers(*widths), [1.0, 2.0, 0.5]
    target_ND = fitted(how, parts, None, weights=weights).target(parts)
    np.testing.assert_allclose(combined(how, weights, parts), target_ND, atol=1e-6)
    assert combined(how, [2.0], parts[:1]) is parts[0]


@pytest.mark.parametrize("count", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("seed", range(5))
def test_the_smallest_subset_is_kept_that_no_larger_one_beats(count, seed):
    rng, scores = np.random.default_rng(seed), {}

    def score(some: tuple[int, ...]) -> float:
        assert list(some) == sorted(set(some)) and some not in scores  # nothing is scored twice
        scores[some] = round(float(rng.uniform(70, 70.4)), 2)
        return scores[some]

    chosen, tried = choose_teachers(count, score, least=0.1)
    assert tried == scores
    expected = 2**count - 1 if count <= 6 else count * (count + 1) // 2
    assert len(tried) == expected and tuple(range(count)) in tried

    def is_beaten(some: tuple[int, ...]) -> bool:
        return any(len(one) > len(some) and round(tried[one] - tried[some], 6) >= 0.1 for one in tried)

    # None that is smaller could have been kept, and of its own size it is the best.
    level = [some for some in tried if len(some) == len(chosen)]
    assert not is_beaten(chosen) and tried[chosen] == max(tried[some] for some in level)
    smaller = {len(some) for some in tried if len(some) < len(chosen)}
    assert all(is_beaten(max((s for s in tried if len(s) == size), key=tried.__getitem__)) for size in smaller)


def test_of_many_teachers_each_is_added_after_the_best_before():
    """The score is a sum, so the way of adding the best one first is known."""
    worth = [3, 9, 1, 7, 5, 2, 8]
    chosen, tried = choose_teachers(7, lambda some: sum(worth[k] for k in some), least=0.1)
    assert chosen == tuple(range(7)) and (1, 6) in tried and (1, 3, 6) in tried and (0, 2) not in tried

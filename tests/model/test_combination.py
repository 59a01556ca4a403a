"""Ways of combining teachers against their plain definitions, over all rows at once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.model.combination import Combination, choose_teachers, combined, fit_combination, prepared, side_by_side

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


def fitted(
    how: str, parts: list[np.ndarray], width: int, is_ordered: bool = False, weights=None, is_centred: bool = False
) -> Combination:
    widths, rows_NE = [x_ND.shape[1] for x_ND in parts], side_by_side(parts, how != "mean")
    weights, centred_on = weights or [1.0] * len(parts), (rows_NE.sum(0), len(rows_NE)) if is_centred else None
    return fit_combination(how, weights, widths, rows_NE.T @ rows_NE, width, is_ordered, centred_on)


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


def balanced(parts: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """The plain definition: unit vectors less their mean, each teacher divided by the root of its total variance."""
    found = []
    for x_ND, weight in zip(parts, weights):
        unit_ND = np.stack([x_D / np.linalg.norm(x_D) for x_D in np.asarray(x_ND, np.float64)])
        centred_ND = unit_ND - np.mean(unit_ND, axis=0)
        total = np.mean([x_D @ x_D for x_D in centred_ND])
        found.append(np.sqrt(weight / sum(weights)) * centred_ND / np.sqrt(total))
    return np.concatenate(found, axis=1)


def narrow(*widths: int) -> list[np.ndarray]:
    """Teachers of which one has cosines that are all high, as those of the e5 family."""
    parts = teachers(*widths)
    parts[0] = parts[0] + 8.0
    return parts


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [1.0, 2.0, 0.5]])
def test_balanced_teachers_are_centred_and_have_equal_total_variance(weights, tmp_path):
    parts = narrow(5, 9, 3)
    whole = fitted("concatenated", parts, None, weights=weights, is_centred=True)
    target_ND = whole.target(parts).astype(np.float64)
    np.testing.assert_allclose(target_ND, balanced(parts, weights), atol=1e-6)
    variances = [np.var(part_ND, axis=0).sum() for part_ND in np.split(target_ND, [5, 14], axis=1)]
    np.testing.assert_allclose(variances, np.array(weights) / sum(weights), rtol=1e-5)
    np.testing.assert_allclose(target_ND.mean(0), 0, atol=1e-6)
    # At a smaller width the best that there is of these dot products, and at a larger one the same.
    left, values, _ = np.linalg.svd(balanced(parts, weights), full_matrices=False)
    reduced = fitted("concatenated", parts, 4, weights=weights, is_centred=True)
    target_ND = reduced.target(parts).astype(np.float64)
    np.testing.assert_allclose(target_ND @ target_ND.T, (left[:, :4] * values[:4] ** 2) @ left[:, :4].T, atol=1e-5)
    wide_ND = fitted("concatenated", parts, 20, weights=weights, is_centred=True).target(parts)
    np.testing.assert_allclose(wide_ND @ wide_ND.T, balanced(parts, weights) @ balanced(parts, weights).T, atol=1e-5)
    # The offset is turned and kept with the rest.
    turned = reduced.turned(np.random.default_rng(3).normal(size=(4, 4)))
    turned.save(tmp_path / "c.npz")
    turned_ND = Combination.load(tmp_path / "c.npz").target(parts)
    np.testing.assert_allclose(turned_ND @ turned_ND.T, target_ND @ target_ND.T, atol=1e-5)
    assert not whole.is_identity


def test_a_teacher_alone_is_not_balanced_and_one_that_says_the_same_of_all_does_no_harm():
    parts = narrow(5, 5)
    alone = fitted("concatenated", parts, None, weights=[0.0, 1.0], is_centred=True)
    np.testing.assert_array_equal(
        alone.target(parts), fitted("concatenated", parts, None, weights=[0.0, 1.0]).target(parts)
    )
    same = [np.ones((len(parts[0]), 3)), parts[1]]
    assert np.isfinite(fitted("concatenated", same, None, is_centred=True).target(same)).all()


def test_files_of_combinations_that_know_no_offset_are_read(tmp_path):
    parts = teachers(5, 4)
    kept = fitted("concatenated", parts, 4)
    np.savez(tmp_path / "c.npz", is_unit=kept.is_unit, weight_ED=kept.weight_ED, kept=kept.kept)
    np.testing.assert_array_equal(Combination.load(tmp_path / "c.npz").target(parts), kept.target(parts))


@pytest.mark.parametrize(
    ("how", "balance", "widths"),
    [("concatenated", "none", (5, 9, 3)), ("mean", "none", (5, 5, 5)), ("concatenated", "centred", (5, 9, 3))],
)
def test_what_teachers_say_together_is_the_combination_before_it_is_reduced(how, balance, widths):
    parts, weights = narrow(*widths), [1.0, 2.0, 0.5]
    target_ND = fitted(how, parts, None, weights=weights, is_centred=balance == "centred").target(parts)
    together_ND = combined(how, weights, [prepared(how, balance, x_ND) for x_ND in parts])
    np.testing.assert_allclose(together_ND, target_ND, atol=1e-6)


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

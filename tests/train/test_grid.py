"""The lower-bound grid: its winner on planted scores."""

import numpy as np
import pytest

from raysed.train.grid import choose_bound


def test_a_planted_optimum_wins_by_its_mean():
    """Scores peak at 0.35; one lucky model at 0.8 is the best of all."""
    rng = np.random.default_rng(0)
    bounds = [round(0.05 * i, 2) for i in range(20)]
    scores = {b: list(80 - 40 * (b - 0.35) ** 2 + 0.01 * rng.normal(size=10)) for b in bounds}
    scores[0.8][3] = 95.0
    choice = choose_bound(scores)
    assert (choice.lower_bound, choice.score) == (0.35, pytest.approx(np.mean(scores[0.35])))
    others = {b: np.mean(s) for b, s in scores.items() if b != 0.35}
    assert choice.runner_up == max(others, key=others.get)
    assert choice.margin == pytest.approx(choice.score - max(others.values()))


def test_of_equal_bounds_the_smallest_wins_and_one_alone_has_no_margin():
    assert choose_bound({0.5: [70.0], 0.0: [70.0], 0.9: [69.0]}).lower_bound == 0.0
    choice = choose_bound({0.2: [1.0, 3.0]})
    assert (choice.score, choice.runner_up, choice.margin) == (2.0, None, None)

"""The lower-bound grid: its winner of equal ones, and of one alone."""

from raysed.train.grid import choose_bound


def test_of_equal_bounds_the_smallest_wins_and_one_alone_has_no_margin():
    assert choose_bound({0.5: [70.0], 0.0: [70.0], 0.9: [69.0]})["winner"] == 0.0
    choice = choose_bound({0.2: [1.0, 3.0]})
    assert choice == {"winner": 0.2, "score": 2.0, "runner_up": None, "margin": None}

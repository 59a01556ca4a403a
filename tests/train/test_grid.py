"""The lower-bound grid: its winner on planted scores, and what successive halving hands out."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.train.grid import Ladder, choose_bound, rungs_of


def test_a_planted_optimum_wins_by_its_mean_and_another_by_its_best():
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
    assert choose_bound(scores, "max").lower_bound == 0.8


def test_of_equal_bounds_the_smallest_wins_and_one_alone_has_no_margin():
    assert choose_bound({0.5: [70.0], 0.0: [70.0], 0.9: [69.0]}).lower_bound == 0.0
    choice = choose_bound({0.2: [1.0, 3.0]})
    assert (choice.score, choice.runner_up, choice.margin) == (2.0, None, None)


def climb(ladder: Ladder, score, workers: int, seed: int = 0) -> list:
    """Runs a ladder with so many workers, of which a random one ends next."""
    rng, running, started = random.Random(seed), [], []
    while True:
        while len(running) < workers and (task := ladder.next()):
            running.append(task)
            started.append(task)
        if not running:
            break
        task = running.pop(rng.randrange(len(running)))
        ladder.record(task, score(task))
    return started


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_without_rungs_every_model_is_trained_to_the_end_once(bounds, models, workers, seed):
    ladder = Ladder([b / 10 for b in range(bounds)], models, [9])
    assert ladder.left() == bounds * models
    started = climb(ladder, lambda task: 50.0, workers, seed)
    assert sorted((t.lower_bound, t.index) for t in started) == [
        (b / 10, i) for b in range(bounds) for i in range(models)
    ]
    assert ladder.updates() == 9 * bounds * models
    assert all(updates == 9 and len(scores) == models for updates, scores in ladder.reached().values())


@given(st.integers(1, 10), st.integers(1, 3), st.integers(1, 6), st.integers(2, 4), st.integers(0, 999))
def test_a_bound_climbs_rung_by_rung_and_somebody_always_reaches_the_top(bounds, models, workers, reduction, seed):
    """Whatever the scores and the order: no training twice, no rung left out, and the best at the end is complete."""
    rng = random.Random(seed)
    ladder = Ladder(range(bounds), models, [1, 3, 9], reduction)
    started = climb(ladder, lambda task: rng.random(), workers, seed)
    assert len(set(started)) == len(started)
    for task in started:
        for rung in (rung for rung in (1, 3) if rung < task.until):
            lower = next(i for i, t in enumerate(started) if t[:2] == task[:2] and t.until == rung)
            assert lower < started.index(task)
    top = [bound for bound, (updates, _) in ladder.reached().items() if updates == 9]
    assert top and {t.lower_bound for t in started} == set(range(bounds))
    assert len(top) <= max(1, bounds)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_the_planted_best_bound_wins_at_less_than_half_of_the_updates(workers):
    """Scores that grow with updates and rank the bounds alike at every rung."""
    bounds, wins = [round(0.1 * i, 1) for i in range(9)], []
    for seed in range(20):
        ladder = Ladder(bounds, 2, [10, 30, 90], 3)
        climb(ladder, lambda t: t.until**0.5 - 10 * abs(t.lower_bound - 0.6) + 0.1 * t.index, workers, seed)
        complete = {bound: scores for bound, (updates, scores) in ladder.reached().items() if updates == 90}
        wins.append(choose_bound(complete).lower_bound)
        assert ladder.updates() < 9 * 2 * 90 / 2
    assert set(wins) == {0.6}


def test_failures_put_a_bound_out_where_too_few_models_are_left():
    ladder = Ladder([0.0, 0.5], 2, [1, 4], reduction=2, needed=2)
    climb(ladder, lambda t: None if (t.lower_bound, t.index) == (0.5, 1) else 90 * t.lower_bound, 2)
    assert ladder.reached()[0.0][0] == 4 and ladder.reached()[0.5] == (1, [45.0])
    ladder = Ladder([0.0, 0.5], 2, [1, 4], reduction=2, needed=1)
    climb(ladder, lambda t: None if (t.lower_bound, t.index) == (0.5, 1) else 90 * t.lower_bound, 2)
    assert ladder.reached()[0.5] == (4, [45.0])  # goes on with the model that is left


@given(st.integers(1, 5000), st.integers(1, 5), st.integers(2, 4), st.integers(1, 700))
def test_rungs_rise_to_the_end_at_evaluations(steps, number, reduction, every):
    rungs = rungs_of(steps, number, reduction, every)
    assert rungs == sorted(set(rungs)) and rungs[-1] == steps and 1 <= len(rungs) <= number
    assert all(rung % every == 0 for rung in rungs[:-1])

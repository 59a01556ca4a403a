"""Groups of trainings are compared in rounds: who is faster, or fails first, changes nothing."""

import math
import statistics
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.cluster.halving import Halving

RUNGS = (1, 3, 9)
MEAN, BEST = statistics.fmean, max


@st.composite
def grids(draw):
    """Groups of one to three trainings; few different scores, so that many are equal; some trainings fail."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))
    groups = {f"group {index}": [f"{index}/{k}" for k in range(size)] for index, size in enumerate(sizes)}
    names = [name for of_group in groups.values() for name in of_group]
    scores = {(name, rung): draw(st.integers(0, 3)) for name in names for rung in RUNGS[:-1]}
    fails = {name: draw(st.sampled_from((*RUNGS, None, None, None))) for name in names}
    return groups, scores, fails


def run(halving: Halving, scores: dict, fails: dict, pick) -> set[str]:
    """Let trainings reach their rungs in an order that `pick` chooses; return those that get to the end."""
    waiting, paused, finished = [(name, 0) for of_group in halving.groups.values() for name in of_group], [], set()
    while waiting:
        name, at = waiting.pop(pick(len(waiting)))
        rung = halving.rungs[at]
        for passed in halving.rungs[:at]:  # as a training that continues in another process
            halving.reach(name, passed, -1.0)
        if fails[name] == rung:
            halving.fail(name)
        elif rung == halving.rungs[-1]:
            finished.add(name)
        else:
            halving.reach(name, rung, scores[name, rung])
            paused.append((name, at))
        decisions = [(name, at, halving.goes_on(name, halving.rungs[at])) for name, at in paused]
        waiting += [(name, at + 1) for name, at, goes_on in decisions if goes_on]
        paused = [(name, at) for name, at, goes_on in decisions if goes_on is None]
    assert not paused, "nothing is left that still waits"
    return finished


def rounds(groups: dict, scores: dict, fails: dict, reduction: int, least: int, statistic) -> tuple[dict, set[str]]:
    """What should come of it."""
    left, stopped = groups, {}
    for rung in RUNGS[:-1]:
        sound = {group: [name for name in names if fails[name] != rung] for group, names in left.items()}
        found = {g: [scores[n, rung] for n in names] for g, names in sound.items() if len(names) >= least}
        best = sorted(found, key=lambda group: (-statistic(found[group]), group))
        kept = best[: math.ceil(len(best) / reduction)]
        stopped |= {group: (rung, found[group]) for group in best if group not in kept}
        left = {group: sound[group] for group in kept}
    return stopped, {name for names in left.values() for name in names if fails[name] != RUNGS[-1]}


@given(grids(), st.integers(2, 3), st.integers(1, 2), st.sampled_from((MEAN, BEST)), st.randoms(use_true_random=False))
def test_what_is_stopped_does_not_depend_on_the_order(grid, reduction, least, statistic, random):
    groups, scores, fails = grid
    halving = Halving(groups, RUNGS, reduction, least, statistic)
    finished = run(halving, scores, fails, random.randrange)
    assert (halving.stopped, finished) == rounds(groups, scores, fails, reduction, least, statistic)


@pytest.mark.parametrize(("statistic", "winner"), [(MEAN, "even"), (BEST, "uneven")])
def test_groups_are_compared_as_a_whole(statistic, winner):
    groups = {"even": ["a", "b"], "uneven": ["c", "d"], "low": ["e", "f"]}
    halving = Halving(groups, (5, 9), 3, 2, statistic)
    for name, score in zip("abcdef", (60, 60, 90, 10, 1, 2)):
        assert halving.goes_on("a", 5) is None
        halving.reach(name, 5, score)
    assert {group for group, (a, b) in groups.items() if halving.goes_on(a, 5) and halving.goes_on(b, 5)} == {winner}
    assert halving.stopped.keys() == groups.keys() - {winner} and halving.stopped["low"] == (5, [1, 2])


def test_of_equal_groups_the_first_goes_on_in_every_round():
    halving = Halving({"a": ["a"], "b": ["b"], "c": ["c"], "d": ["d"]}, (1, 2, 3), 2, 1, MEAN)
    for name, score in zip("dcba", (5, 7, 6, 6)):
        halving.reach(name, 1, score)
    assert [halving.goes_on(name, 1) for name in "abcd"] == [True, False, True, False]
    for name in "ca":
        halving.reach(name, 2, 8)
    assert [halving.goes_on(name, 2) for name in "ac"] == [True, False]


def test_a_group_that_is_too_small_is_given_up_even_if_its_rest_is_best():
    halving = Halving({"good": ["a", "b"], "poor": ["c", "d"]}, (1, 2), 2, 2, MEAN)
    reach = partial(halving.reach, updates=1)
    for name, score in (("a", 99), ("c", 1), ("d", 1)):
        reach(name, score=score)
    halving.fail("b")
    assert [halving.goes_on(name, 1) for name in "abcd"] == [False, False, True, True] and not halving.stopped


def test_if_all_fail_nothing_waits():
    halving = Halving({"a": ["a"], "b": ["b"]}, (1, 2, 3), 2, 1, MEAN)
    halving.fail("a")
    halving.fail("b")
    assert halving.goes_on("a", 1) is halving.goes_on("b", 1) is False

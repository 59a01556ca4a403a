"""The grid of `sts`: which lower bound wins (SED section 5.5), and which are worth more updates (ASHA)."""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_STATISTICS = {"mean": statistics.fmean, "max": max}


class Choice(NamedTuple):
    """The bound whose models become the ensemble, and by how much it is better than the `runner_up`."""

    lower_bound: float
    score: float
    runner_up: float | None
    margin: float | None


def choose_bound(scores: Mapping[float, Sequence[float]], statistic: str = "mean") -> Choice:
    """Choose the bound whose models have the best dev scores; of equal ones the smallest.

    >>> choose_bound({0.0: [70, 72], 0.5: [75, 73], 0.9: [60, 76]})
    Choice(lower_bound=0.5, score=74.0, runner_up=0.0, margin=3.0)
    """
    values = {bound: _STATISTICS[statistic](of_bound) for bound, of_bound in scores.items()}
    winner, *others = sorted(values, key=lambda bound: (-values[bound], bound))
    runner_up = others[0] if others else None
    margin = None if runner_up is None else values[winner] - values[runner_up]
    return Choice(winner, values[winner], runner_up, margin)


class Task(NamedTuple):
    """One model of one bound, to be trained up to `until` updates."""

    lower_bound: float
    index: int
    until: int


class Ladder:
    """Hands out the trainings of a grid, and decides which bounds climb (asynchronous successive halving).

    A bound is judged by all of its models together. It climbs from a rung to the next when it is among the best `1 /
    reduction` of the bounds that have reached the rung so far; where none is, another bound starts; and when every
    bound has been tried, the best one of the highest rung climbs on (Li et al. 2020, "A System for Massively Parallel
    Hyperparameter Tuning", algorithm 2). With a single rung, every bound is trained to the end.

    Args:
        rungs: updates at each rung, rising; the last is the whole training.
        needed: models without which a bound is out; fewer may fail.
    """

    def __init__(
        self,
        bounds: Sequence[float],
        models: int,
        rungs: Sequence[int],
        reduction: int = 3,
        statistic: str = "mean",
        needed: int = 1,
    ):
        self.rungs = tuple(rungs)
        self._models, self._reduction, self._needed = models, reduction, needed
        self._statistic = _STATISTICS[statistic]
        self._waiting = deque(bounds)
        self._tasks: deque[Task] = deque()
        self._running: set[Task] = set()
        self._scores: list[dict[float, dict[int, float | None]]] = [{} for _ in self.rungs]

    def next(self) -> Task | None:
        """Return a training to start now; None where others have to end first, or all is done."""
        if not self._tasks:
            self._climb()
        if not self._tasks:
            return None
        task = self._tasks.popleft()
        self._running.add(task)
        return task

    def record(self, task: Task, score: float | None) -> None:
        """Note how a training ended: its dev score so far, x100, None for a failure."""
        self._running.discard(task)
        self._scores[self.rungs.index(task.until)][task.lower_bound][task.index] = score

    def put_back(self, task: Task) -> None:
        """Take a training back that was handed out and not begun."""
        self._running.discard(task)
        self._tasks.append(task)

    def left(self) -> int:
        """Return how many trainings may still be handed out, were every bound to climb to the end."""
        return len(self._waiting) * self._models + len(self._tasks)

    def reached(self) -> dict[float, tuple[int, list[float]]]:
        """Return, for every bound that was judged, its highest rung in updates and the scores of its models there."""
        result = {}
        for rung, updates in enumerate(self.rungs):
            for bound, of_bound in self._scores[rung].items():
                if self._is_complete(rung, bound):
                    result[bound] = (updates, [score for score in of_bound.values() if score is not None])
        return result

    def updates(self) -> int:
        """Return how many updates the models of the grid have made together."""
        highest: dict[tuple[float, int], int] = {}
        for updates, of_rung in zip(self.rungs, self._scores):
            highest |= {(bound, index): updates for bound, models in of_rung.items() for index in models}
        return sum(highest.values())

    def _climb(self) -> None:
        """Queue the models of one more bound: one that climbs, or one that starts."""
        climber = self._climber(self._reduction)
        if climber is None and self._waiting:
            climber = self._waiting.popleft(), 0
        if climber is None and not self._running and not self._ranked(len(self.rungs) - 1):
            climber = self._climber(reduction=1)
        if climber:
            self._start(*climber)

    def _climber(self, reduction: int) -> tuple[float, int] | None:
        """Return the best bound of the highest rung that has one to climb, and where to; one in `reduction` may."""
        for rung in reversed(range(len(self.rungs) - 1)):
            ranked = self._ranked(rung)
            for bound in ranked[: len(ranked) // reduction]:
                if bound not in self._scores[rung + 1]:
                    return bound, rung + 1
        return None

    def _start(self, bound: float, rung: int) -> None:
        survivors = range(self._models)
        if rung:
            survivors = [index for index, score in self._scores[rung - 1][bound].items() if score is not None]
        self._scores[rung][bound] = {}
        self._tasks += [Task(bound, index, self.rungs[rung]) for index in survivors]

    def _ranked(self, rung: int) -> list[float]:
        """Return the bounds with all their models through a rung, best first; those with too many failures are out."""
        values = {}
        for bound, of_bound in self._scores[rung].items():
            scores = [score for score in of_bound.values() if score is not None]
            if self._is_complete(rung, bound) and len(scores) >= self._needed:
                values[bound] = self._statistic(scores)
        return sorted(values, key=lambda bound: (-values[bound], bound))

    def _is_complete(self, rung: int, bound: float) -> bool:
        pending = ((task.lower_bound, task.until) for task in (*self._tasks, *self._running))
        return bool(self._scores[rung][bound]) and (bound, self.rungs[rung]) not in pending


def rungs_of(steps: int, count: int, reduction: int, evaluate_every: int) -> list[int]:
    """Return the updates at each rung: multiples of `evaluate_every`, because a score is needed there.

    >>> rungs_of(1440, 3, 3, 50), rungs_of(90, 3, 3, 50), rungs_of(100, 1, 3, 50)
    ([200, 500, 1440], [50, 90], [100])
    """
    rungs = [-(-steps // reduction**power) for power in range(count - 1, 0, -1)]
    rounded = [-(-rung // evaluate_every) * evaluate_every for rung in rungs]
    return [*dict.fromkeys(rung for rung in rounded if rung < steps), steps]

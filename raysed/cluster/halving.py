"""Successive halving of a grid: after each rung, one in a few groups of trainings goes on."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Halving:
    """Compares groups of trainings, such as the models of one lower bound, in rounds.

    A round ends when each of its trainings has reached the rung or failed, so that the choice does not depend on
    timing. A group with fewer than `least` sound trainings is given up.

    Attributes:
        groups: names of trainings by group; of equally good groups, the first goes on.
        rungs: updates after which groups are compared, ascending; the last is the full training.
        reduction: one group in this many goes on.
        statistic: makes one score of those of a group.
        stopped: by group that was stopped, the updates it had and the scores of its trainings.
    """

    groups: Mapping[Hashable, Sequence[Hashable]]
    rungs: Sequence[int]
    reduction: int
    least: int
    statistic: Callable[[Sequence[float]], float]
    stopped: dict[Hashable, tuple[int, list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._left = {group: list(names) for group, names in self.groups.items()}
        self._scores: dict[Hashable, float] = {}
        self._round = 0

    def reach(self, name: Hashable, updates: int, score: float) -> None:
        """Record a training's score at a rung; a restarted one reports earlier rungs again."""
        if updates == self.rungs[self._round]:
            self._scores[name] = score
            self._end_round()

    def fail(self, name: Hashable) -> None:
        """Record that a training has failed."""
        for names in self._left.values():
            if name in names:
                names.remove(name)
        self._end_round()

    def goes_on(self, name: Hashable, updates: int) -> bool | None:
        """Return whether a training goes on from a rung; None until its round has ended."""
        if not any(name in names for names in self._left.values()):
            return False
        return True if updates < self.rungs[self._round] else None

    def _end_round(self) -> None:
        """Compare the groups, if no training of the round is missing."""
        waiting = [name for names in self._left.values() for name in names if name not in self._scores]
        if waiting or self._round + 1 == len(self.rungs):
            return
        scores = {g: [self._scores[n] for n in names] for g, names in self._left.items() if len(names) >= self.least}
        best = sorted(scores, key=lambda group: self.statistic(scores[group]), reverse=True)
        kept = best[: math.ceil(len(best) / self.reduction)]
        self.stopped |= {group: (self.rungs[self._round], scores[group]) for group in best if group not in kept}
        self._left = {group: names for group, names in self._left.items() if group in kept}
        self._scores.clear()
        self._round += 1

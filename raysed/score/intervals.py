"""95 % bootstrap intervals of scores, over the sampling of test items and of the models' seeds.

A resample draws as many pairs, queries or texts as the task has, within each subset if the task is a mean over subsets.
All models are scored on the same resamples, so their difference is far more certain than either score.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 6 and 13.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raysed.score.tasks import Evaluation, Outcomes

RESAMPLES = 10_000
NO_DIFFERENCE = 0.1
"""Score differences smaller than this are reported as none."""
_BLOCK_CELLS = 2**18


def resample(
    evaluation: Evaluation,
    outcomes: Mapping[Hashable, Sequence[Outcomes]],
    tasks: Sequence[str],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[Hashable, np.ndarray]:
    """Return mean scores x100 over `tasks` by group, float64 [R], NaN if undefined; also resamples a group's models."""
    models = [model for group in outcomes.values() for model in group]
    generator, scores_MR = np.random.default_rng(seed), np.zeros((len(models), resamples))
    for name in tasks:
        task, of_task = evaluation.tasks[name], [model[name] for model in models]
        for rows, weight in task.strata():
            count = rows.stop - rows.start
            step, found_MR = max(1, _BLOCK_CELLS // count), np.empty_like(scores_MR)
            for first in range(0, resamples, step):
                block = slice(first, min(first + step, resamples))
                counts_RP = generator.multinomial(count, np.full(count, 1 / count), block.stop - first)
                counts_PR = np.ascontiguousarray(counts_RP.T, np.float32)
                found_MR[:, block] = task.resampled(rows, of_task, counts_PR)
            scores_MR += weight / len(tasks) * found_MR
    by_group = {}
    for name, group in outcomes.items():
        by_group[name], scores_MR = _over_seeds(scores_MR[: len(group)].T, generator), scores_MR[len(group) :]
    return by_group


def interval(difference_R: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % interval of resampled scores or differences; None without any, or if one is undefined.

    >>> interval(np.arange(1001.0))
    (25.0, 975.0)
    """
    if not len(difference_R) or not np.isfinite(difference_R).all():
        return None
    low, high = np.quantile(difference_R, [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """Difference of two scores x100, with its interval if known."""

    value: float
    ends: Sequence[float] | None = None

    @property
    def is_clear(self) -> bool:
        """Whether it is large enough to report, and its interval is known and excludes 0."""
        if abs(self.value) < NO_DIFFERENCE - 1e-9 or self.ends is None:
            return False
        return not self.ends[0] <= 0 <= self.ends[1]

    def against(self, other: str) -> str:
        """Return the verdict on the first score.

        >>> Difference(1.2, (0.3, 2.1)).against("B"), Difference(-0.5, (-10.1, 9.1)).against("B")
        ('1.2 (0.3 to 2.1) above B', 'no clear difference from B: -0.5 (-10.1 to +9.1)')
        """
        if not self.is_clear:
            return f"no clear difference from {other}: {self}"
        low, high = sorted(map(abs, self.ends))
        return f"{abs(self.value):.1f} ({low:.1f} to {high:.1f}) {'above' if self.value > 0 else 'below'} {other}"

    def __str__(self) -> str:
        ends = "no interval from so few items" if self.ends is None else "{:+.1f} to {:+.1f}".format(*self.ends)
        return f"{self.value:+.1f} ({ends})"


def items(size: str) -> str:
    """Return number and kind of a task's items, from its `size`.

    >>> items("1,500 pairs, mean over 3 subsets"), items("500 generated pairs (written and graded by a program)")
    ('1,500 pairs', '500 generated pairs')
    """
    return re.split(r"[;,] | \(", size)[0]


def resolution(sizes: Sequence[str], differences: Sequence[Difference]) -> str:
    """Return which differences these items may not show: those below half of the widest interval; empty without any.

    >>> resolution(["100 pairs"], [Difference(-0.5, (-10.1, 9.1))])
    '100 pairs may miss a difference below about 10 points.'
    """
    halves = [(found.ends[1] - found.ends[0]) / 2 for found in differences if found.ends]
    if not halves:
        return ""
    least = f"{max(halves):.{0 if max(halves) >= 2 else 1}f}"
    return f"{' and '.join(map(items, sizes))} may miss a difference below about {least} points."


def _over_seeds(scores_RK: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the mean of K models, which are resampled.

    The mean of K drawn models has (K - 1) / K of the variance of a mean over K new models, hence the factor.
    """
    rows, count = scores_RK.shape
    mean_R = scores_RK.mean(1)
    if count == 1:
        return mean_R
    drawn_RK = generator.integers(count, size=(rows, count))
    drawn_R = np.take_along_axis(scores_RK, drawn_RK, axis=1).mean(1)
    return mean_R + np.sqrt(count / (count - 1)) * (drawn_R - mean_R)

"""How sure a score is: 95 % intervals over the draw of the pairs that it is measured on and of the models' seeds.

All models are scored on the same resamples (a paired bootstrap), so the difference of two is far surer than either. A
resample draws as many pairs as there are, with replacement, within each subset where a task is a mean over subsets.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 6 and 13.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from raysed.evaluation.similarity import Evaluation

RESAMPLES = 2000
_BLOCK_CELLS = 2**20
Group = TypeVar("Group", bound=Hashable)


def resample(
    evaluation: Evaluation,
    similarities: Mapping[Group, Sequence[np.ndarray]],
    tasks: Sequence[str],
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[Group, np.ndarray]:
    """Returns the mean Spearman correlation x100 over `tasks` of each group of like models, for every resample.

    Args:
        evaluation: holds the tasks.
        similarities: by group, of every model one value per row of `Evaluation.pair_rows(tasks)`, float64 [P]. Where a
            group has several models, which differ in their seeds, its models are resampled, too.
        tasks: the tasks whose mean is the score.
        resamples: R.
        seed: of the resamples.

    Returns:
        float64 [R] by group; NaN where a model's similarities are all the same in a resample.
    """
    models = [model_P for group in similarities.values() for model_P in group]
    generator, start, total_RM = np.random.default_rng(seed), 0, np.zeros((resamples, len(models)))
    for task in tasks:
        pairs = sum(len(gold_P) for gold_P in evaluation.strata(task))
        of_task = [model_P[start : start + pairs] for model_P in models]
        total_RM += _task_scores(evaluation.strata(task), evaluation.weights(task), of_task, resamples, generator)
        start += pairs
    scores_RM, by_group = total_RM / len(tasks), {}
    for name, group in similarities.items():
        by_group[name], scores_RM = _over_seeds(scores_RM[:, : len(group)], generator), scores_RM[:, len(group) :]
    return by_group


def interval(difference_R: np.ndarray) -> tuple[float, float] | None:
    """Returns the 95 % interval of resampled scores or of their differences; None where they are not defined.

    >>> interval(np.arange(1001.0))
    (25.0, 975.0)
    """
    if not len(difference_R) or not np.isfinite(difference_R).all():
        return None
    low, high = np.quantile(difference_R, [0.025, 0.975])
    return float(low), float(high)


def _over_seeds(scores_RK: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The mean of K models, of which every resample draws K.

    The drawn mean scatters by (K - 1) / K of what the mean of K new models would, hence the factor.
    """
    rows, count = scores_RK.shape
    mean_R = scores_RK.mean(1)
    if count == 1:
        return mean_R
    drawn_RK = generator.integers(count, size=(rows, count))
    drawn_R = np.take_along_axis(scores_RK, drawn_RK, axis=1).mean(1)
    return mean_R + np.sqrt(count / (count - 1)) * (drawn_R - mean_R)


def _task_scores(
    strata: Sequence[np.ndarray],
    weights: Sequence[float],
    models: Sequence[np.ndarray],
    resamples: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """Scores on one task [R, M]: the weighted mean over its strata, each with a correlation of its own."""
    scores_RM, start = np.zeros((resamples, len(models))), 0
    for gold_P, weight in zip(strata, weights):
        rows = slice(start, start := start + len(gold_P))
        if not weight:
            continue
        gold, of_stratum = _Order(gold_P), [_Order(model_P[rows]) for model_P in models]
        step = max(1, _BLOCK_CELLS // len(gold_P))
        for first in range(0, resamples, step):
            block = slice(first, min(first + step, resamples))
            counts_RP = generator.multinomial(len(gold_P), np.full(len(gold_P), 1 / len(gold_P)), block.stop - first)
            gold_RP = gold.ranks(counts_RP)
            for column, order in enumerate(of_stratum):
                scores_RM[block, column] += weight * 100 * _correlation(order.ranks(counts_RP), gold_RP, counts_RP)
    return scores_RM


class _Order:
    """The order of some values, from which the ranks in any resample follow without sorting."""

    def __init__(self, values_P: np.ndarray):
        self.order_P = np.argsort(values_P, kind="stable")
        sorted_P = values_P[self.order_P]
        new_P = np.append(True, sorted_P[1:] != sorted_P[:-1])
        self.place_P = np.empty(len(values_P), np.int64)
        self.place_P[self.order_P] = np.cumsum(new_P) - 1
        """Which of the distinct values each is, from the smallest."""
        self.starts = np.flatnonzero(new_P)

    def ranks(self, counts_RP: np.ndarray) -> np.ndarray:
        """Returns each value's rank [R, P] where value p occurs counts[r, p] times; ties share their mean rank."""
        of_distinct = np.add.reduceat(counts_RP[:, self.order_P], self.starts, axis=1)
        last = np.cumsum(of_distinct, axis=1)
        return (last - (of_distinct - 1) / 2)[:, self.place_P]


def _correlation(a_RP: np.ndarray, b_RP: np.ndarray, counts_RP: np.ndarray) -> np.ndarray:
    """The linear correlation of each resample, NaN where a side is constant."""
    total = counts_RP.sum(1)
    a_RP, b_RP = (x - ((x * counts_RP).sum(1) / total)[:, None] for x in (a_RP, b_RP))
    weighted_RP = a_RP * counts_RP
    product = (weighted_RP * b_RP).sum(1)
    squares = (weighted_RP * a_RP).sum(1) * (counts_RP * b_RP**2).sum(1)
    return np.divide(product, np.sqrt(squares), out=np.full(len(product), np.nan), where=squares > 0)

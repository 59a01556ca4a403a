"""The grid of `sts`: the best lower bound (SED section 5.5)."""

import statistics
from collections.abc import Mapping, Sequence


def choose_bound(scores: Mapping[float, Sequence[float]]) -> dict[str, float | None]:
    """Choose the bound whose models have the best mean dev score; ties go to the smallest.

    Its models become the ensemble. `margin` is that over the `runner_up`.

    >>> choose_bound({0.0: [70, 72], 0.5: [75, 73], 0.9: [60, 76]})
    {'winner': 0.5, 'score': 74.0, 'runner_up': 0.0, 'margin': 3.0}
    """
    values = {bound: statistics.fmean(of_bound) for bound, of_bound in scores.items()}
    winner, *others = sorted(values, key=lambda bound: (-values[bound], bound))
    runner_up = others[0] if others else None
    margin = None if runner_up is None else values[winner] - values[runner_up]
    return {"winner": winner, "score": values[winner], "runner_up": runner_up, "margin": margin}

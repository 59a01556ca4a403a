"""What one training does: how many updates, at which rates, and which weights are kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Plan:
    """What one training does.

    Attributes:
        learning_rate: rate of an update, by step (0-based).
        evaluate_every: updates between evaluations; the last update is always evaluated.
        log_every: updates between entries of the loss in the history.
        keep: name of the candidate that is the result, or `best`: the best one at its best evaluation.
        patience: with `best`, the training ends after so many evaluations without a better score; None: never.
        held_out: batches that nothing is learnt from; the loss on them, not the dev score, then says what is best.
    """

    steps: int
    learning_rate: Callable[[int], float]
    seed: int = 0
    evaluate_every: int = 500
    checkpoint_every: int = 500
    log_every: int = 10
    keep: str = "best"
    patience: int | None = None
    held_out: Sequence[Any] = ()


def warmup_schedule(rate: float, steps: int, warmup: float, decay: str) -> Callable[[int], float]:
    """Rise linearly over the first share of the steps, then stay or fall linearly to zero.

    >>> [round(warmup_schedule(1.0, 10, 0.2, "linear")(step), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.125]
    """
    rising = max(int(steps * warmup), 1) if warmup else 0

    def at(step: int) -> float:
        if step < rising:
            return rate * (step + 1) / rising
        return rate * (steps - step) / max(steps - rising, 1) if decay == "linear" else rate

    return at

"""Regression of the cosine on human scores (SBERT), with a lower bound of the targets (SED section 5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import AfterValidator, BeforeValidator, Field
from torch.nn import functional as F

from raysed.config import CHOICE, MOST, TaskConfig, as_blocks, distinct
from raysed.train.objective import Siamese
from raysed.train.stage import Stage, Start, TuningConfig

if TYPE_CHECKING:
    from raysed.data.pairs import LabelledBatch, PairRows
    from raysed.model.encoder import Encoder


class StsConfig(TuningConfig):
    """Regression of the cosine on graded pairs, and the grid of lower bounds (SED section 5.5)."""

    epochs: float = Field(4.0, gt=0)
    train: Annotated[list[TaskConfig], BeforeValidator(as_blocks)] = []
    """One source or a list of them, put together: a path, a hub id, or a block with the settings of a task
    (`evaluation.tasks.NAME`). Scores count by their place in `score_range`."""
    lower_bounds: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], AfterValidator(distinct), CHOICE] = [
        round(0.05 * i, 2) for i in range(20)
    ]
    """The grid: different values of at least 0 and below 1. For a lower bound b, a pair's target is b + (1 - b) *
    score, with the score between 0 and 1. The best bound's models are the ensemble."""
    models: Annotated[int, CHOICE] = Field(10, ge=1, le=MOST)
    """Models per lower bound."""
    criterion: Literal["spearman", "pearson"] = "spearman"
    """Correlation on the dev task that decides: `spearman` or `pearson`."""
    statistic: Annotated[Literal["mean", "max"], CHOICE] = "mean"
    """Which score of a bound's models stands for the bound: their `mean`, or the best (`max`)."""
    evaluate_every: int | None = Field(None, ge=1)
    """Updates between two evaluations of a grid model. `null`: as `members.evaluate_every`."""
    scheduler: Annotated[Literal["none", "asha"], CHOICE] = "none"
    """`asha`: bounds that look hopeless after a part of their updates are not trained further. `none`: all are trained
    to the end."""
    asha_reduction: Annotated[int, CHOICE] = Field(3, ge=2)
    """Of the bounds at one rung, one in this many goes on to the next."""
    asha_rungs: Annotated[int, CHOICE] = Field(3, ge=2)
    """Number of rungs. The last is the whole training; each one before has `asha_reduction` times fewer updates, in
    whole multiples of `sts.evaluate_every`."""


def target_of(score: Any, lower_bound: float) -> Any:
    """Map scores of 0 to 1 (a number, array or tensor) to targets of `lower_bound` to 1; SBERT's own are of bound 0.

    >>> [round(target_of(score / 5, 0.4), 2) for score in (0, 2.5, 5)]
    [0.4, 0.7, 1.0]
    """
    return lower_bound + (1 - lower_bound) * score


class CosineRegression(Siamese):
    """Mean over the pairs of (cosine - target) squared, see `target_of`."""

    def __init__(self, encoder: Encoder, lower_bound: float, dropout: bool = True):
        super().__init__(encoder, dropout)
        self.lower_bound = lower_bound

    def loss(self, batch: LabelledBatch) -> torch.Tensor:
        """Return the loss of B pairs with scores of 0 to 1."""
        cosines_B = F.cosine_similarity(*self.embed(batch), dim=-1)
        return F.mse_loss(cosines_B, target_of(batch.labels.to(cosines_B), self.lower_bound))


class _Sts(Stage):
    name, Settings = "sts", StsConfig
    words = "regression on graded sentence pairs (how alike two sentences are, with labels)"
    labels = "STS"
    is_grid = True

    def needs(self, settings: StsConfig) -> list[tuple[str, str]]:
        dev = ("evaluation.dev", "sts chooses its lower bound on evaluation.dev; name a dev task")
        return [*super().needs(settings), dev]

    def load_pairs(self, settings: StsConfig) -> PairRows:
        from raysed.data.pairs import load_graded

        return load_graded(settings.train)

    def objective(self, settings: StsConfig, start: Start) -> CosineRegression:
        return CosineRegression(start.encoder, start.lower_bound or 0.0, settings.dropout)


STAGE = _Sts()

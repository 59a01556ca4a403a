"""Regression of the cosine on graded scores (SBERT), with a lower bound on the targets (SED section 5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import AfterValidator, BeforeValidator, Field
from torch.nn import functional as F

from raysed.config import MAX_MODELS, SELECTION_ONLY, TaskConfig, as_blocks, distinct
from raysed.data.pairs import LabelledBatch, PairRows, load_graded
from raysed.train.objective import Siamese
from raysed.train.stage import Stage, Start, TuningConfig

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder


class StsConfig(TuningConfig):
    """Regression of the cosine on graded pairs, with a grid of lower bounds (SED section 5.5)."""

    epochs: float = Field(4.0, gt=0)
    train: Annotated[list[TaskConfig], BeforeValidator(as_blocks)] = []
    """A path, hub id, settings of `evaluation.tasks.NAME`, or a list. `score_range` scales scores to 0 to 1."""
    lower_bounds: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], AfterValidator(distinct), SELECTION_ONLY] = [
        round(0.05 * i, 2) for i in range(20)
    ]
    """The grid: distinct values b from 0 to below 1 (docs/papers.md#the-grid-of-lower-bounds)."""
    models: Annotated[int, SELECTION_ONLY] = Field(10, ge=1, le=MAX_MODELS)
    """Models per lower bound."""
    evaluate_every: int | None = Field(None, ge=1)
    """Steps between evaluations. `null`: as `members.evaluate_every`."""


def target_of(score: Any, lower_bound: float) -> Any:
    """Map scores of 0 to 1 (a number, array or tensor) to targets of `lower_bound` to 1; SBERT uses bound 0.

    >>> [round(target_of(score / 5, 0.4), 2) for score in (0, 2.5, 5)]
    [0.4, 0.7, 1.0]
    """
    return lower_bound + (1 - lower_bound) * score


class CosineRegression(Siamese):
    """Mean over pairs of (cosine - target) squared; see `target_of`."""

    def __init__(self, encoder: Encoder, lower_bound: float, dropout: bool = True):
        super().__init__(encoder, dropout)
        self.lower_bound = lower_bound

    def loss(self, batch: LabelledBatch) -> torch.Tensor:
        """Return the loss of B pairs with scores of 0 to 1."""
        cosines_B = F.cosine_similarity(*self.embed(batch), dim=-1)
        return F.mse_loss(cosines_B, target_of(batch.labels.to(cosines_B), self.lower_bound))


class _Sts(Stage):
    name, Settings = "sts", StsConfig
    words = "regression on graded sentence pairs (predicting how similar two sentences are, with labels)"
    labels = "STS"
    is_grid = True

    def needs(self, settings: StsConfig) -> list[tuple[str, str]]:
        dev = ("evaluation.dev", "sts chooses its lower bound on evaluation.dev; name a dev task")
        return [*super().needs(settings), dev]

    def load_pairs(self, settings: StsConfig) -> PairRows:
        return load_graded(settings.train)

    def objective(self, settings: StsConfig, start: Start) -> CosineRegression:
        return CosineRegression(start.encoder, start.lower_bound or 0.0, settings.dropout)


STAGE = _Sts()

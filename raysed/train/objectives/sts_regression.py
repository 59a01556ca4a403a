"""Regression of the cosine on human scores (SBERT), with a lower bound of the targets (SED section 5.5)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional as F

from raysed.data.pair_table import LabelledBatch
from raysed.model.encoder import Encoder
from raysed.train.objectives.siamese_nli import Siamese


def target_of(score: Any, lower_bound: float) -> Any:
    """Maps scores of 0 to 1 (a number, array or tensor) to targets of `lower_bound` to 1.

    With the bound 0 this is SBERT's score / 5 of a score of 0 to 5.

    Args:
        score: 0 to 1.
        lower_bound: the target of score 0.

    >>> [round(target_of(score / 5, 0.4), 2) for score in (0, 2.5, 5)]
    [0.4, 0.7, 1.0]
    """
    return lower_bound + (1 - lower_bound) * score


class CosineRegression(Siamese):
    """Mean over the pairs of (cosine - target) squared.

    Args:
        lower_bound: target of the lowest score; that of the highest is 1.
        dropout: whether the encoder's dropout is on while it trains.
    """

    def __init__(self, encoder: Encoder, lower_bound: float, dropout: bool = True):
        super().__init__(encoder, dropout)
        self.lower_bound = lower_bound

    def loss_of(self, batch: LabelledBatch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the loss of B pairs with scores of 0 to 1."""
        cosines_B = F.cosine_similarity(*embeddings[0].chunk(2), dim=-1)
        return F.mse_loss(cosines_B, target_of(batch.labels.to(cosines_B), self.lower_bound))

"""Distillation: the learner's embedding of a sentence comes close to what the teachers together say of it."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional as F

from raysed.data.targets import TargetBatch
from raysed.model.encoder import Encoder
from raysed.training.objectives.base import EncoderObjective


def _unit_mse(emb_BD: torch.Tensor, target_BD: torch.Tensor) -> torch.Tensor:
    return (F.normalize(emb_BD, dim=1) - F.normalize(target_BD, dim=1)).square().sum(1).mean()


def _cosine(emb_BD: torch.Tensor, target_BD: torch.Tensor) -> torch.Tensor:
    return (1 - F.cosine_similarity(emb_BD, target_BD)).mean()


def _similarity(emb_BD: torch.Tensor, target_BD: torch.Tensor) -> torch.Tensor:
    emb_BD, target_BD = F.normalize(emb_BD, dim=1), F.normalize(target_BD, dim=1)
    return F.mse_loss(emb_BD @ emb_BD.T, target_BD @ target_BD.T)


LOSSES = {"mse": F.mse_loss, "unit_mse": _unit_mse, "cosine": _cosine, "similarity": _similarity}
"""From embeddings and targets [B, D] to a mean over the sentences, see `sed.loss`."""


class Distillation(EncoderObjective):
    """The distance between the learner's last-layer embedding and the target; by default SED's (section 4).

    Args:
        learner: the encoder that learns.
        dropout: whether its dropout is on while it trains.
        losses: names from `LOSSES` and their weights; None: the mean squared error alone.
    """

    def __init__(self, learner: Encoder, dropout: bool = False, losses: Mapping[str, float] | None = None):
        super().__init__(dropout)
        self.learner = learner
        self._losses = dict(losses or {"mse": 1.0})

    def forward(self, batch: TargetBatch) -> torch.Tensor:
        """Returns the loss, a mean over sentences, whose mean over workers is that of the batch.

        `similarity` compares the sentences of one worker.
        """
        target_BD = batch.targets.to(next(self.parameters()).device)
        emb_BD = self.learner(batch.tokens.to(target_BD.device)).float()
        return batch.weight * sum(weight * LOSSES[name](emb_BD, target_BD) for name, weight in self._losses.items())

    def loss(self, batch: TargetBatch) -> torch.Tensor:
        """See `loop.Objective`."""
        return self(batch)

    def candidates(self) -> dict[str, nn.Module]:
        """See `loop.Objective`."""
        return {"learner": self.learner}

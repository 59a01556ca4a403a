"""Distillation: the learner's embedding of a sentence comes close to what the teachers together say of it."""

import torch
from torch import nn
from torch.nn import functional as F

from raysed.data.targets import TargetBatch
from raysed.model.encoder import Encoder
from raysed.training.objectives.base import EncoderObjective


class Distillation(EncoderObjective):
    """Mean squared error between the learner's last-layer embedding and the target (SED section 4).

    Args:
        learner: the encoder that learns.
        dropout: whether its dropout is on while it trains.
    """

    def __init__(self, learner: Encoder, dropout: bool = False):
        super().__init__(dropout)
        self.learner = learner

    def forward(self, batch: TargetBatch) -> torch.Tensor:
        """Returns the loss, a mean over sentences and dimensions, whose mean over workers is that of the batch."""
        device = next(self.parameters()).device
        emb_BD = self.learner(batch.tokens.to(device))
        return batch.weight * F.mse_loss(emb_BD.float(), batch.targets.to(device))

    def loss(self, batch: TargetBatch) -> torch.Tensor:
        """See `loop.Objective`."""
        return self(batch)

    def candidates(self) -> dict[str, nn.Module]:
        """See `loop.Objective`."""
        return {"learner": self.learner}

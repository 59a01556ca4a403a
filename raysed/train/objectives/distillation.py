"""Distillation: the learner's embedding of a sentence comes close to what the teachers together say of it."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torch.nn import functional as F

from raysed.data.targets import TargetBatch
from raysed.model.encoder import Encoder
from raysed.train.objectives.base import EncoderObjective


def _unit_mse(emb_BD: torch.Tensor, target_BD: torch.Tensor) -> torch.Tensor:
    return (F.normalize(emb_BD, dim=1) - F.normalize(target_BD, dim=1)).square().sum(1).mean()


def _cosine(emb_BD: torch.Tensor, target_BD: torch.Tensor) -> torch.Tensor:
    return (1 - F.cosine_similarity(emb_BD, target_BD)).mean()


def _similarity(emb_BD: torch.Tensor, target_BE: torch.Tensor) -> torch.Tensor:
    emb_BD, target_BE = F.normalize(emb_BD, dim=1), F.normalize(target_BE, dim=1)
    return F.mse_loss(emb_BD @ emb_BD.T, target_BE @ target_BE.T)


LOSSES = {"mse": F.mse_loss, "unit_mse": _unit_mse, "cosine": _cosine, "similarity": _similarity}
"""From embeddings and targets [B, D] to a mean over the sentences, see `sed.loss`."""
_OF_ANY_WIDTH = {"similarity"}
"""Losses whose targets may be of another width than the embeddings."""


class Distillation(EncoderObjective):
    """The distance between the learner's last-layer embedding and the target; by default SED's (section 4).

    With `widths` it is the mean of the distances of the first coordinates, for each width and the full one (Kusupati et
    al., "Matryoshka Representation Learning", 2022, with equal weights). The first d coordinates of an embedding are
    compared with those of its target, which mean something if the target's coordinates are in the order of their
    importance. `similarity` compares their cosines with those of the full targets at every width: it needs no
    coordinates of targets, and those cosines are what a short embedding is to give.

    Args:
        dropout: whether its dropout is on while it trains.
        losses: names from `LOSSES` and their weights; None: the mean squared error alone.
    """

    def __init__(
        self,
        learner: Encoder,
        dropout: bool = False,
        losses: Mapping[str, float] | None = None,
        widths: Sequence[int] = (),
    ):
        super().__init__(dropout)
        self.learner = learner
        self._losses = dict(losses or {"mse": 1.0})
        self._widths = tuple(widths)

    def forward(self, batch: TargetBatch) -> torch.Tensor:
        """Returns the loss, a mean over sentences, whose mean over workers is that of the batch.

        `similarity` compares the sentences of one worker.
        """
        target_BD = batch.targets.to(next(self.parameters()).device)
        emb_BD = self.learner(batch.tokens.to(target_BD.device)).float()
        widths = (*self._widths, emb_BD.shape[1])
        return batch.weight * sum(self._loss(emb_BD[:, :width], target_BD) for width in widths) / len(widths)

    def _loss(self, emb_Bd: torch.Tensor, target_BD: torch.Tensor) -> torch.Tensor:
        """Of embeddings that may be cut to their first coordinates."""
        target_Bd = target_BD[:, : emb_Bd.shape[1]]
        return sum(
            weight * LOSSES[name](emb_Bd, target_BD if name in _OF_ANY_WIDTH else target_Bd)
            for name, weight in self._losses.items()
        )

    def loss(self, batch: TargetBatch) -> torch.Tensor:
        """See `loop.Objective`."""
        return self(batch)

    def candidates(self) -> dict[str, nn.Module]:
        """See `loop.Objective`."""
        return {"learner": self.learner}

"""Base classes of objectives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from raysed.data.pairs import LabelledBatch
from raysed.train.collapse import spread_of

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder


class EncoderObjective(nn.Module):
    """A loss over encoders, which train with dropout only if `dropout` is set.

    Attributes:
        is_recordable: whether all batches of a shape take the same operations, on tensors only and without waiting for
            the device. A GPU then records an update once (`recorded.py`).
    """

    is_recordable = False

    def __init__(self, dropout: bool):
        super().__init__()
        self._dropout = dropout
        self.watched: torch.Tensor | None = None
        """Embeddings of different sentences of the last batch, whose spread is logged; see `collapse.spread_of`."""

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the mean loss of a batch."""
        raise NotImplementedError

    def candidates(self) -> dict[str, nn.Module]:
        """Return the encoders that may become the result, by name, the default one last."""
        return {"encoder": self.encoder}

    def encoders(self) -> list[nn.Module]:
        """Return all encoders, including those that cannot become the result."""
        return list(self.candidates().values())

    def train(self, mode: bool = True) -> Any:
        """Set the mode of the heads, and of the encoders if they use dropout."""
        super().train(mode)
        for encoder in self.encoders():
            encoder.train(mode and self._dropout)
        return self

    def after_update(self) -> None:
        """Run after each update of the weights; does nothing by default."""

    def measures(self) -> dict[str, float]:
        """Return what to log about the last batch besides its loss."""
        return {} if self.watched is None else spread_of(self.watched)


class Siamese(EncoderObjective):
    """Both sentences of a pair go through the same encoder: mean of the last layer."""

    is_recordable = True

    def __init__(self, encoder: Encoder, dropout: bool = True):
        super().__init__(dropout)
        self.encoder = encoder

    def embed(self, batch: LabelledBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the embeddings of the first and second sentences of B pairs, [B, D] each."""
        return self.encoder(batch.tokens.to(self.encoder.transformer.device)).chunk(2)

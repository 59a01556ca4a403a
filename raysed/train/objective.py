"""What objectives have in common apart from their loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from raysed.train.collapse import spread_of

if TYPE_CHECKING:
    from raysed.data.pairs import LabelledBatch
    from raysed.data.tokens import PackedTokens
    from raysed.model.encoder import Encoder


class EncoderObjective(nn.Module):
    """A module that turns a batch into a loss over encoders, which are in training mode where dropout is wanted."""

    def __init__(self, dropout: bool):
        super().__init__()
        self._dropout = dropout
        self.watched: torch.Tensor | None = None
        """Embeddings of different sentences of the last batch, whose spread is logged, see `collapse.spread_of`."""

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the mean loss of a batch."""
        raise NotImplementedError

    def candidates(self) -> dict[str, nn.Module]:
        """Return the encoders of which one becomes the result, by name, the usual one last; all else is dropped."""
        return {"encoder": self.encoder}

    def encoders(self) -> list[nn.Module]:
        """Return all encoders, also those that cannot become the result."""
        return list(self.candidates().values())

    def train(self, mode: bool = True) -> Any:
        """Set the mode of the heads, and of the encoders if their dropout is wanted."""
        super().train(mode)
        for encoder in self.encoders():
            encoder.train(mode and self._dropout)
        return self

    def after_update(self) -> None:
        """Called after each update of the weights."""

    def measures(self) -> dict[str, float]:
        """Return what is worth logging beside the loss of the last batch."""
        return {} if self.watched is None else spread_of(self.watched)


class EmbeddingObjective(EncoderObjective):
    """An objective whose loss is one of embeddings, which `train.stack` computes for several members together."""

    def passes(self, batch: Any) -> list[tuple[nn.Module, PackedTokens]]:
        """Return every encoder once, in the order of `encoders()`, with the sentences that it embeds."""
        raise NotImplementedError

    def loss_of(self, batch: Any, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the loss, given what each of `passes` gives, emb_BD."""
        raise NotImplementedError

    def loss(self, batch: Any) -> torch.Tensor:
        """Return the mean loss of a batch, see `loss_of`."""
        embeddings = [encoder(tokens.to(encoder.transformer.device)) for encoder, tokens in self.passes(batch)]
        return self.loss_of(batch, embeddings)


class Siamese(EmbeddingObjective):
    """Both sentences of a pair go through the same encoder: mean of the last layer."""

    def __init__(self, encoder: Encoder, dropout: bool = True):
        super().__init__(dropout)
        self.encoder = encoder

    def passes(self, batch: LabelledBatch) -> list[tuple[nn.Module, PackedTokens]]:
        """One pass for the first and the second sentences of B pairs."""
        return [(self.encoder, batch.tokens)]

"""What objectives have in common apart from their loss."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from raysed.data.tokens import PackedTokens


class EncoderObjective(nn.Module):
    """An objective over encoders; training mode reaches the encoders only where their dropout is wanted.

    Args:
        dropout: whether the encoders' dropout is on while they train.
    """

    def __init__(self, dropout: bool):
        super().__init__()
        self._dropout = dropout

    def candidates(self) -> dict[str, nn.Module]:
        """Returns the encoders of which one becomes the result, by name; everything else is thrown away."""
        raise NotImplementedError

    def encoders(self) -> list[nn.Module]:
        """Returns all encoders, also those that cannot become the result."""
        return list(self.candidates().values())

    def train(self, mode: bool = True) -> Any:
        """Heads follow the mode; encoders do so with dropout only."""
        super().train(mode)
        for encoder in self.encoders():
            encoder.train(mode and self._dropout)
        return self

    def after_update(self) -> None:
        """Called after each update of the weights."""

    def measures(self) -> dict[str, float]:
        """Returns what is worth logging beside the loss of the last batch."""
        return {}


class EmbeddingObjective(EncoderObjective):
    """An objective whose loss is one of embeddings, which need not be computed by its encoders one by one.

    See `raysed.train.stack`, where those of several members are computed together.
    """

    def passes(self, batch: Any) -> list[tuple[nn.Module, PackedTokens]]:
        """Returns every encoder once, in the order of `encoders()`, with the sentences that it embeds.

        Args:
            batch: what `loss` takes.
        """
        raise NotImplementedError

    def loss_of(self, batch: Any, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the loss.

        Args:
            batch: what `loss` takes.
            embeddings: what each of `passes` gives, emb_BD.
        """
        raise NotImplementedError

    def loss(self, batch: Any) -> torch.Tensor:
        """Returns the mean loss of a batch, see `loss_of`."""
        passes = self.passes(batch)
        # Encoders may share their sentences, which then go to the device once.
        there = {id(tokens): tokens.to(encoder.transformer.device) for encoder, tokens in passes}
        return self.loss_of(batch, [encoder(there[id(tokens)]) for encoder, tokens in passes])

"""What objectives have in common apart from their loss."""

from typing import Any

from torch import nn


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

"""What makers share: the sentences that models embed, and the files of their embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raysed.data.tokens import TokenTable
from raysed.score.tasks import Evaluation


@dataclass(frozen=True)
class Sentences:
    """Sentences that models embed.

    Attributes:
        tokens: of the run's encoder; None where they depend on an encoder that the run makes.
        evaluation: the tasks whose sentences they are.
    """

    texts: Sequence[str]
    tokens: TokenTable | None
    evaluation: Evaluation | None = None


def layers_file(layers: Any) -> str:
    """Returns the file name of embeddings at one pooling."""
    return f"layers-{layers}.npy"

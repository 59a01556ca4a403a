"""What makers share: the sentences that models embed, and the files of their embeddings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysed.data.tokens import TokenTable
from raysed.score.tasks import Evaluation

Named = Mapping[str, Any]
"""A maker's inputs, and its settings, by name; the facts that it returns for the manifest."""


@dataclass(frozen=True)
class Sentences:
    """Sentences that models embed, and the tasks that they are of."""

    texts: Sequence[str]
    tokens: TokenTable | None
    """Of the run's encoder; None where they depend on an encoder that the run makes."""
    evaluation: Evaluation | None = None


def layers_file(layers: Any) -> str:
    """Return the file name of embeddings at one pooling."""
    return f"layers-{layers}.npy"

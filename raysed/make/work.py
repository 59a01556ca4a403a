"""What makers share: the sentences to embed, and the names of embedding files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysed.data.tokens import TokenTable
from raysed.score.tasks import Evaluation

Named = Mapping[str, Any]
"""A maker's inputs or settings by name, or the facts that it returns for the manifest."""


@dataclass(frozen=True)
class Sentences:
    """Sentences to embed, and the tasks they come from."""

    texts: Sequence[str]
    tokens: TokenTable | None
    """Of the run's encoder; None if the run makes that encoder first."""
    evaluation: Evaluation | None = None


def layers_file(layers: Any) -> str:
    """Return the file name of embeddings with one pooling."""
    return f"layers-{layers}.npy"

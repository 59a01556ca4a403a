"""What makers share: the sentences to embed, and the names of embedding files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysed.data.tokens import TokenTable
from raysed.model.prompts import Prompts
from raysed.score.tasks import Evaluation

Named = Mapping[str, Any]
"""A maker's inputs or settings by name, or the facts that it returns for the manifest."""


@dataclass(frozen=True)
class Sentences:
    """The tasks whose sentences are embedded."""

    evaluation: Evaluation
    tokens: TokenTable | None
    """Of the run's encoder, after `prompts`; None if the run makes that encoder first."""
    prompts: Prompts = field(default_factory=dict)
    """Of the run's encoder; teachers have their own."""


def layers_file(layers: Any) -> str:
    """Return the file name of embeddings with one pooling."""
    return f"layers-{layers}.npy"

"""Sentences to embed and names of embedding files, shared by makers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raysed.data.tokens import TokenTable
from raysed.model.prompts import Prompts
from raysed.score.tasks import Evaluation

Named = Mapping[str, Any]
"""A maker's inputs or settings by name, or its facts for the manifest."""


@dataclass(frozen=True)
class Sentences:
    """The evaluation's sentences, with tokens and prompts of the run's encoder; teachers have their own."""

    evaluation: Evaluation
    tokens: TokenTable | None
    """Tokens after `prompts`; None if the run makes its encoder first."""
    prompts: Prompts = field(default_factory=dict)


def layers_file(layers: Any) -> str:
    """Return the file name of embeddings with one pooling."""
    return f"layers-{layers}.npy"

"""What makers share: the sentences to embed, and the names of embedding files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysed.config import Role
from raysed.data.tokens import TokenTable
from raysed.model.prompts import Prompts
from raysed.score.tasks import Evaluation

Named = Mapping[str, Any]
"""A maker's inputs or settings by name, or the facts that it returns for the manifest."""


@dataclass(frozen=True)
class Sentences:
    """Sentences to embed, and the tasks they come from."""

    texts: Sequence[str]
    tokens: TokenTable | None
    """Of the run's encoder, after `prompts`; None if the run makes that encoder first."""
    evaluation: Evaluation | None = None
    prompts: Prompts = field(default_factory=dict)
    """Of the run's encoder; teachers have their own."""

    @property
    def roles(self) -> Sequence[Role]:
        """Each text's role."""
        return self.evaluation.roles if self.evaluation else [""] * len(self.texts)


def layers_file(layers: Any) -> str:
    """Return the file name of embeddings with one pooling."""
    return f"layers-{layers}.npy"

"""The dev task: what choices are made on while models train and when they are combined."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from raysed.config import Layers, stable_hash
from raysed.data.tokens import TokenTable
from raysed.model.encoder import Encoder
from raysed.model.encoding import default_token_budget, encode
from raysed.score.tasks import Evaluation, comparable, score_by

_WHILE_TRAINING = 8192
"""Tokens per forward pass at most: memory holds weights and moments, too, maybe of other members on the same GPU."""
Criterion = Literal["spearman", "pearson"]


@dataclass(frozen=True)
class DevTask:
    """The dev task, tokenised once for all models."""

    evaluation: Evaluation
    """Of this task alone, with its aggregation."""
    tokens: TokenTable | None
    """None where tokens depend on an encoder that the run makes."""
    rows: np.ndarray
    """Where the sentences are among those of all tasks, int64 [U]."""
    layers: Layers

    @cached_property
    def identity(self) -> Any:
        """All that a choice on this task depends on, beside the models."""
        task = next(iter(self.evaluation.tasks.values()))
        return {
            "task": stable_hash(task.content()),
            "aggregation": getattr(task, "aggregation", None),
            "layers": self.layers,
        }

    def score(self, x_UD: np.ndarray, criterion: Criterion = "spearman") -> float:
        """Return the score x100 of embeddings of the task's sentences, 0 where it is not defined."""
        (metrics,) = self.evaluation.score(x_UD).values()
        return comparable(score_by(metrics, criterion))

    def scorer(self, criterion: Criterion = "spearman", token_budget: int | None = None) -> Callable[[Encoder], float]:
        """Return what scores an encoder while it trains, in passes of so many tokens, or what suits the device."""

        def score(encoder: Encoder) -> float:
            device = next(encoder.parameters()).device
            budget = token_budget or min(default_token_budget(device), _WHILE_TRAINING)
            return self.score(encode(encoder, self.tokens, (self.layers,), budget)[0], criterion)

        return score

"""Kinds of tasks; each is one file of this package with a subclass of `EvaluationTask`.

A task turns embeddings into an *outcome*, an array with a row per pair, query or text. Metrics and resampled scores
depend on outcomes only, so the same code scores BM25.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Any, ClassVar

import numpy as np

from raysed.config import Role, TaskConfig
from raysed.registry import discover
from raysed.score.lexical import LEXICAL, Vectors

BLOCK_CELLS = 2**24
"""Similarities to hold in memory at once."""


class EvaluationTask(ABC):
    """A task that models are scored on.

    Attributes:
        kind: as in `evaluation.tasks.NAME.kind`.
        main: key of the main score in `metrics`.
        sentences: the U texts that a model has to embed, distinct in role and text.
        size: words such as `400 pairs`.
    """

    kind: ClassVar[str]
    main: ClassVar[str]
    measure: ClassVar[str]
    name: str
    sentences: list[str]
    size: str

    @cached_property
    def roles(self) -> list[Role]:
        """Each sentence's role, which decides its prompt."""
        return [""] * len(self.sentences)

    @classmethod
    def recognises(cls, config: TaskConfig, setting: str) -> bool:
        """Return whether a task without `kind` is of this kind, by its files. Tasks that no kind claims are pairs."""
        return False

    @classmethod
    @abstractmethod
    def load(cls, name: str, config: TaskConfig, split: str, aggregation: str) -> "EvaluationTask":
        """Read a task; `split` is `dev` for the dev task, else `test`; `aggregation` is for graded pairs."""

    @abstractmethod
    def content(self) -> list[Any]:
        """Return everything but embeddings that scores depend on, for a digest."""

    @abstractmethod
    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return an array with a row per pair, query or text, from the embeddings of `sentences`."""

    @abstractmethod
    def metrics(self, outcome: np.ndarray) -> dict[str, Any]:
        """Return scores x100, and counts."""

    def items(self) -> list[tuple[str, ...]]:
        """Return the pairs or texts that have labels, in a fixed order; empty for documents."""
        return []

    def without(self, rows: Sequence[int]) -> "EvaluationTask | None":
        """Return the task without the `items` at `rows`; None if the rest cannot be scored."""
        raise NotImplementedError

    def strata(self) -> list[tuple[slice, float]]:
        """Return slices of outcome rows that are resampled together, with their shares of the score."""
        raise NotImplementedError

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        """Return scores x100 of M models, [M, R]; each of P `rows` counts `counts_PR` times in each resample."""
        raise NotImplementedError

    def score_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> float | None:
        """Return the score x100 if x embeds queries and y documents; None if there is no such score."""
        return None

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        raise NotImplementedError

    def lexical(self) -> dict[str, Callable[[], np.ndarray]]:
        """Return functions for the outcomes of the baselines that fit this kind, by row name."""
        return {name: partial(self.lexical_outcome, vectors) for name, vectors in LEXICAL.items()}


@cache
def kinds() -> dict[str, type[EvaluationTask]]:
    """Return all kinds of tasks by name."""
    return {task.kind: task for task in discover(__name__, EvaluationTask).values()}

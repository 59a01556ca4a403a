"""Kinds of tasks that models are scored on. A kind is one file of this package with a subclass of `Task`.

A task turns embeddings into an *outcome*, an array with a row for each pair, query or text; metrics, and the scores of
resamples, follow from outcomes alone, so BM25 is scored by the same lines.
"""

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from raysed.config import TaskConfig
from raysed.score.lexical import LEXICAL, Vectors


class Task(ABC):
    """A task that models are scored on.

    Attributes:
        kind: as in `evaluation.tasks.NAME.kind`.
        main: the key of `metrics` that is the score.
        rises_when_resampled: whether resamples score higher than the whole on average.
        sentences: the U distinct texts that a model has to embed.
        size: in words.
    """

    kind: ClassVar[str]
    main: ClassVar[str]
    measure: ClassVar[str]
    rises_when_resampled: ClassVar[bool] = False
    name: str
    sentences: list[str]
    size: str

    @classmethod
    def recognises(cls, config: TaskConfig, setting: str) -> bool:
        """Return whether the files of a task without `kind` are of this kind; where none says so, it is pairs."""
        return False

    @classmethod
    @abstractmethod
    def load(cls, name: str, config: TaskConfig, seed: int, aggregation: str) -> "Task":
        """Read a task; the seed is that of folds and clusters, the aggregation that of graded pairs."""

    @abstractmethod
    def content(self) -> list[Any]:
        """Return all that scores depend on beside embeddings, for a digest."""

    @abstractmethod
    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return what a model does on every pair, query or text, from the embeddings of `sentences`."""

    @abstractmethod
    def metrics(self, outcome: np.ndarray) -> dict[str, Any]:
        """Return the scores, x100, and counts."""

    def items(self) -> list[tuple[str, ...]]:
        """Return what a label is given to, pairs or texts, in any fixed order; nothing where these are documents."""
        return []

    def without(self, rows: Sequence[int]) -> "Task | None":
        """Return a task without some of its `items`, by their places; None where the others cannot be scored."""
        raise NotImplementedError

    def strata(self) -> list[tuple[slice, float]]:
        """Return the rows of an outcome that are resampled together, and their share of the task's score."""
        raise NotImplementedError

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        """Return the scores x100 of M models, [M, R], where each of P `rows` counts so often in each of R resamples."""
        raise NotImplementedError

    def score_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> float | None:
        """Return the score x100 where x embeds queries and y documents; None where there is no such score."""
        return None

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        """Return the outcome of a baseline on words."""
        raise NotImplementedError

    def lexical(self) -> dict[str, Callable[[], np.ndarray]]:
        """Return by the name of their row the baselines that fit this kind; each is called for its outcome."""
        return {name: partial(self.lexical_outcome, vectors) for name, vectors in LEXICAL.items()}


@cache
def kinds() -> dict[str, type[Task]]:
    """Return every kind of task by its name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return {cls.kind: cls for cls in found if issubclass(cls, Task) and "kind" in vars(cls)}

"""All tasks of a run or command, and the one way to score a model on them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysed.config import EvaluationConfig, Layers, Role, TaskConfig, stable_hash
from raysed.context import ignore
from raysed.data.rows import column_names
from raysed.data.sources import Hub, find
from raysed.errors import UserError
from raysed.model.prompts import Prompts
from raysed.score.kinds import EvaluationTask, kinds
from raysed.score.kinds.pairs import Pairs
from raysed.score.lexical import BASELINES
from raysed.uris import refuse_secret

if TYPE_CHECKING:
    from raysed.data.tokens import TokenTable
    from raysed.model.encoder import Encoder

_MAX_TOKENS_IN_TRAINING = 8192
"""Per forward pass: memory also holds weights and moments, perhaps of other members on the same GPU."""
Embeddings = np.ndarray | Mapping[str, np.ndarray]
"""One model's embeddings: a matrix with a row for each of `Evaluation.sentences`. If tasks have their own calibrations,
a matrix by task with a row for each of `Evaluation.rows`."""
Outcomes = Mapping[str, np.ndarray]
"""One model's outcomes by task."""


@dataclass(frozen=True)
class ModelScores:
    """One model's outcomes and metrics by task, see `EvaluationTask`."""

    outcomes: dict[str, np.ndarray] = field(default_factory=dict)
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, task: EvaluationTask, outcome: np.ndarray) -> None:
        self.outcomes[task.name], self.metrics[task.name] = outcome, task.metrics(outcome)


class Evaluation:
    """Scores models on tasks; built once, then given the embeddings of one model after another."""

    def __init__(self, tasks: Sequence[EvaluationTask]):
        self.tasks = {task.name: task for task in tasks}
        self._row: dict[tuple[Role, str], int] = {}
        for task in tasks:
            for each in zip(task.roles, task.sentences):
                self._row.setdefault(each, len(self._row))
        self.sentences = [text for _, text in self._row]
        """Sentences that a model has to embed, in first-seen order. A text with two roles is in it twice."""
        self.roles = [role for role, _ in self._row]
        """Role of each of `sentences`."""
        self._rows = {task.name: self.rows_of(task) for task in tasks}

    @classmethod
    def load(cls, config: EvaluationConfig) -> Evaluation:
        splits = {name: "dev" if name == config.dev else "test" for name in config.tasks}
        how = config.aggregation
        return cls([load_any_task(name, task, how, splits[name]) for name, task in config.tasks.items()])

    def pair_rows(self, tasks: Iterable[str] | None = None) -> np.ndarray:
        """Return the indices in `sentences` of each pair's two sentences, int64 [P, 2]; by default of all tasks.

        Texts of other tasks are paired in order, because fits take pairs.
        """
        parts = []
        for name in self.tasks if tasks is None else tasks:
            task, rows = self.tasks[name], self._rows[name]
            parts.append(rows[task.pair_rows] if task.kind == "pairs" else rows[: len(rows) // 2 * 2].reshape(-1, 2))
        return np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)

    def rows_of(self, other: EvaluationTask | Evaluation) -> np.ndarray:
        """Return the indices in `sentences` of the U sentences of a task, or of an evaluation of some tasks, int64."""
        return np.array([self._row[each] for each in zip(other.roles, other.sentences)], np.int64)

    def rows(self, task: str) -> np.ndarray:
        """Return the indices in `sentences` of a task's distinct sentences, ascending, int64 [U_task]."""
        return np.sort(self._rows[task])

    def of_task(self, embeddings: Embeddings, task: str) -> np.ndarray:
        """Return the embeddings of a task's distinct sentences, [U_task, D], in the order of `rows`."""
        return embeddings[task] if isinstance(embeddings, Mapping) else embeddings[self.rows(task)]

    def outcome(self, embeddings: Embeddings, task: str) -> np.ndarray:
        """Return a model's outcome on one task (`EvaluationTask.outcome`); `UserError` if embeddings are not finite."""
        rows, expected, x_UD = self._rows[task], len(self.sentences), embeddings
        if isinstance(embeddings, Mapping):
            rows, expected, x_UD = np.searchsorted(self.rows(task), rows), len(rows), embeddings[task]
        if np.ndim(x_UD) != 2 or len(x_UD) != expected:
            raise ValueError(f"{expected} rows of embeddings expected, got shape {np.shape(x_UD)}")
        x_UD = np.asarray(x_UD)[rows]
        bad = np.flatnonzero(~np.isfinite(x_UD).all(axis=1))
        if len(bad):
            examples = ", ".join(repr(self.tasks[task].sentences[i][:60]) for i in bad[:3])
            raise UserError(
                f"{len(bad)} of {len(x_UD)} embeddings are not finite, first those of {examples}: "
                "the model has diverged; lower its learning rate"
            )
        return self.tasks[task].outcome(x_UD)

    def score(self, embeddings: Embeddings, begin: Callable[[str], None] = ignore) -> ModelScores:
        """Score one model on all tasks, or on those of `embeddings` by task; call `begin` with each task's name."""
        scores = ModelScores()
        for name, task in self.tasks.items():
            if not isinstance(embeddings, Mapping) or name in embeddings:
                begin(name)
                scores.add(task, self.outcome(embeddings, name))
        return scores

    def score_baselines(self, begin: Callable[[str], None] = ignore) -> dict[str, ModelScores]:
        """Return the scores of the lexical baselines by name."""
        rows = {name: ModelScores() for name in BASELINES}
        for task in self.tasks.values():
            for name, outcome in task.lexical().items():
                begin(f"{task.name} by {name}")
                rows[name].add(task, outcome())
        return {name: scores for name, scores in rows.items() if scores.outcomes}

    def score_between(self, x_UD: np.ndarray, y_UD: np.ndarray, tasks: Iterable[str]) -> float | None:
        """Return the mean of `EvaluationTask.score_between` over `tasks`; None if one has no such score."""
        rows = {name: self._rows[name] for name in tasks}
        scores = [self.tasks[name].score_between(x_UD[at], y_UD[at]) for name, at in rows.items()]
        return None if None in scores else statistics.fmean(scores)


def main_score(metrics: Mapping[str, Any]) -> float | None:
    """Return a task's main score x100 from its metrics; None if undefined.

    >>> main_score({"spearman": 71.2, "pearson": 70.9}), main_score({})
    (71.2, None)
    """
    return next((metrics[task.main] for task in kinds().values() if task.main in metrics), None)


def mean_score(metrics: Mapping[str, Mapping[str, Any]], tasks: Iterable[str]) -> float | None:
    """Return a model's mean score over `tasks`; None if there are none, or one is missing or not finite.

    >>> found = {"a": {"spearman": 70.0}, "b": {"ndcg@10": 40.0}, "c": {"spearman": None}}
    >>> mean_score(found, ["a", "b"]), mean_score(found, ["a", "c"]), mean_score(found, ["d"]), mean_score(found, [])
    (55.0, None, None, None)
    """
    values = [main_score(metrics.get(task, {})) for task in tasks]
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    return statistics.fmean(values)


def mean_embeddings(models: Sequence[Embeddings]) -> Embeddings:
    """Return the mean of several models' embeddings, by task if theirs are."""
    if isinstance(models[0], Mapping):
        return {task: mean_embeddings([model[task] for model in models]) for task in models[0]}
    return np.mean(models, axis=0)


def load_any_task(name: str, config: TaskConfig, aggregation: str = "mean", split: str = "test") -> EvaluationTask:
    """Read a task of any kind; see `EvaluationTask.load`."""
    return kinds()[kind_of(config, f"evaluation.tasks.{name}")].load(name, config, split, aggregation)


def task_name(source: str, taken: Container[str]) -> str:
    """Return the task name of a file or directory: its own name, or its path if that name is taken."""
    name = Path(source.rstrip("/")).name.split(".")[0].removeprefix("bundled:")
    return source if not name or name in taken else name


def with_tasks(config: EvaluationConfig, sources: Sequence[str], dev: str | None = None) -> EvaluationConfig:
    """Return settings with the tasks in these files instead of their own."""
    chosen = [dev] if dev else []
    tasks = tasks_of([*chosen, *(source for source in sources if source not in chosen or has_splits(source))], chosen)
    return config.model_copy(update={"tasks": tasks, "dev": next(iter(tasks)) if dev else None, "report": None})


def has_splits(source: str) -> bool:
    """Return whether a dev task and a reported task of a source have rows of their own, of a column `split`."""
    try:
        (found,) = find(source, "--dev", "a task", Hub(source, None, "test"))
        return isinstance(found, Hub) or "split" in column_names(found)
    except UserError:  # such as a directory
        return False


def tasks_of(sources: Sequence[str] | Mapping[str, str], dev: Container[str] = ()) -> dict[str, TaskConfig]:
    """Return one task per file or directory, by the given name or that of the file.

    Messages blame `--dev` for sources in `dev`, and `--task` for others.
    """
    named = isinstance(sources, Mapping)
    tasks: dict[str, TaskConfig] = {}
    for name, source in sources.items() if named else ((None, source) for source in sources):
        name, option = name or task_name(source, tasks), "--dev" if source in dev else "--task"
        refuse_secret(source, option)
        kind = kind_of(TaskConfig(source=source), f"{option} {source}")
        tasks[name] = TaskConfig(source=source, kind=kind, score_range=None, aggregation="all")
    return tasks


def kind_of(config: TaskConfig, setting: str) -> str:
    """Return the kind of a task: as set, or as its files show."""
    if config.kind is None:
        return next((kind for kind, task in kinds().items() if task.recognises(config, setting)), Pairs.kind)
    if config.kind not in kinds():
        raise UserError(f"{setting}.kind: there is no kind {config.kind!r}; write one of {', '.join(kinds())}")
    return config.kind


# -- the dev task ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DevTask:
    """The dev task, tokenised once for all models."""

    evaluation: Evaluation
    """This task alone, with its aggregation."""
    tokens: TokenTable | None
    """None if tokens depend on an encoder that the run makes."""
    rows: np.ndarray
    """Indices of its sentences among those of all tasks, int64 [U]."""
    layers: Layers
    prompts: Prompts = field(default_factory=dict)
    """Of the run's encoder, by role; `tokens` have them."""

    @cached_property
    def identity(self) -> Any:
        """Everything that a choice on this task depends on, except the models."""
        task = next(iter(self.evaluation.tasks.values()))
        return {
            "task": stable_hash(task.content()),
            "aggregation": getattr(task, "aggregation", None),
            "layers": self.layers,
            "prompts": self.prompts if any(role in self.prompts for role in task.roles) else {},
        }

    def score(self, x_UD: np.ndarray) -> float:
        """Return the main score x100 of embeddings of the task's sentences, rounded: noise must not break ties.

        An undefined score is 0: a model that tells no pairs apart is as good as chance.
        """
        (metrics,) = self.evaluation.score(x_UD).metrics.values()
        return round(main_score(metrics) or 0.0, 6)

    def scorer(self) -> Callable[[Encoder], float]:
        """Return a scorer for encoders in training."""
        from raysed.model.encoding import default_token_budget, encode

        def score(encoder: Encoder) -> float:
            device = next(encoder.parameters()).device
            budget = min(default_token_budget(device), _MAX_TOKENS_IN_TRAINING)
            return self.score(encode(encoder, self.tokens, (self.layers,), budget)[0])

        return score

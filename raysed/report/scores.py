"""Scored models: one row per model, statistics of groups of models, and their names in tables."""

import math
import statistics
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from raysed.recipe import BASE, TEACHERS
from raysed.registry import calibration_names, stages
from raysed.score.intervals import Difference, interval, items
from raysed.score.lexical import BM25, TF_IDF, WORD_OVERLAP
from raysed.score.tasks import main_score, mean_score

ORIGINAL = "the original encoder"
AVERAGE = "mean"
"""The headline mean's task name in a summary."""
NO_LABELS = "none"
KIND_NAMES = dict(
    base="base",
    grid="grid models",
    member="members",
    ensemble="full ensemble",
    learner="learner",
)
UNTRAINED = ("baseline", "base")
"""Kinds that need no training."""
_KIND_ORDER = ("baseline", "base", "member", "ensemble", "learner")
_BASELINE_NAMES = {WORD_OVERLAP: "word overlap", TF_IDF: "TF-IDF", BM25: "BM25"}

Kind = Literal["baseline", "base", "member", "ensemble", "grid", "learner"]
Group = tuple[str, str]
"""Recipe and kind."""
Groups = dict[Group, dict[str, Any]]
"""Groups with their summary entries for one task."""
Compared = tuple[str, str, int | str]
"""Recipe, kind, and which of the group's models: an index, or `mean`."""
THE_BASE: Compared = (BASE, "base", "mean")
Draws = Mapping[Compared, np.ndarray]
"""R resampled headline scores, see `score.intervals`."""


@dataclass(frozen=True)
class Row:
    """One scored model at one pooling depth."""

    recipe: str
    """Such as `ct-sed-flow`, `base` or `base-flow`; for baselines `word-overlap` and the like."""
    kind: Kind
    index: int
    lower_bound: float | None
    """Of grid models only."""
    layers: int | str
    """Pooled layers; 0 for a baseline."""
    metrics: Mapping[str, Mapping[str, Any]]
    """Result of `Evaluation.score`, by task."""
    left_out: bool = False
    """The model has collapsed: tables list it, but no mean includes it."""

    def average(self, tasks: Sequence[str]) -> float | None:
        """Return the mean score over `tasks`; None if one was not scored."""
        return mean_score(self.metrics, tasks)

    def score(self, task: str) -> float | None:
        """Return the score x100 on one task; None if missing or not finite."""
        value = main_score(self.metrics.get(task, {}))
        return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class ScoreTable:
    """The scored models of a run, for tables and findings."""

    rows: Sequence[Row]
    tasks: Sequence[str]
    """The headline tasks."""
    main_layers: int | str
    labels: Mapping[str, str] = field(default_factory=lambda: stage_labels())
    """The labels that each stage trains on."""
    draws: Draws = field(default_factory=dict)
    """Resampled headline scores, for 95 % intervals."""
    task_draws: Mapping[str, Draws] = field(default_factory=dict)
    """Those of single headline tasks, of the exported model and the teachers, if there are several tasks."""
    fitted_on: str | None = None
    """Text that calibrations were fitted on: `tasks`, `corpus`, `nli`, or the name of a source."""
    measure: str = "Score x100"
    """Title of the headline scores."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """Number and kind of each task's items, in words."""
    measures: Mapping[str, str] = field(default_factory=dict)
    exported: Row | None = None
    """The chosen model, exported or refused."""
    base_name: str = ORIGINAL
    """What the models were before training; only a whole encoder is a model that a user has."""
    teachers: Mapping[int, str] = field(default_factory=dict)
    """Names of the external teachers, which a user has, by index."""

    def named(self, task: str) -> str:
        """Return the task's name with number and kind of its items."""
        return f"{task} ({items(self.sizes[task])})" if task in self.sizes else task

    def known_as(self, group: Group, name: str) -> str:
        """Return a name of a group; some layers before training have their own, because no user has them."""
        return self.base_name if group == THE_BASE[:2] and self.base_name != ORIGINAL else name

    @cached_property
    def counted(self) -> list[Row]:
        """Rows behind the headline, grids included."""
        at_depth = [row for row in self.rows if row.layers == self.main_layers or row.kind == "baseline"]
        return [row for row in at_depth if not row.left_out]

    def rows_of(self, group: Group) -> list[Row]:
        return [row for row in self.counted if (row.recipe, row.kind) == group]

    @cached_property
    def summary(self) -> list[dict[str, Any]]:
        """Statistics by group and task (SED table 3), see docs/files.md; std is the sample's, 0 for one model."""
        groups: dict[tuple, list[Row]] = {}
        for row in self.counted:
            groups.setdefault((row.recipe, row.kind, row.lower_bound), []).append(row)
        summary = []
        for (recipe, kind, lower_bound), members in groups.items():
            bound = {} if lower_bound is None else {"lower_bound": lower_bound}
            columns = {task: [row.score(task) for row in members] for task in task_names(members)}
            columns[AVERAGE] = [row.average(self.tasks) for row in members]
            for task, values in columns.items():
                present = [value for value in values if value is not None]
                if present:
                    std = statistics.stdev(present) if len(present) > 1 else 0.0
                    entry = {"recipe": recipe, "kind": kind, **bound, "task": task, "max": max(present)}
                    entry |= {"mean": statistics.fmean(present), "std": std, "n": len(present)}
                    draws_R = self.draws.get((recipe, kind, "mean")) if task == AVERAGE and not bound else None
                    ends = None if draws_R is None else interval(draws_R)
                    summary.append(entry | dict(zip(("low", "high"), ends or ())))
        return summary

    @cached_property
    def groups(self) -> Groups:
        return self.groups_of(AVERAGE)

    def groups_of(self, task: str | None) -> Groups:
        """Return the entries of one task by group, without grid models, in reading order.

        The order: lexical baselines, the base, then each ensemble's members, means and learners, each before its
        calibrated version.
        """
        found = [entry for entry in self.summary if entry["task"] == task and entry["kind"] != "grid"]
        entries = {(entry["recipe"], entry["kind"]): entry for entry in found}
        trained = [row.recipe for row in self.counted if row.kind not in (*UNTRAINED, "grid")]
        families = list(dict.fromkeys(map(family_of, trained)))

        def place(group: Group) -> tuple[int, int, int]:
            recipe, kind = group
            family = -1 if kind in UNTRAINED else families.index(family_of(recipe))
            return family, _KIND_ORDER.index(kind), len(stages_of(recipe)[1])

        return {group: entries[group] for group in sorted(entries, key=place)}

    def best(self, group: Group, among: Container[int] | None = None) -> Compared | None:
        """Return the model of a group, or of some of its indices, with the best headline mean; None if none has one."""
        scored = {
            row.index: row.average(self.tasks) for row in self.rows_of(group) if among is None or row.index in among
        }
        scored = {index: score for index, score in scored.items() if score is not None}
        return (*group, max(scored, key=scored.__getitem__)) if scored else None

    def row(self, recipe: str, kind: str, index: int) -> Row | None:
        return next((row for row in self.rows_of((recipe, kind)) if row.index == index), None)

    def average_of(self, recipe: str, kind: str, index: int) -> float | None:
        row = self.row(recipe, kind, index)
        return row and row.average(self.tasks)

    def value(self, compared: Compared, task: str | None = None) -> float:
        recipe, kind, which = compared
        if which == "mean":
            return (self.groups_of(task) if task else self.groups)[recipe, kind]["mean"]
        return self.row(recipe, kind, which).average([task] if task else self.tasks)

    def difference(self, a: Compared, b: Compared, task: str | None = None) -> Difference:
        """Return the difference of two headline scores, or on one task, with its interval if both were resampled."""
        of_task = self.task_draws.get(task, {}) if task else self.draws
        draws = [of_task.get(compared) for compared in (a, b)]
        ends = None if any(draws_R is None for draws_R in draws) else interval(draws[0] - draws[1])
        return Difference(self.value(a, task) - self.value(b, task), ends)


def task_names(rows: Iterable[Row]) -> list[str]:
    """Return the tasks that rows were scored on, in first-seen order."""
    return list(dict.fromkeys(task for row in rows for task in row.metrics))


def stage_labels() -> dict[str, str]:
    """Return the labels that stages themselves train on; views may add more."""
    return {name: stage.labels for name, stage in stages().items() if stage.labels}


def labels_of(recipe: str, labels: Mapping[str, str]) -> str:
    """Return which labels a recipe trains on.

    >>> [labels_of(recipe, stage_labels()) for recipe in ("ct-sed-flow", "nli-ct-sed", "nli-sts")]
    ['none', 'NLI', 'NLI + STS']
    """
    used = dict.fromkeys(labels[stage] for stage in stages_of(recipe)[0] if stage in labels)
    return " + ".join(used) or NO_LABELS


def display_name(recipe: str, kind: str, n: int = 1) -> str:
    """Return the name of a group in tables.

    >>> display_name("ct", "member", 10), display_name("ct-sed-flow", "learner"), display_name("tf-idf", "baseline")
    ('members (10)', 'learner + flow', 'TF-IDF')
    """
    if kind == "baseline":
        return _BASELINE_NAMES.get(recipe, recipe)
    if recipe == TEACHERS:
        return f"teachers ({n})" if kind == "member" else "teachers together"
    name = KIND_NAMES[kind] if kind != "learner" or n == 1 else "learners"
    count = f" ({n})" if kind in ("member", "grid") or n > 1 else ""
    return " + ".join([name, *stages_of(recipe)[1]]) + count


def titled(recipe: str, kind: str, n: int = 1) -> str:
    """Return the name of a group, followed by its recipe if it was trained.

    >>> titled("ct-sed", "learner", 2), titled("teachers", "ensemble", 1)
    ('learners (2) of ct-sed', 'teachers together')
    """
    name = display_name(recipe, kind, n)
    return name if kind in UNTRAINED or recipe == TEACHERS else f"{name} of {recipe}"


def stages_of(recipe: str) -> tuple[list[str], list[str]]:
    """Split a recipe into training stages and calibrations; baselines have no calibration."""
    stages = recipe.split("-")
    cut = next((i for i, stage in enumerate(stages) if stage in calibration_names()), len(stages))
    return stages[:cut], stages[cut:]


def family_of(recipe: str) -> str:
    """Return the recipe of the members that a model derives from: `ct` for `ct-sed-flow`."""
    return "-".join(stage for stage in stages_of(recipe)[0] if stage != "sed")

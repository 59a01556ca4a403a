"""Where and how makers and workers compute. Nothing here changes a result."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from raysed.config import EncodePrecision, ResourcesConfig
from raysed.errors import RunFailed, UserError, last_line
from raysed.graph import Task
from raysed.store.checkpoints import Checkpoints
from raysed.store.metrics import MetricsLog
from raysed.store.progress import Progress, emit
from raysed.store.storage import Storage

if TYPE_CHECKING:
    from raysed.cluster.resources import Share
    from raysed.cluster.watchdog import Watchdog


MOST_RESTARTS = 100
"""Restarts of one training for any reason; `max_retries` counts only those without a new checkpoint in between."""


def _nothing(*arguments: Any) -> None:
    """Take what nobody asked for. Defaults of a bench are no lambdas, so that it can be sent to other processes."""


def _no() -> bool:
    return False


def _itself(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Work:
    """Where and how a maker computes.

    Attributes:
        token_budget: tokens per forward pass; None: the device's default.
        precision: of embeddings that become targets.
        rank: of this worker among the `world` that train one model; rank 0 writes.
        task: what is trained, for the model's description.
        report: takes a history entry of a training: step, total, loss and dev.
        warned: whether this machine is about to be preempted.
    """

    device: str = "cpu"
    token_budget: int | None = None
    precision: EncodePrecision = "fp32"
    rank: int = 0
    world: int = 1
    task: Task | None = None
    checkpoints: Checkpoints | None = None
    log: MetricsLog | None = None
    report: Callable[[dict[str, Any]], None] = _nothing
    warned: Callable[[], bool] = _no


@dataclass(frozen=True)
class Bench:
    """What all training workers of a stage share.

    Attributes:
        job: distinguishes starts in this job from those in earlier ones.
        report: takes the name of a training and a history entry: step, total, loss and dev.
        published: called on every worker when a learner is published.
        broadcast: returns the first worker's value to all.
        has_failed: whether any learner was reported as untrainable.
    """

    storage: Storage
    resources: ResourcesConfig
    share: Share | None = None
    watchdog: Watchdog | None = None
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    report: Callable[[str, dict[str, Any]], None] = _nothing
    published: Callable[[str], None] = _nothing
    warned: Callable[[], bool] = _no
    rank: int = 0
    world: int = 1
    broadcast: Callable[[Any], Any] = _itself
    say: Callable[[str, dict[str, Any]], None] = _nothing
    has_failed: Callable[[], bool] = _no

    @contextmanager
    def work(self, task: Task) -> Iterator[Work]:
        """Yield what the training of an artefact gets; on the first worker, its log is open within the block."""
        with nullcontext() if self.rank else MetricsLog(self.storage, task.name) as log:
            yield Work(
                self.share.device,
                self.resources.encode_token_budget,
                rank=self.rank,
                world=self.world,
                task=task,
                checkpoints=task.checkpoints(self.storage),
                log=log,
                report=lambda words: self.report(task.name, words),
                warned=self.warned,
            )


@dataclass(frozen=True)
class Ended:
    """Result of one worker's attempt; the member may still need further attempts.

    Attributes:
        score: on the dev task so far.
        updates: made in this attempt.
        failed: an error that no restart would fix, and whether the user can fix it.
    """

    score: float | None = None
    updates: int = 0
    failed: tuple[str, bool] | None = None


Failures = dict[str, tuple[str, bool]]
"""Why members failed, by name, and whether the user can fix it."""
Stopped = dict[str, Any]
"""A bound that was stopped early: `lower_bound`, its `updates`, and the `scores` of its models at that point."""


@dataclass(frozen=True, eq=False)
class Trial:
    """What one worker trains: a member, or with halving the models of a bound one after the other.

    Attributes:
        rungs: updates after which bounds are compared, ascending; the last is the full training.
        rows_per_update: batch size in sentences or pairs.
        reduction: one in this many bounds continues after a rung; 0: all are trained to the end.
        least: a bound with fewer models is abandoned.
        statistic: aggregates the scores of a bound's models.
    """

    node: str
    name: str
    tasks: Sequence[Task]
    worker: Callable[[Task, int, Bench], Ended]
    rungs: Sequence[int]
    rows_per_update: int
    reduction: int = 0
    least: int = 1
    statistic: Callable[[Sequence[float]], float] = statistics.fmean

    def train(self, tasks: Sequence[Task], until: int, bench: Bench) -> list[Ended]:
        """Train some of the tasks until an update.

        Errors that no restart would fix fail all tasks; those of a storage that keeps failing count as the user's.
        """
        try:
            return [self.worker(task, until, bench) for task in tasks]
        except (UserError, RunFailed, OSError) as error:
            return [Ended(failed=(last_line(error), not isinstance(error, RunFailed))) for _ in tasks]


class TrainingLine:
    """One progress line for several trainings, parallel or sequential."""

    def __init__(self, title: str, what: str, count: int, updates: int | None = None):
        self._title, self._what, self._count, self._updates = title, what, count, updates
        self._latest: dict[str, dict[str, Any]] = {}
        self._done: set[str] = set()
        self._progress: Progress | None = None

    def report(self, name: str, words: Mapping[str, Any]) -> None:
        """Take a history entry of a training: step, total, loss and dev."""
        self._progress = self._progress or Progress(self._title, self._updates or words["total"] * self._count)
        known = self._latest.get(name, words)["dev"]
        self._latest[name] = {**words, "dev": known if words["dev"] is None else words["dev"]}
        if words["step"] == words["total"]:
            self._done.add(name)
        dev = [latest["dev"] for latest in self._latest.values() if latest["dev"] is not None]
        score = f" · dev {min(dev):.1f}..{max(dev):.1f}" if dev else ""
        note = f"{len(self._done)}/{self._count} {self._what} · loss {words['loss']:.4f}{score}"
        self._progress.update(sum(latest["step"] for latest in self._latest.values()), note)

    def close(self, done: int | None = None) -> None:
        """Show the final line; of trainings that may stop early, it has to be told how many are `done`."""
        if self._progress:
            done = len(self._done) if done is None else done
            self._progress.close(f"{done} of {self._count} {self._what}")


def line_of_members(trials: Sequence[Trial]) -> TrainingLine:
    """Return the line of one experiment."""
    count, updates = sum(len(t.tasks) for t in trials), sum(len(t.tasks) * t.rungs[-1] for t in trials)
    return TrainingLine(f"train {title_of(trials)}", "members", count, updates)


def title_of(trials: Sequence[Trial]) -> str:
    """Return the stages that an experiment trains."""
    return "+".join(dict.fromkeys(trial.node for trial in trials))


def refuse_unfinished(learners: Sequence[Task], said: Mapping[str, Mapping[str, Any]], storage: Storage) -> None:
    """Raise what learners reported, by name in `said`, or that one is missing; count the sentences they learnt from.

    Raises:
        UserError: a mistake that no restart would fix.
        RunFailed: a learner was given up or has no result.
    """
    done = [entry.meta["sentences"] for task in learners if (entry := storage.finished(task.name, task.depends))]
    emit(sentences=sum(done))
    for name, words in said.items():
        if failure := words.get("failed"):
            raise UserError(f"{name}: {failure}")
        if words.get("gave_up"):
            error = words.get("error") or "its workers were lost"
            raise RunFailed(f"{name}: {error}; gave up after {words['gave_up']} attempts")
    for task in learners:
        if not task.exists(storage):
            raise RunFailed(f"{task.name} ended without a result; see its log at {storage.uri('train')}")

"""Where makers and workers compute. Nothing here changes a result."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from raysed.config import Precision, ResourcesConfig, TrackingConfig
from raysed.graph import Task
from raysed.store.checkpoints import Checkpoints
from raysed.store.metrics import MetricsLog
from raysed.store.storage import Storage
from raysed.store.trackers import trackers_of

if TYPE_CHECKING:
    from raysed.cluster.resources import Share
    from raysed.cluster.watchdog import Watchdog


def _one_by_one(function: Callable[..., Any], items: Sequence[Any], shared: Any) -> Iterable[Any]:
    return [function(item, shared) for item in items]


def _nothing(*arguments: Any) -> None:
    return None


@dataclass(frozen=True)
class Work:
    """Where and how a maker computes.

    Attributes:
        token_budget: tokens per forward pass; None: what suits the device.
        precision: of embeddings that become targets.
        map: applies a function to each item and a shared argument, wherever there is room.
        rank: of this worker among the `world` that train one model; the first writes.
        task: what is trained, for the model's description.
        checkpoints: where a training saves its states.
        report: takes an entry of a training's history: step, total, loss and dev.
        warned: whether this machine is about to be taken away.
        made_progress: is told of each update.
    """

    device: str = "cpu"
    token_budget: int | None = None
    precision: Precision = "fp32"
    map: Callable[[Callable[..., Any], Sequence[Any], Any], Iterable[Any]] = _one_by_one
    rank: int = 0
    world: int = 1
    task: Task | None = None
    checkpoints: Checkpoints | None = None
    log: MetricsLog | None = None
    report: Callable[[dict[str, Any]], None] = _nothing
    warned: Callable[[], bool] = lambda: False
    made_progress: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Bench:
    """What all workers that train in one stage have.

    Attributes:
        watchdog: over the workers.
        job: tells starts of this job from those of earlier ones.
        report: takes the name of a training and an entry of its history: step, total, loss and dev.
        rank: of this worker among the `world` that train one learner.
        broadcast: returns the first worker's value to all of them.
        say: tells the driver something about a learner.
        has_failed: whether the driver was told that a learner cannot be trained.
        expect_no_progress: is told that what follows, such as publishing, has no updates.
    """

    storage: Storage
    resources: ResourcesConfig
    tracking: TrackingConfig
    run: str
    share: Share | None = None
    watchdog: Watchdog | None = None
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    report: Callable[[str, dict[str, Any]], None] = _nothing
    warned: Callable[[], bool] = lambda: False
    made_progress: Callable[[], None] = _nothing
    expect_no_progress: Callable[[], None] = _nothing
    rank: int = 0
    world: int = 1
    broadcast: Callable[[Any], Any] = lambda value: value
    say: Callable[[str, dict[str, Any]], None] = _nothing
    has_failed: Callable[[], bool] = lambda: False

    @contextmanager
    def work(self, task: Task) -> Iterator[Work]:
        """Yield what the training of an artefact gets; its log is open in this `with`, on the first worker."""
        work = Work(
            self.share.device,
            self.resources.encode_token_budget,
            rank=self.rank,
            world=self.world,
            task=task,
            checkpoints=task.checkpoints(self.storage),
            report=lambda words: self.report(task.name, words),
            warned=self.warned,
            made_progress=self.made_progress,
        )
        if self.rank:
            yield work
            return
        trackers = trackers_of(self.tracking, self.run, task.name, task.depends)
        with MetricsLog(self.storage, task.name, trackers) as log:
            yield replace(work, log=log)

    @contextmanager
    def steps_are_counted(self) -> Iterator[None]:
        """In this `with`, a training that makes no steps for long is ended."""
        try:
            yield
        finally:
            self.expect_no_progress()


@dataclass(frozen=True)
class Ended:
    """Result of one worker's attempt; the member may still need further attempts.

    Attributes:
        score: on the dev task so far.
        updates: made since the worker's start.
        failed: what another attempt would not mend, and whether the user can.
    """

    score: float | None = None
    updates: int = 0
    failed: tuple[str, bool] | None = None

"""What makers and workers are handed: a task with its inputs, and where it is done. Nothing here changes a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from raysed.config import Precision
from raysed.graph import Ready, Ref
from raysed.store.checkpoints import Checkpoints
from raysed.store.metrics import MetricsLog
from raysed.store.storage import Entry, Storage


def _one_by_one(function: Callable[..., Any], items: Sequence[Any], shared: Any) -> Iterable[Any]:
    return [function(item, shared) for item in items]


@dataclass(frozen=True)
class Work:
    """Where and how a maker computes.

    Attributes:
        token_budget: tokens per forward pass; None: what suits the device.
        precision: of embeddings that become targets.
        map: applies a function to each item and a shared argument, wherever there is room.
    """

    device: str = "cpu"
    token_budget: int | None = None
    precision: Precision = "fp32"
    map: Callable[[Callable[..., Any], Sequence[Any], Any], Iterable[Any]] = _one_by_one


@dataclass(frozen=True)
class Shared:
    """A value in Ray's object store."""

    reference: Any

    def get(self) -> Any:
        """Return the value."""
        import ray

        return ray.get(self.reference)


@dataclass(frozen=True)
class Task:
    """An artefact to make, as a worker gets it.

    Attributes:
        inputs: by role, references to artefacts and to shared values, or values.
    """

    name: str
    title: str
    make: Callable[..., Mapping[str, Any] | None]
    depends: Mapping[str, Any]
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]

    @classmethod
    def of(cls, ready: Ready, inputs: Mapping[str, Any]) -> Task:
        """Return the task of an artefact."""
        artefact = ready.artefact
        return cls(artefact.name, artefact.title, artefact.make, ready.depends, artefact.settings, inputs)

    def received(self, storage: Storage) -> dict[str, Any]:
        """Return what the maker receives: directories of artefacts, and values."""
        return {role: _received(value, storage) for role, value in self.inputs.items()}

    def run(self, storage: Storage, work: Work) -> Entry:
        """Make the artefact and publish it."""
        inputs, meta = self.received(storage), {"title": self.title}
        return storage.commit(
            self.name,
            lambda out: meta.update(self.make(out, inputs, self.settings, work) or {}),
            self.depends,
            meta,
        )

    def is_there(self, storage: Storage) -> bool:
        """Whether it has been made meanwhile."""
        return storage.finished(self.name, self.depends) is not None

    def checkpoints(self, storage: Storage) -> Checkpoints:
        """Return the states of its training."""
        return storage.checkpoints(self.name, self.depends)


def _received(value: Any, storage: Storage) -> Any:
    if isinstance(value, Ref):
        return storage.fetch(value.name)
    if isinstance(value, list):
        return [_received(item, storage) for item in value]
    return value.get() if isinstance(value, Shared) else value


@dataclass(frozen=True)
class Bench:
    """What a worker that trains has.

    Attributes:
        job: tells starts of this job from those of earlier ones.
        open_log: opens the log of a training, given its name and dependencies.
        report: takes the name of a training and an entry of its history: step, total, loss and dev.
        warned: whether this machine is about to be taken away.
        made_progress: is told of each update.
        expect_no_progress: is told that what follows, such as publishing, has no updates.
    """

    storage: Storage
    job: str
    device: str
    token_budget: int | None
    open_log: Callable[[str, Mapping[str, Any]], AbstractContextManager[MetricsLog]]
    report: Callable[[str, dict[str, Any]], None]
    warned: Callable[[], bool]
    made_progress: Callable[[], None] = lambda: None
    expect_no_progress: Callable[[], None] = lambda: None

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


@dataclass(frozen=True)
class Ranks:
    """The workers of one learner.

    Attributes:
        broadcast: returns the first worker's value to all of them.
        say: tells the driver something about a learner.
        has_failed: whether the driver was told that a learner cannot be trained.
    """

    rank: int
    world: int
    broadcast: Callable[[Any], Any]
    say: Callable[[str, dict[str, Any]], None]
    has_failed: Callable[[], bool]

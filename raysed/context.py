"""The device and services of a maker, and the outcome of a training. Nothing here changes a result or uses Ray."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from raysed.config import Precision
from raysed.errors import RunFailed, UserError
from raysed.store.metrics import MetricsLog

if TYPE_CHECKING:
    from raysed.made import Step
    from raysed.store.checkpoints import Checkpoints
    from raysed.store.storage import Storage

MAX_RESTARTS = 100
"""Restarts of one training for any reason; `max_retries` counts only those without a new checkpoint in between."""


def ignore(*arguments: Any) -> None:
    """Do nothing. A named function, unlike a lambda, lets `Context` be pickled."""


def identity(value: Any) -> Any:
    """Return the value."""
    return value


@dataclass(frozen=True)
class Context:
    """The device and services that a maker, or one worker of a training, gets from the place where it runs.

    Attributes:
        precision: of embeddings that become targets.
        rank: this worker's number among the `world` that train one model; rank 0 writes.
        job: distinguishes starts of trainings in this job from earlier ones.
        report: receives a history entry of a training: step, total, loss and dev.
        stall_seconds: end this process if a training makes no step for this long; None: never.
        warned: whether this machine is about to be preempted.
        broadcast: returns rank 0's value to all workers.
        step, checkpoints, log: of the training in progress, see `training`.
    """

    device: str = "cpu"
    precision: Precision = "fp32"
    rank: int = 0
    world: int = 1
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    report: Callable[[Mapping[str, Any]], None] = ignore
    stall_seconds: float | None = None
    warned: Callable[[], bool] = bool  # False, and can be pickled
    broadcast: Callable[[Any], Any] = identity
    step: Step | None = None
    checkpoints: Checkpoints | None = None
    log: MetricsLog | None = None

    @contextmanager
    def training(self, step: Step, storage: Storage) -> Iterator[Context]:
        """Yield the context for training an artefact; on rank 0, its log is open in the block."""
        with nullcontext() if self.rank else MetricsLog(storage, step.name) as log:
            yield replace(self, step=step, checkpoints=step.checkpoints(storage), log=log)


@dataclass(frozen=True)
class Outcome:
    """Result of one worker's attempt at a training.

    Attributes:
        updates: number made in this attempt.
        failure: message of an error that no restart would fix.
        is_mistake: whether the user can fix that error.
    """

    updates: int = 0
    failure: str | None = None
    is_mistake: bool = False

    def error(self) -> Exception:
        return (UserError if self.is_mistake else RunFailed)(self.failure)

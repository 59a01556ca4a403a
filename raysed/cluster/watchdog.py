"""Workers that stand still end themselves, and Ray starts them again.

Ray notices when a worker dies, not when it is stopped, swapped out, or lives and gets nowhere, as in a collective
operation that another worker never joins. So a thread of each worker looks whether its training makes progress, and a
small process beside it whether that thread still runs.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysed.cluster.usage import gpu_use
from raysed.errors import RunFailed, last_line
from raysed.store.progress import emit, repeating

if TYPE_CHECKING:
    from raysed.cluster.resources import Share

log = logging.getLogger(__name__)

_SIGNS = 6
"""Signs of life that a worker gives within the time after which it counts as standing still."""
_LONGEST_PAUSE_S = 15.0
"""Between two signs: with each the use of GPUs is measured."""
_RETRIES = 3
"""Of a task whose process was lost; Ray's own number for tasks."""
_MOST_TRIES = 5
"""Of a part of a stage: what is lost more often than a few lost nodes explain takes its workers down itself."""
_ANSWER_S = 30.0
"""For the answer of a helper actor."""
_GUARD = """
import os, select, sys
pid, seconds = int(sys.argv[1]), float(sys.argv[2])
while os.getppid() == pid and select.select([0], [], [], seconds)[0]:
    if not os.read(0, 64):
        sys.exit()
if os.getppid() == pid:
    os.kill(pid, 9)
"""
"""Kills the process that has started it when that gives no sign of life; ends with it."""

# -- in the worker ---------------------------------------------------------------------------------------------------

_last_progress: float | None = None
"""When this process last made progress; None while nobody expects it to."""


def made_progress() -> None:
    """Note that this process makes progress; from now on it has to, until `expect_no_progress`."""
    global _last_progress
    _last_progress = time.monotonic()


def expect_no_progress() -> None:
    """Note that what this process does from now on, such as publishing, has no steps."""
    global _last_progress
    _last_progress = None


@dataclass(frozen=True)
class Watchdog:
    """How the workers of a stage are watched.

    Attributes:
        board: the actor that collects what they report.
        seconds: a worker that gives no sign of life for so long is ended.
        stall: a worker that makes no step for so long is ended, if it makes steps.
    """

    board: Any
    seconds: float
    stall: float

    @contextmanager
    def guard(self, work: str) -> Iterator[None]:
        """End this process if it stands still within the block; `work` is named in messages."""
        command = [sys.executable, "-ISc", _GUARD, str(os.getpid()), str(self.seconds)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as guard:

            def look() -> None:
                with suppress(OSError):  # somebody has ended the guard
                    guard.stdin.write(b".")
                last = _last_progress
                if last is not None and time.monotonic() - last > self.stall:
                    why = f"{work}: its worker (process {os.getpid()}) made no step for {self.stall:g} s and was ended"
                    answer_of(self.board.warn.remote(why), "whether the driver heard of it")
                    os.kill(os.getpid(), signal.SIGKILL)
                if (use := gpu_use()) is not None:
                    self.board.add_gpu_use.remote(use)

            try:
                with repeating(look, min(min(self.seconds, self.stall) / _SIGNS, _LONGEST_PAUSE_S)):
                    yield
            finally:
                guard.kill()

    def begin(self, part: str) -> str:
        """Return what is wrong with a part of the stage that is about to be done: nothing, unless it ends its workers.

        Ray Data does what was lost with a worker again without a limit.
        """
        lost = answer_of(self.board.begin.remote(part), f"how often {part} was tried", 0)
        if lost < _MOST_TRIES:
            return ""
        return f"{part}: {lost} workers were lost at them, one after the other; they crash or run out of memory there"


# -- in the driver ---------------------------------------------------------------------------------------------------


class Board:
    """An actor beside the driver that collects what workers report; nobody waits for it without a bound."""

    def __init__(self) -> None:
        self._warnings: list[str] = []
        self._gpu_uses: list[float] = []
        self._tries: Counter[str] = Counter()

    def begin(self, part: str) -> int:
        """Count an attempt at `part`; return the number of earlier attempts."""
        self._tries[part] += 1
        return self._tries[part] - 1

    def warn(self, message: str) -> None:
        """Keep a message for the driver."""
        self._warnings.append(message)

    def add_gpu_use(self, use: float) -> None:
        """Add a measurement from 0 to 1."""
        self._gpu_uses.append(use)

    def gpu_use(self) -> float | None:
        """Return the mean use of GPUs."""
        return sum(self._gpu_uses) / len(self._gpu_uses) if self._gpu_uses else None

    def take_warnings(self) -> list[str]:
        """Return the messages so far and forget them."""
        taken, self._warnings = self._warnings, []
        return taken


@contextmanager
def watched_workers(seconds: float, share: Share, least: int = 1, stall: float = math.inf) -> Iterator[Watchdog]:
    """Yield a watchdog for the workers of a stage; log when there is no room for `least` of them at once."""
    board = beside_driver(Board)

    def look() -> None:
        with suppress(ray.exceptions.RayError):  # of a cluster that is busy losing a node
            _log_what_is_missing(share, least)
        for message in answer_of(board.take_warnings.remote(), "which workers stood still", []):
            log.warning("%s", message)

    try:
        # It may wait for an answer of a cluster that is going away.
        with repeating(look, min(seconds / _SIGNS, _LONGEST_PAUSE_S), patience=1.0):
            yield Watchdog(board, seconds, stall)
        look()
        if (use := answer_of(board.gpu_use.remote(), "the use of GPUs")) is not None:
            emit(gpu_use=use)
    finally:
        ray.kill(board)


def beside_driver(kind: type) -> Any:
    """Make an actor on the node of this process: on another one it could be lost and take the run with it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(kind).remote()


def answer_of(reference: ray.ObjectRef, what: str, otherwise: Any = None) -> Any:
    """Return what a helper actor answers, or `otherwise` where it says nothing: a run does not wait for helpers."""
    try:
        return ray.get(reference, timeout=_ANSWER_S)
    except ray.exceptions.RayError as error:
        log.warning("%s is not known: %s", what, last_line(error))
        return otherwise


def _log_what_is_missing(share: Share, least: int) -> None:
    from raysed.cluster.resources import current_cluster

    cluster = current_cluster()
    if (share.cpus or share.gpus) and (room := cluster.fit(share.cpus, share.gpus)) < least:
        wanted = f"{share.cpus:g} CPU{'s' * (share.cpus != 1)}" + (f" and {share.gpus:g} GPU" if share.gpus else "")
        log.warning(
            "waiting for nodes: workers of %s need %d places, but there are only %d (%s)", wanted, least, room, cluster
        )


def watched_tasks(
    function: Callable[..., Any],
    jobs: Sequence[Any],
    *arguments: Any,
    work: str,
    share: Share,
    seconds: float,
    stall: float = math.inf,
) -> Iterator[Any]:
    """Call a function for every job, each as a Ray task; yield what they return as they end.

    A task whose process has died or stood still is run again, up to Ray's limit, so running it twice must do no harm.
    Tasks with a GPU are done by as many processes as the share says, which end when there are no more.

    Args:
        arguments: follow the job; references into the object store are resolved.

    Raises:
        RunFailed: a task has failed, or was lost too often.
    """
    with watched_workers(seconds, share, stall=stall) as watchdog:
        calls = [(function, watchdog, work, job, *arguments) for job in jobs]
        results = (_by_actors if share.gpus else _by_tasks)(calls, share, work)
        try:
            for done in results:
                try:
                    result = ray.get(done)
                except ray.exceptions.RayError as error:
                    raise RunFailed(f"{work}: {last_line(error)}") from error
                yield result
        finally:
            results.close()


def _by_tasks(calls: Sequence[tuple], share: Share, work: str) -> Iterator[ray.ObjectRef]:
    """Ray gives a process of the CPU one task after the other."""
    task = ray.remote(num_cpus=share.cpus)(_guarded).options(name=work)
    waiting = [task.remote(*call) for call in calls]
    while waiting:
        (done,), waiting = ray.wait(waiting, num_returns=1)
        yield done


def _by_actors(calls: Sequence[tuple], share: Share, work: str) -> Iterator[ray.ObjectRef]:
    """With a GPU, Ray starts a process for every task, which imports torch and transformers each time.

    `max_calls=0` would keep processes, but a process that has used one GPU stays on it when its next task is given
    another, and holds its memory while it waits. An actor has one GPU as long as it lives. One without further work is
    ended, so that another one that waits for its place can start.
    """
    options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "max_restarts": _RETRIES * len(calls)}
    actor_class = ray.remote(max_task_retries=_RETRIES, **options)(_Caller)
    waiting, running = deque(calls), {}

    def begin(actor: Any) -> None:
        running[actor.call.options(name=work).remote(*waiting.popleft())] = actor

    try:
        for _ in range(min(share.workers, len(calls))):
            begin(actor_class.remote())
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            actor = running.pop(done)
            begin(actor) if waiting else ray.kill(actor)
            yield done
    finally:
        for actor in running.values():
            ray.kill(actor)


class _Caller:
    def call(self, *call: Any) -> Any:
        return _guarded(*call)


def _guarded(function: Callable[..., Any], watchdog: Watchdog, work: str, job: Any, *arguments: Any) -> Any:
    with watchdog.guard(work):
        return function(job, *arguments)

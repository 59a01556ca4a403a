"""Workers that stand still: each says every few seconds that it is alive, and one that has gone silent is ended.

Ray notices when a worker dies, and starts it again. It does not notice one that is stopped, swapped out or on a frozen
machine, and the run would wait for it for ever. Nor does it notice one that lives and gets nowhere: in a collective
operation that another worker never joins, or in a read that never ends; so a training also says when it last made a
step. Such a worker is killed, and Ray does the rest.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysed.cluster.usage import gpu_use
from raysed.errors import RunFailed, last_line
from raysed.store.progress import repeating, tell

if TYPE_CHECKING:
    from raysed.cluster.resources import Share

log = logging.getLogger(__name__)

_BEATS = 6
"""How often a worker is heard within the time after which it counts as standing still."""
_LONGEST_PAUSE = 15.0
"""Seconds between two beats at most: they also tell how busy GPUs are."""
_RETRIES = 3
"""Of a task whose process was lost; Ray's own number for tasks."""
_MOST_TRIES = 5
"""Of a part of a stage: more than a few lost nodes take, so what is lost so often takes its workers down itself."""
_ANSWER = 30.0
"""Seconds that a node may take to end a worker."""


class Pulse:
    """Knows when each worker was heard last; an actor beside the driver."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, int, int], tuple[float, float, str]] = {}
        self._gpu_uses: list[float] = []
        self._tries: Counter[str] = Counter()

    def beat(
        self, worker: tuple[str, int, int], work: str, gpu_use: float | None = None, without_step: float = 0.0
    ) -> None:
        """Hears a worker: its node, process and when that was started; and how busy its GPUs are.

        Args:
            worker: its node, its process, and when that was started.
            gpu_use: of its node's GPUs, 0 to 1; None without any.
            without_step: seconds since it made a step; 0 where it makes none.
        """
        self._heard[worker] = time.monotonic(), without_step, work
        if gpu_use is not None:
            self._gpu_uses.append(gpu_use)

    def gpu_use(self) -> float | None:
        """Returns how busy GPUs were, the mean of all that was heard."""
        return sum(self._gpu_uses) / len(self._gpu_uses) if self._gpu_uses else None

    def begin(self, part: str) -> int:
        """Hears that a part of the stage is begun; returns how often that was so before."""
        self._tries[part] += 1
        return self._tries[part] - 1

    def forget(self, worker: tuple[str, int, int]) -> None:
        """Hears that a worker has finished its work."""
        self._heard.pop(worker, None)

    def to_end(self, seconds: float, stall: float = math.inf) -> list[tuple[tuple[str, int, int], str, str]]:
        """Returns the workers that stand still, with what they work on and why they are ended, and forgets them."""
        before, found = time.monotonic() - seconds, []
        for worker, (heard, without_step, work) in self._heard.items():
            if heard < before:
                found.append((worker, work, f"gave no sign of life for {seconds:g} s"))
            elif without_step > stall:
                found.append((worker, work, f"made no step for {stall:g} s"))
        for worker, *_ in found:
            del self._heard[worker]
        return found


@dataclass(frozen=True)
class Watch:
    """What a worker needs to be heard.

    Attributes:
        pulse: the actor that hears it.
        seconds: after so long without a word it is ended.
        most_tries: how often a part of the stage may be begun.
    """

    pulse: Any
    seconds: float
    most_tries: int

    def begin(self, part: str) -> str:
        """Returns what is wrong with a part of the stage that is about to be done: nothing, unless it ends its workers.

        Ray Data does what was lost with a worker again, as often as that happens, so a part whose worker crashes or
        runs out of memory each time would be tried for ever.

        Args:
            part: of the stage, such as some sentences, for people.
        """
        lost = ray.get(self.pulse.begin.remote(part))
        if lost < self.most_tries:
            return ""
        return f"{part}: {lost} workers were lost at them, one after the other; they crash or run out of memory there"


@contextmanager
def watched(seconds: float, share: Share, least: int = 1, stall: float = math.inf) -> Iterator[Watch]:
    """Watches the workers of a stage, which get what this yields; and says when there is no room for them.

    Args:
        seconds: after so long without a word a worker is ended.
        least: how many workers there have to be at once.
        stall: after so long without a step a worker is ended, if it makes steps (see `made_step`).
    """
    pulse = beside_driver(Pulse)

    def watch() -> None:
        try:
            _say_what_is_missing(share, least)
            for worker, work, why in ray.get(pulse.to_end.remote(seconds, stall), timeout=_ANSWER):
                _end(worker, work, why)
        except ray.exceptions.RayError as error:  # a cluster that is busy losing a node
            log.debug("workers could not be watched: %s", error)

    try:
        # It may wait for an answer of a cluster that is going away.
        with repeating(watch, _pause(seconds), patience=1.0):
            yield Watch(pulse, seconds, _MOST_TRIES)
            _tell_gpu_use(pulse)
    finally:
        ray.kill(pulse)


def watched_tasks(
    function: Callable[..., Any],
    jobs: Sequence[Any],
    *arguments: Any,
    work: str,
    share: Share,
    seconds: float,
    stall: float = math.inf,
    part: Callable[[Any], str] = lambda job: "",
) -> Iterator[Any]:
    """Calls a function for every job, each as a Ray task; yields what they return as they end.

    A task whose process has died, or was ended because it stood still, is run again, up to Ray's limit. Where tasks
    have a GPU, as many processes as the share says do one after the other, and end when there are no more.

    Args:
        function: gets a job and the arguments; to run it twice has to be no harm.
        arguments: references into the object store are resolved.
        seconds: after so long without a word a task is ended.
        stall: see `watched`.

    Raises:
        RunFailed: a task has failed, or was lost too often; names the job.
    """
    with watched(seconds, share, stall=stall) as watch:
        calls = [(function, watch, work, job, *arguments) for job in jobs]
        results = (_by_actors if share.gpus else _by_tasks)(calls, share, work)
        try:
            for index, done in results:
                try:
                    result = ray.get(done)
                except ray.exceptions.RayError as error:
                    where = ": ".join(filter(None, [work, part(jobs[index])]))
                    raise RunFailed(f"{where}: {last_line(error)}") from error
                yield result
        finally:
            results.close()


def _by_tasks(calls: Sequence[tuple], share: Share, work: str) -> Iterator[tuple[int, ray.ObjectRef]]:
    """Ray gives a process of the CPU one task after the other."""
    task = ray.remote(num_cpus=share.cpus)(_beating_task).options(name=work)
    waiting = {task.remote(*call): index for index, call in enumerate(calls)}
    while waiting:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
        yield waiting.pop(done), done


def _by_actors(calls: Sequence[tuple], share: Share, work: str) -> Iterator[tuple[int, ray.ObjectRef]]:
    """With a GPU, Ray starts a process for every task, which imports torch and transformers each time.

    `max_calls=0` would keep processes, but a process that has used one GPU stays on it when its next task is given
    another, and holds its memory while it waits. An actor has one GPU as long as it lives. One without further work is
    ended, so that another one that waits for its place can start.
    """
    options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "max_restarts": _RETRIES * len(calls)}
    actor_class = ray.remote(max_task_retries=_RETRIES, **options)(_Caller)
    waiting, running = deque(enumerate(calls)), {}

    def begin(actor: Any) -> None:
        index, call = waiting.popleft()
        running[actor.call.options(name=work).remote(*call)] = index, actor

    try:
        for _ in range(min(share.workers, len(calls))):
            begin(actor_class.remote())
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            index, actor = running.pop(done)
            begin(actor) if waiting else ray.kill(actor)
            yield index, done
    finally:
        for _, actor in running.values():
            ray.kill(actor)


class _Caller:
    """An actor that does one task after the other."""

    def call(self, *call: Any) -> Any:
        return _beating_task(*call)


def _beating_task(function: Callable[..., Any], watch: Watch, work: str, job: Any, *arguments: Any) -> Any:
    with beating(watch, work):
        return function(job, *arguments)


def beside_driver(kind: type) -> Any:
    """Makes an actor on the node of this process: on another one it could be lost and take the run with it."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(kind).remote()


_last_step: float | None = None
"""When this process made its last step; None while it makes none."""


def made_step() -> None:
    """Notes that this process gets on; from now on it has to go on doing so, until `makes_no_steps`."""
    global _last_step
    _last_step = time.monotonic()


def makes_no_steps() -> None:
    """Notes that what this process does from now on, such as publishing, has no steps."""
    global _last_step
    _last_step = None


@contextmanager
def beating(watch: Watch, work: str) -> Iterator[None]:
    """Lets this worker be heard while it works; a thread does it, so that a long computation is not taken for silence.

    Args:
        watch: from `watched`.
    """
    worker = (ray.get_runtime_context().get_node_id(), os.getpid(), _started_at(os.getpid()))

    def beat() -> None:
        last = _last_step
        without_step = 0.0 if last is None else time.monotonic() - last
        watch.pulse.beat.remote(worker, work, gpu_use(), without_step)

    ray.get(watch.pulse.beat.remote(worker, work))  # heard once, before anything can stop it
    try:
        with repeating(beat, _pause(watch.seconds)):
            yield
    finally:
        watch.pulse.forget.remote(worker)


def _tell_gpu_use(pulse: Any) -> None:
    try:
        if (use := ray.get(pulse.gpu_use.remote(), timeout=_ANSWER)) is not None:
            tell(gpu_use=use)
    except ray.exceptions.RayError as error:  # no figure is worth a stage that has ended well
        log.debug("how busy GPUs were is unknown: %s", error)


def _say_what_is_missing(share: Share, least: int) -> None:
    """Tells a user that the run waits for nodes to come back."""
    from raysed.cluster.resources import current_cluster

    cluster = current_cluster()
    if (room := cluster.fit(share.cpus, share.gpus)) < least:
        wanted = f"{share.cpus:g} CPU{'s' * (share.cpus != 1)}" + (f" and {share.gpus:g} GPU" if share.gpus else "")
        log.warning(
            "waiting for nodes: workers of %s need %d places, but there are only %d (%s)", wanted, least, room, cluster
        )


def _pause(seconds: float) -> float:
    return min(seconds / _BEATS, _LONGEST_PAUSE)


def _end(worker: tuple[str, int, int], work: str, why: str) -> None:
    """Kills a process on its own node, if it is still the same one: one that has died is silent, too."""
    node, pid, started = worker
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    killed = ray.remote(num_cpus=0, scheduling_strategy=there, max_retries=0)(_kill).remote(pid, started)
    if ray.get(killed, timeout=_ANSWER):
        log.warning("%s: its worker (process %d) %s and was ended", work, pid, why)


def _kill(pid: int, started: int) -> bool:
    if _started_at(pid) != started:
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def _started_at(pid: int) -> int:
    """When a process was started, in the kernel's ticks; -1 where it is gone, 0 where nobody knows."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        return -1 if Path("/proc/self").exists() else 0

"""Kill workers that hang, so that they are restarted, by Ray or the local engine.

Both notice a worker that dies, but not one that is stopped, swapped out, or stuck in a collective operation that
another worker never joins.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from raysed import process
from raysed.errors import RunFailed, last_line
from raysed.store.progress import repeating

if TYPE_CHECKING:
    from raysed.resources import Share

log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 15.0  # between two checks

# -- in the worker ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watchdog:
    """How the workers of a stage are watched.

    Attributes:
        seconds: kill a worker that has been stopped for this long.
        stall: kill a worker this many seconds after its last progress; not checked while none is expected.
    """

    seconds: float
    stall: float = math.inf

    @contextmanager
    def guard(self, work: str) -> Iterator[None]:
        """Kill this process if it hangs in the block; after a stall, log `work` and dump the tracebacks."""

        def look() -> None:
            _kill_after(self.seconds)
            last = process.last_progress
            if last is not None and time.monotonic() - last > self.stall:
                log.error("%s: no step for %g s; ending this process", work, self.stall)
                faulthandler.dump_traceback(2)  # stderr
                os.kill(os.getpid(), signal.SIGKILL)

        look()
        try:
            with repeating(look, min(self.seconds / 6, self.stall / 6, _LONGEST_PAUSE_S)):
                yield
        finally:
            _kill_after(0)


def _kill_after(seconds: float) -> None:
    """Arm a kernel timer that kills this process even if it is stopped; 0 disarms it."""
    if timer := _timer():
        once = (ctypes.c_long * 4)(0, 0, int(seconds), int(1e9 * (seconds % 1)))
        timer[0].timer_settime(timer[1], 0, once, None)


@cache
def _timer() -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """Return the C library and a timer of this process; None if unavailable, as outside Linux."""
    try:
        library, timer = ctypes.CDLL("librt.so.1"), ctypes.c_void_p()
        event = (ctypes.c_int * 16)(0, 0, signal.SIGKILL)  # `struct sigevent` of <signal.h>
        is_made = library.timer_create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer)) == 0
    except (OSError, AttributeError):
        return None
    return (library, timer) if is_made else None


# -- in Ray's driver; the worker's side works without Ray -------------------------------------------------------------


@contextmanager
def watched_workers(seconds: float, share: Share, least: int = 1, stall: float = math.inf) -> Iterator[Watchdog]:
    """Yield a watchdog for a stage's workers; warn while the cluster lacks room for `least` of them at once."""
    # The check may hang on a cluster that is going away.
    with repeating(partial(_log_what_is_missing, share, least), _LONGEST_PAUSE_S, patience=1.0):
        yield Watchdog(seconds, stall)


def _log_what_is_missing(share: Share, least: int) -> None:
    import ray

    from raysed.cluster.machines import current_cluster

    with suppress(ray.exceptions.RayError):  # the cluster may be losing a node
        cluster = current_cluster()
        if (share.cpus or share.gpus) and (room := cluster.fit(share.cpus, share.gpus)) < least:
            wanted = f"{share.cpus:g} CPU{'s' * (share.cpus != 1)}" + (f" and {share.gpus:g} GPU" if share.gpus else "")
            log.warning(
                "waiting for nodes: workers of %s need %d slots, but there are only %d (%s)",
                wanted, least, room, cluster,
            )  # fmt: skip


def watched_tasks(
    function: Callable[..., Any], jobs: Sequence[Any], *arguments: Any, work: str, share: Share, seconds: float
) -> Iterator[Any]:
    """Call a function on every job in Ray tasks; yield its results as tasks finish.

    A task whose process died or hung is rerun, up to Ray's limit, so jobs must be safe to repeat. With a GPU, Ray
    starts a process per task, which imports torch and transformers, so there each task does many jobs. References into
    the object store are resolved in `arguments`, which follow the job.

    Raises:
        RunFailed: a task failed, or was lost too often.
    """
    import ray

    count = min(share.workers, len(jobs)) if share.gpus else len(jobs)
    with watched_workers(seconds, share) as watchdog:

        def guarded(some: Sequence[Any], *arguments: Any) -> list[Any]:
            with watchdog.guard(work):
                return [function(job, *arguments) for job in some]

        task = ray.remote(**share.remote_options)(guarded).options(name=work)
        waiting = [task.remote(jobs[start::count], *arguments) for start in range(count)]
        while waiting:
            (done,), waiting = ray.wait(waiting, num_returns=1)
            try:
                results = ray.get(done)
            except ray.exceptions.RayError as error:
                raise RunFailed(f"{work}: {last_line(error)}") from error
            yield from results

"""Process-wide settings, changed when work starts and not by an import."""

import ctypes
import faulthandler
import functools
import gc
import logging
import math
import os
import sys
import time

import psutil

log = logging.getLogger(__name__)

PROGRAM_LIMITS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables that limit cached programs: oneDNN's own, and torch's wrappers of them."""
_PROGRAMS = "128"
"""Programs that oneDNN caches, one to two megabytes per shape. Its default of 1,024 takes a gigabyte, and nearly all
that recur are among the last 128."""
_OBJECTS = 20_000  # new objects between garbage collections; Python's default of 700 slows down imports
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _KEPT_BYTES = -1, -3, 2**30
"""From glibc's malloc.h: take blocks of up to a gigabyte from the heap, and keep up to a gigabyte of it free."""


_WAITING = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
_LOOK_S, _BUSY = 0.2, 25.0
"""Seconds to look at other programs, and the percentage of all cores from which they matter."""


class StallTimer:
    """Ends this process if it makes no step for some seconds, and writes to stderr where each of its threads is.

    The timer is one of the interpreter, which works while Python is stuck in a library; a process has only one.

    Args:
        seconds: None: never.
    """

    def __init__(self, seconds: float | None):
        self._seconds, self._set_at = seconds, -math.inf

    def restart(self) -> None:
        """Start anew at a step, unless the timer has just been started: that starts a thread."""
        now = time.monotonic()
        if self._seconds is not None and now - self._set_at > self._seconds / 20:
            faulthandler.dump_traceback_later(self._seconds, exit=True, file=2)
            self._set_at = now

    def cancel(self) -> None:
        """Expect no more steps."""
        if self._seconds is not None:
            faulthandler.cancel_dump_traceback_later()


def prepare_process() -> None:
    """Set up a process of a run, best before its heavy imports; oneDNN reads its limit at the first multiplication."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    for name in PROGRAM_LIMITS:
        os.environ.setdefault(name, _PROGRAMS)
    from raysed.store.metrics import quiet_libraries

    quiet_libraries()


def heed_others() -> list[str]:
    """Return a line for the user if programs want more cores than this machine has; best before torch is imported.

    OpenMP's threads spin while they wait for each other, and lose all cores when one is taken. If others are at work,
    they sleep instead, unless the environment says how to wait (docs/performance.md#settings).
    """
    is_set = not _WAITING.isdisjoint(os.environ) or "torch" in sys.modules
    if not is_set and psutil.cpu_percent(interval=_LOOK_S) > _BUSY:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    return [f"load: {load:.1f} on {cores} cores; other programs slow this run down"] if load > cores else []


def prepare_worker(threads: int) -> None:
    """Set up a worker: as every process, plus its number of threads, and memory kept for the next batch.

    By default glibc returns large blocks to the system when they are freed, and each batch fetches them again page by
    page. Keeping them saves a worker up to a sixth of its time.
    """
    import torch
    from threadpoolctl import threadpool_limits

    prepare_process()
    _warn_of_niceness()
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # for NumPy
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(option, _KEPT_BYTES)


@functools.cache
def _warn_of_niceness() -> None:
    """Warn once if Ray gave this worker a low priority, as it does by default."""
    ray, niceness = sys.modules.get("ray"), os.getpriority(os.PRIO_PROCESS, 0)
    if ray and ray.is_initialized() and niceness > 0 and os.environ.get("RAY_worker_niceness") != "0":
        remedy = "start Ray with RAY_worker_niceness=0"
        log.warning("Ray gave this worker niceness %d, so other programs slow it down; %s", niceness, remedy)

"""What a process sets for itself when it starts to work; nothing in this package does so when it is imported."""

import ctypes
import gc
import os
import time

PROGRAM_LIMITS = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""The environment's variables for the number of programs: oneDNN's own, and torch's for what is around them."""
_PROGRAMS = "128"
"""Programs that oneDNN keeps, of one to two megabytes for each shape: 1,024 of them, its default, are a gigabyte, and
nearly all that come again are among the last 128."""
_OBJECTS = 20_000
"""New objects after which Python looks for garbage: with 700, its default, imports take longer."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _KEPT_BYTES = -1, -3, 2**30
"""Of glibc's malloc.h: blocks of up to a gigabyte come from the heap, which keeps a gigabyte of free ones."""

last_progress: float | None = None
"""When this process last made progress, for its watchdog; None while nobody expects it to."""


def made_progress() -> None:
    """Note that this process makes progress; from now on it has to, until `expect_no_progress`."""
    global last_progress
    last_progress = time.monotonic()


def expect_no_progress() -> None:
    """Note that what this process does from now on, such as publishing, has no steps."""
    global last_progress
    last_progress = None


def prepare_process() -> None:
    """Do what every process of a run does first, also the driver: best before it imports the heavy libraries.

    oneDNN reads its limit at the first product.
    """
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    for name in PROGRAM_LIMITS:
        os.environ.setdefault(name, _PROGRAMS)
    from raysed.store.metrics import quiet_libraries

    quiet_libraries()


def prepare_worker(threads: int) -> None:
    """Do what a worker does first: that of every process, its threads, and memory kept for the next batch.

    The C library (glibc) gives large blocks back as soon as they are free, and every batch gets them anew, page by
    page; a worker that keeps them saves up to a sixth of its time.
    """
    import torch
    from threadpoolctl import threadpool_limits

    prepare_process()
    torch.set_num_threads(threads)
    threadpool_limits(threads)  # for NumPy
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        for option in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD):
            mallopt(option, _KEPT_BYTES)

"""What a stage takes: seconds, and the sentences, object store, spilled bytes and GPUs that go with them."""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import ray

from raysed.store.progress import repeating, told_to

log = logging.getLogger(__name__)

_EVERY = 5.0
"""Seconds between two looks at the object store."""
_PATIENCE = 5.0
"""Seconds that an answer may take."""

Usage = dict[str, float]
"""`seconds`; as far as they are known, `sentences` of batches and embeddings, the largest `object_store_bytes` seen in
all nodes together, `spilled_bytes`, and `gpu_use` from 0 to 1, the mean over workers and time."""


@contextmanager
def measured(usage: Usage) -> Iterator[None]:
    """Measures what happens meanwhile, and adds it to the usage of earlier attempts, which is the argument.

    Code that knows of sentences or GPUs reports them with `progress.tell`, as `sentences` and `gpu_use`.
    """
    found: Usage = {}
    gpus: list[float] = []

    def listen(words: dict) -> None:
        if "sentences" in words:
            found["sentences"] = found.get("sentences", 0) + words["sentences"]
        if "gpu_use" in words:
            gpus.append(words["gpu_use"])

    started = time.monotonic()
    try:
        with told_to(listen), _watched_store(found):
            yield
    finally:
        found["seconds"] = time.monotonic() - started
        if gpus:
            found["gpu_use"] = sum(gpus) / len(gpus)
        usage.update(together(usage, found))


def together(first: Mapping[str, float], second: Mapping[str, float]) -> Usage:
    """Returns the usage of two attempts at one stage.

    >>> together({"seconds": 9.0, "spilled_bytes": 5}, {"seconds": 1.04, "spilled_bytes": 2, "object_store_bytes": 7})
    {'seconds': 10.0, 'object_store_bytes': 7, 'spilled_bytes': 7}
    """
    both: Usage = {"seconds": round(first.get("seconds", 0.0) + second["seconds"], 1)}
    for name, combine in (("sentences", sum), ("object_store_bytes", max), ("spilled_bytes", sum)):
        if known := [usage[name] for usage in (first, second) if name in usage]:
            both[name] = combine(known)
    seen = [(usage["gpu_use"], usage["seconds"]) for usage in (first, second) if "gpu_use" in usage]
    if seen:
        both["gpu_use"] = round(sum(use * s for use, s in seen) / max(sum(s for _, s in seen), 1e-9), 3)
    return both


def gpu_use() -> float | None:
    """Returns how busy the GPUs of this worker are, from 0 to 1; None without GPUs, or where the driver does not say.

    A GPU that several workers share is as busy as they make it together.
    """
    try:
        ids = ",".join(map(str, ray.get_gpu_ids()))
        if not ids:
            return None
        command = ["nvidia-smi", f"--id={ids}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=True).stdout
        percents = [float(line) for line in printed.split()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:  # no such program, no answer, "[N/A]"
        log.debug("nobody says how busy GPUs are: %s", error)
        return None
    return sum(percents) / len(percents) / 100 if percents else None


# -- the object store ------------------------------------------------------------------------------------------------


@contextmanager
def _watched_store(found: Usage) -> Iterator[None]:
    """Looks at Ray's object stores now and then, and at the end once more."""
    store = _Store()
    store.look()
    try:
        with repeating(store.look, _EVERY):
            yield
    finally:
        store.look()
        if store.seen:
            found |= {"object_store_bytes": store.most, "spilled_bytes": store.spilled}


class _Store:
    """What the object stores of all nodes were seen to hold at most, and have spilled since the first look."""

    def __init__(self) -> None:
        self.seen, self.most, self.spilled, self._total = False, 0, 0, 0

    def look(self) -> None:
        """Adds what there is now; a node that has gone takes its count of spilled bytes along."""
        if (now := _store_now()) is None:
            return
        held, total = now
        self.spilled += max(total - self._total, 0) if self.seen else 0
        self.seen, self.most, self._total = True, max(self.most, held), total


def _store_now() -> tuple[int, int] | None:
    """Bytes that all object stores hold, and that they have spilled since they were started."""
    from ray._private import internal_api, state  # nothing public tells what was spilled

    try:
        stats = internal_api.get_memory_info_reply(state.state, timeout_seconds=_PATIENCE).store_stats
    except Exception as error:  # another version, a cluster that is losing a node: no figure is worth a run
        log.debug("the object store does not say what it holds: %s", error)
        return None
    return stats.object_store_bytes_used, stats.spilled_bytes_total

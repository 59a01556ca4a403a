"""What a stage takes: seconds, and the sentences, object store, spilled bytes and GPUs that go with them."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from raysed.store.progress import listening, repeating

log = logging.getLogger(__name__)

_EVERY_S = 5.0
"""Between two looks at the object store."""
_PATIENCE_S = 5.0
"""For an answer."""

Usage = dict[str, float]
"""`seconds`; as far as they are known, `sentences` of batches and embeddings, the largest `object_store_bytes` seen in
all nodes together, `spilled_bytes`, and `gpu_use` from 0 to 1, the mean over workers and time."""


@contextmanager
def measured(usage: Usage) -> Iterator[None]:
    """Measure what happens meanwhile, and what `emit` reports; add it to the usage of earlier attempts."""
    found: Usage = {}
    gpus: list[float] = []
    spilled_before: int | None = None

    def listen(facts: dict) -> None:
        if "sentences" in facts:
            found["sentences"] = found.get("sentences", 0) + facts["sentences"]
        if "gpu_use" in facts:
            gpus.append(facts["gpu_use"])

    def look() -> None:
        """A node that has gone takes its count of spilled bytes along."""
        nonlocal spilled_before
        if (now := _object_stores()) is None:
            return
        held, spilled = now
        more = 0 if spilled_before is None else max(spilled - spilled_before, 0)
        found["spilled_bytes"], spilled_before = found.get("spilled_bytes", 0) + more, spilled
        found["object_store_bytes"] = max(found.get("object_store_bytes", 0), held)

    started = time.monotonic()
    look()
    try:
        with listening(listen), repeating(look, _EVERY_S):
            yield
    finally:
        look()
        found["seconds"] = time.monotonic() - started
        if gpus:
            found["gpu_use"] = sum(gpus) / len(gpus)
        usage.update(combined(usage, found))


def combined(first: Mapping[str, float], second: Mapping[str, float]) -> Usage:
    """Return the usage of two attempts at one stage.

    >>> combined({"seconds": 9.0, "spilled_bytes": 5}, {"seconds": 1.04, "spilled_bytes": 2, "object_store_bytes": 7})
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
    """Return how busy the GPUs of this worker are, from 0 to 1; None without GPUs, or where the driver does not say."""
    import ray

    try:
        ids = ",".join(map(str, ray.get_gpu_ids()))
        if not ids:
            return None
        command = ["nvidia-smi", f"--id={ids}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True).stdout
        percents = [float(line) for line in printed.split()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:  # no such program, no answer, "[N/A]"
        log.debug("the use of GPUs is not known: %s", error)
        return None
    return sum(percents) / len(percents) / 100 if percents else None


def _object_stores() -> tuple[int, int] | None:
    """Return the bytes that all object stores hold, and that they have spilled since they were started."""
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        return None
    from ray._private import internal_api, state  # nothing public tells what was spilled

    try:
        stats = internal_api.get_memory_info_reply(state.state, timeout_seconds=_PATIENCE_S).store_stats
    except Exception as error:  # another version, a cluster that is losing a node: no figure is worth a run
        log.debug("the object store does not say what it holds: %s", error)
        return None
    return stats.object_store_bytes_used, stats.spilled_bytes_total

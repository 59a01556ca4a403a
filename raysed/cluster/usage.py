"""What a stage takes: seconds, and the sentences, object store, spilled bytes and GPUs that go with them."""

from __future__ import annotations

import logging
import re
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import monotonic

from raysed.store.progress import listening, repeating

log = logging.getLogger(__name__)

_EVERY_S = 10.0
"""Between two looks, which is how often Ray measures."""
_PATIENCE_S = 5.0
"""For the answer of a node."""
_HELD, _SPILLED, _GPU = "ray_object_store_memory", "ray_spill_manager_objects_bytes", "ray_node_gpus_utilization"
"""Metrics that every node offers to Prometheus."""
_LEFT_OUT = ('Location="SPILLED"', 'Location="WORKER_HEAP"', 'State="Restored"')
"""Labels of values that are no part of the sums."""
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

Usage = dict[str, float]
"""`seconds`; as far as they are known, `sentences` of batches and embeddings, the largest `object_store_bytes` seen in
all nodes together, `spilled_bytes`, and `gpu_use` from 0 to 1, the mean over all GPUs and time."""


@contextmanager
def measured(usage: Usage) -> Iterator[None]:
    """Measure what happens meanwhile, and what `emit` reports; add it to the usage of earlier attempts."""
    found: Usage = {}
    gpus: list[float] = []
    spilled_before: float | None = None

    def listen(facts: dict) -> None:
        if "sentences" in facts:
            found["sentences"] = found.get("sentences", 0) + facts["sentences"]

    def look() -> None:
        """A node that has gone takes its count of spilled bytes along."""
        nonlocal spilled_before
        values = _metrics_of_nodes()
        gpus.extend(percent / 100 for percent in values[_GPU])
        if values[_HELD]:
            spilled = sum(values[_SPILLED])
            more = 0 if spilled_before is None else max(spilled - spilled_before, 0)
            found["spilled_bytes"], spilled_before = found.get("spilled_bytes", 0) + more, spilled
            found["object_store_bytes"] = max(found.get("object_store_bytes", 0), sum(values[_HELD]))

    started = monotonic()
    look()
    try:
        with listening(listen), repeating(look, _EVERY_S):
            yield
    finally:
        look()
        found["seconds"] = monotonic() - started
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


def _metrics_of_nodes() -> dict[str, list[float]]:
    """Return the values of some metrics on all nodes that answer; nothing where no Ray runs."""
    found: dict[str, list[float]] = {_HELD: [], _SPILLED: [], _GPU: []}
    ray = sys.modules.get("ray")
    nodes = ray.nodes() if ray and ray.is_initialized() else []
    for node in nodes:
        if not node["Alive"]:  # Ray lists nodes that were lost, too, and each would be waited for
            continue
        try:
            address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
            with _direct.open(address, timeout=_PATIENCE_S) as answer:
                text = answer.read().decode()
        except (OSError, ValueError) as error:  # a node that is lost, or has no agent: no figure is worth a run
            log.debug("a node does not say what it holds: %s", error)
            continue
        for name, labels, value in re.findall(r"^(\w+)\{(.*)\} (\S+)$", text, flags=re.M):
            if name in found and not any(label in labels for label in _LEFT_OUT):
                found[name].append(float(value))
    return found

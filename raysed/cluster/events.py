"""What workers tell the driver, through a queue of Ray."""

import queue
from contextlib import suppress
from typing import Any

import ray
from ray.util.queue import Queue


def drain(events: Queue, patience: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
    """Return what has been reported, after waiting for the first of it."""
    found = []
    with suppress(queue.Empty, ray.exceptions.RayError):
        found.append(events.get(timeout=patience) if patience else events.get_nowait())
        while True:
            found.append(events.get_nowait())
    return found

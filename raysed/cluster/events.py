"""What workers tell the driver, through a queue of Ray.

Ray Train's controller imports this file, so it imports no torch: that would cost each learner seconds.
"""

import time
from contextlib import suppress
from typing import Any

import ray
from ray.train import Checkpoint, UserCallback
from ray.util.queue import Queue

_EVERY_S = 0.2


def drain(events: Queue, patience: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
    """Return what has been reported, after waiting for the first of it.

    A queue that is asked while it is empty raises in its actor, which Ray's dashboard counts as a failed task, so its
    size is asked first. Nobody else takes from it.
    """
    until = time.monotonic() + patience
    with suppress(ray.exceptions.RayError):
        while not (waiting := events.qsize()) and time.monotonic() < until:
            time.sleep(_EVERY_S)
        return events.get_nowait_batch(waiting) if waiting else []
    return []


class Reports(UserCallback):
    """Passes what rank 0 reports on to the driver; it is called in Ray Train's controller."""

    def __init__(self, name: str, events: Queue):
        self._name, self._events = name, events

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Checkpoint | None) -> None:
        """Put the metrics into the queue."""
        self._events.put((self._name, metrics[0]))

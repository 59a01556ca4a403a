"""States of trainings that are under way."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysed.errors import UserError
from raysed.store.changes import changes, in_words

if TYPE_CHECKING:
    from raysed.store.storage import Entry, Storage, Writer

log = logging.getLogger(__name__)


class Checkpoints:
    """The `keep` newest states of one training; a damaged one is passed over for the one before."""

    def __init__(self, storage: Storage, name: str, depends: dict[str, Any], keep: int):
        self._storage, self._name, self._depends, self._keep = storage, name, depends, keep
        self._starts = f"{name}/starts.json"

    def save(self, step: int, write: Writer) -> None:
        """Publish the state after `step` updates; remove older ones, later ones, and those with other dependencies."""
        self._storage.commit(f"{self._name}/step-{step:09d}", write, self._depends, {"step": step})
        entries = self._storage.entries(self._name)
        usable = [e.name for e in entries if e.depends == self._depends and _step(e) <= step]
        for entry in entries:
            if entry.name not in usable[-self._keep :]:
                self._storage.remove(entry.name)

    def begin(self, job: str) -> int:
        """Count a start of the training; return the number of earlier ones in this job without a new state since."""
        steps = [_step(entry) for entry in self._storage.entries(self._name) if entry.depends == self._depends]
        start = {"job": job, "step": max(steps, default=0)}
        before = self._storage.read_json(self._starts)
        count = before.pop("count", 0)
        count = count + 1 if before == start and isinstance(count, int) else 0
        with suppress(UserError):  # of a full disk, which what the training writes next reports
            self._storage.count_start(self._starts, json.dumps({**start, "count": count}))
        return count

    def newest(self) -> tuple[int, Path] | None:
        """Return the step and directory of the newest intact state with the same dependencies."""
        for entry in reversed(self._storage.entries(self._name)):
            if found := changes(entry.depends, self._depends):
                log.info("%s cannot be continued after these changes: %s", entry.name, in_words(found))
            elif path := self._storage.intact(entry):
                return _step(entry), path
            else:
                log.warning("%s is damaged; using the checkpoint before it", self._storage.uri(entry.name))
        return None

    def at(self, step: int) -> Path:
        """Return the directory of the state that `newest` named in another process."""
        return self._storage.fetch(f"{self._name}/step-{step:09d}")

    def clear(self) -> None:
        """Delete all states."""
        self._storage.remove(self._name)


def _step(entry: Entry) -> int:
    return int(entry.name.rpartition("-")[2])

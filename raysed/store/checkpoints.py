"""Checkpoints of trainings in progress, and the changed dependencies that make a checkpoint or artefact unusable."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysed.errors import UserError
from raysed.store.text import shortened

if TYPE_CHECKING:
    from raysed.store.storage import Storage, Writer

log = logging.getLogger(__name__)

_DIGEST = re.compile(r'"[0-9a-f]{16,}"')
_KEPT = 2
"""Newest checkpoints to retain, in case the last one is damaged."""
_MAX_CHANGES = 4


class Checkpoints:
    """Checkpoints of one training; if the newest is damaged, the one before it is used."""

    def __init__(self, storage: Storage, name: str, depends: dict[str, Any]):
        self._storage, self._name, self._depends = storage, name, depends
        self._starts, self._failure = f"{name}/starts.json", f"{name}/failure.json"

    def save(self, step: int, write: Writer) -> None:
        """Publish the checkpoint after `step` updates; keep it and the newest usable earlier one, delete the rest."""
        self._storage.commit(f"{self._name}/step-{step:09d}", write, self._depends, {"step": step})
        entries = self._storage.entries(self._name)
        usable = [e.name for e in entries if e.depends == self._depends and _step_of(e.name) <= step]
        for entry in entries:
            if entry.name not in usable[-_KEPT:]:
                self._storage.remove(entry.name)

    def begin(self, job: str) -> int:
        """Count a start of the training; return this job's number of earlier starts since the last new checkpoint."""
        steps = [_step_of(e.name) for e in self._storage.entries(self._name) if e.depends == self._depends]
        start = {"job": job, "step": max(steps, default=0)}
        before = self._storage.read_json(self._starts)
        count = before.pop("count", 0)
        count = count + 1 if before == start and isinstance(count, int) else 0
        with suppress(UserError):  # a full disk is reported by the training's next write
            # `plain` skips the claim check: starts must reach their limit even after a take-over.
            self._storage.plain.write(self._starts, json.dumps({**start, "count": count}).encode())
        return count

    def fail(self, job: str, **failure: Any) -> None:
        """Record an error of one of several workers, for the next start of the training in this job."""
        with suppress(UserError):
            self._storage.plain.write(self._failure, json.dumps({"job": job, **failure}).encode())

    def failure(self, job: str) -> dict[str, Any]:
        """Return what `fail` has recorded in this job."""
        found = self._storage.read_json(self._failure)
        return found if found.pop("job", None) == job else {}

    def newest(self) -> tuple[int, Path] | None:
        """Return the step and directory of the newest intact checkpoint with the same dependencies, or None."""
        for entry in reversed(self._storage.entries(self._name)):
            if found := changes(entry.depends, self._depends):
                log.info("%s cannot be continued: %s", entry.name, found)
            elif path := self._storage.intact(entry):
                return _step_of(entry.name), path
            else:
                log.warning("%s is damaged; using the previous checkpoint", self._storage.uri(entry.name))
        return None

    def at(self, step: int) -> Path:
        """Return the directory of the checkpoint that `newest` found in another process."""
        return self._storage.fetch(f"{self._name}/step-{step:09d}")

    def clear(self) -> None:
        """Delete all checkpoints and the count of starts."""
        self._storage.remove(self._name)


def _step_of(name: str) -> int:
    return int(name.rpartition("-")[2])


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe which leaves differ, settings with both values, digests without; empty if none do.

    >>> changes({"config": {"seed": 1}, "corpus": "0123456789abcdef"}, {"config": {"seed": 2}, "corpus": None})
    'seed changed from 1 to 2; corpus was removed'
    """
    found = list(_changes(old, new))
    more = f"; and {len(found) - _MAX_CHANGES} more" if len(found) > _MAX_CHANGES else ""
    return "; ".join(found[:_MAX_CHANGES]) + more


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in sorted(set(old) | set(new)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _changes(before, after, "" if prefix + key == "config" else f"{prefix}{key}.")
        elif before == after:
            continue
        elif _DIGEST.search(json.dumps([before, after])):
            yield f"{prefix}{key} {'was added' if before is None else 'was removed' if after is None else 'changed'}"
        else:
            was, now = (shortened(json.dumps(value), 60) for value in (before, after))
            yield f"{prefix}{key} changed from {was} to {now}"

"""Where a run is: `status.json`, renewed while it works, and what its directory tells those who look from elsewhere."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raysed.errors import UserError
from raysed.progress import clock, repeating, told_to
from raysed.storage import Entry, Storage

log = logging.getLogger(__name__)

FILE = "status.json"
_LOCAL_EVERY, _REMOTE_EVERY = 5.0, 30.0
"""Seconds between two writings: on an object store each is a request."""
_MISSED = 6
"""So many missed writings in a row say that the job is gone."""
_TRAINING = re.compile(r"(?P<node>.+)/(?P<kind>members|learners|grid/[^/]+)/\d+")


@contextmanager
def status_of(storage: Storage, every: float | None = None) -> Iterator[None]:
    """Keeps `status.json` true while a run works: its stage, the progress line of the moment, how it ended.

    The file is renewed by a thread also while nothing moves; one that is not renewed says that the job is gone.

    Args:
        storage: the run directory.
        every: seconds between two writings; None: what suits the storage.
    """
    every = every or (_LOCAL_EVERY if storage.is_local else _REMOTE_EVERY)
    status = {
        "state": "running",
        "since": time.time(),
        "every": every,
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }

    def listen(words: dict[str, Any]) -> None:
        if "stage" in words:  # the line of the stage before says nothing any more
            status.update(words, stage_since=time.time(), line=None, left=None)
        elif "line" in words:
            status.update(words)

    _write(storage, status)
    try:
        with repeating(lambda: _write(storage, status), every), told_to(listen):
            yield
        status |= {"state": "complete"}
    except KeyboardInterrupt:
        status |= {"state": "stopped"}
        raise
    except BaseException as error:
        status |= {"state": "failed", "error": str(error)}
        raise
    finally:
        _write(storage, status)


def _write(storage: Storage, status: dict[str, Any]) -> None:
    try:
        storage.write_text(FILE, json.dumps({**status, "told": time.time()}, indent=1))
    except (OSError, UserError) as error:  # a run does not end because it cannot say where it is
        log.debug("%s is not written: %s", FILE, error)


# -- reading ---------------------------------------------------------------------------------------------------------


def describe(storage: Storage, now: float | None = None) -> list[str]:
    """Returns lines for people: state, stage, what is done, the last checkpoints; from the run directory alone.

    Raises:
        UserError: there is no such run.
    """
    now = time.time() if now is None else now
    text = storage.read_text(FILE)
    entries = storage.entries()
    if text is None and not entries:
        raise UserError(f"there is no run at {storage}; name one of those in its storage")
    status = json.loads(text) if text else {"state": "unknown"}
    lines = [f"{storage.run}: {_state(status, now)}"]
    if status["state"] == "running" and status.get("stage"):
        lines.append(f"stage: {status['stage']}, for {clock(now - status['stage_since'])}")
        lines += [status["line"]] if status.get("line") else []
    halfway = [entry for entry in entries if entry.name.startswith("checkpoints/")]
    finished = [entry.name for entry in entries if not entry.name.startswith("checkpoints/")]
    lines += [f"finished: {', '.join(_summary(finished)) or 'nothing yet'}"]
    lines += [f"checkpoint: {line}" for line in _checkpoints(halfway, storage, now)]
    return lines


def _state(status: dict[str, Any], now: float) -> str:
    if status["state"] == "unknown":
        return "it has not said where it is"
    ran, silent = clock(status["told"] - status["since"]), now - status["told"]
    if status["state"] == "running":
        if silent > _MISSED * status["every"]:
            return (
                f"no sign of life for {clock(silent)}: the job on {status['host']} (process {status['pid']}) is gone; "
                "the same command continues it"
            )
        left = f", about {clock(status['left'])} left in this stage" if status.get("left") else ""
        return f"running for {ran}{left} (told {clock(silent)} ago)"
    error = f": {status['error']}" if status.get("error") else ""
    return f"{status['state']} after {ran}, {clock(silent)} ago{error}"


def _summary(names: list[str]) -> list[str]:
    """Artefacts by name; trainings as counts.

    >>> _summary(["corpus", "ct/members/00", "ct/members/01", "sts/grid/0.3/00", "ct-sed/learners/00"])
    ['corpus', '2 members of ct', '1 grid/0.3 of sts', '1 learners of ct-sed']
    """
    counts: Counter[str] = Counter()
    for name in names:
        match = _TRAINING.fullmatch(name)
        counts[f"{match['kind']} of {match['node']}" if match else name] += 1
    return [f"{count} {name}" if " of " in name else name for name, count in counts.items()]


def _checkpoints(entries: list[Entry], storage: Storage, now: float) -> list[str]:
    """The newest state of each training that is under way."""
    newest: dict[str, Entry] = {}
    for entry in entries:  # in the order of their updates
        newest[entry.name.removeprefix("checkpoints/").rpartition("/")[0]] = entry
    lines = []
    for training, entry in newest.items():
        age = f", {clock(now - written)} ago" if (written := storage.written_at(entry.name)) else ""
        lines.append(f"{training} after {entry.meta['step']} updates{age}")
    return lines

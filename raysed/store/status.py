"""Where a run is: `status.json`, renewed while it works, and what its directory tells those who look from elsewhere."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil

from raysed import interrupts
from raysed.errors import UserError
from raysed.store import unchanged
from raysed.store.progress import repeating, told_to
from raysed.store.storage import Entry, Storage, runs_at
from raysed.store.text import duration

log = logging.getLogger(__name__)

FILE = "status.json"
_LOCAL_EVERY, _REMOTE_EVERY = 5.0, 30.0
"""Seconds between two writings: on an object store each is a request."""
_MISSED = 6
"""So many missed writings in a row say that the job is gone."""
AT_WORK = ("starting", "running")
CODES = {"complete": 0, "failed": 1, "starting": 3, "running": 3, "stopped": 4, "gone": 4, "unknown": 4}
"""Exit codes of `jobs/status.py`; 2 is a user's mistake, as everywhere."""
_NOTHING_YET = {"line": None, "share": None, "left": None, "trained": None, "trainings": None}
"""Of a stage that has just begun."""
_TRAINING = re.compile(r"(?P<node>.+)/(?P<kind>member|learner)s/\d+|(?P<bound>.+/grid/[^/]+)/\d+")


class Status:
    """What `status.json` says of a run.

    Args:
        storage: the run directory.
        every: seconds between two writings; None: what suits the storage.

    Attributes:
        has_begun: whether a stage has begun; until then nothing of an earlier run of that name is touched.
    """

    def __init__(self, storage: Storage, every: float | None = None):
        self.has_begun = False
        self.every = every or (_LOCAL_EVERY if storage.is_local else _REMOTE_EVERY)
        self._storage, self._lock, self._before = storage, threading.Lock(), storage.read_text(FILE)
        origin = {"host": socket.gethostname(), "pid": os.getpid()}
        self._words: dict[str, Any] = {"state": "starting", "since": time.time(), "every": self.every, **origin}

    @property
    def follows_a_complete_run(self) -> bool:
        """Whether an earlier run of that name is complete, and still untouched."""
        return not self.has_begun and parsed(self._before).get("state") == "complete"

    def listen(self, words: dict[str, Any]) -> None:
        """Hears what `tell` is told."""
        with self._lock:
            if "stage" in words:  # the line of the stage before says nothing any more
                self.has_begun = True
                state = "running" if self._words["state"] == "starting" else self._words["state"]
                self._words.update(words, state=state, stage_since=time.time(), **_NOTHING_YET)
            elif "line" in words or "trained" in words:
                self._words.update(words)

    def say(self, **words: Any) -> None:
        """Writes the file, after a change of what it says."""
        with self._lock:
            self._words.update(words)
            self._write(json.dumps({**self._words, "told": time.time()}, indent=1))

    def end(self, **words: Any) -> None:
        """Says how the run ended, or, where no stage has begun, again that an earlier one is complete."""
        if self.follows_a_complete_run:
            self._write(self._before)
        else:
            self.say(**words)

    def _write(self, text: str) -> None:
        try:
            self._storage.write_text(FILE, text)
        except (OSError, UserError) as error:  # a run does not end because it cannot say where it is
            log.debug("%s is not written: %s", FILE, error)


@contextmanager
def status_of(storage: Storage, every: float | None = None) -> Iterator[Status]:
    """Keeps `status.json` true while a run works: its stage, the progress line of the moment, how it ended.

    The file is renewed by a thread also while nothing moves; one that is not renewed says that the job is gone.

    Args:
        storage: the run directory.
        every: seconds between two writings; None: what suits the storage.
    """
    status = Status(storage, every)
    stopping = interrupts.Stopping(at_once=lambda: status.end(state="stopped"))
    status.say()
    try:
        with interrupts.when_stopped(stopping), interrupts.errors_are_stops():
            with repeating(status.say, status.every), told_to(status.listen):
                yield status
    except KeyboardInterrupt:
        status.end(state="stopped")
        raise
    except BaseException as error:
        status.end(state="failed", error=str(error))
        raise
    status.end(state="complete")


def refuse_at_work(storage: Storage, now: float | None = None) -> None:
    """Refuses to start on a remote run that another job is at work on, as far as its `status.json` says so.

    A job of this machine whose process is gone is none.

    Args:
        storage: the run directory.
        now: seconds since 1970; None: the present.

    Raises:
        UserError: says which job, and what to do.
    """
    now = time.time() if now is None else now
    status = parsed(storage.read_text(FILE))
    if status["state"] not in AT_WORK or _is_gone(status, now):
        return
    if status["host"] == socket.gethostname() and not psutil.pid_exists(status["pid"]):
        return
    raise UserError(
        f"run {storage.run!r} is in use by a job on {status['host']} (process {status['pid']}), which said so "
        f"{duration(now - status['told'])} ago; wait for it, choose another --run, or end that job with --take-over"
    )


# -- reading ---------------------------------------------------------------------------------------------------------


def describe(storage: Storage, now: float | None = None) -> tuple[list[str], int]:
    """Returns lines for people: state, stage, what is done, the last checkpoints; from the run directory alone.

    Args:
        storage: the run directory.
        now: seconds since 1970; None: the present.

    Returns:
        The lines, and the exit code that tells scripts the state.

    Raises:
        UserError: there is no such run.
    """
    now = time.time() if now is None else now
    text = storage.read_text(FILE)
    entries = storage.entries()
    if text is None and not entries:
        raise UserError(f"there is no run at {storage}; without a name, all runs of its storage are listed")
    status = parsed(text)
    lines = [f"{storage.run}: {state_in_words(status, now)}"]
    if status["state"] == "running" and status.get("stage"):
        lines.append(f"stage: {status['stage']}, for {duration(now - status['stage_since'])}")
        lines += [status["line"]] if status.get("line") else []
    refusal = unchanged.refusal(storage) if status["state"] == "complete" else None
    lines += [refusal] if refusal else []
    halfway = [entry for entry in entries if entry.name.startswith("checkpoints/")]
    finished = [entry.name for entry in entries if not entry.name.startswith("checkpoints/")]
    lines += [f"finished: {', '.join(_summary(finished)) or 'nothing yet'}"]
    lines += [f"checkpoint: {line}" for line in _checkpoints(halfway, storage, now)]
    return lines, exit_code(status, now)


def describe_all(location: str, now: float | None = None) -> list[str]:
    """Returns a line for every run at a location: its name, state and age.

    Args:
        location: directory or URI under which run directories lie.
        now: seconds since 1970; None: the present.

    Raises:
        UserError: there is none.
    """
    now = time.time() if now is None else now
    storages = [Storage(location, run) for run in runs_at(location)]
    texts = {storage.run: storage.read_text(FILE) for storage in storages}
    runs = [s.run for s in storages if texts[s.run] is not None or s.has_entries()]
    if not runs:
        raise UserError(f"there are no runs at {location}; name another place with --storage")
    width = max(map(len, runs))
    return [f"{run:{width}}  {state_in_words(parsed(texts[run]), now)}" for run in runs]


def parsed(text: str | None) -> dict[str, Any]:
    """Returns the content of `status.json`; where it cannot be read, a state that is unknown."""
    try:
        return json.loads(text or "")
    except ValueError:
        return {"state": "unknown"}


def exit_code(status: Mapping[str, Any], now: float) -> int:
    """Returns what tells scripts the state of a run.

    Args:
        status: content of `status.json`.
        now: seconds since 1970.
    """
    return CODES["gone" if _is_gone(status, now) else status["state"]]


def _is_gone(status: Mapping[str, Any], now: float) -> bool:
    return status["state"] in AT_WORK and now - status["told"] > _MISSED * status["every"]


def state_in_words(status: Mapping[str, Any], now: float) -> str:
    """Returns the state of a run as a sentence without an end.

    Args:
        status: content of `status.json`.
        now: seconds since 1970.
    """
    if status["state"] == "unknown":
        return "state unknown (no readable status.json)"
    ran, silent = duration(status["told"] - status["since"]), now - status["told"]
    if _is_gone(status, now):
        return (
            f"no sign of life for {duration(silent)}: the job on {status['host']} (process {status['pid']}) is gone; "
            "the same command continues it"
        )
    if status["state"] in AT_WORK:
        left = f", about {duration(status['left'])} left in this stage" if status.get("left") else ""
        return f"{status['state']} for {ran}{left} (as of {duration(silent)} ago)"
    error = f": {status['error']}" if status.get("error") else ""
    return f"{status['state']} after {ran}, {duration(silent)} ago{error}"


def _summary(names: list[str]) -> list[str]:
    """Artefacts by name; trainings as counts.

    >>> _summary(["corpus", "ct/members/00", "ct/members/01", "sts/grid/0.3/00", "ct-sed/learners/00"])
    ['corpus', '2 members of ct', '1 model of sts/grid/0.3', '1 learner of ct-sed']
    """
    found = [(_TRAINING.fullmatch(name), name) for name in names]
    counts = Counter((m["kind"] or "model", m["node"] or m["bound"]) if m else ("", name) for m, name in found)
    return [f"{n} {kind}{'s' * (n > 1)} of {name}" if kind else name for (kind, name), n in counts.items()]


def _checkpoints(entries: list[Entry], storage: Storage, now: float) -> list[str]:
    """The newest state of each training that is under way."""
    newest: dict[str, Entry] = {}
    for entry in entries:  # in the order of their updates
        newest[entry.name.removeprefix("checkpoints/").rpartition("/")[0]] = entry
    lines = []
    for training, entry in newest.items():
        age = f", {duration(now - written)} ago" if (written := storage.written_at(entry.name)) else ""
        lines.append(f"{training} after {entry.meta['step']} updates{age}")
    return lines

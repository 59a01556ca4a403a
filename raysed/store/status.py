"""The state of a run: `status.json`, rewritten while it works, and what others can read from the run directory."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psutil

from raysed import interrupts
from raysed.errors import RunFailed, UserError
from raysed.store.files import reason
from raysed.store.progress import listening, repeating
from raysed.store.storage import Entry, Storage, runs_at
from raysed.store.text import duration, printable

log = logging.getLogger(__name__)

FILE = "status.json"
_LOCAL_EVERY_S, _REMOTE_EVERY_S = 5.0, 30.0
"""Intervals of writing; on an object store each write is a request."""
_MAX_MISSED = 6
"""A job that misses this many writes in a row is considered gone."""
AT_WORK = ("starting", "running")
CODES = {"complete": 0, "failed": 1, "starting": 3, "running": 3, "stopped": 4, "gone": 4, "unknown": 4}
"""Exit codes of `jobs/status.py`; 2 is a user's mistake, as everywhere."""
_NUMBER = (int, float)
_MAX_NUMBER = 1e15
_NUMBERS = ("since", "every", "told", "stage_since", "left", "share")
_TYPES: dict[str, Any] = {
    **dict.fromkeys(("state", "host", "stage", "line", "error"), str),
    **dict.fromkeys(_NUMBERS, _NUMBER),
    "pid": int,
    "totals": dict,
}
"""Types of the values in the file."""
_REQUIRED_KEYS = {"state", "since", "every", "told", "host", "pid"}
_NEW_STAGE = {"line": None, "share": None, "left": None}
"""Values for a stage that has just begun."""


def finished_report(storage: Storage, depends: Mapping[str, Any]) -> Entry | None:
    """Return the entry of the plots if report and model (unless refused) exist with exactly these dependencies."""
    is_complete = storage.read_json("report.json").get("status") == "complete"
    if not (is_complete and storage.has_files("report.md", "report.html")):
        return None
    plots = storage.finished("plots", depends)  # like the model, they depend on everything
    return plots if plots and (plots.meta["refusal"] or storage.finished("model", depends)) else None


def refusal(storage: Storage) -> str | None:
    """Return the sentence on why a finished run has no model; None if it has one or is not finished."""
    plots = storage.entry("plots")
    return plots.meta.get("refusal") if plots else None


class Status:
    """The content of `status.json`, written `every` few seconds."""

    def __init__(self, storage: Storage, every: float | None = None):
        self._has_begun = False
        self.every = every or (_LOCAL_EVERY_S if storage.is_local else _REMOTE_EVERY_S)
        self._storage, self._lock = storage, threading.Lock()
        self._before = storage.read_text(FILE) if read_status(storage)["state"] == "complete" else None
        origin = {"host": socket.gethostname(), "pid": os.getpid()}
        self._facts: dict[str, Any] = {"state": "starting", "since": time.time(), "every": self.every, **origin}

    @property
    def follows_a_complete_run(self) -> bool:
        """Whether an earlier run of this name is complete and still untouched, as no stage has begun."""
        return not self._has_begun and self._before is not None

    def listen(self, facts: dict[str, Any]) -> None:
        """Record what `emit` is given."""
        with self._lock:
            if "stage" in facts:  # progress of the previous stage is out of date
                self._has_begun = True
                state = "running" if self._facts["state"] == "starting" else self._facts["state"]
                self._facts.update(facts, state=state, stage_since=time.time(), **_NEW_STAGE)
            elif facts.keys() & {"line", "totals"}:
                self._facts.update(facts)

    def write(self, **facts: Any) -> None:
        """Update the content and write the file."""
        with self._lock:
            self._facts.update(facts)
            self._write(json.dumps({**self._facts, "told": time.time()}, indent=1))

    def end(self, **facts: Any) -> None:
        """Write how the run ended; if no stage has begun, restore the status of an earlier, complete run."""
        if self.follows_a_complete_run:
            self._write(self._before)
        else:
            self.write(**facts)

    def _write(self, text: str) -> None:
        try:
            self._storage.write_text(FILE, text)
        except (OSError, UserError, RunFailed) as error:  # must not end the run
            log.debug("%s cannot be written: %s", FILE, error)


@contextmanager
def status_of(storage: Storage, every: float | None = None) -> Iterator[Status]:
    """Keep `status.json` current while a run works; a file that is no longer renewed means that the job is gone."""
    status = Status(storage, every)
    stopping = interrupts.Stopping(at_once=lambda: status.end(state="stopped"))
    status.write()
    try:
        with interrupts.when_stopped(stopping), interrupts.errors_are_stops():
            with repeating(status.write, status.every), listening(status.listen):
                yield status
    except KeyboardInterrupt:
        interrupts.acknowledge()
        status.end(state="stopped")
        raise
    except BaseException as error:
        status.end(state="failed", error=str(error))
        raise
    status.end(state="complete")


def refuse_at_work(storage: Storage) -> None:
    """Refuse to start on a remote run if its `status.json` says that another job is working on it.

    A job of this machine whose process is gone does not count. Ages are by the storage's clock, which all jobs share.
    """
    status = read_status(storage)
    if status["state"] not in AT_WORK:
        return
    if (written := storage.plain.modified_at(FILE)) and (now := storage.clock()):
        status["silent"] = now - written
    if _is_gone(status) or (status["host"] == socket.gethostname() and not psutil.pid_exists(status["pid"])):
        return
    raise UserError(
        f"run {storage.run!r} is in use by a job on {status['host']} (process {status['pid']}), last seen "
        f"{duration(status['silent'])} ago; wait for it, choose another --run, or end that job with --take-over"
    )


# -- reading ---------------------------------------------------------------------------------------------------------


def read_status(storage: Storage) -> dict[str, Any]:
    """Return the valid values of `status.json` and the seconds it has been `silent`, or the state `unknown`."""
    known = {key: value for key, value in storage.read_json(FILE).items() if isinstance(value, _TYPES.get(key, object))}
    is_plausible = all(abs(known.get(key) or 0) < _MAX_NUMBER for key in _NUMBERS)
    if known.get("state") not in CODES or not known.keys() >= _REQUIRED_KEYS or not is_plausible:
        return {"state": "unknown"}
    written = storage.plain.modified_at(FILE) or known["told"]
    return {**known, "silent": max(time.time() - written, 0.0)}


def read_timings(storage: Storage) -> dict[str, dict[str, Any]]:
    """Return the undamaged entries of `timings.json`: what each stage took."""
    found = storage.read_json("timings.json").items()
    return {k: v for k, v in found if isinstance(v, dict) and isinstance(v.get("seconds"), _NUMBER)}


def describe(storage: Storage) -> tuple[list[str], int]:
    """Return lines for people (state, stage, what is finished, last checkpoints) and the state's exit code."""
    names, status = storage.names(), read_status(storage)
    if not names and not storage.has_files(FILE):
        raise UserError(f"there is no run at {storage}; omit the name to list all runs")
    lines = [f"{storage.run}: {_in_words(status)}"]
    if status["state"] == "running" and "stage" in status:
        seconds = status["told"] + status["silent"] - status.get("stage_since", status["told"])
        lines.append(f"stage: {status['stage']}, for {duration(seconds)}")
        lines += filter(None, [status.get("line")])
    if status["state"] == "complete":
        lines += filter(None, [refusal(storage)])
    known = set(names)  # blocks of finished tables are not listed
    finished = [n for n in names if not n.startswith("checkpoints/") and n.rpartition("/")[0] not in known]
    lines += [f"finished: {', '.join(_summary(finished, status)) or 'nothing yet'}"]
    newest: dict[str, int] = {}  # sorted names: the last one wins
    for name in names if status["state"] != "complete" else ():  # then only bounds that were stopped have any
        training, _, step = name.rpartition("/step-")
        if training.startswith("checkpoints/") and step.isdecimal():
            newest[training.removeprefix("checkpoints/")] = int(step)
    for training, step in newest.items():
        written = storage.plain.modified_at(f"manifest/checkpoints/{training}/step-{step:09d}.json")
        age = f", {duration(time.time() - written)} ago" if written else ""
        lines.append(f"checkpoint: {training} after {step} updates{age}")
    return list(map(printable, lines)), CODES["gone" if _is_gone(status) else status["state"]]


def describe_all(location: str) -> list[str]:
    """Return a line per run at a location: name, state and age, or why it cannot be read."""
    states = {}
    for storage in (Storage(location, run) for run in runs_at(location)):
        try:
            if storage.has_files(FILE) or storage.files("manifest"):
                states[storage.run] = _in_words(read_status(storage))
        except (OSError, UnicodeError) as error:
            states[storage.run] = f"state unknown ({reason(error)})"
    if not states:
        raise UserError(f"there are no runs at {location}; name another location with --storage")
    width = max(map(len, states))
    return [printable(f"{run:{width}}  {state}") for run, state in states.items()]


def _is_gone(status: Mapping[str, Any]) -> bool:
    return status["state"] in AT_WORK and status["silent"] > _MAX_MISSED * status["every"]


def _in_words(status: Mapping[str, Any]) -> str:
    """Return a run's state as a sentence without a full stop."""
    if status["state"] == "unknown":
        return "state unknown (no readable status.json)"
    ran, silent = duration(status["told"] - status["since"]), duration(status["silent"])
    if _is_gone(status):
        job = f"the job on {status['host']} (process {status['pid']})"
        return f"no sign of life for {silent}: {job} is gone; the same command continues it"
    if status["state"] in AT_WORK:
        left = f", about {duration(status['left'])} left in this stage" if "left" in status else ""
        return f"{status['state']} for {ran}{left} (as of {silent} ago)"
    error = f": {status['error']}" if status.get("error") else ""
    return f"{status['state']} after {ran}, {silent} ago{error}"


def _summary(names: list[str], status: Mapping[str, Any]) -> list[str]:
    """Count finished artefacts by directory, out of the expected total where known.

    >>> _summary(["corpus", "ct/members/00", "ct/members/01"], {"totals": {"ct/members": 9, "ct-sed/learners": 1}})
    ['corpus', '2 of 9 ct/members', '0 of 1 ct-sed/learners']
    """
    totals = {place: total for place, total in status.get("totals", {}).items() if isinstance(total, int)}
    counts = Counter(dict.fromkeys(totals, 0))
    for name in names:
        place, _, last = name.rpartition("/")
        place = next((total for total in totals if name.startswith(f"{total}/")), place) if last.isdigit() else name
        counts[place] += 1
    words = []
    for place, count in sorted(counts.items(), key=lambda item: "/" in item[0]):  # stable
        words.append(
            f"{count} of {totals[place]} {place}" if place in totals else f"{count} {place}".removeprefix("1 ")
        )
    return words

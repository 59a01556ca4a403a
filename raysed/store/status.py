"""The state of a run: `status.json`, rewritten while it works, and a summary of the run directory."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal

import psutil
from pydantic import BaseModel, Field, ValidationError

from raysed import interrupts
from raysed.config import stable_hash
from raysed.errors import RunFailed, UserError
from raysed.store.files import reason
from raysed.store.progress import listening, repeating
from raysed.store.storage import Entry, Storage, runs_at
from raysed.store.text import duration, printable

log = logging.getLogger(__name__)

FILE = "status.json"
REPORT = ("report.html", "report.md", "report.json")
_LOCAL_EVERY_S, _REMOTE_EVERY_S = 5.0, 30.0
"""Intervals of writing; on an object store each write is a request."""
_MAX_MISSED = 6
"""A job that misses this many writes in a row is considered gone: after three minutes on an object store."""
AT_WORK = ("starting", "running")
CODES = {"complete": 0, "failed": 1, "starting": 5, "running": 5, "stopped": 4}
"""Exit codes of `raysed status`; 2 is a user's mistake, as everywhere."""
_UNKNOWN = "state unknown (no readable status.json)"
_GONE = 4  # exit code of a run whose job is gone
_NEW_STAGE = {"line": None, "share": None, "left": None}
"""Values for a stage that has just begun."""


def finished_report(storage: Storage, depends: Mapping[str, Any]) -> Entry | None:
    """Return the entry of the plots if a run with these dependencies wrote report and model (unless refused)."""
    plots = storage.finished("plots", depends)  # like the model, they depend on everything
    if plots is None or not (plots.meta["refusal"] or storage.finished("model", depends)):
        return None
    with suppress(UnicodeDecodeError):
        if plots.meta.get("report") == stable_hash([storage.read_text(name) for name in REPORT]):
            return plots
    log.warning("%s is not as the run wrote it and will be written again", ", ".join(REPORT))
    return None


def refusal(storage: Storage) -> str | None:
    """Return why a finished run has no model; None if it has one or is not finished."""
    plots = storage.entry("plots")
    return plots.meta.get("refusal") if plots else None


class Status:
    """The content of `status.json`, written `every` few seconds."""

    def __init__(self, storage: Storage, every: float | None = None):
        self._has_begun = False
        self.every = every or (_LOCAL_EVERY_S if storage.is_local else _REMOTE_EVERY_S)
        self._storage, self._lock = storage, threading.Lock()
        before = read_status(storage)
        self._before = storage.read_text(FILE) if before and before.state == "complete" else None
        origin = {"host": socket.gethostname(), "pid": os.getpid()}
        self._facts: dict[str, Any] = {"state": "starting", "since": time.time(), "every": self.every, **origin}

    @property
    def follows_a_complete_run(self) -> bool:
        """Whether an earlier run of this name is complete and no new stage has begun."""
        return not self._has_begun and self._before is not None

    def listen(self, facts: dict[str, Any]) -> None:
        with self._lock:
            if "stage" in facts:  # progress of the previous stage is out of date
                self._has_begun = True
                state = "running" if self._facts["state"] == "starting" else self._facts["state"]
                self._facts.update(facts, state=state, stage_since=time.time(), **_NEW_STAGE)
            elif facts.keys() & {"line", "totals"}:
                self._facts.update(facts)

    def write(self, **facts: Any) -> None:
        with self._lock:
            self._facts.update(facts)
            self._write(json.dumps({**self._facts, "told": time.time()}, indent=1))

    def end(self, **facts: Any) -> None:
        """Write how the run ended; if no stage has begun, restore the status of an earlier complete run."""
        if self.follows_a_complete_run:
            self._write(self._before)
        else:
            self.write(**facts)

    def _write(self, text: str) -> None:
        try:
            if self._storage.is_owner():
                self._storage.write_text(FILE, text)
        except (OSError, UserError, RunFailed) as error:  # must not end the run
            log.debug("%s cannot be written: %s", FILE, error)


@contextmanager
def status_of(storage: Storage, every: float | None = None) -> Iterator[Status]:
    """Keep `status.json` current while a run works; once nothing renews it, its job counts as gone."""
    status = Status(storage, every)
    status.write()
    try:
        with interrupts.errors_are_stops(), repeating(status.write, status.every), listening(status.listen):
            yield status
    except KeyboardInterrupt:
        interrupts.acknowledge()
        status.end(state="stopped")
        raise
    except BaseException as error:
        status.end(state="failed", error=str(error))
        raise
    status.end(state="complete")


def wait_for_other(storage: Storage, say: Callable[[str], None], longest: float = 180.0) -> None:
    """Wait until no other job works on a remote run: it ends, or has written nothing for six of its intervals.

    Args:
        say: prints for whom the job waits, and how long.
        longest: seconds.

    Raises:
        UserError: meanwhile another job has written that it works.
    """
    if (status := job_at_work(storage)) is None:
        return
    other = f"run {storage.run!r} is in use by a job on {status.host} (process {status.pid})"
    left = max(min(_MAX_MISSED * status.every - status.silent, longest), 0.0)
    say(f"{other}, last seen {duration(status.silent)} ago; waiting at most {duration(left)} to see whether it is gone")
    until = time.monotonic() + left
    while (seconds := until - time.monotonic()) > 0:
        time.sleep(min(seconds, _LOCAL_EVERY_S))
        if (now := read_status(storage)) is None:  # as while it is written, where that is no single step
            continue
        if now.state not in AT_WORK:
            return
        if now.told != status.told:
            raise UserError(f"{other}; wait for it, choose another --run, or end that job with --take-over")


def job_at_work(storage: Storage) -> StoredStatus | None:
    """Return the status of the job that works on a remote run; None if there is none.

    A job of this machine whose process is gone does not count. Ages are by the storage's clock, which all jobs share.
    """
    status = read_status(storage)
    if status is None or status.state not in AT_WORK:
        return None
    if (written := storage.plain.modified_at(FILE)) and (now := storage.clock()):
        status.silent = now - written
    has_ended = status.is_gone or (status.host == socket.gethostname() and not psutil.pid_exists(status.pid))
    return None if has_ended else status


# -- reading ---------------------------------------------------------------------------------------------------------


_Number = Annotated[float, Field(gt=-1e15, lt=1e15)]


class StoredStatus(BaseModel):
    """Content of `status.json`; `silent` is its age in seconds."""

    state: Literal["starting", "running", "complete", "failed", "stopped"]
    since: _Number
    every: _Number
    told: _Number
    host: str
    pid: int
    stage: str | None = None
    stage_since: _Number | None = None
    line: str | None = None
    share: _Number | None = None
    left: _Number | None = None
    error: str | None = None
    totals: dict[str, int] = {}
    silent: float = 0.0

    @property
    def is_gone(self) -> bool:
        """Whether its job has ended without writing that."""
        return self.state in AT_WORK and self.silent > _MAX_MISSED * self.every

    def __str__(self) -> str:
        ran, silent = duration(self.told - self.since), duration(self.silent)
        if self.is_gone:
            job = f"the job on {self.host} (process {self.pid})"
            return f"no update for {silent}: {job} is gone; run the same command again to continue"
        if self.state in AT_WORK:
            left = "" if self.left is None else f", about {duration(self.left)} left in this stage"
            return f"{self.state} for {ran}{left} (as of {silent} ago)"
        return f"{self.state} after {ran}, {silent} ago{f': {self.error}' if self.error else ''}"


def read_status(storage: Storage) -> StoredStatus | None:
    """Read `status.json`; None if it is missing or damaged."""
    try:
        status = StoredStatus.model_validate(storage.read_json(FILE))
    except ValidationError:
        return None
    written = storage.plain.modified_at(FILE) or status.told
    status.silent = max(time.time() - written, 0.0)
    return status


def read_timings(storage: Storage) -> dict[str, dict[str, Any]]:
    """Return the undamaged entries of `timings.json`, by stage."""
    found = storage.read_json("timings.json").items()
    numbers = {k: [v.get("seconds"), v.get("sentences", 0)] for k, v in found if isinstance(v, dict)}
    return {k: v for k, v in found if k in numbers and all(isinstance(each, int | float) for each in numbers[k])}


def describe(storage: Storage, as_json: bool = False) -> tuple[list[str], int]:
    """Return lines for people (state, stage, finished artefacts, checkpoints) and the state's exit code.

    Args:
        as_json: return one line for programs instead, see docs/files.md.
    """
    names, status = storage.names(), read_status(storage)
    if not names and not storage.has_files(FILE):
        raise UserError(f"there is no run at {storage}; omit the name to list all runs")
    state = ("gone" if status.is_gone else status.state) if status else "unknown"
    code, why = CODES.get(state, _GONE), refusal(storage) if state == "complete" else None
    if as_json:
        facts = {**(status.model_dump() if status else {}), "state": state, "refusal": why}
        return [json.dumps({"run": storage.run, **facts})], code
    lines = [f"{storage.run}: {status or _UNKNOWN}"]
    if state in ("running", "gone") and status.stage is not None:
        seconds = status.told + status.silent - (status.stage_since or status.told)
        lines.append(f"stage: {status.stage}, for {duration(seconds)}")
        lines += filter(None, [status.line])
    lines += filter(None, [why])
    known = set(names)  # blocks of finished tables are not listed
    finished = [n for n in names if not n.startswith("checkpoints/") and n.rpartition("/")[0] not in known]
    lines += [f"finished: {', '.join(_summary(finished, status.totals if status else {})) or 'nothing yet'}"]
    newest: dict[str, int] = {}  # sorted names: the last one wins
    for name in names:
        training, _, step = name.rpartition("/step-")
        if training.startswith("checkpoints/") and step.isdecimal():
            newest[training.removeprefix("checkpoints/")] = int(step)
    for training, step in newest.items():
        written = storage.plain.modified_at(f"manifest/checkpoints/{training}/step-{step:09d}.json")
        age = f", {duration(time.time() - written)} ago" if written else ""
        lines.append(f"checkpoint: {training} after {step} updates{age}")
    return list(map(printable, lines)), code


def describe_all(location: str) -> list[str]:
    """Return a line per run at a location: name, state and age, or why it cannot be read."""
    states = {}
    for storage in (Storage(location, run) for run in runs_at(location)):
        try:
            if storage.has_files(FILE) or storage.names():
                states[storage.run] = str(read_status(storage) or _UNKNOWN)
        except (OSError, UnicodeError) as error:
            states[storage.run] = f"state unknown ({reason(error)})"
    if not states:
        raise UserError(f"there are no runs at {location}; name another location with --storage")
    width = max(map(len, states))
    return [printable(f"{run:{width}}  {state}") for run, state in states.items()]


def _summary(names: list[str], totals: Mapping[str, int]) -> list[str]:
    """Count finished artefacts by directory, out of the expected total where known.

    >>> _summary(["corpus", "ct/members/00", "ct/members/01"], {"ct/members": 9, "ct-sed/learners": 1})
    ['corpus', '2 of 9 ct/members', '0 of 1 ct-sed/learners']
    """
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

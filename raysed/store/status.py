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
_PLURALS = {"teachers/members": "teachers", "members": "members", "grid": "grid models", "learners": "learners"}
"""What is trained, or stands for a teacher from outside, by the directory that it lies in or that directory's name."""
_OTHERS = (
    (r"pairs/(.+)", "labelled pairs ({})"),
    (r"views/([^.]+).*", "views ({})"),
    (r"encoder/.+", "encoder"),
    (r"teachers/(?:rows|together)", "what the teachers say"),
    (r"(.+)/grid/choice", "lower bound of {}"),
    (r"(.+)/targets", "targets of {}"),
    (r".+/embeddings/\d+", "embeddings of {n} model{s}"),
    (r".+/calibrations/\d+", "{n} calibration{s}"),
    (r".+/probes/\d+|.+/transfer/\d+", "transfer tasks"),
    (r"plots", "report"),
    (r"model", "exported model"),
)
"""Names of all other artefacts, and what people call them."""
_INPUTS = ("corpus", "pairs", "views", "encoder")
"""What lies in these is there before anything is trained on it."""
_STAGES = {
    "corpus": "reading the corpus",
    "pairs": "reading labelled pairs",
    "views": "making views",
    "encoder": "making the encoder",
    "evaluation": "embedding the sentences of the evaluation",
    "teachers": "asking the teachers",
    "combination": "combining the teachers",
    "calibration": "fitting calibrations",
    "transfer": "transfer tasks",
    "report": "scores, export and report",
}
"""Stages that are no names of recipes, and what people call them."""


class Status:
    """What `status.json` says of a run.

    Args:
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
            elif words.keys() & {"line", "trained", "totals"}:
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
        interrupts.notice()
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
        lines.append(f"stage: {stage_in_words(status['stage'])}, for {duration(now - status['stage_since'])}")
        lines += [status["line"]] if status.get("line") else []
    refusal = unchanged.refusal(storage) if status["state"] == "complete" else None
    lines += [refusal] if refusal else []
    halfway = [entry for entry in entries if entry.name.startswith("checkpoints/")]
    finished = [entry.name for entry in entries if not entry.name.startswith("checkpoints/")]
    lines += [f"finished: {', '.join(_summary(finished, status.get('totals') or {})) or 'nothing yet'}"]
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


def stage_in_words(stage: str) -> str:
    """Returns a stage as people call it.

    Args:
        stage: as `status.json` and `timings.json` name it.

    >>> stage_in_words("corpus"), stage_in_words("ct+sts")
    ('reading the corpus', 'members of ct and sts')
    >>> stage_in_words("ct-sed/targets"), stage_in_words("ct-sed+sts-sed")
    ('mean of the members for ct-sed', 'learners of ct-sed and sts-sed')
    """
    if stage in _STAGES:
        return _STAGES[stage]
    parts = stage.split("+")
    recipes = " and ".join(part.removesuffix("/targets") for part in parts)
    if parts[0].endswith("/targets"):
        return f"mean of the members for {recipes}"
    return f"{'learners' if parts[0].endswith('-sed') else 'members'} of {recipes}"


def _summary(names: list[str], totals: dict[str, int]) -> list[str]:
    """What is finished, in words: trainings as counts of all that there will be, where that is known.

    >>> _summary(["corpus", "ct/members/00", "ct/members/01", "sts/grid/0.3/00"], {"ct/members": 9, "a/learners": 1})
    ['corpus', '2 of 9 members of ct', '0 of 1 learner of a', '1 grid model of sts']
    >>> _summary(["sts/grid/0.3/00", "sts/grid/choice", "base/embeddings/00", "plots"], {"sts/grid": 4})
    ['lower bound of sts', 'embeddings of 1 model', 'report']
    """
    places = [_place_of_training(name) for name in names]
    trained = Counter(dict.fromkeys(totals, 0))
    trained.update(filter(None, places))
    # Of a grid that is decided, many models were stopped on their way or are not needed any more.
    decided = {name.removesuffix("/choice") for name in names if name.endswith("/grid/choice")}
    trainings = [_counted(place, n, totals.get(place)) for place, n in trained.items() if place not in decided]
    others = [name for name, place in zip(names, places) if place is None]
    inputs = [name for name in others if name.partition("/")[0] in _INPUTS]
    return [*_called(inputs), *trainings, *_called([name for name in others if name not in inputs])]


def _called(names: list[str]) -> list[str]:
    """What people call artefacts, each word once, in the order of `_OTHERS`."""
    counts = Counter(_words_of(name) for name in names)
    return [words.replace("{n}", str(n)).replace("{s}", "s" * (n > 1)) for (_, words), n in sorted(counts.items())]


def _words_of(name: str) -> tuple[int, str]:
    """With its place in `_OTHERS`."""
    for place, (pattern, words) in enumerate(_OTHERS):
        if found := re.fullmatch(pattern, name):
            return place, words.replace("{}", found[1]) if found.groups() else words
    return -1, name


def _place_of_training(name: str) -> str | None:
    """The directory of a training, by which it is counted; that of a grid for all its bounds together."""
    found = re.fullmatch(r"(.+/(?:members|learners))/\d+|(.+/grid)/[^/]+/\d+", name)
    return found and (found[1] or found[2])


def _counted(place: str, count: int, total: int | None) -> str:
    """E.g. `2 of 10 members of ct`."""
    node, _, kind = place.rpartition("/")
    plural = _PLURALS.get(place) or _PLURALS[kind]
    noun = plural.removesuffix("s") if (total or count) == 1 else plural
    counts = f"{count}" if total is None else f"{count} of {total}"
    return f"{counts} {noun}{'' if place in _PLURALS else f' of {node}'}"


def _checkpoints(entries: list[Entry], storage: Storage, now: float) -> list[str]:
    """The newest state of each training that is under way."""
    newest: dict[str, Entry] = {}
    for entry in entries:  # in the order of their updates
        newest[entry.name.removeprefix("checkpoints/").rpartition("/")[0]] = entry
    lines = []
    for training, entry in newest.items():
        age = f", {duration(now - written)} ago" if (written := storage.written_at(entry.name)) else ""
        lines.append(f"{_training_words(training)} after {entry.meta['step']} updates{age}")
    return lines


def _training_words(name: str) -> str:
    """A training as people call it.

    >>> _training_words("ct/members/02"), _training_words("sts/grid/0.35/00")
    ('member 02 of ct', 'grid model 00 of sts with lower bound 0.35')
    """
    place, _, index = name.rpartition("/")
    if found := re.fullmatch(r"(.+)/grid/([^/]+)", place):
        return f"grid model {index} of {found[1]} with lower bound {found[2]}"
    node, _, kind = place.rpartition("/")
    return f"{kind.removesuffix('s')} {index} of {node}" if kind in _PLURALS else name

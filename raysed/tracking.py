"""What a run tells while it works: a history per training, as JSON and for TensorBoard, and one line per stage."""

import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from raysed.config import Config
from raysed.storage import Storage
from raysed.trackers import Trackers, trackers_of


class MetricsLog:
    """`logs/<name>/metrics.jsonl` and TensorBoard events beside it, written while training goes on.

    A training that continues hands its whole history in again, so that the log holds each step once.

    Args:
        storage: the run directory; on an object store the files are copied there when the log is closed.
        name: of the artefact, e.g. `ct/members/00`.
        trackers: get the same.
    """

    def __init__(self, storage: Storage, name: str, trackers: Trackers | None = None):
        from tensorboardX import SummaryWriter

        self._storage, self._name = storage, f"logs/{name}"
        self._trackers = trackers or Trackers([])
        local = Path(storage.uri(self._name)) if storage.is_local else Path(tempfile.mkdtemp(prefix="raysed-logs-"))
        shutil.rmtree(local, ignore_errors=True)
        local.mkdir(parents=True)
        self._directory = local
        self._lines = open(local / "metrics.jsonl", "w", encoding="utf-8")
        self._board = SummaryWriter(str(local), write_to_disk=True)

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Adds one entry; nested numbers become `dev/second` and the like on TensorBoard."""
        self._lines.write(json.dumps(metrics) + "\n")
        self._lines.flush()
        values = _flat(metrics)
        for key, number in values.items():
            self._board.add_scalar(key, number, metrics["step"])
        self._trackers.write(metrics["step"], values)

    def close(self, failed: bool = False) -> None:
        """Flushes, and copies the files to an object store."""
        self._trackers.close(failed)
        self._lines.close()
        self._board.close()
        if not self._storage.is_local:
            for path in self._directory.iterdir():
                self._storage.write_bytes(f"{self._name}/{path.name}", path.read_bytes())
            shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, kind: type | None, *error: object) -> None:
        self.close(failed=kind is not None)


def metrics_log(storage: Storage, config: Config, name: str, identity: Any) -> MetricsLog:
    """Returns the log of a training, with the trackers that the settings name; `identity` is what it is made from."""
    return MetricsLog(storage, name, trackers_of(config.tracking, config.run, name, identity))


def _flat(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Nested numbers get names with a slash.

    >>> _flat({"step": 10, "dev": {"first": 60.0}})
    {'step': 10, 'dev/first': 60.0}
    """
    flat: dict[str, float] = {}
    for key, value in metrics.items():
        flat |= (
            {f"{key}/{part}": number for part, number in value.items()} if isinstance(value, Mapping) else {key: value}
        )
    return flat


_listeners: list[Callable[[dict[str, Any]], None]] = []


@contextmanager
def told_to(listener: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Lets somebody hear what `tell` is told, in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(**words: Any) -> None:
    """Says where the run is: `stage`, or the `line` of the progress and the seconds `left`."""
    for listener in _listeners:
        listener(words)


class Progress:
    """One line per stage: rewritten on a terminal, a new line now and then elsewhere.

    Args:
        title: name of the stage.
        total: units of work, e.g. updates over all members; None where nobody knows.
        stream: where to write.
        every: seconds between lines where the stream is no terminal.
    """

    def __init__(self, title: str, total: int | None, stream: TextIO | None = None, every: float = 15.0):
        self._title, self._total, self._stream = title, total, stream or sys.stdout
        self._terminal = self._stream.isatty()
        self._interval = 0.2 if self._terminal else every
        self._started = time.monotonic()
        self._shown = self._started if not self._terminal else 0.0
        self._first = 0

    def start_from(self, done: int) -> None:
        """Work that an earlier attempt did, which says nothing about the speed of this one."""
        self._first = done

    def update(self, done: int, note: str = "") -> None:
        """Shows `done` of `total`, the time left and a note, if it is time for it."""
        now = time.monotonic()
        left = self._left(done, now)
        parts = [self._share(done), note, "" if left is None else f"{clock(left)} left"]
        line = f"{self._title}: {' · '.join(part for part in parts if part)}"
        tell(line=line, left=left)
        if now - self._shown >= self._interval:
            self._shown = now
            self._write(line, "")

    def close(self, note: str = "") -> float:
        """Shows the end; returns the seconds since the start."""
        seconds = time.monotonic() - self._started
        self._write(f"{self._title}: done in {clock(seconds)}{' · ' if note else ''}{note}", "\n")
        return seconds

    def _share(self, done: int) -> str:
        return f"{100 * done // self._total:3d} %" if self._total else f"{done:,}"

    def _left(self, done: int, now: float) -> float | None:
        """The seconds left, as soon as there is a speed to tell them from."""
        if not self._total or done <= self._first:
            return None
        return (now - self._started) * (self._total - done) / (done - self._first)

    def _write(self, text: str, end: str) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text[:width]:<{width}}{end}")
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def clock(seconds: float) -> str:
    """Returns a duration for people.

    >>> clock(7.4), clock(95), clock(7300)
    ('7 s', '1 min 35 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def native_output_to(path: Path) -> Iterator[None]:
    """Sends what C++ libraries write to file descriptor 2 to a file; Python's `sys.stderr` keeps the terminal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept, python_stderr = os.dup(2), sys.stderr
    with open(kept, "w", buffering=1) as terminal, open(path, "ab") as file:
        sys.stderr = terminal
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            sys.stderr = python_stderr


def show_notes() -> None:
    """Shows what this package logs, as plain lines on the terminal."""
    logger = logging.getLogger("raysed")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("note: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def quiet_libraries() -> None:
    """Turns off third-party progress bars and notices that say nothing of this run; errors stay."""
    import warnings

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DEEPSPEED_LOG_LEVEL", "error")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module="torch|deepspeed|ray|transformers")
    for name in ("transformers", "deepspeed", "DeepSpeed", "datasets", "huggingface_hub"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # DeepSpeed sets its level back when it is imported, which accelerate does on its own; a filter stays.
    logging.getLogger("DeepSpeed").addFilter(_is_error)
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


class ProgressBoard:
    """Holds the newest words of workers for a driver that waits elsewhere; made an actor by who needs one."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, Any]] = {}

    def say(self, name: str, words: dict[str, Any]) -> None:
        """Adds to what is known of one training; the first step said is kept as `first`."""
        known = self._said.setdefault(name, {})
        known.update(words)
        if "step" in words:
            known.setdefault("first", words["step"])

    def latest(self) -> dict[str, dict[str, Any]]:
        """Returns what is known, by name."""
        return self._said

"""Progress of a run: reports to listeners, and a line per stage."""

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from raysed.store.text import duration

log = logging.getLogger(__name__)

_EVERY_S = 1.0
"""How often `steps` updates the progress, which decides itself when to print."""
_silences = 0
"""How many callers want no output: runs and comparisons in several threads may."""
_listeners: list[Callable[[dict[str, Any]], None]] = []


@contextmanager
def listening(listener: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Pass the facts of each `emit` in this process to `listener` while the block runs."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def shown(wanted: bool) -> Iterator[None]:
    """Print no progress while the block runs, unless it is wanted."""
    global _silences
    _silences += not wanted
    try:
        yield
    finally:
        _silences -= not wanted


def emit(**facts: Any) -> None:
    """Report a run's position or a stage's work to the listeners.

    Position: `stage`; the progress `line`, its `share` (0 to 1) and the seconds `left`. Work: `sentences`. Once:
    `totals` of trainings by directory.
    """
    for listener in _listeners:
        listener(facts)


def print_text(text: str, end: str = "\n", stream: TextIO | None = None) -> None:
    """Print to any `sys.stdout`: None, an ASCII terminal, or an object that has only `write`."""
    stream = stream or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    known = text.encode(encoding, "replace").decode(encoding)
    print(known, end=end, file=stream, flush=hasattr(stream, "flush"))


class Progress:
    """One line per stage: rewritten on a terminal, printed `every` few seconds elsewhere; `total` may be unknown.

    The speed excludes the work of an earlier attempt, up to `first`.
    """

    def __init__(
        self, title: str, total: int | None, stream: TextIO | None = None, every: float = 15.0, first: int = 0
    ):
        self._title, self._total, self._stream = title, total, stream or sys.stdout
        # Notebooks also rewrite lines.
        self._terminal = getattr(self._stream, "isatty", bool)() or "ipykernel" in sys.modules
        self._interval = 0.2 if self._terminal else every
        self._started = time.monotonic()
        self._shown = self._started if not self._terminal else 0.0
        self._first = first

    def update(self, done: float, note: str = "") -> None:
        """Report how much is done and the time left; print it if a line is due."""
        now, left = time.monotonic(), None
        if self._total and done > self._first:
            left = (now - self._started) * (self._total - done) / (done - self._first)
        share = f"{int(100 * done / self._total):3d} %" if self._total else f"{done:,}"
        parts = [share, note, f"{duration(left)} left" if left and left >= 1 else ""]
        line = f"{self._title}: {' · '.join(part for part in parts if part)}"
        emit(line=line, left=left, share=done / self._total if self._total else None)
        if now - self._shown >= self._interval:
            self._shown = now
            self._write(line, "")

    def close(self, note: str = "") -> None:
        seconds = time.monotonic() - self._started
        self._write(f"{self._title}: done in {duration(seconds)}{' · ' if note else ''}{note}", "\n")

    def _write(self, text: str, end: str) -> None:
        if _silences:
            return
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print_text(f"\r{text[:width]:<{width}}", end, self._stream)
        else:
            print_text(text, stream=self._stream)


@contextmanager
def repeating(action: Callable[[], None], every: float, patience: float | None = None) -> Iterator[None]:
    """Repeat an action in a thread while the block runs; on exit, wait up to `patience` seconds for a running one."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every):
            try:
                action()
            except Exception as error:  # such as a storage error; the next call may succeed
                log.debug("a repeated action failed: %s", error)

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)


@contextmanager
def steps(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show progress over `total` steps; yield a function that names a new step."""
    progress, begun = Progress(title, total), [""]
    with repeating(lambda: progress.update(max(len(begun) - 2, 0), begun[-1]), _EVERY_S):
        yield begun.append
    progress.close()

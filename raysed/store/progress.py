"""What a run reports while it works: where it is, and one line per stage."""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from raysed.store.text import duration

Item = TypeVar("Item")
_EVERY_S = 1.0
"""Between looks at the progress, which knows when it is time for a line."""
_is_shown = True
_listeners: list[Callable[[dict[str, Any]], None]] = []


@contextmanager
def listening(listener: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Pass what `emit` is given in this process to a listener."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@contextmanager
def shown(wanted: bool) -> Iterator[None]:
    """Show progress in this block, or none."""
    global _is_shown
    before, _is_shown = _is_shown, wanted
    try:
        yield
    finally:
        _is_shown = before


def emit(**facts: Any) -> None:
    """Report where the run is, or what a stage took.

    Where it is: `stage`; the `line` of the progress, its `share` and the seconds `left`; how many `trainings` are
    `trained`. What it took: `sentences`. Once: `totals` of trainings by directory.
    """
    for listener in _listeners:
        listener(facts)


class Progress:
    """One line per stage: rewritten on a terminal, a new one `every` few seconds elsewhere; `total` may be unknown.

    Work of an earlier attempt, up to `first`, says nothing about the speed of this one.
    """

    def __init__(
        self, title: str, total: int | None, stream: TextIO | None = None, every: float = 15.0, first: int = 0
    ):
        self._title, self._total, self._stream = title, total, stream or sys.stdout
        self._terminal = self._stream.isatty() or "ipykernel" in sys.modules  # notebooks rewrite a line, too
        self._interval = 0.2 if self._terminal else every
        self._started = time.monotonic()
        self._shown = self._started if not self._terminal else 0.0
        self._first = first

    def update(self, done: float, note: str = "") -> None:
        """Show how far the stage is and the time left, if it is time for a line."""
        now, left = time.monotonic(), None
        if self._total and done > self._first:
            left = (now - self._started) * (self._total - done) / (done - self._first)
        share = f"{int(100 * done / self._total):3d} %" if self._total else f"{done:,}"
        parts = [share, note, "" if left is None else f"{duration(left)} left"]
        line = f"{self._title}: {' · '.join(part for part in parts if part)}"
        emit(line=line, left=left, share=done / self._total if self._total else None)
        if now - self._shown >= self._interval:
            self._shown = now
            self._write(line, "")

    def close(self, note: str = "") -> None:
        """Show the end."""
        seconds = time.monotonic() - self._started
        self._write(f"{self._title}: done in {duration(seconds)}{' · ' if note else ''}{note}", "\n")

    def _write(self, text: str, end: str) -> None:
        if not _is_shown:
            return
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text[:width]:<{width}}{end}")
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


@contextmanager
def repeating(action: Callable[[], None], every: float, patience: float | None = None) -> Iterator[None]:
    """Repeat an action in a thread while the block runs, whose end waits `patience` seconds for a running one."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every):
            action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(patience)


@contextmanager
def steps(title: str, total: int, part: Callable[[], float] = lambda: 0.0) -> Iterator[Callable[[str], None]]:
    """Show how far some work is, also while one step of it takes long; yield what takes the name of each step.

    Args:
        part: tells the share of the step under way that is done.
    """
    progress, begun = Progress(title, total), [""]
    with repeating(lambda: progress.update(max(len(begun) - 2, 0) + part(), begun[-1]), _EVERY_S):
        yield begun.append
    progress.close()


def one_by_one(
    title: str, items: Sequence[Item], names: Sequence[str], part: Callable[[], float] = lambda: 0.0
) -> Iterator[Item]:
    """Yield what is to be done, and show how far that is; see `steps`."""
    with steps(title, len(items), part) as begin:
        for item, name in zip(items, names, strict=True):
            begin(name)
            yield item

"""What a run tells while it works: where it is, one line per stage, and what workers say to a driver elsewhere.

Without any import that takes time: actors that hold a few words start as fast as Ray can.
"""

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeVar

from raysed.store.text import duration

Item = TypeVar("Item")
_EVERY = 1.0
"""Seconds between looks at the progress, which says itself when it is time for a line."""
_listeners: list[Callable[[dict[str, Any]], None]] = []


@contextmanager
def told_to(listener: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Lets a listener hear what `tell` is told, in this process."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def tell(**words: Any) -> None:
    """Says where the run is, or what a stage took.

    Where it is: `stage`; the `line` of the progress, its `share` from 0 to 1 and the seconds `left`, as far as they are
    known; how many of the stage's `trainings` are `trained`. What it took: `sentences`, of batches and embeddings, and
    `gpu_use` from 0 to 1. And once, before any training, what there will be: `totals`, the number of trainings by the
    directory that they lie in.
    """
    for listener in _listeners:
        listener(words)


class Progress:
    """One line per stage: rewritten on a terminal, a new line now and then elsewhere.

    Args:
        total: units of work, e.g. updates over all members; None where nobody knows.
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
        """Shows how far the stage is and the time left, if it is time for a line.

        Args:
            done: units of work, of `total`.
        """
        now = time.monotonic()
        left = self._left(done, now)
        parts = [self._share(done), note, "" if left is None else f"{duration(left)} left"]
        line = f"{self._title}: {' · '.join(part for part in parts if part)}"
        tell(line=line, left=left, share=done / self._total if self._total else None)
        if now - self._shown >= self._interval:
            self._shown = now
            self._write(line, "")

    def close(self, note: str = "") -> float:
        """Shows the end; returns the seconds since the start."""
        seconds = time.monotonic() - self._started
        self._write(f"{self._title}: done in {duration(seconds)}{' · ' if note else ''}{note}", "\n")
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


@contextmanager
def repeating(action: Callable[[], None], every: float, patience: float | None = None) -> Iterator[None]:
    """Repeats an action in a thread while the block runs, for the first time after `every` seconds.

    Args:
        every: seconds in between.
        patience: seconds that the end of the block waits for a running action; None: until it is done.
    """
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
def steps(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Shows how far some work is, also while one step of it takes long.

    Yields:
        What is to be told the name of each step as it begins.
    """
    progress, begun = Progress(title, total), [""]
    with repeating(lambda: progress.update(max(len(begun) - 2, 0), begun[-1]), _EVERY):
        yield begun.append
    progress.close()


def one_by_one(title: str, items: Sequence[Item], names: Sequence[str]) -> Iterator[Item]:
    """Yields what is to be done, and shows how far that is."""
    with steps(title, len(items)) as begin:
        for item, name in zip(items, names, strict=True):
            begin(name)
            yield item


class ProgressBoard:
    """Holds the newest words of workers for a driver that waits elsewhere; whoever needs an actor makes it one."""

    def __init__(self) -> None:
        self._said: dict[str, dict[str, Any]] = {}

    def say(self, name: str, words: dict[str, Any]) -> None:
        """Adds to what is known of one training.

        Args:
            words: e.g. `step` and `loss`; the first step said is kept as `first`.
        """
        known = self._said.setdefault(name, {})
        known.update(words)
        if "step" in words:
            known.setdefault("first", words["step"])

    def latest(self) -> dict[str, dict[str, Any]]:
        """Returns what is known, by name."""
        return self._said

"""What a run tells: progress lines for both kinds of output, and the words of workers elsewhere."""

import io
import logging
import os
import shutil
import time

import pytest

import raysed.store.progress
from raysed.store.metrics import notes_shown
from raysed.store.progress import Progress, repeating


class Writes:
    """As little as a program may put in the place of `sys.stdout`."""

    def __init__(self, encoding: str | None = None):
        self.text, self.encoding = "", encoding

    def write(self, text: str) -> None:
        self.text += text.encode(self.encoding or "utf-8").decode(self.encoding or "utf-8")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The seconds that `Progress` sees."""
    now = [100.0]
    monkeypatch.setattr(raysed.store.progress.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_has_one_line_that_is_rewritten(clock, monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *fallback, **named: os.terminal_size((60, 24)))
    stream = Terminal()
    progress = Progress("train ct", 1000, stream)
    for done in range(0, 1001, 10):
        progress.update(done, "loss 0.5")
        clock[0] += 0.125
    progress.close("10 of 10 members")
    *lines, end = stream.getvalue().split("\r")[1:]
    assert end == f"{'train ct: done in 13 s · 10 of 10 members':<59}\n"
    assert stream.getvalue().count("\n") == 1
    assert {len(line) for line in lines} == {59}  # a shorter line wipes a longer one, and none wraps
    assert len(lines) == 51  # at most five a second
    assert lines[0].rstrip() == "train ct:   0 % · loss 0.5"
    assert lines[25].rstrip() == "train ct:  50 % · loss 0.5 · 6 s left"


def test_elsewhere_a_line_is_added_now_and_then(clock):
    stream = io.StringIO()
    progress = Progress("train ct", 1000, stream)
    for done in range(0, 1000, 10):
        progress.update(done)
        clock[0] += 1
    progress.close()
    first, *_, end = stream.getvalue().splitlines()
    assert first == "train ct:  15 % · 1 min 25 s left" and end == "train ct: done in 1 min 40 s"
    assert stream.getvalue().count("\n") == 7


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (None, ""),
        (Writes(), "Süße:   0 % · 東\n"),
        (Writes("latin-1"), "Süße:   0 % · ?\n"),
        (Writes("ascii"), "S??e:   0 % ? ?\n"),
    ],
)
def test_output_may_be_anything_that_a_program_has_put_there(monkeypatch, stream, said):
    monkeypatch.setattr("sys.stdout", stream)
    Progress("Süße", 10, every=0).update(0, "東")
    with notes_shown():
        logging.getLogger("raysed.x").info("東")
    monkeypatch.undo()
    assert stream is None or stream.text == f"{said}note: {said[-2]}\n"


def test_work_of_an_earlier_attempt_does_not_count_as_speed(clock):
    stream = io.StringIO()
    progress = Progress("distil", 1000, stream, every=0, first=800)
    clock[0] += 10
    progress.update(900)
    progress.update(999)
    assert stream.getvalue() == "distil:  90 % · 10 s left\ndistil:  99 %\n", "no 0 s"


def test_an_unknown_total_is_counted_without_a_share(clock):
    for total in (None, 0):
        stream = io.StringIO()
        Progress("read corpus", total, stream, every=0).update(20000, "wiki.txt")
        assert stream.getvalue() == "read corpus: 20,000 · wiki.txt\n"


def test_what_is_repeated_goes_on_after_an_error():
    times: list[int] = []

    def fails_once() -> None:
        times.append(len(times))
        if times == [0]:
            raise OSError("the storage is away")

    with repeating(fails_once, 0.001):
        deadline = time.monotonic() + 10
        while len(times) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert len(times) >= 3

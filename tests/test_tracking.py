"""What a run tells: progress lines for both kinds of output, and logs that other programs can read."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.fs as pafs
import pytest

import raysed.storage
import raysed.tracking
from raysed.storage import Storage
from raysed.tracking import MetricsLog, Progress, ProgressBoard, native_output_to

ROOT = Path(__file__).resolve().parent.parent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The seconds that `Progress` sees."""
    now = [100.0]
    monkeypatch.setattr(raysed.tracking.time, "monotonic", lambda: now[0])
    return now


# -- progress --------------------------------------------------------------------------------------------------------


def test_a_terminal_has_one_line_that_is_rewritten(clock, monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((60, 24)))
    stream = Terminal()
    progress = Progress("train ct", 1000, stream)
    for done in range(0, 1001, 10):
        progress.update(done, "loss 0.5")
        clock[0] += 0.125
    assert progress.close("10 of 10 members") == 12.625
    *lines, end = stream.getvalue().split("\r")[1:]
    assert end == f"{'train ct: done in 13 s · 10 of 10 members':<59}\n"
    assert stream.getvalue().count("\n") == 1
    assert {len(line) for line in lines} == {59}  # a shorter line wipes a longer one, and none wraps
    assert len(lines) == 51  # at most five a second
    assert lines[0].rstrip() == "train ct:   0 % · loss 0.5"
    assert lines[25].rstrip() == "train ct:  50 % · loss 0.5 · 6 s left"


def test_a_narrow_terminal_cuts_the_line(clock, monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((20, 24)))
    stream = Terminal()
    Progress("a very long title", 10, stream).update(5, "and a note")
    assert stream.getvalue() == "\ra very long title: "


def test_elsewhere_a_line_is_added_now_and_then(clock):
    stream = io.StringIO()
    progress = Progress("train ct", 1000, stream)
    for done in range(0, 1000, 10):
        progress.update(done)
        clock[0] += 1
    progress.close()
    assert stream.getvalue().splitlines() == [
        "train ct:  15 % · 1 min 25 s left",
        "train ct:  30 % · 1 min 10 s left",
        "train ct:  45 % · 55 s left",
        "train ct:  60 % · 40 s left",
        "train ct:  75 % · 25 s left",
        "train ct:  90 % · 10 s left",
        "train ct: done in 1 min 40 s",
    ]


def test_a_short_stage_says_one_line_only(clock):
    stream = io.StringIO()
    progress = Progress("evaluate", 3, stream)
    progress.update(3)
    progress.close()
    assert stream.getvalue() == "evaluate: done in 0 s\n"


def test_work_of_an_earlier_attempt_does_not_count_as_speed(clock):
    stream = io.StringIO()
    progress = Progress("distil", 1000, stream, every=0)
    progress.start_from(800)
    clock[0] += 10
    progress.update(900)
    assert stream.getvalue() == "distil:  90 % · 10 s left\n"


@pytest.mark.parametrize("total", [None, 0])
def test_an_unknown_total_is_counted_without_a_share(clock, total):
    stream = io.StringIO()
    progress = Progress("read corpus", total, stream, every=0)
    progress.update(12345)
    progress.update(20000, "wiki.txt")
    assert stream.getvalue() == "read corpus: 12,345\nread corpus: 20,000 · wiki.txt\n"


def test_a_board_holds_the_newest_words_and_the_first_step_of_each_training():
    board = ProgressBoard()
    assert board.latest() == {}
    board.say("a", {"total": 10})
    board.say("a", {"step": 4, "loss": 0.5, "dev": 60.0})
    board.say("b", {"step": 2})
    board.say("a", {"step": 6, "loss": 0.4})
    assert board.latest() == {
        "a": {"total": 10, "step": 6, "loss": 0.4, "dev": 60.0, "first": 4},
        "b": {"step": 2, "first": 2},
    }


# -- logs ------------------------------------------------------------------------------------------------------------

HISTORY = [
    {"step": 10, "loss": 0.5, "learning_rate": 1e-5},
    {"step": 20, "loss": 0.25, "learning_rate": 8e-6, "dev": {"first": 60.5, "second": 61.25}},
]


def events(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's scalars, read record by record: length, its checksum, an event, its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in directory.glob("events.out.tfevents.*"):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + length])
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            data = data[16 + length :]
    return found


def assert_complete(directory: Path, history: list[dict]) -> None:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history
    found = events(directory)
    assert found["loss"] == [(entry["step"], entry["loss"]) for entry in history]
    assert found["dev/second"] == [(20, 61.25)]


def test_a_log_is_json_lines_and_tensorboard_events(tmp_path):
    with MetricsLog(Storage(str(tmp_path), "run"), "ct/members/00") as metrics:
        for entry in HISTORY:
            metrics.write(entry)
            lines = (tmp_path / "run/logs/ct/members/00/metrics.jsonl").read_text().splitlines()
            assert json.loads(lines[-1]) == entry  # there while training goes on
    assert_complete(tmp_path / "run/logs/ct/members/00", HISTORY)


def test_a_training_that_continues_writes_each_step_once(tmp_path):
    """It hands its whole history in again."""
    storage = Storage(str(tmp_path), "run")
    with pytest.raises(RuntimeError), MetricsLog(storage, "ct/members/00") as metrics:
        metrics.write(HISTORY[0])
        raise RuntimeError("killed")
    directory = tmp_path / "run/logs/ct/members/00"
    (events_file,) = directory.glob("events*")
    events_file.rename(directory / "events.out.tfevents.1.earlier")  # as if it had started in another second
    longer = [*HISTORY, {"step": 30, "loss": 0.125, "learning_rate": 8e-6}]
    with MetricsLog(storage, "ct/members/00") as metrics:
        for entry in longer:
            metrics.write(entry)
    assert_complete(directory, longer)


def test_a_log_for_an_object_store_is_copied_there_when_it_is_closed(tmp_path, monkeypatch):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "local").mkdir()
    fs = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
    monkeypatch.setattr(raysed.storage, "_filesystem", lambda location: (fs, "runs"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "local"))
    with MetricsLog(Storage("mock://bucket/runs", "run"), "ct/members/00") as metrics:
        for entry in HISTORY:
            metrics.write(entry)
        assert not list((tmp_path / "bucket").iterdir())
    assert_complete(tmp_path / "bucket/runs/run/logs/ct/members/00", HISTORY)
    assert not list((tmp_path / "local").iterdir())


def test_notes_are_plain_lines():
    """In a process of their own: the logger is shared."""
    code = (
        "import logging; from raysed.tracking import show_notes; show_notes(); show_notes();"
        "logging.getLogger('raysed.x').info('seen'); logging.getLogger('raysed').debug('not seen')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("note: seen\n", "")


def test_what_libraries_print_goes_to_a_file_and_python_keeps_the_terminal(tmp_path):
    code = (
        "import os, sys, pathlib; from raysed.tracking import native_output_to\n"
        "with native_output_to(pathlib.Path(sys.argv[1])):\n"
        "    os.write(2, b'native\\n'); print('python', file=sys.stderr)\n"
        "os.write(2, b'after\\n'); print('too', file=sys.stderr)\n"
    )
    log = tmp_path / "logs/native.log"
    done = subprocess.run([sys.executable, "-c", code, str(log)], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == "python\nafter\ntoo\n"
    assert log.read_text() == "native\n"


def test_the_terminal_comes_back_after_an_error(tmp_path):
    stderr, inode = sys.stderr, os.fstat(2).st_ino
    with pytest.raises(KeyError), native_output_to(tmp_path / "native.log"):
        assert os.fstat(2).st_ino == (tmp_path / "native.log").stat().st_ino
        raise KeyError
    assert sys.stderr is stderr and os.fstat(2).st_ino == inode

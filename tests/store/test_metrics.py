"""What a run writes down: logs that other programs can read, and no notices of others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.fs as pafs
import pytest

import raysed.store.metrics
import raysed.store.storage
from raysed.store.metrics import MetricsLog, native_output_to
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[2]


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
    monkeypatch.setattr(raysed.store.storage, "_filesystem", lambda location: (fs, "runs"))
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
        "import logging; from raysed.store.metrics import show_notes; show_notes(); show_notes();"
        "logging.getLogger('raysed.x').info('seen'); logging.getLogger('raysed').debug('not seen')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("note: seen\n", "")


def test_what_libraries_print_goes_to_a_file_and_python_keeps_the_terminal(tmp_path):
    code = (
        "import os, sys, pathlib; from raysed.store.metrics import native_output_to\n"
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

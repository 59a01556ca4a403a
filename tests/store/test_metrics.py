"""What a run writes down: logs that other programs can read, and no notices of others."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest

import raysed.store.files
import raysed.store.metrics
from raysed.errors import UserError
from raysed.store.metrics import MetricsLog
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[2]

HISTORY = [
    {"step": 10, "loss": 0.5, "learning_rate": 1e-5},
    {"step": 20, "loss": 0.25, "learning_rate": 8e-6, "dev": {"first": 60.5, "second": 61.25}},
]


def events(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's scalars; each record is a length, its checksum, an event and its checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in directory.glob("events.out.tfevents.*"):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event, data = Event.FromString(data[12 : 12 + length]), data[16 + length :]
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def assert_complete(directory: Path, history: list[dict]) -> None:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history
    found = events(directory)
    assert found["loss"] == [(entry["step"], entry["loss"]) for entry in history]
    assert found["dev/second"] == [(20, 61.25)]


def test_a_training_that_continues_writes_each_step_once(tmp_path):
    """It hands its whole history in again. A user's files in its directory stay."""
    storage = Storage(str(tmp_path), "run")
    with pytest.raises(RuntimeError), MetricsLog(storage, "ct/members/00") as metrics:
        metrics.write(HISTORY[0])
        raise RuntimeError("killed")
    directory = tmp_path / "run/logs/ct/members/00"
    (directory / "notes.md").write_text("a user's")
    (events_file,) = directory.glob("events*")
    events_file.rename(directory / "events.out.tfevents.1.earlier")  # as if it had started in another second
    longer = [*HISTORY, {"step": 30, "loss": 0.125, "learning_rate": 8e-6}]
    with MetricsLog(storage, "ct/members/00") as metrics:
        for entry in longer:
            metrics.write(entry)
    assert (directory / "notes.md").read_text() == "a user's"
    assert_complete(directory, longer)


@pytest.fixture
def remote(tmp_path, monkeypatch) -> Storage:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "local").mkdir()
    fs = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
    monkeypatch.setattr(raysed.store.files, "filesystem", lambda location: (fs, "runs"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "local"))
    return Storage("mock://bucket/runs", "run")


def test_a_log_for_an_object_store_is_there_while_training_goes_on(remote, tmp_path, monkeypatch):
    """Each file is copied as it has grown, also where copies fail meanwhile; at the end none is left here."""
    monkeypatch.setattr(raysed.store.metrics, "_COPY_S", 0.02)
    directory, failures, write = tmp_path / "bucket/runs/run/logs/ct/members/00", [1, 2], remote.plain.write

    def failing(name: str, data: bytes) -> None:
        if failures:
            raise OSError(f"no answer {failures.pop()}")
        write(name, data)

    monkeypatch.setattr(remote.plain, "write", failing)
    with MetricsLog(remote, "ct/members/00") as metrics:
        for count in (1, 2):
            metrics.write(HISTORY[count - 1])
            until = time.monotonic() + 20
            while len(events(directory).get("loss", [])) < count and time.monotonic() < until:
                time.sleep(0.02)
            assert events(directory)["loss"] == [(entry["step"], entry["loss"]) for entry in HISTORY[:count]]
            assert len((directory / "metrics.jsonl").read_text().splitlines()) == count
    assert not failures
    assert_complete(directory, HISTORY)
    assert not list((tmp_path / "local").glob("*/[!.]*"))


def test_a_log_on_a_full_disk_is_a_sentence_and_nobody_waits(tmp_path):
    """Here the device on which nothing can be written."""
    with pytest.raises(UserError, match=r"^no disk space left for .*/logs/ct/members/00; free some space"):
        with MetricsLog(Storage(str(tmp_path), "run"), "ct/members/00") as metrics:
            metrics._lines = open("/dev/full", "w")
            for entry in HISTORY * 100:
                metrics.write(entry)


def test_what_libraries_print_goes_to_a_file_and_python_keeps_the_terminal(tmp_path):
    """Also after an error; and where the file is on a full disk, there is no traceback for each line of a log."""
    code = (
        "import contextlib, logging, os, pathlib, sys; from raysed.store.metrics import native_output_to\n"
        "log = logging.getLogger('ray'); log.propagate = False\n"
        "with contextlib.suppress(KeyError), native_output_to(pathlib.Path(sys.argv[1])):\n"
        "    os.write(2, b'native\\n'); print('python', file=sys.stderr); raise KeyError\n"
        "os.write(2, b'after\\n'); print('too', file=sys.stderr)\n"
        "with native_output_to(pathlib.Path('/dev/full')):\n"
        "    log.addHandler(logging.StreamHandler(os.fdopen(2, 'w', closefd=False)))\n"
        "    log.error('a trial failed')\n"
    )
    command = [sys.executable, "-c", code, str(log := tmp_path / "logs/native.log")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said, errors = done.stdout, done.stderr
    assert said == "" and errors.startswith("python\nafter\ntoo\n") and "Traceback" not in errors
    assert log.read_text() == "native\n"

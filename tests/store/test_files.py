"""File systems of clusters: what they do not have, how long they are waited for, and links that form a loop."""

import errno
import fcntl
import logging
import os
import resource
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from raysed.data.sources import Hub, find
from raysed.errors import UserError
from raysed.store import cache, files, systems
from raysed.store.status import describe_all
from raysed.store.storage import Storage, runs_at

ROOT = Path(__file__).resolve().parents[2]
HUB = Hub("", None, "train")


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path / "runs"), "mine")


@pytest.fixture(autouse=True)
def warnings_are_new(caplog):
    systems._warn_once.cache_clear()
    caplog.set_level(logging.WARNING)


def is_directory(file: int) -> bool:
    return stat.S_ISDIR(os.fstat(file).st_mode)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK])
@pytest.mark.parametrize("what", ["lock files", "flush directories"])
def test_what_a_file_system_does_not_have_is_a_warning_once(storage, tmp_path, monkeypatch, caplog, what, number):
    """Lustre and EFS may have no locks; CIFS and FUSE may flush no directories."""
    fsync = os.fsync

    def lock(*call: object) -> None:
        raise OSError(number, os.strerror(number))

    def flush(file: int) -> None:
        lock() if is_directory(file) else fsync(file)

    monkeypatch.setattr(*(fcntl, "flock", lock) if what == "lock files" else (os, "fsync", flush))
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    with storage.lock():
        for steps in (1, 2):
            storage.commit("corpus", lambda path: (path / "a").write_text("x"), {"steps": steps})
    assert storage.finished("corpus", {"steps": 2})
    with cache.half_written() as copy:
        cache.make_room()
        assert copy.exists(), "a copy in use stays"
    assert [record.getMessage().partition(" cannot ")[2].partition(":")[0] for record in caplog.records] == [what]


def test_other_errors_of_locks_and_flushes_stay_errors(storage, monkeypatch):
    def fail(*call: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError, match="Input/output error"), storage.lock():
        pass
    monkeypatch.setattr(files, "_PAUSES_S", ())
    monkeypatch.setattr(os, "fsync", lambda file: fail() if is_directory(file) else None)
    with pytest.raises(OSError, match="Input/output error"):
        storage.write_text("a", "x")


ROWS = np.zeros(50_000)
WRITERS: dict[str, Callable[[Path], object]] = {
    "python": lambda path: path.write_bytes(ROWS.tobytes()),
    "safetensors": lambda path: save_file({"a": torch.from_numpy(ROWS)}, path),
    "arrow": lambda path: pq.write_table(pa.table({"a": ROWS}), path, compression="none", use_dictionary=False),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_limit_of_file_sizes_is_a_sentence_like_a_full_disk(storage, write):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"^a limit of file sizes was reached at .*mine/corpus; free some"):
            storage.commit("corpus", lambda path: write(path / "a"), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not storage.plain.sizes_below("corpus")


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"endpoint_override=127.0.0.1:{server.getsockname()[1]}&scheme=http"
    deadline = time.monotonic() + 60
    while systems.are_unanswered():  # the libraries, which try again
        assert time.monotonic() < deadline
        time.sleep(0.05)


ACCESSES: dict[str, Callable[[str], object]] = {
    "a corpus": lambda uri: find(uri, "corpus.source", "text", HUB, several=True),
    "a task": lambda uri: find(uri, "tasks", "pairs", HUB),
    "a run": lambda uri: Storage(uri, "mine").check_access(),
    "all runs": runs_at,
}


@pytest.mark.parametrize("access", ACCESSES.values(), ids=ACCESSES)
@pytest.mark.parametrize("place", ["s3://bucket/a?region=us-east-1", "gs://anonymous@bucket/a?retry_limit_seconds=1"])
def test_a_file_system_that_does_not_answer_is_named_and_given_up(silent, place, access, monkeypatch, caplog):
    monkeypatch.setattr(systems, "_SILENT_S", 0.1)
    monkeypatch.setattr(systems, "_ANSWER_S", 0.3)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(UserError, match=r"bucket/a.* does not answer within 0.3 s"):
        access(f"{place}&{silent}")
    messages = [record.getMessage() for record in caplog.records]
    assert messages and all(message.startswith("waiting for ") and "bucket/a" in message for message in messages)


def test_a_command_ends_though_a_library_still_waits(silent, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    program = "from raysed.store import systems; systems._SILENT_S = systems._ANSWER_S = 1; import raysed.cli; "
    command = ["status", "--storage", f"s3://bucket/a?region=us-east-1&{silent}"]
    begin = [sys.executable, "-c", f"{program}raise SystemExit(raysed.cli.main())", *command]
    done = subprocess.run(begin, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "does not answer within 1 s" in done.stderr


@pytest.mark.parametrize(
    ("place", "seconds"), [("gs://b/a", 20), ("gcs://b/a?scheme=http", 20), ("gs://b/a?retry_limit_seconds=7", 7)]
)
def test_google_s_client_retries_for_seconds_unless_the_uri_says_for_how_long(place, seconds):
    for fs in (files.filesystem(place)[0], files.connect(place)[0]):
        assert fs.__reduce__()[1][0]["retry_time_limit"].total_seconds() == seconds


@pytest.mark.parametrize("links", [{"a/up": ".."}, {"a/here": "."}, {"a/other": "../b", "b/other": "../a"}])
def test_links_that_form_a_loop_in_a_directory_of_texts_are_refused(tmp_path, links):
    """One to another directory is read."""
    for name in "abc":
        (tmp_path / name).mkdir()
        (tmp_path / name / "texts.txt").write_text("a sentence")
    (tmp_path / "a/more").symlink_to(tmp_path / "c")
    assert len(find(str(tmp_path), "corpus.source", "text", HUB, several=True)) == 4
    for path, target in links.items():
        (tmp_path / path).symlink_to(target)
    for item in (str(tmp_path), f"{tmp_path}/**/*.txt", f"{tmp_path}/*/*/*.txt"):
        with pytest.raises(UserError, match=r"/(up|here|other) is a link to a directory that it is in; remove it$"):
            find(item, "corpus.source", "text", HUB, several=True)


LOOPS: dict[str, Callable[[Storage], object]] = {
    "the list of all runs": lambda storage: describe_all(storage.location),
    "free space": lambda storage: storage.free_bytes(),
    "the manifest": lambda storage: storage.names(),
    "a start": lambda storage: storage.lock().__enter__(),
}


@pytest.mark.parametrize("look", LOOPS.values(), ids=LOOPS)
def test_links_that_form_a_loop_end(storage, tmp_path, monkeypatch, look):
    """Two links upwards are 2 ** 40 paths. What is behind a link elsewhere may be on another disk."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    storage.commit("corpus", lambda path: (path / "a").write_text("x"), {})
    (tmp_path / "other").mkdir()
    (tmp_path / "other/big").write_bytes(b"x" * 1000)
    before = storage.free_bytes()
    for place in (tmp_path / "runs", tmp_path / "runs/mine", tmp_path / "runs/mine/manifest"):
        for name in ("again", "and-again"):
            (place / name).symlink_to(place)
        (place / "itself").symlink_to(place / "itself")
    Path(storage.uri("elsewhere")).symlink_to(tmp_path / "other")
    look(storage)
    storage.plain.delete(".claim.json")
    assert storage.free_bytes() == before
    assert storage.names() == ["corpus"]

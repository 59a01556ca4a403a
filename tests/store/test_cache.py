"""Copies of remote artefacts: nobody else reads them, and they do not fill the disk."""

import os
import stat
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from raysed.errors import UserError
from raysed.store import cache, files
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parents[2]

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return cache.directory()


def test_it_is_for_its_owner_alone(place, monkeypatch):
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.chmod(0o755)  # as earlier versions made it
    assert stat.S_IMODE(cache.directory().stat().st_mode) == 0o700
    theirs = "belongs to another user; remove it, or set TMPDIR to your own directory$"
    place.rmdir()
    place.symlink_to(place.parent, target_is_directory=True)
    with pytest.raises(UserError, match=theirs):
        cache.directory()
    monkeypatch.setattr(os, "getuid", lambda: place.lstat().st_uid + 1)
    with pytest.raises(UserError, match=theirs):
        cache.directory()


def copy(place: Path, key: str, used: float) -> None:
    """As a process that has ended left it: 100 bytes."""
    (place / key).mkdir()
    (place / key / "file").write_bytes(bytes(100))
    os.utime(place / key, (0, used))


def test_what_was_used_longest_ago_goes_first_and_what_a_process_uses_stays(place, monkeypatch):
    """Four copies of 100 bytes, and room for two of them."""
    free = lambda: 250 - 100 * (len(list(place.glob("[!.]*"))) - 2)  # noqa: E731
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: Usage(1000, 1000 - free(), free()))
    for used, name in enumerate(("in use", "old", "older", "new")):
        copy(place, name.replace(" ", "-"), used)
    assert cache.lease("in-use") == place / "in-use"
    os.utime(place / "in-use", (0, 0))
    cache.make_room()
    assert {path.name for path in place.glob("[!.]*")} == {"in-use", "new"}


_USER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from raysed.store import cache
cache.lease("copy")
half = cache.half_written()
half.__enter__()
print("ready", flush=True)
sys.stdin.read()
"""


def test_what_another_process_uses_stays_until_it_ends(place, monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: Usage(1000, 1000, 0))
    copy(place, "copy", 0)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", _USER, str(place.parent)], cwd=ROOT, **pipes) as user:
        assert user.stdout.readline() == "ready\n"
        cache.make_room()
        assert len(list(place.glob("[!.]*"))) == 2
        user.kill()
    with monkeypatch.context() as patch:
        patch.setattr(cache.shutil, "disk_usage", lambda path: Usage(1000, 0, 1000))
        cache.make_room()
        assert [path.name for path in place.glob("[!.]*")] == ["copy"], "what is half-written is of no use to anybody"
    cache.make_room()
    assert list(place.glob("[!.]*")) == []


@pytest.mark.parametrize("is_intact", [True, False])
def test_of_two_that_finish_one_download_the_first_wins_unless_it_is_damaged(place, is_intact):
    for text in ("first", "second"):
        with cache.half_written() as filled:
            (filled / "file").write_text(text)
            cache.install(filled, place / "copy", lambda: is_intact)
    assert (place / "copy/file").read_text() == ("first" if is_intact else "second")
    assert [path.name for path in place.glob("[!.]*")] == ["copy"]


_FETCHER = """
import sys, tempfile
from collections import namedtuple
tempfile.tempdir = sys.argv[1]
import pyarrow.fs as pafs
from raysed.store import cache, files
cache.shutil.disk_usage = lambda path: namedtuple("Usage", "total used free")(1000, 1000, 0)
fs = pafs.SubTreeFileSystem(sys.argv[2], pafs.LocalFileSystem())
files.filesystem = lambda location: (fs, "runs")
from raysed.store.storage import Storage
storage = Storage("mock://bucket/runs", "run", "job")
for name in 2 * sys.argv[3:]:
    assert (storage.fetch(name) / "file").read_text() == name
"""


def test_processes_that_fetch_on_a_full_disk_lose_nothing_that_the_manifest_names(place, tmp_path, monkeypatch):
    """Each removes what it can while the others download, rename and read the same."""
    (tmp_path / "bucket").mkdir()
    fs = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
    monkeypatch.setattr(files, "filesystem", lambda location: (fs, "runs"))
    storage, names = Storage("mock://bucket/runs", "run"), [f"member-{index:02d}" for index in range(20)]
    for name in names:
        storage.commit(name, lambda path, name=name: (path / "file").write_text(name), {})
    orders = [names, names[::-1], names[10:] + names[:10]]
    arguments = [sys.executable, "-c", _FETCHER, str(tmp_path), str(tmp_path / "bucket")]
    fetchers = [subprocess.Popen([*arguments, *order], cwd=ROOT, stderr=subprocess.PIPE, text=True) for order in orders]
    assert [fetcher.communicate(timeout=120)[1] for fetcher in fetchers] == [""] * 3
    assert [entry.name for entry in storage.entries()] == names

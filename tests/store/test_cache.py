"""Copies of remote artefacts: nobody else reads them, and they do not fill the disk."""

import os
import stat
import subprocess
import sys
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest

from raysed.errors import UserError
from raysed.store import cache

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

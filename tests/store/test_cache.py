"""Copies of remote artefacts: nobody else reads them, and they do not fill the disk."""

import os
import stat
import tempfile
from collections import namedtuple

import pytest

from raysed.errors import UserError
from raysed.store import cache

Usage = namedtuple("Usage", "total used free")
HOUR = 3600.0


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return cache.directory()


def test_it_is_for_its_owner_alone(place):
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    place.chmod(0o755)  # as earlier versions made it
    assert stat.S_IMODE(cache.directory().stat().st_mode) == 0o700


def test_that_of_somebody_else_is_refused(place, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
    (place.parent / f"raysed-cache-{os.getuid()}").mkdir()
    with pytest.raises(
        UserError, match=r"belongs to somebody else; remove it, or set TMPDIR to a directory of your own$"
    ):
        cache.directory()


def test_a_link_is_refused(place):
    place.rmdir()
    place.symlink_to(place.parent, target_is_directory=True)
    with pytest.raises(UserError, match="belongs to somebody else"):
        cache.directory()


def test_what_was_used_longest_ago_goes_first(place, monkeypatch):
    """Three copies of 100 bytes, and room for two of them."""
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: Usage(1000, 900, 150))
    for age, name in ((5, "old"), (3, "used again"), (2, "new")):
        (place / name).mkdir()
        (place / name / "file").write_bytes(bytes(100))
        os.utime(place / name, (0, 10 * HOUR - age * HOUR))
    os.utime(place / "used again", (0, 10 * HOUR - 1.5 * HOUR))
    assert [path.name for path in cache.make_room(place, now=10 * HOUR)] == ["old"]
    assert {path.name for path in place.iterdir()} == {"used again", "new"}


def test_what_may_still_be_read_stays(place, monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: Usage(1000, 1000, 0))
    for name in ("one", "another"):
        (place / name).mkdir()
        (place / name / "file").write_bytes(bytes(100))
    assert cache.make_room(place) == []
    os.utime(place / "one", (0, 0))
    assert [path.name for path in cache.make_room(place)] == ["one"]
    cache.used(place / "another")
    assert cache.make_room(place) == []

"""Copies of remote artefacts on this machine, which all its processes share; those unused for longest go first."""

import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

from raysed.errors import UserError

_PART = 0.5
"""The part of the disk's free space, copies counted as free, that copies may take."""
_IN_USE_SECONDS = 3600.0
"""A process may still open a copy that it has asked for so long ago."""


def directory() -> Path:
    """Returns where copies lie, which nobody else can read or write.

    Raises:
        UserError: somebody else has made it.
    """
    path = Path(tempfile.gettempdir(), f"raysed-cache-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{path} belongs to somebody else; remove it, or set TMPDIR to a directory of your own")
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
    return path


def used(copy: Path) -> None:
    """Notes that a copy is in use."""
    os.utime(copy)


def make_room(place: Path, now: float | None = None) -> list[Path]:
    """Removes the copies that were used longest ago, for as long as all of them take too much of the disk.

    Args:
        now: seconds since 1970; None: the present.

    Returns:
        What was removed.
    """
    disk = shutil.disk_usage(place)
    if disk.used <= disk.free:  # so copies take less than is free, and none of them has to be looked at
        return []
    now = time.time() if now is None else now
    copies = sorted((entry for entry in place.iterdir() if entry.is_dir()), key=lambda entry: entry.stat().st_mtime)
    sizes = {copy: _size(copy) for copy in copies}
    total = sum(sizes.values())
    most = _PART * (disk.free + total)
    removed = []
    for copy in copies:
        if total <= most or now - copy.stat().st_mtime < _IN_USE_SECONDS:
            break
        shutil.rmtree(copy, ignore_errors=True)
        total -= sizes[copy]
        removed.append(copy)
    return removed


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())

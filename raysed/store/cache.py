"""Local copies of remote artefacts, shared by all processes of this machine, and staging directories for uploads.

Each process holds a lease: a locked file that lists the copies in use, as often as they are. The lock ends with the
process. Without a lease, half-written copies are removed, and others while the disk is nearly full, least recently used
first.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from raysed.errors import UserError
from raysed.store.systems import lock

_FREE = 0.25
"""Share of the disk to keep free by removing copies without a lease."""
_LEASES = ".leases"
_HALF = ".half"
_leases: dict[tuple[int, Path], int] = {}
"""Descriptor of this process's lease, by process id (forks inherit their parent's) and cache directory."""


def directory() -> Path:
    """Return the cache directory, private to this user; UserError if it belongs to someone else."""
    path = Path(tempfile.gettempdir(), f"raysed-cache-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise UserError(f"{path} belongs to another user; remove it, or set TMPDIR to your own directory")
    path.chmod(0o700)
    return path


def lease(key: str) -> Path:
    """Return the path of a copy, whether it exists or not; it is protected until `release` or this process ends."""
    place = directory()
    with _locked(place):
        if (os.getpid(), place) not in _leases:
            (place / _LEASES).mkdir(exist_ok=True)
            flags = os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC
            file = os.open(place / _LEASES / uuid.uuid4().hex, flags, 0o600)
            lock(file, fcntl.LOCK_EX)
            _leases[os.getpid(), place] = file
        os.write(_leases[os.getpid(), place], f"{key}\n".encode())
        with suppress(FileNotFoundError):
            os.utime(place / key)
    return place / key


def release(path: Path) -> None:
    """Undo one `lease` of this process, which returned the path."""
    with _locked(path.parent):
        file = _leases[os.getpid(), path.parent]
        keys = os.pread(file, os.fstat(file).st_size, 0).decode().split()
        keys.remove(path.name)
        os.ftruncate(file, 0)
        os.write(file, "".join(f"{key}\n" for key in keys).encode())


@contextmanager
def half_written() -> Iterator[Path]:
    """Yield an empty directory to fill; it is removed on exit unless it was renamed."""
    path = lease(f"{uuid.uuid4().hex}{_HALF}")
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        release(path)


def alone(path: Path) -> AbstractContextManager[None]:
    """Let one thread of this machine at a time fetch a copy; a few unrelated ones may wait, too."""
    return _locked(path.parent, f"-{path.name[:2]}")


def install(filled: Path, path: Path, is_intact: Callable[[], bool]) -> None:
    """Move a directory from `half_written` into place, unless another process has put an intact copy there."""
    with _locked(path.parent):
        if path.exists():
            if is_intact():
                return
            shutil.rmtree(path)
        os.rename(filled, path)


def make_room() -> None:
    """Remove half-written directories without a lease, and copies without one until enough of the disk is free."""
    place = directory()
    with _locked(place):
        used: set[str] = set()
        for path in (place / _LEASES).glob("*"):
            with open(path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    path.unlink()  # its process is gone
                except OSError:  # it is locked, or there are no locks
                    used.update(file.read().split())
        unused = [path for path in place.iterdir() if path.name not in used and not path.name.startswith(".")]
        for path in sorted(unused, key=lambda path: path.stat().st_mtime):
            disk = shutil.disk_usage(place)
            if path.suffix == _HALF or disk.free < _FREE * disk.total:
                shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _locked(place: Path, part: str = "") -> Iterator[None]:
    with open(place / f".lock{part}", "w") as file:
        lock(file, fcntl.LOCK_EX)
        yield

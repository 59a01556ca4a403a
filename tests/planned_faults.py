"""A storage that fails by plan: at its first call, at its second, and so on, on a disk and on other filesystems."""

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from raysed.errors import UserError
from raysed.store import files
from raysed.store.storage import Storage

_WRITES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "shutil.rmtree", "os.truncate"}
ERRORS = {name: getattr(errno, name) for name in ("EIO", "ENOSPC", "EMFILE", "ESTALE")}


class Killed(BaseException):
    """The end of the process, as far as `Storage` is concerned."""


def fault_at(point: int, fault: str, storage: Storage, action) -> bool:
    """Does an action whose n-th call of the storage fails; whether it came that far."""
    return (_fault_on_disk if storage.is_local else _fault_on_s3)(point, fault, action)


def _fault_on_disk(point: int, fault: str, action) -> bool:
    """In a child. Python tells audit hooks of all changes to the disk; `os.fsync` is the exception."""
    pid = os.fork()
    if pid == 0:
        calls = 0

        def count(descriptor: int | None = None) -> None:
            nonlocal calls
            calls += 1
            if calls == point:
                if fault == "torn" and descriptor is not None and os.path.isfile(f"/proc/self/fd/{descriptor}"):
                    path = os.readlink(f"/proc/self/fd/{descriptor}")  # what was not flushed is lost with the machine
                    os.truncate(path, os.path.getsize(path) // 2)
                if fault in ("kill", "torn"):
                    os._exit(9)
                raise OSError(ERRORS[fault], os.strerror(ERRORS[fault]))

        def hook(event: str, arguments: tuple) -> None:
            if event in _WRITES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
                count()

        fsync = os.fsync
        os.fsync = lambda descriptor: (count(descriptor), fsync(descriptor))
        sys.addaudithook(hook)
        try:
            action()
        except (OSError, UserError):
            pass
        finally:
            os._exit(9 if calls >= point else 0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


class _Failing:
    """A filesystem whose n-th call fails; a killed one fails for ever."""

    def __init__(self, fs: pafs.FileSystem, point: int, fault: str):
        self._fs, self._point, self._fault, self.calls = fs, point, fault, 0

    def fail(self) -> None:
        self.calls += 1
        if self._fault in ("kill", "torn") and self.calls >= self._point:
            raise Killed
        if self.calls == self._point:
            raise OSError(ERRORS[self._fault], os.strerror(ERRORS[self._fault]))

    def __getattr__(self, name: str):
        found = getattr(self._fs, name)
        return (lambda *arguments, **named: (self.fail(), found(*arguments, **named))[1]) if callable(found) else found


def _fault_on_s3(point: int, fault: str, action) -> bool:
    made = []

    def failing(location: str):
        fs, base = filesystem(location)
        made.append(_Failing(fs, point, fault))
        return made[-1], base

    def torn(source, target, source_filesystem=None, destination_filesystem=None) -> None:
        """Copies one file, then the rest."""
        proxy = source_filesystem or destination_filesystem
        if destination_filesystem:
            path = next(path for path in (Path(source), *Path(source).rglob("*")) if path.is_file())
            place = target if path == Path(source) else f"{target}/{path.relative_to(source)}"
            with proxy._fs.open_output_stream(place) as stream:
                stream.write(path.read_bytes())
        proxy.fail()
        copy_files(
            source,
            target,
            source_filesystem=source_filesystem and proxy._fs,
            destination_filesystem=destination_filesystem and proxy._fs,
        )

    filesystem, copy_files = files.filesystem, pafs.copy_files
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "filesystem", failing)
        patch.setattr(pafs, "copy_files", torn)
        try:
            action()
        except (Killed, OSError, UserError):
            pass
    return made[-1].calls >= point


def every_fault(fault: str | Sequence[str], storage: Storage, prepare, action, check, step=1) -> int:
    """An action fails at its first call, at its second, and so on; returns the last.

    Args:
        fault: the one, or several that take turns.
        step: to the call that fails next.
    """
    for turn, point in enumerate(range(1, 2000, step)):
        prepare()
        kind = fault if isinstance(fault, str) else fault[turn % len(fault)]
        failed = fault_at(point, kind, storage, action)
        check(failed)
        if not failed:
            return point - step
    raise AssertionError("the action never ends")

"""Files of a run, on a local disk or any pyarrow filesystem, addressed by names that cannot leave the run.

Only "does not exist" counts as missing. Reads and remote writes retry other errors for some seconds before raising
them, unless waiting cannot help.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, BinaryIO, TypeVar

import pyarrow.fs as pafs

from raysed.errors import UserError, first_line, public
from raysed.store.systems import answer, if_supported
from raysed.uris import refuse_secret

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
_MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_LASTING = (*_FULL, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
"""Errors that waiting does not fix."""
_GCS_RETRIES = "retry_limit_seconds=20"
"""Google's client would retry for 15 minutes."""
_TOO_LARGE = os.strerror(errno.EFBIG)
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}\.tmp")
_HASH_BYTES = 2**20
_POINTER, _MAX_POINTER_BYTES = b"version https://git-lfs.github.com/spec/", 1024
CLAIM = ".claim.json"
"""File in the directory of every run."""


def check_name(name: str) -> str:
    """Return `name`; ValueError unless it is a relative path that stays in its directory."""
    is_plain = PurePosixPath(name).as_posix() == (name or ".") and name != "."
    if not is_plain or name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise ValueError(f"{name!r} is no path below a run")
    return name


class Files:
    """The files below subdirectory `below` of `location`, a local directory or URI."""

    def __init__(self, location: str, below: str):
        self.fs, base = filesystem(location)
        self.root = f"{base.rstrip('/')}/{below}"
        self.is_local = isinstance(self.fs, pafs.LocalFileSystem)

    def path(self, name: str) -> str:
        """Return a file's path within the filesystem."""
        return f"{self.root}/{check_name(name)}".rstrip("/")

    def read(self, name: str) -> bytes:
        """Return a file's content; FileNotFoundError if it does not exist."""
        path = self.path(name)

        def opened() -> bytes:
            if self.is_local and os.path.exists(path) and not os.path.isfile(path):  # reading a FIFO would block
                raise FileNotFoundError(errno.ENOENT, "it is not a file", path)
            # A remote stream would make a request per 256 KB.
            with open(path, "rb") if self.is_local else self.fs.open_input_file(path) as stream:
                return stream.read()

        return _persistently(opened, path)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file; readers see the old bytes or the new ones."""
        path = self.path(name)

        def put() -> None:
            with self.fs.open_output_stream(path) as stream:
                stream.write(data)

        with disk_errors(path):
            if self.is_local:
                _replace(path, lambda temporary: Path(temporary).write_bytes(data))
            else:
                self._put(os.path.dirname(path), put)

    def upload(self, source: Path, name: str) -> None:
        """Copy a local file, or to a remote place also a directory; readers of a file see the old bytes or the new."""
        target = self.path(name)
        if self.is_local:
            _replace(target, lambda temporary: shutil.copyfile(source, temporary))
        else:
            self._put(
                os.path.dirname(target) if source.is_file() else target,
                lambda: pafs.copy_files(str(source), target, destination_filesystem=self.fs),
            )

    def _put(self, directory: str, action: Callable[[], None]) -> None:
        """Write with retries; create `directory` only if needed, because object stores have none."""

        def attempt() -> None:
            try:
                action()
            except FileNotFoundError:
                self.fs.create_dir(directory, recursive=True)
                action()

        _persistently(attempt, directory)

    def download(self, name: str, directory: Path) -> None:
        """Copy the files below `name` into an empty local directory."""
        path = self.path(name)
        _persistently(lambda: pafs.copy_files(path, str(directory), source_filesystem=self.fs), path)

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Return the files' sizes in bytes, None for those that do not exist."""
        infos = self._info([self.path(name) for name in names]) if names else []
        return [info.size if info.type == pafs.FileType.File else None for info in infos]

    def sizes_below(self, name: str) -> dict[str, int]:
        """Return the size in bytes of every file below `name`, by path below the root; temporary files are left out."""
        if self.is_local:
            sizes = _persistently(lambda: dict(_local_sizes(self.path(name))), self.root)
        else:
            infos = self._info(pafs.FileSelector(self.path(name), recursive=True, allow_not_found=True))
            sizes = {info.path: info.size for info in infos if info.type == pafs.FileType.File}
        return {path.removeprefix(f"{self.root}/"): size for path, size in sizes.items() if not is_temporary(path)}

    def modified_at(self, name: str) -> float | None:
        """Return when a file was written, in seconds since 1970 by the storage's clock; None if unknown."""
        time_ns = self._info(self.path(name)).mtime_ns
        return time_ns / 1e9 if time_ns is not None else None

    def _info(self, selection: Any) -> Any:
        return _persistently(lambda: self.fs.get_file_info(selection), self.root)

    def walk(self) -> Iterator[str]:
        """Yield all files; on a local disk also directories and temporary files. Follow no links."""
        if not self.is_local:
            yield from self.sizes_below("")
            return
        for place, directories, files in os.walk(self.root):
            for child in (*directories, *files):
                yield os.path.relpath(os.path.join(place, child), self.root)

    def directories(self) -> list[str]:
        """Return the sorted names of the subdirectories that are not hidden."""
        root = pafs.FileSelector(self.root.rstrip("/"), allow_not_found=True)
        infos = answer(lambda: self.fs.get_file_info(root), self.root)
        names = []
        for info in infos:
            with suppress(UnicodeDecodeError):  # a name that is not UTF-8 is no run's
                names += [info.base_name] if info.type == pafs.FileType.Directory else []
        return sorted(name for name in names if not is_hidden(name))

    def delete(self, name: str) -> None:
        """Delete a file or a whole directory; a local symbolic link is deleted, not its target."""
        path = self.path(name or "/")  # `path` refuses "/": an empty name would delete the whole run
        if self.is_local and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif self.is_local:
            with suppress(FileNotFoundError):
                os.unlink(path)
        else:
            kind = self._info(path).type
            if kind == pafs.FileType.Directory:
                _persistently(lambda: self.fs.delete_dir(path), path)
            elif kind == pafs.FileType.File:
                _persistently(lambda: self.fs.delete_file(path), path)


def filesystem(location: str) -> tuple[pafs.FileSystem, str]:
    """Return a location's filesystem and the path in it; UserError if it is unusable or holds a password."""
    if "://" not in location:
        return pafs.LocalFileSystem(), location
    refuse_secret(location, "storage")
    try:
        return connect(location)
    except (ValueError, OSError) as error:
        raise UserError(f"storage: {location!r} is not a usable directory or URI: {reason(error)}") from None


def connect(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return a URI's filesystem and the path in it; OSError if it does not answer."""
    options = uri.partition("?")[2]
    if uri.startswith(("gs:", "gcs:")) and "retry_limit_seconds" not in options:
        uri += f"{'&' if options else '?'}{_GCS_RETRIES}"
    return answer(lambda: pafs.FileSystem.from_uri(uri), public(uri))


def _local_sizes(directory: str) -> Iterator[tuple[str, int]]:
    """Yield the files below a local directory and their bytes. Follow no links to directories: they may form loops."""
    for place, _, names in os.walk(directory, onerror=_raise):
        for path in (os.path.join(place, name) for name in names):
            with suppress(*_MISSING):
                if os.path.isfile(path):
                    yield path, os.path.getsize(path)


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def is_temporary(path: str) -> bool:
    """Return whether a file is still being written, or was when its process died."""
    return bool(_TEMPORARY.fullmatch(path.rpartition("/")[2]))


def matches(directory: Path, files: Mapping[str, str]) -> bool:
    """Return whether a local directory has these files with these SHA-256 digests; OSError if it cannot be read."""

    def check() -> bool:
        os.listdir(directory)  # an artefact without files must exist, too
        return all(sha256_of(directory / name) == digest for name, digest in files.items())

    try:
        return _persistently(check, str(directory))
    except _MISSING:
        return False


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with open(path, "rb") as stream:
        return _sha256(stream)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; this process reads it once, unless it changes."""
    found = path.stat()
    return _digest_of(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


@lru_cache(maxsize=2**12)
def _digest_of(path: Path, *change: int) -> str:
    return sha256_of(path)


@dataclass(frozen=True)
class Watched:
    """An external input that must not change during a run: `look` returned `known` at its start."""

    what: str
    look: Callable[[], Any]
    known: Any

    def check(self) -> None:
        """Raise UserError if it has changed or is gone."""
        try:
            now = self.look()
        except (OSError, ValueError) as error:  # such as a UserError if it does not exist
            raise UserError(f"{self.what} can no longer be read ({first_line(error)}); start the run again") from None
        # This machine has not read a hub model without a commit.
        is_unread = isinstance(now, dict) and now.get("commit", now) is None
        if now != self.known and not is_unread:
            raise UserError(f"{self.what} changed while the run was using it; start the run again")


def is_hidden(path: str | PurePath) -> bool:
    """Return whether a relative path is hidden, or in a hidden directory. Hidden files are never data.

    macOS writes `._NAME` beside a file on disks of other systems.

    >>> is_hidden("0/._model.safetensors"), is_hidden(".git/a.json"), is_hidden("0/model.safetensors")
    (True, True, False)
    """
    return any(part.startswith(".") for part in PurePath(path).parts)


def visible(directory: Path, pattern: str = "*") -> list[Path]:
    """Return what matches a pattern below a directory and is not hidden, sorted."""
    return sorted(path for path in directory.glob(pattern) if not is_hidden(path.relative_to(directory)))


def files_of_model(directory: Path, is_read: Callable[[str], bool]) -> Iterator[Path]:
    """Yield the files below a model's directory with certain suffixes, except those of runs inside it."""
    for place, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not is_hidden(name) and not Path(place, name, CLAIM).exists()]
        paths = (Path(place, name) for name in names if not is_hidden(name))
        yield from (path for path in paths if is_read(path.suffix) and path.is_file())


def check_content(path: str | Path, setting: str | None = None, unread: Container[str] = ()) -> None:
    """Raise UserError for a pipe or device, and for a file that another program must unpack first.

    Of a directory, check the files of a model or task, except those with `unread` suffixes.
    """
    with suppress(OSError):  # reading it will report the error
        files = (Path(path), *visible(Path(path)), *visible(Path(path), "*/*"))
        for file in (file for file in files if file.suffix not in unread):
            is_file, problem = os.path.isfile(file), None
            if os.path.exists(file) and not (is_file or os.path.isdir(file)):
                problem = "is neither a file nor a directory; name one of these"
            elif os.path.islink(file) and not os.path.exists(file):
                problem = "is a link to nothing; get the file that it stands for, as with dvc pull or git annex get"
            elif is_file and file.stat().st_size < _MAX_POINTER_BYTES and file.read_bytes().startswith(_POINTER):
                problem = "is a Git LFS pointer; run git lfs pull to get the file"
            elif file.suffix == ".arrow":
                problem = "was written by a dataset's save_to_disk; write it with to_parquet, and name that file"
            if problem:
                raise UserError(f"{file} {problem}", setting=setting)


def _sha256(stream: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := stream.read(_HASH_BYTES):
        digest.update(block)
    return digest.hexdigest()


def flush_and_hash(directory: Path) -> dict[str, str]:
    """Flush everything below a local directory to disk; return the SHA-256 digests by relative path."""
    paths = visible(directory, "**/*")
    for path in (*paths, directory, directory.parent):
        _fsync(path)
    return {path.relative_to(directory).as_posix(): sha256_of(path) for path in paths if not path.is_dir()}


def _replace(path: str, write: Callable[[str], Any]) -> None:
    """Write a temporary file in the same directory, because others may be on another disk, and rename it."""
    directory, _, name = path.rpartition("/")
    os.makedirs(directory, exist_ok=True)
    temporary = f"{directory}/.{name}.{uuid.uuid4().hex}.tmp"
    try:
        write(temporary)
        _fsync(temporary)
        os.replace(temporary, path)
    finally:  # renaming one hard link over another of the same file does nothing
        with suppress(OSError):
            os.unlink(temporary)
    _fsync(directory)


def _fsync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        what = "flush directories: a power cut may lose the newest files, which are made again"
        if_supported(what, os.fsync, descriptor)
    finally:
        os.close(descriptor)


def _persistently(action: Callable[[], _Result], where: str) -> _Result:
    for pause in _PAUSES_S:
        try:
            return action()
        except _MISSING:
            raise
        except OSError as error:
            if is_full(error) or error.errno in _LASTING:
                raise
            log.warning("%s: %s; trying again in %g s", where, reason(error), pause)
            time.sleep(pause)
    return action()


@contextmanager
def disk_errors(where: str, remedy: str = "choose another --storage", is_any: bool = False) -> Iterator[None]:
    """Turn errors of a full or unwritable disk into a UserError; with `is_any`, every OSError."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_full(error):
            what = "no disk space left for" if _TOO_LARGE not in str(error) else "a limit of file sizes was reached at"
            raise UserError(f"{what} {where}; free some space, or {remedy}") from None
        is_lasting = isinstance(error, PermissionError) or getattr(error, "errno", None) in _LASTING
        if is_lasting or (is_any and isinstance(error, OSError)):
            raise UserError(f"storage: {where} cannot be written: {reason(error)}") from None
        raise


def is_full(error: Exception) -> bool:
    """Return whether a disk is full; safetensors says so only in its message, and numpy by an item count."""
    full = rf"No space left on device|Disk quota exceeded|{_TOO_LARGE}|\d+ requested and \d+ written"
    return getattr(error, "errno", None) in _FULL or bool(re.search(full, str(error)))


def reason(error: Exception) -> str:
    """Return the system's message without number and path, or else the error's first line."""
    return getattr(error, "strerror", None) or first_line(error)

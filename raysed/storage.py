"""The run directory, on a local disk or any pyarrow filesystem, and its one commit point.

An artefact (a member, a learner, a target table, …) is a directory. It is written under a temporary name, flushed,
check-summed and renamed, and only then entered in the manifest, one small file per artefact, with everything that it
depends on. Object stores cannot rename: there the files come first and the manifest entry last. Readers accept only what
the manifest names and the checksums confirm, so a crash at any point leaves the old state or the new one.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from raysed.config import stable_hash
from raysed.errors import UserError

log = logging.getLogger(__name__)

Writer = Callable[[Path], None]


@dataclass(frozen=True)
class Entry:
    """What the manifest knows of one artefact.

    Attributes:
        name: path below the run directory.
        depends: every setting and input that the artefact depends on.
        files: SHA-256 of each file, by path below the artefact.
        meta: small facts that later stages and the report read (scores, seconds, counts).
    """

    name: str
    depends: dict[str, Any]
    files: dict[str, str]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Stable hash of the dependencies."""
        return stable_hash(self.depends)


class Storage:
    """A run directory.

    Args:
        location: directory or URI under which run directories lie.
        run: name of the run.

    Raises:
        UserError: `storage` is no usable path or URI.
    """

    def __init__(self, location: str, run: str):
        # Absolute, because workers have other working directories.
        self.location, self.run = location if "://" in location else os.path.abspath(location), run
        self._fs, base = _filesystem(location)
        self._root = f"{base.rstrip('/')}/{run}"
        self.is_local = isinstance(self._fs, pafs.LocalFileSystem)
        self._verified: dict[tuple[str, str], Path] = {}

    def __reduce__(self) -> tuple:
        return Storage, (self.location, self.run)

    def __str__(self) -> str:
        return self.uri("")

    def uri(self, name: str) -> str:
        """Returns where `name` lies: a path on a local disk, a URI elsewhere."""
        path = f"{self._root}/{name}".rstrip("/")
        return path if self.is_local else f"{self.location.rstrip('/')}/{self.run}/{name}".rstrip("/")

    # -- artefacts ---------------------------------------------------------------------------------------------------

    def commit(
        self, name: str, write: Writer, depends: Mapping[str, Any], meta: Mapping[str, Any] | None = None
    ) -> Entry:
        """Publishes one artefact, replacing an older one of that name.

        Args:
            name: path below the run directory, e.g. `ct/members/00`.
            write: fills an empty local directory.
            depends: everything the artefact depends on.
            meta: facts for later stages; read after `write` ran, so `write` may still add to it.

        Raises:
            UserError: the disk is full.
        """
        with self._scratch(name) as scratch:
            write(scratch)
            files = _flush_and_hash(scratch)
            self._delete(f"manifest/{name}.json")
            self._publish(scratch, name)
        entry = Entry(name, _plain(depends), files, _plain(meta or {}))
        self.write_text(f"manifest/{name}.json", json.dumps(asdict(entry), indent=1, sort_keys=True))
        return entry

    def entry(self, name: str) -> Entry | None:
        """Returns the manifest's entry, or None; says nothing of whether the files are intact."""
        text = self.read_text(f"manifest/{name}.json")
        try:
            return Entry(**json.loads(text)) if text is not None else None
        except (ValueError, TypeError):
            log.warning("%s: manifest entry is damaged; the artefact is made again", name)
            return None

    def finished(self, name: str, depends: Mapping[str, Any]) -> Entry | None:
        """Returns the entry of an artefact that is intact and has exactly these dependencies, or None.

        A changed dependency is logged by name with its old and new value.
        """
        entry = self.entry(name)
        if entry is None:
            return None
        changes = _changes(entry.depends, _plain(depends))
        if changes:
            log.info("%s is made again: %s", name, "; ".join(changes))
            return None
        if self._intact(entry) is None:
            log.warning("%s is made again: its files are missing or damaged", name)
            return None
        return entry

    def fetch(self, name: str) -> Path:
        """Returns a local directory with the artefact's verified files.

        Raises:
            FileNotFoundError: the manifest does not name it or its files are damaged.
        """
        entry = self.entry(name)
        path = self._intact(entry) if entry else None
        if path is None:
            raise FileNotFoundError(f"{self.uri(name)} is not a finished artefact of this run")
        return path

    def entries(self, below: str) -> list[Entry]:
        """Returns all manifest entries below a path, by name."""
        names = [path.removeprefix("manifest/").removesuffix(".json") for path in self._list(f"manifest/{below}")]
        return [entry for name in sorted(names) if (entry := self.entry(name))]

    def remove(self, name: str) -> None:
        """Takes an artefact out of the manifest, then deletes its files."""
        self._delete(f"manifest/{name}.json")
        self._delete(name)

    def _intact(self, entry: Entry) -> Path | None:
        key = (entry.name, stable_hash(entry.files))
        if key not in self._verified:
            path = self._local_copy(entry)
            if path is None:
                return None
            self._verified[key] = path
        return self._verified[key]

    def _local_copy(self, entry: Entry) -> Path | None:
        if self.is_local:
            path = Path(self._root, entry.name)
        else:
            path = Path(_cache(), stable_hash([str(self), entry.name, entry.files]))
            if not _matches(path, entry.files):
                self._download(entry.name, path)
        return path if _matches(path, entry.files) else None

    # -- plain files -------------------------------------------------------------------------------------------------

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file at once: readers see the old text or the new one."""
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Writes a small file at once: readers see the old bytes or the new ones."""
        path = f"{self._root}/{name}"
        if not self.is_local:
            with self._fs.open_output_stream(path) as stream:
                stream.write(data)
            return
        with _disk_errors(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            scratch = f"{path}.{uuid.uuid4().hex[:8]}.tmp"
            with open(scratch, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(scratch, path)

    def read_text(self, name: str) -> str | None:
        """Returns a small file's text, or None where there is none."""
        try:
            with self._fs.open_input_stream(f"{self._root}/{name}") as stream:
                return stream.read().decode()
        except FileNotFoundError:
            return None

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the run, so that a second process of the same name is refused; ends with the process.

        Only on local storage: object stores have no lock that dies with its owner.
        """
        if not self.is_local:
            yield
            return
        import fcntl

        with _disk_errors(self._root):
            os.makedirs(self._root, exist_ok=True)
        with open(f"{self._root}/.lock", "a+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"run {self.run!r} is in use by another process; wait for it, or choose another --run"
                ) from None
            # A killed process leaves these behind; nobody else writes while the lock is held.
            shutil.rmtree(f"{self._root}/.tmp", ignore_errors=True)
            yield

    def free_bytes(self) -> int | None:
        """Returns the free space of a local disk, None elsewhere."""
        if not self.is_local:
            return None
        path = Path(self._root)
        while not path.exists():
            path = path.parent
        return shutil.disk_usage(path).free

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoints(self, name: str, depends: Mapping[str, Any], keep: int = 2) -> "Checkpoints":
        """Returns the half-way states of the artefact `name`."""
        return Checkpoints(self, f"checkpoints/{name}", _plain(depends), keep)

    # -- filesystem --------------------------------------------------------------------------------------------------

    @contextmanager
    def _scratch(self, name: str) -> Iterator[Path]:
        """An empty directory to fill: on the run's own disk, so that it can be renamed, or a temporary one."""
        parent = f"{self._root}/.tmp" if self.is_local else None
        with _disk_errors(self.uri(name)):
            if parent:
                os.makedirs(parent, exist_ok=True)
            path = Path(tempfile.mkdtemp(prefix=name.replace("/", "-") + "-", dir=parent))
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)

    def _publish(self, scratch: Path, name: str) -> None:
        target = f"{self._root}/{name}"
        if not self.is_local:
            self._delete(name)
            pafs.copy_files(str(scratch), target, destination_filesystem=self._fs)
            return
        os.makedirs(os.path.dirname(target), exist_ok=True)
        old = f"{self._root}/.tmp/old-{uuid.uuid4().hex[:8]}"
        if os.path.exists(target):
            os.rename(target, old)
        os.chmod(scratch, 0o755)
        os.rename(scratch, target)
        _fsync_directory(os.path.dirname(target))
        shutil.rmtree(old, ignore_errors=True)

    def _download(self, name: str, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        pafs.copy_files(f"{self._root}/{name}", str(path), source_filesystem=self._fs)

    def _list(self, name: str) -> list[str]:
        selector = pafs.FileSelector(f"{self._root}/{name}", recursive=True, allow_not_found=True)
        infos = self._fs.get_file_info(selector)
        return [info.path.removeprefix(self._root + "/") for info in infos if info.type == pafs.FileType.File]

    def _delete(self, name: str) -> None:
        info = self._fs.get_file_info(f"{self._root}/{name}")
        if info.type == pafs.FileType.Directory:
            self._fs.delete_dir(info.path)
        elif info.type == pafs.FileType.File:
            self._fs.delete_file(info.path)


class Checkpoints:
    """The newest few states of something half done; a damaged one is passed over for the one before."""

    def __init__(self, storage: Storage, name: str, depends: dict[str, Any], keep: int):
        self._storage, self._name, self._depends, self._keep = storage, name, depends, keep

    def save(self, step: int, write: Writer) -> None:
        """Publishes the state after `step` updates, then forgets all but the newest few."""
        self._storage.commit(f"{self._name}/step-{step:09d}", write, self._depends, {"step": step})
        for entry in self._storage.entries(self._name)[: -self._keep]:
            self._storage.remove(entry.name)

    def newest(self) -> tuple[int, Path] | None:
        """Returns the step and directory of the newest intact state with the same dependencies."""
        for entry in reversed(self._storage.entries(self._name)):
            if self._storage.finished(entry.name, self._depends):
                return entry.meta["step"], self._storage.fetch(entry.name)
        return None

    def clear(self) -> None:
        """Deletes all states."""
        self._storage.remove(self._name)
        self._storage._delete(f"manifest/{self._name}")


def _filesystem(location: str) -> tuple[pafs.FileSystem, str]:
    try:
        if "://" not in location:
            return pafs.LocalFileSystem(), os.path.abspath(location)
        return pafs.FileSystem.from_uri(location)
    except (ValueError, OSError) as error:
        raise UserError(f"storage: {location!r} is not a directory or URI that can be used: {error}") from None


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON gives back, so that stored and fresh dependencies compare equal."""
    return json.loads(json.dumps(value, default=str))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Names the leaves that differ, with both values."""
    found = []
    for key in sorted(set(old) | set(new)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _changes(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} was {_short(before)}, is {_short(after)}")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _flush_and_hash(directory: Path) -> dict[str, str]:
    files = {}
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        files[path.relative_to(directory).as_posix()] = _sha256(path)
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())
    _fsync_directory(directory)
    return files


def _fsync_directory(directory: str | Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _matches(directory: Path, files: Mapping[str, str]) -> bool:
    try:
        return all(_sha256(directory / name) == digest for name, digest in files.items())
    except OSError:
        return False


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _cache() -> str:
    return os.path.join(tempfile.gettempdir(), f"raysed-cache-{os.getuid()}")


@contextmanager
def _disk_errors(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (28, 122):  # no space, quota exceeded
            raise UserError(f"no disk space left for {where}; free some, or choose another --storage") from None
        if error.errno in (13, 30):
            raise UserError(f"storage: {where} cannot be written: {error.strerror}") from None
        raise

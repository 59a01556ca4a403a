"""The run directory, on a local disk or any pyarrow filesystem, and its one commit point.

An artefact (a member, a learner, a target table, …) is a directory. It is written under a temporary name, flushed,
check-summed and renamed, and only then entered in the manifest, one small file per artefact, with everything that it
depends on. What it replaces is kept aside until then, so a crash at any point leaves the old artefact or the new one.
Object stores cannot rename: there every attempt has a directory of its own within the artefact's, and the manifest
entry names the attempt; what it replaces goes afterwards. Readers accept only what the manifest names and the checksums
confirm. Of a remote artefact, whether it is finished is told by the sizes of its files, without reading them.
"""

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import pyarrow.fs as pafs

from raysed.config import stable_hash
from raysed.errors import RunFailed, UserError, first_line
from raysed.store.cache import directory, make_room, used
from raysed.uris import refuse_secret

log = logging.getLogger(__name__)

Writer = Callable[[Path], None]
_Result = TypeVar("_Result")

_DIGEST = re.compile(r'"[0-9a-f]{16,}"')
_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt at a remote operation."""
_ATTEMPT = "attempt-"
"""How the directory of an attempt's files begins."""
_BUCKETS = ("s3", "gcs")
"""File systems whose paths begin with a bucket."""
_CLAIM = ".claim.json"
"""Which job may publish in a remote run."""
_OPENED = ("model", "plots")
"""Artefacts that people and other programs open: a copy of the files lies in the artefact's own directory."""


@dataclass(frozen=True)
class Entry:
    """What the manifest knows of one artefact.

    Attributes:
        name: path below the run directory.
        depends: every setting and input that the artefact depends on.
        files: SHA-256 of each file, by path below the artefact.
        meta: small facts that later stages and the report read (scores, seconds, counts).
        sizes: bytes of each file; empty in entries of earlier versions.
        attempt: directory of the files within the artefact's; empty where they lie in the artefact's own.
    """

    name: str
    depends: dict[str, Any]
    files: dict[str, str]
    meta: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    attempt: str = ""

    @property
    def place(self) -> str:
        """Where its files lie, below the run directory."""
        return f"{self.name}/{self.attempt}".rstrip("/")

    @property
    def fingerprint(self) -> str:
        """Stable hash of the dependencies."""
        return stable_hash(self.depends)


class Storage:
    """A run directory.

    Args:
        location: directory or URI under which run directories lie.

    Raises:
        UserError: `storage` is no usable path or URI.
    """

    def __init__(self, location: str, run: str):
        # Absolute, because workers have other working directories.
        self.location = location if "://" in location else os.path.abspath(os.path.expanduser(location))
        self.run = run
        self._fs, base = _filesystem(self.location)
        self._root = f"{base.rstrip('/')}/{run}"
        self.is_local = isinstance(self._fs, pafs.LocalFileSystem)
        self._verified: dict[str, tuple[dict[str, str], Path]] = {}
        self._there: dict[str, str] = {}
        self._said: set[str] = set()
        self._job = ""

    def __reduce__(self) -> tuple:
        return _of_job, (self.location, self.run, self._job)

    def __str__(self) -> str:
        return self.uri("")

    def uri(self, name: str) -> str:
        """Returns where `name` lies: a path on a local disk, a URI elsewhere."""
        if self.is_local:
            return f"{self._root}/{name}".rstrip("/")
        base, question, query = self.location.partition("?")
        return f"{base.rstrip('/')}/{self.run}/{name}".rstrip("/") + question + query

    # -- artefacts ---------------------------------------------------------------------------------------------------

    def commit(
        self, name: str, write: Writer, depends: Mapping[str, Any], meta: Mapping[str, Any] | None = None
    ) -> Entry:
        """Publishes one artefact, replacing an older one of that name.

        Args:
            name: path below the run directory, e.g. `ct/members/00`.
            meta: facts for later stages; read after `write` ran, so `write` may still add to it.

        Raises:
            UserError: the disk is full.
        """
        with self._scratch() as scratch, _disk_errors(self.uri(name)):
            write(scratch)
            return self._enter(name, scratch, depends, meta or {})

    def _enter(self, name: str, scratch: Path, depends: Mapping[str, Any], meta: Mapping[str, Any]) -> Entry:
        files = _flush_and_hash(scratch)
        sizes = {file: (scratch / file).stat().st_size for file in files}
        attempt = "" if self.is_local else f"{_ATTEMPT}{uuid.uuid4().hex[:12]}"
        entry = Entry(name, _plain(depends), files, _plain(meta), sizes, attempt)
        self._verified.pop(name, None)
        publish = self._publish if self.is_local else self._upload
        publish(scratch, entry)
        return entry

    def entry(self, name: str) -> Entry | None:
        """Returns the manifest's entry, or None; that does not say whether the files are intact."""
        try:
            text = self.read_text(f"manifest/{name}.json")
            return _parse_entry(text) if text is not None else None
        except (ValueError, TypeError, AttributeError):
            log.warning("%s has a damaged manifest entry and will be made again", name)
            return None

    def finished(self, name: str, depends: Mapping[str, Any]) -> Entry | None:
        """Returns the entry of an artefact that is intact and has exactly these dependencies, or None.

        A changed dependency is logged by name, a setting with its old and new value; once for each artefact.
        """
        entry = self.entry(name)
        if entry is None:
            return None
        changes = _changes(entry.depends, _plain(depends))
        if changes:
            self._say_once(logging.INFO, f"{name} is made again: {_listed(changes)}")
            return None
        if not self._is_there(entry):
            self._say_once(logging.WARNING, f"{name} is made again: its files are missing or damaged")
            return None
        return entry

    def _say_once(self, level: int, message: str) -> None:
        """A stage asks for an artefact more than once."""
        if message not in self._said:
            self._said.add(message)
            log.log(level, "%s", message)

    def fetch(self, name: str) -> Path:
        """Returns a local directory with the artefact's verified files.

        Raises:
            FileNotFoundError: the manifest does not name it or its files are damaged.
        """
        entry = self.entry(name)
        path = self._intact(entry) if entry else None
        if path is None:
            # Its sizes may be right all the same. But one that was replaced meanwhile is no damage.
            if entry and not self.is_local and self.entry(name) == entry:
                self._persistently(lambda: self._delete(f"manifest/{name}.json"))
                self._there.pop(name, None)
                log.warning("%s is damaged; the same command makes it again", self.uri(name))
            raise FileNotFoundError(f"{self.uri(name)} is not a finished artefact of this run")
        return path

    def elsewhere(self, name: str, depends: Mapping[str, Any]) -> "Storage | None":
        """Returns another run at this location that has finished the same artefact.

        Args:
            depends: everything the artefact depends on; the same there.
        """
        for run in _directories(self._fs, self._root.rpartition("/")[0]):
            if run != self.run:
                other = Storage(self.location, run)
                entry = other.entry(name)
                if entry and entry.depends == _plain(depends) and other._is_there(entry):
                    return other
        return None

    def entries(self, below: str = "") -> list[Entry]:
        """Returns all manifest entries below a path, or all there are, by name."""
        paths = self.files(f"manifest/{below}".rstrip("/"))
        names = [path.removeprefix("manifest/").removesuffix(".json") for path in paths]
        return [entry for name in sorted(names) if (entry := self.entry(name))]

    def has_entries(self) -> bool:
        """Whether the manifest names anything; asks no more than that."""
        return self._fs.get_file_info(f"{self._root}/manifest").type != pafs.FileType.NotFound

    def written_at(self, name: str) -> float | None:
        """Returns when an artefact was entered in the manifest, in seconds since 1970, if the storage knows."""
        info = self._persistently(lambda: self._fs.get_file_info(f"{self._root}/manifest/{name}.json"))
        return info.mtime.timestamp() if info.mtime is not None else None

    def remove(self, name: str) -> None:
        """Takes an artefact, or all below a path, out of the manifest, then deletes the files."""
        self._verified.pop(name, None)
        self._there.pop(name, None)
        for path in (f"manifest/{name}.json", f"manifest/{name}", name):
            self._persistently(lambda path=path: self._delete(path))

    def _is_there(self, entry: Entry) -> bool:
        """Whether the files are there; of remote ones the sizes are asked for once per process, and nothing is read."""
        if self.is_local or not entry.sizes.keys() >= entry.files.keys():
            return self._intact(entry) is not None
        if self._there.get(entry.name) != entry.attempt:
            paths = [f"{self._root}/{entry.place}/{file}" for file in entry.files]
            infos = self._persistently(lambda: self._fs.get_file_info(paths)) if paths else []
            found = dict(zip(entry.files, (info.size if info.type == pafs.FileType.File else None for info in infos)))
            if found != {file: entry.sizes[file] for file in entry.files}:
                return False
            self._there[entry.name] = entry.attempt
        return True

    def _intact(self, entry: Entry) -> Path | None:
        """Where the artefact's files are, checked once per process; None where they are missing or damaged."""
        files, path = self._verified.get(entry.name, (None, None))
        if files != entry.files:
            path = self._place(entry) if self.is_local else self._download(entry)
            if path is not None:
                self._verified[entry.name] = entry.files, path
        return path

    def _place(self, entry: Entry) -> Path | None:
        """Its own place, or the one aside if it was about to be replaced."""
        places = Path(self._root, entry.name), self._aside(entry.name)
        return next((path for path in places if _matches(path, entry.files)), None)

    # -- plain files -------------------------------------------------------------------------------------------------

    def write_text(self, name: str, text: str) -> None:
        """Writes a small file at once: readers see the old text or the new one.

        Args:
            text: written as UTF-8.
        """
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Writes a small file at once: readers see the old bytes or the new ones."""
        path = f"{self._root}/{name}"
        if not self.is_local:
            self._persistently(lambda: self._put(path, data))
            return
        with _disk_errors(path):
            scratch = self._temporary_path()
            with open(scratch, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(scratch, path)
            _fsync_directory(os.path.dirname(path))

    def read_text(self, name: str) -> str | None:
        """Returns a small file's text, or None where there is none."""
        try:
            return self._persistently(lambda: self._get(f"{self._root}/{name}")).decode()
        except FileNotFoundError:
            return None

    def has_files(self, *names: str) -> bool:
        """Whether all these files are there; nothing is read."""
        infos = self._persistently(lambda: self._fs.get_file_info([f"{self._root}/{name}" for name in names]))
        return all(info.type == pafs.FileType.File for info in infos)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the run, so that a second process of the same name is refused; ends with the process.

        Object stores have no lock that dies with its owner. There the run is claimed for this job: from then on no
        other job that has claimed it before can publish anything in it.

        Raises:
            UserError: another process has it, or the storage cannot be written or reached.
        """
        if not self.is_local:
            self._claim()
            yield
            return
        import fcntl

        with _disk_errors(self._root, NotADirectoryError, FileExistsError):
            os.makedirs(self._root, exist_ok=True)
            stream = open(f"{self._root}/.lock", "a+")
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(
                    f"run {self.run!r} is in use by another process; wait for it, or choose another --run"
                ) from None
            self._tidy()
            yield
            self._tidy()  # where it went well: a worker that was killed as it wrote, and replaced, has left something

    def reach(self) -> None:
        """Checks that remote storage answers.

        Raises:
            UserError: it does not, or there is no such bucket.
        """
        bucket = self._root.lstrip("/").partition("/")[0]
        try:
            found = self._fs.get_file_info(bucket if self._fs.type_name in _BUCKETS else self._root)
        except OSError as error:
            raise UserError(f"storage: {self} cannot be reached: {_reason(error)}") from None
        if self._fs.type_name in _BUCKETS and found.type == pafs.FileType.NotFound:
            raise UserError(
                f"storage: {self} cannot be used: there is no bucket {bucket!r}; create it, or name another"
            )

    def _claim(self) -> None:
        self.reach()
        self._job = uuid.uuid4().hex
        claim = {"job": self._job, "host": socket.gethostname(), "pid": os.getpid()}
        try:
            self.write_text(_CLAIM, json.dumps(claim))
        except OSError as error:
            raise UserError(f"storage: {self} cannot be written: {_reason(error)}") from None

    def _refuse_for_another_job(self) -> None:
        """What was claimed by nobody, or before there were claims, may be published."""
        claim = json.loads(self.read_text(_CLAIM) or "{}") if self._job else {}
        if claim and claim["job"] != self._job:
            raise RunFailed(
                f"{self} has been taken over by a job on {claim['host']} (process {claim['pid']}), so this one ends"
            )

    def _tidy(self) -> None:
        """Clears what a killed process left; nobody else writes while the lock is held."""
        for path in Path(self._root, ".replaced").glob("*"):
            self._restore(unquote(path.name))
        shutil.rmtree(f"{self._root}/.tmp", ignore_errors=True)

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
        """Returns the states of an artefact that is half done.

        Args:
            depends: everything it depends on; a state that depends on something else is not continued.
            keep: so many of the newest states stay.
        """
        return Checkpoints(self, f"checkpoints/{name}", _plain(depends), keep)

    # -- local disk --------------------------------------------------------------------------------------------------

    def _temporary_path(self) -> str:
        """A fresh name on the run's own disk, so that it can be renamed."""
        os.makedirs(f"{self._root}/.tmp", exist_ok=True)
        return f"{self._root}/.tmp/{uuid.uuid4().hex}"

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """An empty directory to fill."""
        with _disk_errors(str(self)):
            path = Path(self._temporary_path() if self.is_local else tempfile.mkdtemp(prefix="raysed-"))
            path.mkdir(exist_ok=True)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _aside(self, name: str) -> Path:
        return Path(self._root, ".replaced", quote(name, safe=""))

    def _publish(self, scratch: Path, entry: Entry) -> None:
        """Old files aside, new ones in, manifest entry, old ones away: what the manifest names is always complete."""
        self._restore(entry.name)
        target, aside = Path(self._root, entry.name), self._aside(entry.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            aside.parent.mkdir(exist_ok=True)
            os.rename(target, aside)
            _fsync_directory(aside.parent)
        os.rename(scratch, target)
        _fsync_directory(target.parent)
        self.write_text(f"manifest/{entry.name}.json", _entry_text(entry))
        shutil.rmtree(aside, ignore_errors=True)

    def _restore(self, name: str) -> None:
        """Puts the old files back if a crash came before the manifest named the new ones."""
        target, aside = Path(self._root, name), self._aside(name)
        if not aside.exists():
            return
        entry = self.entry(name)
        if entry and self._place(entry) == aside:
            shutil.rmtree(target, ignore_errors=True)
            os.rename(aside, target)
        shutil.rmtree(aside, ignore_errors=True)

    # -- any filesystem ----------------------------------------------------------------------------------------------

    def _upload(self, scratch: Path, entry: Entry) -> None:
        """Without renaming: a directory of its own, the manifest entry, and then the attempts before it go."""
        before = self.entry(entry.name)
        self._refuse_for_another_job()
        self._copy_there(scratch, entry.place)
        if entry.name in _OPENED:
            self._persistently(lambda: self._delete_all_but_attempts(entry.name))
            self._copy_there(scratch, entry.name)
        self._refuse_for_another_job()
        self.write_text(f"manifest/{entry.name}.json", _entry_text(entry))
        self._there[entry.name] = entry.attempt
        if before and not before.attempt and entry.name not in _OPENED:
            self._persistently(lambda: self._delete_all_but_attempts(entry.name))
        for old in self._attempts(entry.name):
            if old != entry.attempt:
                self._persistently(lambda old=old: self._delete(f"{entry.name}/{old}"))

    def _copy_there(self, directory: Path, name: str) -> None:
        target = f"{self._root}/{name}"

        def copy() -> None:
            self._creating(target, lambda: pafs.copy_files(str(directory), target, destination_filesystem=self._fs))

        self._persistently(copy)

    def _attempts(self, name: str) -> list[str]:
        selector = pafs.FileSelector(f"{self._root}/{name}", allow_not_found=True)
        infos = self._persistently(lambda: self._fs.get_file_info(selector))
        return [info.base_name for info in infos if info.base_name.startswith(_ATTEMPT)]

    def _delete_all_but_attempts(self, name: str) -> None:
        for path in self.files(name):
            if not path.removeprefix(f"{name}/").startswith(_ATTEMPT):
                self._fs.delete_file(f"{self._root}/{path}")

    def _download(self, entry: Entry) -> Path | None:
        """A verified copy on this machine, which all its processes share; what arrives damaged is read once more."""
        path = Path(_cache(), stable_hash([str(self), entry.place, entry.files]))
        if _matches(path, entry.files):
            used(path)
            return path
        try:
            with _disk_errors(str(path), remedy="set TMPDIR to a directory with more of it"):
                return self._copied_here(entry, path) or self._copied_here(entry, path)
        except FileNotFoundError:
            return None

    def _copied_here(self, entry: Entry, path: Path) -> Path | None:
        scratch = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
        try:
            self._persistently(lambda: self._copy_here(entry.place, scratch))
            if not _matches(scratch, entry.files):
                return None
            if not _matches(path, entry.files):  # another process may have been faster
                shutil.rmtree(path, ignore_errors=True)
                os.rename(scratch, path)
                make_room(path.parent)
            return path
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _copy_here(self, place: str, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, mode=0o700)
        pafs.copy_files(f"{self._root}/{place}", str(path), source_filesystem=self._fs)

    def _put(self, path: str, data: bytes) -> None:
        with self._creating(os.path.dirname(path), lambda: self._fs.open_output_stream(path)) as stream:
            stream.write(data)

    def _creating(self, directory: str, action: Callable[[], _Result]) -> _Result:
        """Object stores need no directories, other filesystems may."""
        try:
            return action()
        except FileNotFoundError:
            self._fs.create_dir(directory, recursive=True)
            return action()

    def _get(self, path: str) -> bytes:
        with self._fs.open_input_stream(path) as stream:
            return stream.read()

    def _persistently(self, action: Callable[[], _Result]) -> _Result:
        """Tries again where a network lies between; waiting mends no missing file, no full disk and no local one."""
        for pause in () if self.is_local else _PAUSES:
            try:
                return action()
            except FileNotFoundError:
                raise
            except OSError as error:
                if _is_full(error):
                    raise
                log.warning("%s: %s; trying again in %g s", self, _reason(error), pause)
                time.sleep(pause)
        return action()

    def files(self, name: str) -> list[str]:
        """Returns the names of all files below a path, as paths below the run directory; nothing of them is read."""
        selector = pafs.FileSelector(f"{self._root}/{name}", recursive=True, allow_not_found=True)
        infos = self._persistently(lambda: self._fs.get_file_info(selector))
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
        """Publishes the state after `step` updates, then forgets all but the newest few.

        States with other dependencies, and later ones that could not be continued, go as well.
        """
        self._storage.commit(f"{self._name}/step-{step:09d}", write, self._depends, {"step": step})
        entries = self._storage.entries(self._name)
        usable = [e.name for e in entries if e.depends == self._depends and e.meta["step"] <= step]
        for entry in entries:
            if entry.name not in usable[-self._keep :]:
                self._storage.remove(entry.name)

    def begin(self, job: str) -> int:
        """Counts a start of the training; returns how many there were before it in this job without a new state since.

        Args:
            job: names one start of the command: what happened in another does not count.
        """
        steps = [entry.meta["step"] for entry in self._storage.entries(self._name) if entry.depends == self._depends]
        start = {"job": job, "step": max(steps, default=0)}
        before = json.loads(self._storage.read_text(f"{self._name}/starts.json") or "{}")
        count = before.pop("count") + 1 if before else 0
        count = count if before == start else 0
        self._storage.write_text(f"{self._name}/starts.json", json.dumps({**start, "count": count}))
        return count

    def newest(self) -> tuple[int, Path] | None:
        """Returns the step and directory of the newest intact state with the same dependencies."""
        for entry in reversed(self._storage.entries(self._name)):
            if changes := _changes(entry.depends, self._depends):
                log.info("%s cannot be continued after these changes: %s", entry.name, _listed(changes))
            elif path := self._storage._intact(entry):
                return entry.meta["step"], path
            else:
                log.warning("%s is damaged; using the checkpoint before it", self._storage.uri(entry.name))
        return None

    def at(self, step: int) -> Path:
        """Returns the directory of the state after so many updates.

        Args:
            step: what `newest` said elsewhere.

        Raises:
            FileNotFoundError: it is not there, or it is damaged.
        """
        return self._storage.fetch(f"{self._name}/step-{step:09d}")

    def clear(self) -> None:
        """Deletes all states."""
        self._storage.remove(self._name)


def runs_at(location: str) -> list[str]:
    """Returns the names of the directories at a location, runs or not.

    Raises:
        UserError: the location is no usable path or URI, or cannot be reached.
    """
    storage = Storage(location, "")
    try:
        return _directories(storage._fs, storage._root.rstrip("/"))
    except OSError as error:
        raise UserError(f"storage: {storage} cannot be reached: {_reason(error)}") from None


def check_stays(location: str) -> None:
    """Checks that results would outlive the job: Ray deletes the unpacked copy of an uploaded working directory.

    Raises:
        UserError: the location is a path within that copy, as every relative path of a submitted job is.
    """
    path = os.path.abspath(os.path.expanduser(location))
    if "://" not in location and "/runtime_resources/working_dir_files/" in path:
        raise UserError(
            f"storage is {location!r}, which is inside Ray's temporary copy of the working directory and will be "
            "deleted with it; name a permanent place, such as --storage /shared/directory or --storage s3://BUCKET/runs"
        )


def _directories(fs: pafs.FileSystem, path: str) -> list[str]:
    """Names of the directories at a path, but for hidden ones."""
    infos = fs.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    names = (info.base_name for info in infos if info.type == pafs.FileType.Directory)
    return sorted(name for name in names if not name.startswith("."))


def _filesystem(location: str) -> tuple[pafs.FileSystem, str]:
    if "://" not in location:
        return pafs.LocalFileSystem(), location
    refuse_secret(location, "storage")
    try:
        return pafs.FileSystem.from_uri(location)
    except (ValueError, OSError) as error:
        raise UserError(f"storage: {location!r} is not a usable directory or URI: {_reason(error)}") from None


def _entry_text(entry: Entry) -> str:
    content = asdict(entry)
    return json.dumps({**content, "checksum": stable_hash(content)}, indent=1, sort_keys=True)


def _parse_entry(text: str) -> Entry:
    content = json.loads(text)
    if content.pop("checksum", None) != stable_hash(content):
        raise ValueError("checksum")
    return Entry(**content)


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON gives back, so that stored and fresh dependencies compare equal."""
    return json.loads(json.dumps(value, default=str))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Names the leaves that differ: settings with both values, what is known by a digest without.

    >>> _changes({"config": {"seed": 1}, "corpus": "0123456789abcdef"}, {"config": {"seed": 2}, "corpus": None})
    ['seed was 1, is 2', 'corpus is gone']
    """
    found = []
    for key in sorted(set(old) | set(new)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _changes(before, after, "" if prefix + key == "config" else f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key} {_difference(before, after)}")
    return found


def _difference(before: Any, after: Any) -> str:
    if _DIGEST.search(json.dumps([before, after])):
        return "is new" if before is None else "is gone" if after is None else "has changed"
    return f"was {_short(before)}, is {_short(after)}"


def _listed(changes: list[str], most: int = 4) -> str:
    more = f"; and {len(changes) - most} more" if len(changes) > most else ""
    return "; ".join(changes[:most]) + more


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _flush_and_hash(directory: Path) -> dict[str, str]:
    files = {}
    for path in sorted(directory.rglob("*")):
        if path.is_dir():
            _fsync_directory(path)
            continue
        files[path.relative_to(directory).as_posix()] = sha256_of(path)
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
        return directory.is_dir() and all(sha256_of(directory / name) == digest for name, digest in files.items())
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    """Returns the hex digest of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _cache() -> str:
    return str(directory())


def _of_job(location: str, run: str, job: str) -> Storage:
    """A run directory as another process of the job has it."""
    storage = Storage(location, run)
    storage._job = job
    return storage


@contextmanager
def _disk_errors(where: str, *unusable: type[OSError], remedy: str = "choose another --storage") -> Iterator[None]:
    """Turns a full or read-only disk, and the errors named, into a sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if _is_full(error):
            raise UserError(f"no disk space left for {where}; free some space, or {remedy}") from None
        if isinstance(error, (PermissionError, *unusable)) or getattr(error, "errno", None) == errno.EROFS:
            raise UserError(f"storage: {where} cannot be written: {_reason(error)}") from None
        raise


def _is_full(error: Exception) -> bool:
    """Libraries report a full disk each in its own way: safetensors by text only, numpy by counting items."""
    full = r"No space left on device|Disk quota exceeded|\d+ requested and \d+ written"
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or bool(re.search(full, str(error)))


def _reason(error: Exception) -> str:
    """The system's own words, without number and path, where there are some."""
    return getattr(error, "strerror", None) or first_line(error)

"""The run directory, on a local disk or any pyarrow filesystem, and its one commit point.

Every attempt at an artefact fills a new directory, `<name>/attempt-…`, flushed and checksummed. Then the artefact's
manifest entry, a small file replaced atomically, names the attempt and its dependencies. The attempt it replaces is
deleted afterwards. Readers accept only files that the manifest names and the checksums confirm. A remote artefact
counts as finished if its file sizes are right. A job claims the run, and looks at its claim before each commit.
"""

import fcntl
import json
import logging
import os
import re
import shutil
import socket
import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from raysed.config import stable_hash
from raysed.errors import RunFailed, UserError
from raysed.store import cache
from raysed.store.checkpoints import Checkpoints, changes
from raysed.store.files import CLAIM, Files, check_name, disk_errors, flush_and_hash, is_temporary, matches, reason
from raysed.store.systems import answer, lock

log = logging.getLogger(__name__)

Writer = Callable[[Path], None]

_ATTEMPT = r"attempt-[0-9a-f]{12}"
_PACK = "entries-"
"""Start of the names of files that `Storage.pack` writes."""
_REPLACED = "replaced.json"
"""Copy of the entry of an attempt that another has replaced, beside its files."""
_DAMAGES = (ValueError, TypeError, AttributeError, RecursionError)
"""What parsing a damaged entry raises."""
_USER_FACING = ("model", "plots")
"""Artefacts that people open: their files are in the directory of that name, and replaced there one by one."""


@dataclass(frozen=True)
class Entry:
    """The manifest's record of one artefact.

    Attributes:
        depends: every setting and input that the artefact depends on.
        files: SHA-256 of each file, by path below the artefact.
        meta: small facts for later stages and the report (scores, seconds, counts).
        sizes: bytes of each file, by the same paths.
    """

    name: str
    depends: dict[str, Any]
    files: dict[str, str]
    meta: dict[str, Any]
    sizes: dict[str, int]
    attempt: str

    @property
    def place(self) -> str:
        """Directory of the files, below the run directory."""
        return _place(self.name, self.attempt)


class Storage:
    """A run directory at a location (a path or URI); `plain` accesses its files without checking this job's claim."""

    def __init__(self, location: str, run: str, job: str = ""):
        self.location, self.run = _absolute(location), run
        self.plain = Files(self.location, run)
        self.is_local = self.plain.is_local
        self._intact: dict[str, Entry] = {}
        self._logged: set[str] = set()
        self._job = job

    def __reduce__(self) -> tuple:
        return Storage, (self.location, self.run, self._job)

    def __str__(self) -> str:
        return self.uri("")

    def uri(self, name: str) -> str:
        """Return the path of `name` on a local disk, its URI elsewhere."""
        if self.is_local:
            return self.plain.path(name)
        base, question, query = self.location.partition("?")
        return f"{base.rstrip('/')}/{self.run}/{check_name(name)}".rstrip("/") + question + query

    # -- artefacts ---------------------------------------------------------------------------------------------------

    def commit(
        self,
        name: str,
        write: Writer,
        depends: Mapping[str, Any],
        meta: Mapping[str, Any] | None = None,
        keeps_replaced: bool = False,
    ) -> Entry:
        """Publish an artefact in place of an older one; `write` may add to `meta`. RunFailed after a take-over.

        Args:
            keeps_replaced: leave the older one's files for `replaced`, until what it is a block of is finished.
        """
        attempt = f"attempt-{uuid.uuid4().hex[:12]}"
        place = _place(check_name(name), attempt)
        # The entry is written outside this block: after an error it may still exist, and needs its files.
        with disk_errors(self.uri(name)), self._to_fill(place) as directory:
            write(directory)
            digests = flush_and_hash(directory)
            sizes = {file: (directory / file).stat().st_size for file in digests}
            entry = Entry(name, _plain(depends), digests, _plain(meta or {}), sizes, attempt)
            before = self.entry(name)
            self._check_claim()
            if name in _USER_FACING:
                self._replace_files(directory, entry, before)
            elif not self.is_local:
                self.plain.upload(directory, place)
        self._check_claim()  # again: another job may have come while the files were copied
        if before and keeps_replaced:
            self.write_text(f"{before.place}/{_REPLACED}", _text_of(before))
        self._write_entry(entry)
        if before and before.place != place and not keeps_replaced:
            self.plain.delete(before.place)
        return entry

    @contextmanager
    def _to_fill(self, place: str) -> Iterator[Path]:
        """Yield an empty local directory; on a local disk, `place` itself unless people open it."""
        if not self.is_local:
            with cache.half_written() as directory:
                yield directory
            return
        is_place = place not in _USER_FACING
        path, is_filled = Path(self.plain.path(place if is_place else f".{place}.{uuid.uuid4().hex}.tmp")), False
        path.mkdir(parents=True)
        try:
            yield path
            is_filled = True
        finally:
            if not (is_place and is_filled):
                shutil.rmtree(path, ignore_errors=True)

    def _replace_files(self, directory: Path, entry: Entry, before: Entry | None) -> None:
        """Put files in the places of earlier ones, then delete the rest of those."""
        # Meanwhile the manifest names the files of both, of which none is intact: a later job may replace them.
        both = dict.fromkeys([*(before.files if before else ()), *entry.files], "")
        self._write_entry(replace(entry, depends={}, files=both, sizes={}))
        for file in entry.files:
            self.plain.upload(directory / file, f"{entry.place}/{file}")
        self._delete_files(entry.name, both.keys() - entry.files.keys(), kept=entry.files)

    def _delete_files(self, name: str, files: Iterable[str], kept: Container[str] = ()) -> None:
        """Delete files that the manifest named, and say which others than those `kept` are there: they are a user's."""
        for path in (f"{name}/{file}" for file in files):
            if self.has_files(path):
                self.plain.delete(path)
            if self.is_local:
                with suppress(OSError):  # it holds other files
                    os.removedirs(os.path.dirname(self.plain.path(path)))
        others = [path for path in self.plain.sizes_below(name) if path.removeprefix(f"{name}/") not in kept]
        if others:
            what = f"{', '.join(sorted(others)[:3])}{' and others' * (len(others) > 3)}"
            older = "; an export of older weights is older than the model" if name == "model" else ""
            self._log_once(logging.WARNING, f"{what}: not written by this run, so they stay as they are{older}")

    def _write_entry(self, entry: Entry) -> None:
        self.write_text(_manifest(entry.name), _text_of(entry, indent=1))

    def entry(self, name: str) -> Entry | None:
        """Return the manifest entry, even if its files are damaged; None if it is missing or damaged itself."""
        try:
            text = self.read_text(_manifest(name))
            return _parse_entry(name, text) if text is not None else None
        except UserError:
            raise
        except _DAMAGES:
            check_name(name)
            log.warning("%s has a damaged manifest entry and will be recomputed", name)
            return None

    def known(self, name: str, depends: Mapping[str, Any]) -> Entry | None:
        """Return the entry of an artefact with exactly these dependencies; log why another does not count."""
        entry = self.entry(name)
        return entry if entry and self._is_current(entry, depends) else None

    def finished(self, name: str, depends: Mapping[str, Any]) -> Entry | None:
        """Return what `known` does if all files are intact."""
        if (entry := self.known(name, depends)) is None:
            return None
        paths = [] if self.is_local else [f"{entry.place}/{file}" for file in entry.files]
        return entry if self._is_complete(entry, dict(zip(paths, self.plain.sizes(paths)))) else None

    def _is_current(self, entry: Entry, depends: Mapping[str, Any]) -> bool:
        if found := changes(entry.depends, _plain(depends)):
            self._log_once(logging.INFO, f"out of date: {entry.name}: {found}")
        return not found

    def _is_complete(self, entry: Entry, sizes: Mapping[str, int | None]) -> bool:
        """Return whether all files are there; remote ones, by path in `sizes`, are not read."""
        if self.is_local:
            is_complete = self.intact(entry) is not None
        else:
            is_complete = all(sizes.get(f"{entry.place}/{file}") == entry.sizes.get(file, -1) for file in entry.files)
        if not is_complete:
            self._log_once(logging.WARNING, f"recomputing {entry.name}: its files are missing or damaged")
        return is_complete

    def _log_once(self, level: int, message: str) -> None:
        if message not in self._logged:
            self._logged.add(message)
            log.log(level, "%s", message)

    def fetch(self, name: str) -> Path:
        """Return a local directory with the artefact's verified files; FileNotFoundError if it is not intact."""
        entry = self.entry(name)
        path = self.intact(entry) if entry else None
        if path is None:
            # `finished` checks only sizes, which may be right. An entry replaced meanwhile is not damaged.
            if entry and not self.is_local and self._job and self.entry(name) == entry:
                self.plain.delete(_manifest(name))
                log.warning("%s is damaged; the same command recomputes it", self.uri(name))
            raise FileNotFoundError(f"{self.uri(name)} is not a finished artefact of this run")
        return path

    def release(self, path: Path) -> None:
        """Give back what `fetch` or `intact` has returned: the disk may need the room of a remote artefact's copy."""
        if not self.is_local:
            cache.release(path)

    def forget(self, name: str) -> None:
        """Delete an artefact's manifest entry, but none of its files."""
        self._check_claim()
        self.plain.delete(_manifest(name))

    def names(self, below: str = "") -> list[str]:
        """Return the sorted names of all artefacts below a path, without reading their manifest entries."""
        paths = self.plain.sizes_below(f"manifest/{below}".rstrip("/"))
        return sorted(path.removeprefix("manifest/").removesuffix(".json") for path in paths)

    def entries(self, below: str = "") -> list[Entry]:
        """Return all undamaged manifest entries below a path, by name."""
        return [entry for name in self.names(below) if (entry := self.entry(name))]

    def pack(self, below: str, entries: Sequence[Entry]) -> None:
        """Copy remote entries of artefacts below a path into one file, so that `listed` need not request each."""
        if entries and not self.is_local:
            lines = (f"{entry.name}\t{_text_of(entry)}\n" for entry in entries)
            self.write_text(f"{below}/{_PACK}{uuid.uuid4().hex}.tsv", "".join(lines))

    def listed(self, below: str, depends: Mapping[str, Any] | None = None) -> Iterator[Entry]:
        """Yield what `entries` returns, in any order and with few requests; with `depends`, only what has these."""
        return self._listed(below, self.plain.sizes_below(below), depends)

    def finished_below(self, below: str, depends: Mapping[str, Any] | None = None) -> Iterator[Entry]:
        """Yield the entries of intact artefacts below a path, with few requests; see `finished`."""
        sizes = self.plain.sizes_below(below)
        return (entry for entry in self._listed(below, sizes, depends) if self._is_complete(entry, sizes))

    def _listed(self, below: str, sizes: Mapping[str, int], depends: Mapping[str, Any] | None) -> Iterator[Entry]:
        left, attempts = set(self.names(below)), {}
        for path in sizes:
            if found := re.match(rf"(.+?)/({_ATTEMPT})/", path):
                attempts.setdefault(found[1], set()).add(found[2])

        def entries() -> Iterator[Entry]:
            for path in (path for path in sizes if path.startswith(f"{below}/{_PACK}")):
                is_outdated = True
                for entry in self._packed(path):
                    found = attempts.get(entry.name, set())
                    is_outdated = is_outdated and entry.attempt not in found
                    # Another attempt has an entry of its own, which may be newer.
                    if entry.name in left and found == {entry.attempt}:
                        left.remove(entry.name)
                        yield entry
                if is_outdated and self._job:
                    self.plain.delete(path)
            yield from filter(None, map(self.entry, sorted(left)))

        return (entry for entry in entries() if depends is None or self._is_current(entry, depends))

    def replaced(self, below: str) -> Iterator[Entry]:
        """Yield the entries of replaced artefacts below a path whose files are kept."""
        for path in self.plain.sizes_below(below):
            if found := re.fullmatch(rf"(.+)/{_ATTEMPT}/{_REPLACED}", path):
                with suppress(*_DAMAGES):
                    yield _parse_entry(found[1], self.read_text(path))

    def _packed(self, path: str) -> Iterator[Entry]:
        with suppress(FileNotFoundError):  # another process has just deleted it
            for line in self.plain.read(path).splitlines():
                with suppress(*_DAMAGES):  # the entry itself is read instead
                    yield _parse_entry(*line.decode().split("\t"))

    def remove(self, name: str) -> None:
        """Remove an artefact, or all below a path, from the manifest, and delete the files."""
        self._intact.pop(name, None)
        if name in _USER_FACING:
            entry = self.entry(name)
            self._delete_files(name, entry.files if entry else ())
        for path in (_manifest(name), f"manifest/{name}", *(() if name in _USER_FACING else (name,))):
            self.plain.delete(path)

    def checkpoints(self, name: str, depends: Mapping[str, Any]) -> Checkpoints:
        """Return the checkpoints of an unfinished artefact; only those with the same dependencies are continued."""
        return Checkpoints(self, f"checkpoints/{name}", _plain(depends))

    def intact(self, entry: Entry) -> Path | None:
        """Return the directory of an artefact's files, verified once per process; None if any is missing or damaged."""

        def is_intact(path: Path) -> bool:
            return (self._intact.get(entry.name) == entry and path.is_dir()) or matches(path, entry.files)

        if self.is_local:
            path = Path(self.plain.path(entry.place))
            path = path if is_intact(path) else None
        else:
            path = self._download(entry, is_intact)
        if path is not None:
            self._intact[entry.name] = entry
        return path

    def _download(self, entry: Entry, is_intact: Callable[[Path], bool]) -> Path | None:
        """Return a local copy, which is leased, or None if what arrives is damaged or missing."""
        place = cache.directory()
        with disk_errors(str(place), remedy="set TMPDIR to a directory with more space"):
            path = cache.lease(stable_hash([str(self), entry.place, entry.files]))
            with cache.alone(path):
                if is_intact(path):
                    return path
                with cache.half_written() as filled, suppress(FileNotFoundError):
                    self.plain.download(entry.place, filled)
                    if matches(filled, entry.files):
                        cache.install(filled, path, lambda: matches(path, entry.files))
                        cache.make_room()
                        return path
        return None

    # -- plain files -------------------------------------------------------------------------------------------------

    def write_text(self, name: str, text: str) -> None:
        """Write a small file atomically."""
        self.plain.write(name, text.encode())

    def read_text(self, name: str) -> str | None:
        """Return a small file's text, or None if it does not exist."""
        try:
            return self.plain.read(name).decode()
        except FileNotFoundError:
            return None

    def read_json(self, name: str) -> dict[str, Any]:
        """Return the object in a small JSON file, an empty one if the file is missing or damaged."""
        try:
            found = json.loads(self.read_text(name) or "{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            log.warning("%s is damaged and will be ignored", self.uri(name))
            return {}
        return found

    def has_files(self, *names: str) -> bool:
        return None not in self.plain.sizes(names)

    def clock(self) -> float | None:
        """Return the time by the storage's clock, in seconds since 1970; None if unknown."""
        self.plain.write(".clock", b"")
        now = self.plain.modified_at(".clock")
        self.plain.delete(".clock")
        return now

    def free_bytes(self) -> int | None:
        """Return the bytes that the run can use on a local disk, free or its own; None if remote."""
        if not self.is_local:
            return None
        path = Path(self.uri(""))
        while not path.exists():
            path = path.parent
        return shutil.disk_usage(path).free + sum(self.plain.sizes_below("").values())

    # -- one job at a time -------------------------------------------------------------------------------------------

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Claim the run: jobs that claimed it before commit no more. Locally, refuse while one of them lives."""
        self._job = uuid.uuid4().hex
        claim = json.dumps({"job": self._job, "host": socket.gethostname(), "pid": os.getpid()}).encode()
        with ExitStack() as held:
            if self.is_local:
                with disk_errors(str(self), is_any=True):
                    os.makedirs(self.uri(""), exist_ok=True)
                    file = os.fdopen(os.open(self.uri(CLAIM), os.O_RDWR | os.O_CREAT, 0o644), "r+b")
                held.enter_context(file)
                try:
                    lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    problem = f"run {self.run!r} is in use by another process; wait for it, or choose another --run"
                    raise UserError(problem) from None
                with disk_errors(str(self), is_any=True):
                    os.truncate(file.fileno(), os.pwrite(file.fileno(), claim, 0))
            else:
                self.check_access()
                with disk_errors(str(self), is_any=True):
                    self.plain.write(CLAIM, claim)
            self._sweep()
            yield
            if self.is_owner():  # workers may have been killed while writing
                self._sweep()

    def check_access(self) -> None:
        """Raise a UserError unless remote storage answers and has the bucket."""
        fs, root = self.plain.fs, self.plain.root
        has_buckets, bucket = fs.type_name in ("s3", "gcs"), root.lstrip("/").partition("/")[0]
        try:
            found = answer(lambda: fs.get_file_info(bucket if has_buckets else root), str(self))
        except OSError as error:
            raise UserError(f"storage: {self} cannot be reached: {reason(error)}") from None
        if has_buckets and found.type == pafs.FileType.NotFound:
            problem = f"there is no bucket {bucket!r}; create it, or name another"
            raise UserError(f"storage: {self} cannot be used: {problem}")

    def is_owner(self) -> bool:
        """Return whether no other job has taken over the run since this one claimed it."""
        return not self._job or self.read_json(CLAIM).get("job", self._job) == self._job

    def _check_claim(self) -> None:
        if not self.is_owner():
            claim = self.read_json(CLAIM)
            who = f"a job on {claim.get('host')} (process {claim.get('pid')})"
            raise RunFailed(f"{self} has been taken over by {who}, so this job ends")

    def _sweep(self) -> None:
        """Delete what killed processes left: half-written files, and attempts beside the one that an entry names."""
        attempts, kept, known = dict[str, set[str]](), set[str](), set(self.names())
        for path in list(self.plain.walk()):
            if is_temporary(path):
                self.plain.delete(path)
            if found := re.match(rf"(.+?)/({_ATTEMPT})(/|$)", path):
                attempts.setdefault(found[1], set()).add(found[2])
                if path.endswith(f"/{_REPLACED}") and os.path.dirname(found[1]) not in known:
                    kept.add(found[2])
        for place, found in attempts.items():
            if place in known and len(found) > 1 and (entry := self.entry(place)):
                for attempt in found - kept - {entry.attempt}:
                    self.plain.delete(f"{place}/{attempt}")


def runs_at(location: str) -> list[str]:
    """Return the sorted names of the visible directories at a location, whether runs or not."""
    try:
        return Files(_absolute(location), "").directories()
    except OSError as error:
        raise UserError(f"storage: {location} cannot be reached: {reason(error)}") from None


def check_stays(location: str, option: str = "storage") -> None:
    """Refuse a location in Ray's temporary copy of the working directory, where a job's relative paths would lead."""
    if "/runtime_resources/working_dir_files/" in _absolute(location):
        or_uri = " or --storage s3://BUCKET/runs" if option == "storage" else ""  # no other option takes one
        raise UserError(
            f"{option} is {location!r}, which is inside Ray's temporary copy of the working directory and will be "
            f"deleted with it; name a permanent place, such as --{option} /shared/directory{or_uri}"
        )


def _absolute(location: str) -> str:
    """Return an absolute path, because workers have other working directories; URIs stay."""
    return location if "://" in location else os.path.abspath(os.path.expanduser(location))


def _manifest(name: str) -> str:
    return f"manifest/{name}.json"


def _place(name: str, attempt: str) -> str:
    """Return the directory of an artefact's files, below the run directory."""
    return name if name in _USER_FACING else f"{name}/{attempt}"


def _text_of(entry: Entry, **layout: Any) -> str:
    content = asdict(entry)
    return json.dumps({**content, "checksum": stable_hash(content)}, **layout)


def _parse_entry(name: str, text: str) -> Entry:
    """Parse an entry; ValueError, TypeError or AttributeError if it is damaged or misplaced."""
    content = json.loads(text)
    if content.pop("checksum", None) != stable_hash(content):
        raise ValueError("checksum")
    entry = Entry(**content)
    if entry.name != name or not re.fullmatch(_ATTEMPT, entry.attempt):
        raise ValueError("name")
    for file in (*entry.files.keys(), *entry.sizes.keys()):
        check_name(file)
    dict.keys(entry.depends), dict.keys(entry.meta)
    return entry


def _plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """Convert to what JSON reads back: stored and fresh dependencies then compare equal."""
    return json.loads(json.dumps(value, default=str))

"""Sources of text in settings: files by path, pattern or URI, and hub datasets."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from raysed.errors import UserError, first_line, public
from raysed.store.files import CLAIM, check_content, connect, is_hidden
from raysed.store.systems import answer
from raysed.uris import refuse_secret

ENDINGS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILE_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")
_DIGEST_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class File:
    """A file; messages show `name`, without credentials or query."""

    name: str
    filesystem: pafs.FileSystem
    path: str
    size: int | None = None
    mtime_ns: int | None = None
    parts: tuple["File", ...] = ()
    """The Parquet files of a directory that stands for one."""

    @property
    def ending(self) -> str:
        return ".parquet" if self.parts else ending(self.path)

    def identity(self) -> dict[str, Any]:
        """Return name, size and digest, equal for copies; above 256 MiB, the time instead of a digest."""
        known = {"file": self.path.rpartition("/")[2], "size": self.size}
        if self.parts:
            return {**known, "parts": [part.identity() for part in self.parts]}
        if self.size > _DIGEST_BYTES:
            return {**known, "mtime_ns": self.mtime_ns}
        digest = blake2b(digest_size=8)
        with readable(self.name), self.filesystem.open_input_stream(self.path, compression=None) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return {**known, "digest": digest.hexdigest()}


@dataclass(frozen=True)
class Hub:
    """A split of a hub dataset; `streaming` reads it without a copy on disk.

    `split` may name several, of which the first that exists counts: `dev|validation`. At the end, `*` is the only one.
    """

    id: str
    config: str | None
    split: str
    streaming: bool = False

    @property
    def name(self) -> str:
        return f"dataset {self.id}"

    def identity(self) -> dict[str, Any]:
        """Return dataset and split; a new upload under the same id goes unnoticed."""
        return {"hub": self.id, "name": self.config, "split": self.split}


def find(item: str, setting: str, kind: str, hub: Hub, several: bool = False) -> list[File | Hub]:
    """Return the files that `item` names, sorted, or else the dataset `hub`.

    `several` allows directories and patterns.
    """
    refuse_secret(item, setting)
    with readable(f"{setting}: {public(item)}"):
        scheme, filesystem, path = "", pafs.LocalFileSystem(), os.path.expanduser(item).rstrip("/") or item[:1]
        if "://" in item:
            filesystem, path = connect(item)
            scheme, path = f"{item.partition('://')[0]}://", path.rstrip("/") or "/"
        info = answer(lambda: filesystem.get_file_info(path), public(item))
        infos = [] if info.type == pafs.FileType.NotFound else [info]
        if several and info.type == pafs.FileType.Directory:
            infos = _list(filesystem, path, ["**"])
        elif several and not infos:
            parts = path.split("/")
            plain = list(takewhile(lambda part: not re.search(r"[*?[]", part), parts))
            root = "/".join(plain) or ("/" if path.startswith("/") else ".")
            infos = _list(filesystem, root, parts[len(plain) :])
        elif info.type == pafs.FileType.Directory and (parts := parquet_parts(path, filesystem)):
            files = [File(scheme + i.path, filesystem, i.path, i.size, i.mtime_ns) for i in parts]
            return [File(scheme + path, filesystem, path, sum(i.size for i in parts), None, tuple(files))]
    present = [i for i in infos if i.type != pafs.FileType.Directory]
    for link in (i for i in present if i.type == pafs.FileType.NotFound):
        check_content(link.path, setting)
    if known := [i for i in present if ending(i.path) in ENDINGS]:
        for each in known if isinstance(filesystem, pafs.LocalFileSystem) else ():
            check_content(each.path, setting)
        files = [File(scheme + i.path, filesystem, i.path, i.size, i.mtime_ns) for i in known]
        return sorted(files, key=lambda file: file.path)
    if infos or info.type == pafs.FileType.Directory:
        check_content(path, setting)
        is_markdown = any(ending(i.path) in (".md", ".markdown") for i in present)
        raise UserError(
            f"{public(item)} {'neither is nor contains' if several else 'is not'} a file of {kind}; supported endings "
            f"are {', '.join(ENDINGS)}, and the text formats also with .gz"
            + "; pandoc -t plain --wrap=none turns Markdown into text"
            * is_markdown,
            setting=setting,
        )
    if _HUB_ID.fullmatch(item) and not _FILE_ENDING.search(item):
        return [hub]
    check_content(path, setting)  # of a link to nothing
    places = "file, directory or pattern," if several else "file"
    raise UserError(f"{public(item)} does not exist; name an existing {places} or a hub dataset", setting=setting)


def parquet_parts(path: str, filesystem: pafs.FileSystem | None = None) -> list[pafs.FileInfo]:
    """Return the parts of a directory that Ray Data, Spark or Dask wrote: Parquet files, and others only with a `_`.

    UserError if its folders hold values of columns (`label=a/`), which the parts lack.
    """
    infos = _list(filesystem or pafs.LocalFileSystem(), path.rstrip("/"), ["**"])
    parts = [info for info in infos if not info.base_name.startswith("_")]
    if not all(ending(info.path) == ".parquet" for info in parts):
        return []
    if folder := next((i.path for i in parts if "=" in os.path.dirname(i.path.removeprefix(path))), None):
        raise UserError(f"{public(folder)} is of a table in folders by a column; write the parts without partitions")
    return sorted(parts, key=lambda info: info.path)


def ending(path: str) -> str:
    """Return the ending that tells the format, before `.gz` if it is one of text.

    >>> ending("a.txt"), ending("A.TSV.gz")
    ('.txt', '.tsv')
    """
    stem, last = os.path.splitext(path.lower())
    inner = os.path.splitext(stem)[1]
    return inner if last == ".gz" and inner != ".parquet" else last


def local_file(path: str | os.PathLike) -> File:
    """Return a local file; it need not exist."""
    check_content(path)
    return File(str(path), pafs.LocalFileSystem(), str(path))


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn file system, decompression and decoding errors into UserErrors about the file."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError) and os.path.lexists(error.object):  # pyarrow needs names in UTF-8
            wrong = error.object.decode(errors="replace")
            raise UserError(f"{name} cannot be read: the name {wrong} is not UTF-8; rename it") from None
        raise UserError(f"{name} cannot be read: {public(first_line(error))}") from None


def _list(filesystem: pafs.FileSystem, root: str, patterns: list[str]) -> list[pafs.FileInfo]:
    """Return the files, and links to nothing, below a directory whose relative path matches.

    Hidden ones and those of runs below it are skipped.
    """
    deep = len(patterns) > 1 or "**" in patterns
    infos = list(_links_to_nothing(root, deep)) if isinstance(filesystem, pafs.LocalFileSystem) else []
    infos += filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=deep))
    runs = {info.path.removesuffix(CLAIM) for info in infos if info.path.endswith(f"/{CLAIM}")}
    below = tuple(runs - {f"{root.rstrip('/')}/"})
    found = []
    for info in infos:
        parts = info.path.removeprefix(root).strip("/").split("/")
        hidden = is_hidden("/".join(parts)) or info.path.startswith(below)
        if info.type != pafs.FileType.Directory and not hidden and _matches(parts, patterns):
            found.append(info)
    return found


def _links_to_nothing(root: str, deep: bool) -> Iterator[pafs.FileInfo]:
    """Yield the links that pyarrow leaves out; UserError for a loop of links, which it would follow again and again."""
    for folder, folders, names in islice(os.walk(root, followlinks=True), None if deep else 1):
        for path in (os.path.join(folder, name) for name in (*folders, *names)):
            if not os.path.exists(path):
                yield pafs.FileInfo(path, pafs.FileType.NotFound)
            elif deep and os.path.islink(path) and os.path.realpath(path) in map(os.path.realpath, Path(path).parents):
                raise UserError(f"{path} is a link to a directory that it is in; remove it")


def _matches(parts: list[str], patterns: list[str]) -> bool:
    """Match path parts against patterns; `**` stands for any number of parts."""
    if not patterns or not parts:
        return not parts and all(pattern == "**" for pattern in patterns)
    if patterns[0] == "**":
        return _matches(parts, patterns[1:]) or _matches(parts[1:], patterns)
    return fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])

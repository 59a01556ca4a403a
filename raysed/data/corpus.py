"""Unlabelled sentences from text, JSONL, CSV, TSV, Parquet or the hub, as one clean stream with stable ids.

`check_corpus` finds what is wrong before a run starts, `sentence_chunks` reads, `corpus_fingerprint` says
whether the inputs are still the same. Nothing here holds a whole corpus: files are read block by block,
duplicates are known by 8-byte hashes, and a random draw of k sentences keeps about k of them at a time.
"""

import csv
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from raysed.config import CorpusConfig
from raysed.data.sources import (
    NO_TEXT,
    delimited_cells,
    ending,
    is_hub_id,
    is_text,
    json_record,
    plain_values,
    readable,
)
from raysed.errors import UserError, first_line, public

BUNDLED = "bundled:everyday"
COLUMNS = ("sentence", "text")
"""Looked for, in this order, where `corpus.column` is not given."""

_BLOCK_BYTES = 1 << 18
_BUFFER_BYTES = 1 << 22
"""Object stores answer one request per buffer, so it is larger than a block."""
_LINE_BYTES = 1 << 26
_ROWS = 4096
_DRAW_HASHES = 1 << 24
"""A draw remembers 1 to 1.25 times this many hashes (128 to 160 MiB), or as many as it draws."""

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

_Block = list[str | None]
"""Some texts as they stand in the source; None where a field is null."""
_Chunk = tuple[np.ndarray, list[str]]
"""Hashes, uint64 [B], and the B clean sentences they belong to."""


@dataclass
class CorpusReport:
    """What became of every line (or record) of the corpus.

    `lines` is the sum of `empty`, `too_short`, `too_long`, `duplicates` and `usable`; `kept` is `usable`, or
    what was drawn of it.
    """

    lines: int = 0
    empty: int = 0
    too_short: int = 0
    too_long: int = 0
    duplicates: int = 0
    usable: int = 0
    kept: int = 0
    estimated: bool = False
    """True where `duplicates` and `usable` are estimates, right to about 0.03 %: a draw from a corpus of more
    than 20 million distinct sentences does not remember all of them."""

    def summary(self) -> str:
        """Returns the counts as one line.

        >>> CorpusReport(lines=1200, empty=3, usable=1197, kept=1000).summary()
        '1,200 lines: 3 empty, 0 too short, 0 too long, 0 duplicates, 1,197 usable, 1,000 kept'
        """
        counts = {"empty": self.empty, "too short": self.too_short, "too long": self.too_long}
        counts |= {"duplicates": self.duplicates, "usable": self.usable, "kept": self.kept}
        return f"{self.lines:,} lines: " + ", ".join(f"{count:,} {what}" for what, count in counts.items())


def check_corpus(config: CorpusConfig) -> None:
    """Checks what can be seen without reading the corpus: opens every file and reads its first block.

    Raises:
        UserError: nothing at `corpus.source`, unknown ending, only empty files, no such column, broken data.
    """
    sources = _find_sources(config)
    has_records = [next(source.blocks(), None) is not None for source in sources]
    if not any(has_records):
        raise UserError(f"corpus.source has no sentences: {_names(sources)} must hold at least one")


def sentence_chunks(config: CorpusConfig, seed: int, report: CorpusReport) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Reads the corpus and yields its sentences, cleaned and each one once.

    All are kept in reading order (files sorted within a directory), or `config.sentences` of them are drawn
    uniformly without replacement. A draw depends on the seed and on which sentences there are, not on their
    order or on how they are spread over files; it comes in random order, after all has been read.

    Memory: 8 MB per million distinct sentences, three times that while hashes are merged; with a draw of k at
    most 20 million hashes (or 1.25 k) and 1.25 k sentences. Two different sentences share a 64-bit hash, so
    that one of them is lost, with a probability below 0.03 % in a corpus of 100 million.

    Args:
        config: where the sentences are and which to keep.
        seed: of the draw.
        report: a fresh report, filled in while reading and complete when the iterator ends.

    Yields:
        ids, int64 [B], counted from 0 without gaps; and the B sentences, a few thousand at a time.

    Raises:
        UserError: as `check_corpus`; broken data further on; no usable sentence, or fewer than to be drawn.
    """
    chunks = _usable_chunks(_find_sources(config), config, seed, report)
    if config.sentences is not None:
        chunks = _draw(chunks, config.sentences, report)
    for _, sentences in chunks:
        yield np.arange(report.kept, report.kept + len(sentences)), sentences
        report.kept += len(sentences)


def corpus_fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Returns what identifies the inputs without reading them, to tell whether earlier results still hold.

    A file is known by name, size and content, a large one by its modification time instead of that, a hub dataset by
    id, configuration and split (a new upload under the same id is not noticed), the bundled corpus by its content.
    """
    return {"sources": [source.identity() for source in _find_sources(config)]}


def clean(text: str) -> str:
    r"""Normalises to NFC; runs of blanks, control characters and line separators become one blank.

    Blanks at the ends go.

    >>> clean(" Caf\u0065\u0301\u2028au\tlait ")
    'Café au lait'
    """
    text = unicodedata.normalize("NFC", text)
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return " ".join(text.split())


def _usable_chunks(sources: list["_Source"], config: CorpusConfig, seed: int, report: CorpusReport) -> Iterator[_Chunk]:
    """Yields every sentence that may be kept, with its seeded hash (uint64)."""
    drawn = config.sentences
    seen = _SeenHashes(limit=None if drawn is None else max(drawn, _DRAW_HASHES))
    salt = blake2b(str(seed).encode(), digest_size=16).digest()
    candidates = 0
    for block in (block for source in sources for block in source.blocks()):
        sentences = _clean_block(block, config, report)
        candidates += len(sentences)
        keys = _hash(sentences, salt)
        fresh = np.flatnonzero(seen.add(keys))
        report.usable, report.estimated = min(seen.distinct(), candidates), seen.ceiling is not None
        report.duplicates = candidates - report.usable
        if len(fresh):
            yield keys[fresh], [sentences[row] for row in fresh]
    if not report.usable:
        raise UserError(f"corpus.source has no usable sentence in {_names(sources)} ({report.summary()})")


def _clean_block(block: _Block, config: CorpusConfig, report: CorpusReport) -> list[str]:
    cleaned = [clean(text) if text else "" for text in block]
    lengths = np.fromiter(map(len, cleaned), np.int64, count=len(cleaned))
    short, long = lengths < config.min_characters, lengths > config.max_characters
    empty = int((lengths == 0).sum())
    report.lines += len(block)
    report.empty += empty
    report.too_short += int(short.sum()) - empty
    report.too_long += int(long.sum())
    return [cleaned[row] for row in np.flatnonzero(~(short | long))]


def _hash(sentences: list[str], salt: bytes) -> np.ndarray:
    digests = b"".join(blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in sentences)
    return np.frombuffer(digests, "<u8")


class _SeenHashes:
    """A set of uniform 64-bit hashes at 8 bytes each: sorted arrays, each at most half of the one before.

    With a limit only the smallest hashes, 1 to 1.25 times so many, are remembered: those below `ceiling`, all
    of them; how densely they lie gives the number of all (k minimum values, Bar-Yossef et al. 2002).
    """

    def __init__(self, limit: int | None):
        self.limit = limit
        self.ceiling: np.uint64 | None = None
        self._levels: list[np.ndarray] = []

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Remembers keys below the ceiling; returns which were new, bool [B], at their first place only."""
        unique, first = np.unique(keys, return_index=True)
        new = np.ones(len(unique), bool) if self.ceiling is None else unique < self.ceiling
        for level in self._levels:
            places = np.searchsorted(level, unique).clip(max=len(level) - 1)
            new &= level[places] != unique
        is_new = np.zeros(len(keys), bool)
        is_new[first[new]] = True
        self._remember(unique[new])
        return is_new

    def distinct(self) -> int:
        """Returns how many different keys were added."""
        stored = sum(map(len, self._levels))
        return stored if self.ceiling is None else round(stored * 2.0**64 / float(self.ceiling))

    def _remember(self, keys: np.ndarray) -> None:
        if len(keys):
            self._levels.append(keys)
        full = self.limit is not None and sum(map(len, self._levels)) > self.limit * 1.25
        while len(self._levels) > 1 and (full or len(self._levels[-2]) < 2 * len(self._levels[-1])):
            merged = np.concatenate([self._levels.pop(-2), self._levels.pop()])
            merged.sort(kind="stable")  # recognises the two sorted halves
            self._levels.append(merged)
        if full:
            self.ceiling = self._levels[0][self.limit]
            self._levels = [self._levels[0][: self.limit].copy()]


def _draw(chunks: Iterator[_Chunk], count: int, report: CorpusReport) -> Iterator[_Chunk]:
    """Draws the sentences with the smallest hashes, which is a uniform draw whatever the order of reading."""
    keys, sentences = np.empty(0, np.uint64), []
    waiting: list[np.ndarray] = []
    ceiling = np.iinfo(np.uint64).max
    for new_keys, new_sentences in chunks:
        rows = np.flatnonzero(new_keys <= ceiling)
        if len(rows):
            waiting.append(new_keys[rows])
            sentences += [new_sentences[row] for row in rows]
        if len(sentences) > count + max(count // 4, _ROWS):
            keys, sentences = _smallest(np.concatenate([keys, *waiting]), sentences, count)
            waiting, ceiling = [], keys[-1]
    if len(sentences) < count:
        raise UserError(
            f"corpus.sentences asks for {count:,} but corpus.source has {len(sentences):,} usable sentences"
            f" ({report.summary()}); ask for fewer or add text"
        )
    keys, sentences = _smallest(np.concatenate([keys, *waiting]), sentences, count)
    for start in range(0, count, _ROWS):
        yield keys[start : start + _ROWS], sentences[start : start + _ROWS]


def _smallest(keys: np.ndarray, sentences: list[str], count: int) -> _Chunk:
    order = np.argsort(keys)[:count]
    return keys[order], [sentences[row] for row in order]


# Where sentences come from ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A file, a hub dataset or the bundled corpus; `blocks()` reads it, never yielding an empty block."""

    name: str
    blocks: Callable[[], Iterator[_Block]]
    identity: Callable[[], dict[str, Any]]


_DIGEST_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class _File:
    name: str
    """As shown to the user: no credentials, no query."""
    filesystem: pafs.FileSystem
    path: str
    size: int
    mtime_ns: int | None

    def identity(self) -> dict[str, Any]:
        """The content where that is quick to read, so that a copy elsewhere is the same corpus."""
        known = {"file": self.path.rpartition("/")[2], "size": self.size}
        if self.size > _DIGEST_BYTES:
            return {**known, "mtime_ns": self.mtime_ns}
        digest = blake2b(digest_size=8)
        with readable(self.name), self.filesystem.open_input_stream(self.path, compression=None) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return {**known, "digest": digest.hexdigest()}


def _names(sources: list[_Source]) -> str:
    more = f" and {len(sources) - 3:,} more" if len(sources) > 3 else ""
    return ", ".join(source.name for source in sources[:3]) + more


def _find_sources(config: CorpusConfig) -> list[_Source]:
    items = [config.source] if isinstance(config.source, str) else config.source
    if not items or "" in items:
        raise UserError(f"corpus.source is empty; name a file, a directory, a hub dataset or {BUNDLED}")
    found = [source for item in items for source in _resolve(item, config)]
    return list({source.name: source for source in found}.values())


def _resolve(item: str, config: CorpusConfig) -> list[_Source]:
    if item.startswith("bundled:"):
        return [_bundled_source(item)]
    files = _find_files(item)
    if files:
        readers = [partial(_READERS[ending(file.path)], file, config.column) for file in files]
        return [_Source(file.name, reader, file.identity) for file, reader in zip(files, readers)]
    if is_hub_id(item):
        identity = partial(dict, hub=item, name=config.name, split=config.split)
        return [_Source(item, partial(_read_hub, item, config), identity)]
    raise UserError(f"corpus.source: nothing is at {public(item)}; name an existing file, directory or pattern")


def _find_files(item: str) -> list[_File]:
    """Returns the corpus files that a path, directory, pattern or URI stands for, sorted; [] for none."""
    with readable(f"corpus.source: {public(item)}"):
        filesystem, path, scheme = _locate(item)
        info = filesystem.get_file_info(path)
        if info.type == pafs.FileType.Directory:
            infos = _list(filesystem, path, ["**"])
        elif info.type == pafs.FileType.NotFound:
            infos = _list_pattern(filesystem, path)
        else:
            infos = [info]
    known = sorted((info for info in infos if ending(info.path) in _READERS), key=lambda info: info.path)
    if not known and (infos or info.type == pafs.FileType.Directory):
        raise UserError(
            f"corpus.source: {public(item)} is no corpus file and holds none; the endings known are"
            f" {', '.join(_READERS)}, and .gz after those of text"
        )
    return [_File(scheme + i.path, filesystem, i.path, i.size, i.mtime_ns) for i in known]


def _locate(item: str) -> tuple[pafs.FileSystem, str, str]:
    """Returns file system, path in it, and the prefix that makes paths into names."""
    scheme, separator, _ = item.partition("://")
    if not separator:
        return pafs.LocalFileSystem(), os.path.expanduser(item).rstrip("/") or "/", ""
    filesystem, path = pafs.FileSystem.from_uri(item)
    return filesystem, path.rstrip("/") or "/", f"{scheme}://"


def _list_pattern(filesystem: pafs.FileSystem, path: str) -> list[pafs.FileInfo]:
    parts = path.split("/")
    wild = [index for index, part in enumerate(parts) if re.search(r"[*?[]", part)]
    if not wild:
        return []
    root = "/".join(parts[: wild[0]]) or ("/" if path.startswith("/") else ".")
    return _list(filesystem, root, parts[wild[0] :])


def _list(filesystem: pafs.FileSystem, root: str, patterns: list[str]) -> list[pafs.FileInfo]:
    """Returns the files below a directory whose path from there matches, hidden ones left out."""
    deep = len(patterns) > 1 or "**" in patterns
    infos = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=deep))
    found = []
    for info in infos:
        parts = info.path.removeprefix(root).strip("/").split("/")
        hidden = any(part.startswith(".") for part in parts)
        if info.type == pafs.FileType.File and not hidden and _matches(parts, patterns):
            found.append(info)
    return found


def _matches(parts: list[str], patterns: list[str]) -> bool:
    """Compares path components with patterns, where `**` stands for any number of components."""
    if not patterns or not parts:
        return not parts and all(pattern == "**" for pattern in patterns)
    if patterns[0] == "**":
        return _matches(parts, patterns[1:]) or _matches(parts[1:], patterns)
    return fnmatchcase(parts[0], patterns[0]) and _matches(parts[1:], patterns[1:])


# Readers: one generator of blocks per format ----------------------------------------------------------------


def _read_text(file: _File, column: str | None) -> Iterator[_Block]:
    del column  # a line is a sentence
    for _, lines in _line_blocks(file):
        yield lines


def _read_jsonl(file: _File, column: str | None) -> Iterator[_Block]:
    field = None
    for first, lines in _line_blocks(file):
        values = []
        for number, line in enumerate(lines, first):
            record = json_record(line, f"{file.name}, line {number}") if line.strip() else None
            if record is not None:
                field = field or _choose_column(column, record, f"{file.name}, line {number}")
                if field not in record:
                    raise UserError(f"{file.name}, line {number}: no field {field!r} among {_listed(record)}")
            values.append(None if record is None else record[field])
        yield _checked(values, file.name, first, "line")


def _read_delimited(file: _File, column: str | None, **dialect: Any) -> Iterator[_Block]:
    lines = (line + "\n" for _, block in _line_blocks(file) for line in block)

    def choose(header: list[str]) -> list[int]:
        return [header.index(_choose_column(column, header, file.name))]

    texts = (cells and cells[0] for _, cells in delimited_cells(lines, file.name, choose, **dialect))
    while block := list(islice(texts, _ROWS)):
        yield block


def _read_parquet(file: _File, column: str | None) -> Iterator[_Block]:
    with readable(file.name), file.filesystem.open_input_file(file.path) as raw:
        table = pq.ParquetFile(raw)
        field = _choose_column(column, table.schema_arrow.names, file.name)
        first = 1
        for batch in table.iter_batches(_ROWS, columns=[field]):
            try:
                values = plain_values(batch.column(0), f"{file.name}, column {field!r}")
            except UnicodeDecodeError:
                last = first + len(batch) - 1
                raise UserError(f"{file.name}, rows {first:,} to {last:,}: a value is not valid UTF-8") from None
            yield _checked(values, file.name, first, "row")
            first += len(batch)


def _read_hub(path: str, config: CorpusConfig) -> Iterator[_Block]:
    try:
        import datasets  # heavy, and needed by this kind of source only

        stream = datasets.load_dataset(path, name=config.name, split=config.split, streaming=True)
        first = 1
        for batch in stream.iter(_ROWS):
            values = batch[_choose_column(config.column, batch, path)]
            yield _checked(values, path, first, "row")
            first += len(values)
    except UserError:
        raise
    except Exception as error:  # the hub's libraries raise a dozen unrelated kinds
        raise UserError(
            f"corpus.source: {path!r} is no file here, and as a hub dataset (corpus.split {config.split!r},"
            f" corpus.name {config.name!r}) it cannot be read: {first_line(error)}"
        ) from None


def _bundled_source(item: str) -> _Source:
    if item != BUNDLED:
        raise UserError(f"corpus.source: {item} is unknown, the bundled corpus is {BUNDLED}")

    def blocks() -> Iterator[_Block]:
        from raysed import bundled

        sentences = iter(bundled.corpus())
        while block := list(islice(sentences, _ROWS)):
            yield block

    def identity() -> dict[str, Any]:
        digest = blake2b(digest_size=8)
        for block in blocks():
            digest.update("\n".join([*block, ""]).encode())
        return {"bundled": item, "digest": digest.hexdigest()}

    return _Source(item, blocks, identity)


_READERS: dict[str, Callable[[_File, str | None], Iterator[_Block]]] = {
    ".txt": _read_text,
    ".jsonl": _read_jsonl,
    ".csv": _read_delimited,
    # Tab-separated text has no quoting: a quotation mark is part of the sentence.
    ".tsv": partial(_read_delimited, delimiter="\t", quoting=csv.QUOTE_NONE),
    ".parquet": _read_parquet,
}


def _line_blocks(file: _File) -> Iterator[tuple[int, list[str]]]:
    r"""Yields the number of the first line (from 1) and some lines; only \n ends a line."""
    number, rest = 1, b""
    opened = partial(file.filesystem.open_input_stream, file.path, buffer_size=_BUFFER_BYTES)
    with readable(file.name), opened() as stream:
        while data := stream.read(_BLOCK_BYTES):
            head, newline, rest = (rest + data).rpartition(b"\n")
            if newline:
                lines = _decode(head, file.name, number)
                yield number, lines
                number += len(lines)
            elif len(rest) > _LINE_BYTES:
                raise UserError(
                    f"{file.name}, line {number} is longer than {_LINE_BYTES >> 20} MiB;"
                    " put one sentence or record on a line"
                )
    if rest:
        yield number, _decode(rest, file.name, number)


def _decode(data: bytes, name: str, number: int) -> list[str]:
    if number == 1:
        data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = number + data.count(b"\n", 0, error.start)
        byte = data[error.start]
        raise UserError(f"{name}, line {line}: not valid UTF-8 (byte 0x{byte:02x}); save the file as UTF-8") from None


def _choose_column(wanted: str | None, found: Iterable[str], where: str) -> str:
    found = list(found)
    column = wanted or next((name for name in COLUMNS if name in found), None)
    if column in found:
        return column
    if wanted:
        raise UserError(f"corpus.column: {where} has no column {wanted!r}, only {_listed(found)}")
    raise UserError(f"corpus.column: {where} has no column 'sentence' or 'text'; set it to one of {_listed(found)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _checked(values: list[Any], name: str, first: int, unit: str) -> _Block:
    """Refuses what is neither null nor a string that can be written as UTF-8."""
    for number, value in enumerate(values, first):
        if value is not None and not isinstance(value, str):
            kind = type(value).__name__
            raise UserError(f"corpus.column: {name}, {unit} {number} holds a {kind} where text is needed")
        if value and not is_text(value):
            raise UserError(f"{name}, {unit} {number}: {NO_TEXT}")
    return values

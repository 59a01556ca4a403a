"""Python objects as sources, written to Parquet files."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.data.sources import ENDINGS, ending
from raysed.errors import UserError, first_line
from raysed.store.files import sha256_of
from raysed.uris import half_character_in

_ROWS = 10_000
_SOURCE = re.compile(r"bundled:\S+|[!-~]*[/*][!-~]*")
"""A path, pattern, URI or dataset; hardly ever a sentence."""


def is_path(given: Any) -> bool:
    """Return whether `given` names a source."""
    return isinstance(given, str | PathLike)


def are_sources(items: Sequence[Any]) -> bool:
    """Return whether the first `items` are paths, of which at least half look like paths or exist."""
    first = items[:_ROWS]
    return bool(first) and all(map(is_path, first)) and 2 * sum(map(_names_source, first)) >= len(first)


def is_row(item: Any) -> bool:
    """Return whether `item` is a row of a task."""
    return isinstance(item, Mapping) or (
        isinstance(item, list | tuple) and len(item) in (2, 3) and all(isinstance(p, str | Real | None) for p in item)
    )


def source_of(given: Any, place: str, setting: str, is_text: bool = False) -> list[str]:
    """Return the paths to read `given` from, after writing objects to a file.

    `given` is a path; paths, of which at least half look like paths or exist; a `datasets.Dataset` or data frame; or
    rows: sentences, mappings by column, (text, label), or two sentences and their score. The file has the name of
    `place`, in a directory beside it that is named by the content, so other rows do not overwrite it.
    `is_text` allows sentences and mappings only: a corpus has no place for the rest of a tuple.
    UserError if `given` is none of these, or an object while `place` is a URI.
    """
    if is_path(given):
        return [fspath(given)]
    if isinstance(given, Mapping):
        raise UserError(f"it is a mapping; pass a part, such as d[{next(iter(given), 0)!r}], or a data frame", setting)
    is_table = hasattr(given, "to_parquet")
    if isinstance(given, bytes) or not (is_table or isinstance(given, Iterable)):
        raise UserError(f"{given!r} is neither a path nor rows", setting=setting)
    # A set has another order in each process.
    items = iter(()) if is_table else iter(sorted(given, key=repr) if isinstance(given, set | frozenset) else given)
    first = list(islice(items, _ROWS))
    if are_sources(first):
        return [str(fspath(item)) for item in chain(first, items)]
    if "://" in place:
        raise UserError("storage is a URI, so this must be a path or URI that all nodes can read", setting=setting)
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as directory:
        new = Path(directory, path.name)
        try:
            given.to_parquet(new) if is_table else _write(chain(first, items), new, setting, is_text)
        except UnicodeEncodeError as error:
            raise UserError(f"{error.object[:60]!r}: {half_character_in(error.object)}", setting=setting) from None
        except pa.ArrowException as error:
            raise UserError(f"rows are not alike: {first_line(error)}", setting=setting) from None
        digest = sha256_of(new)
        kept = path.parent / digest[:16] / path.name
        # An unchanged file keeps its time, which identifies large files; one that was replaced or cut is written again.
        if not kept.is_file() or sha256_of(kept) != digest:
            kept.parent.mkdir(exist_ok=True)
            new.replace(kept)
    return [str(kept)]


def _names_source(item: Any) -> bool:
    if isinstance(item, PathLike) or ending(item) in ENDINGS:
        return True
    return bool(_SOURCE.fullmatch(item)) or os.path.exists(item)


def _write(items: Iterator[Any], path: Path, setting: str, is_text: bool) -> None:
    others = (_row(item, place, setting, is_text) for place, item in enumerate(items))
    if (first := next(others, None)) is None:
        raise UserError("it is empty; pass at least one row", setting=setting)
    rows = chain([first], others)
    writer = None
    try:
        while block := list(islice(rows, _ROWS)):
            if other := next((row for row in block if not row.keys() <= first.keys()), None):
                raise UserError(f"rows have {', '.join(first)}, but one has {', '.join(other)}", setting=setting)
            table = pa.Table.from_pylist(block, writer and writer.schema)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    finally:
        if writer:
            writer.close()


def _row(item: Any, place: int, setting: str, is_text: bool) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, str):
        return {"sentence": item}
    if isinstance(item, list | tuple) and not is_text:
        texts = [part for part in item if isinstance(part, str)]
        numbers = [float(part) for part in item if isinstance(part, Real)]
        if len(item) == 3 and len(texts) == 2 and len(numbers) == 1:
            return {"score": numbers[0], "sentence1": texts[0], "sentence2": texts[1]}
        text, label = (item[0], item[-1]) if len(item) == 2 else (None, None)
        if isinstance(text, str) and (isinstance(label, str | bytes) or not isinstance(label, Collection)):
            return {"text": text, "label": None if label is None or label != label else str(label)}
    known = "a sentence, or a mapping by column"
    known = known if is_text else "a sentence, a mapping by column, (text, label), or two sentences and their score"
    raise UserError(f"item {place} is {str(item)[:60]!r}; each must be {known}", setting=setting)

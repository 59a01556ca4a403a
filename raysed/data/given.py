"""Python objects as sources, written to Parquet files."""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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


def is_table(given: Any) -> bool:
    """Return whether `given` streams Arrow's format (data frames, series, relations), or is a dataset."""
    return hasattr(given, "__arrow_c_stream__") or _is_dataset(given)


def is_row(item: Any) -> bool:
    """Return whether `item` is a row of a task."""
    return isinstance(item, Mapping) or (
        isinstance(item, list | tuple) and len(item) in (2, 3) and all(isinstance(p, str | Real | None) for p in item)
    )


def source_of(given: Any, place: str, setting: str, column: str | None = None) -> list[str]:
    """Return the paths to read `given` from, after writing objects to a file.

    `given` is a path; paths, of which at least half look like paths or exist; what streams Arrow's format
    (`__arrow_c_stream__`), such as a data frame; a `datasets.Dataset`; or rows: sentences, also as a series,
    mappings by column, (text, label), or two sentences and their score. The file has the name of `place`, in a
    directory beside it that is named by the content, so other rows do not overwrite it.
    `column` is the one for texts in a corpus or in queries; these have no place for the rest of a tuple.
    UserError if `given` is none of these, or an object while `place` is a URI.
    """
    if is_path(given):
        return [fspath(given)]
    if isinstance(given, Mapping):
        raise UserError(f"it is a mapping; pass a part, such as d[{next(iter(given), 0)!r}], or a data frame", setting)
    if isinstance(given, bytes) or not (is_table(given) or isinstance(given, Iterable)):
        if hasattr(given, "collect"):
            raise UserError(f"a {type(given).__name__} has no rows yet; pass the result of its .collect()", setting)
        raise UserError(f"{given!r} is neither a path nor rows", setting=setting)
    with _readable(setting):
        tables, items = _opened(given)
    first = list(islice(items, _ROWS))
    if are_sources(first):
        return [str(fspath(item)) for item in chain(first, items)]
    if "://" in place:
        raise UserError("storage is a URI, so this must be a path or URI that all nodes can read", setting=setting)
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as directory:
        new = Path(directory, path.name)
        with _readable(setting):
            if _is_dataset(given):
                given.to_parquet(new)  # with the names of its classes
            else:
                _write(tables or _tables(chain(first, items), setting, column), new, setting)
        digest = sha256_of(new)
        kept = path.parent / digest[:16] / path.name
        # An unchanged file keeps its time, which identifies large files; one that was replaced or cut is written again.
        if not kept.is_file() or sha256_of(kept) != digest:
            kept.parent.mkdir(exist_ok=True)
            new.replace(kept)
    return [str(kept)]


def _is_dataset(given: Any) -> bool:
    return hasattr(given, "to_parquet") and not hasattr(given, "__arrow_c_stream__")


def _names_source(item: Any) -> bool:
    if isinstance(item, PathLike) or ending(item) in ENDINGS:
        return True
    return bool(_SOURCE.fullmatch(item)) or os.path.exists(item)


@contextmanager
def _readable(setting: str) -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError as error:
        raise UserError(f"{error.object[:60]!r}: {half_character_in(error.object)}", setting=setting) from None
    except pa.ArrowException as error:
        raise UserError(f"rows are not alike: {first_line(error)}", setting=setting) from None


def _opened(given: Any) -> tuple[Iterator[pa.Table] | None, Iterator[Any]]:
    """Return the tables that an object streams, or else its items; of a dataset, neither."""
    if hasattr(given, "__arrow_c_stream__"):
        try:
            reader = pa.RecordBatchReader.from_stream(given)
        except pa.ArrowInvalid:  # a series is a column, or a cell is unlike the others
            chunks = pa.chunked_array(given).chunks
            return None, chain.from_iterable(chunk.to_pylist() for chunk in chunks)
        return map(_plain, reader), iter(())
    if _is_dataset(given):
        return None, iter(())
    # A set has another order in each process.
    return None, iter(sorted(given, key=repr) if isinstance(given, set | frozenset) else given)


def _plain(batch: pa.RecordBatch) -> pa.Table:
    """Return a table without string views, which pyarrow cannot write everywhere."""

    def plain(column: pa.Array) -> pa.Array:
        if pa.types.is_dictionary(column.type):
            return pa.DictionaryArray.from_arrays(column.indices, plain(column.dictionary))
        return pa.array(column.to_pylist(), pa.large_string()) if column.type == pa.string_view() else column

    return pa.table(list(map(plain, batch.columns)), batch.schema.names, metadata=batch.schema.metadata)


def _tables(items: Iterator[Any], setting: str, column: str | None) -> Iterator[pa.Table]:
    rows, schema = (_row(item, place, setting, column) for place, item in enumerate(items)), None
    while block := list(islice(rows, _ROWS)):
        first = schema.names if schema else [*block[0]]
        if other := next((row for row in block if not row.keys() <= set(first)), None):
            raise UserError(f"rows have {', '.join(first)}, but one has {', '.join(other)}", setting=setting)
        table = pa.Table.from_pylist(block, schema)
        schema = table.schema
        yield table


def _write(tables: Iterator[pa.Table], path: Path, setting: str) -> None:
    tables = filter(len, tables)
    if (first := next(tables, None)) is None:
        raise UserError("it is empty; pass at least one row", setting=setting)
    with pq.ParquetWriter(path, first.schema) as writer:
        for table in chain([first], tables):
            writer.write_table(table)


def _row(item: Any, place: int, setting: str, column: str | None) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, str):
        return {column or "sentence": item}
    if isinstance(item, list | tuple) and column is None:
        texts = [part for part in item if isinstance(part, str)]
        numbers = [float(part) for part in item if isinstance(part, Real)]
        if len(item) == 3 and len(texts) == 2 and len(numbers) == 1:
            return {"score": numbers[0], "sentence1": texts[0], "sentence2": texts[1]}
        text, label = (item[0], item[-1]) if len(item) == 2 else (None, None)
        if isinstance(text, str) and (isinstance(label, str | bytes) or not isinstance(label, Collection)):
            return {"text": text, "label": None if label is None or label != label else str(label)}
    known = "a sentence, or a mapping by column"
    known = known if column else "a sentence, a mapping by column, (text, label), or two sentences and their score"
    raise UserError(f"item {place} is {str(item)[:60]!r}; each must be {known}", setting=setting)

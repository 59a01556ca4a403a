"""Python objects as sources: they become Parquet files, which a run reads like any others."""

import filecmp
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.errors import UserError, first_line
from raysed.uris import half_character_in

_ROWS = 10_000


def is_path(given: Any) -> bool:
    """Return whether `given` names a source instead of being one."""
    return isinstance(given, str | PathLike)


def is_row(item: Any) -> bool:
    """Return whether `item` is a row of a task instead of a task."""
    return isinstance(item, Mapping) or (
        isinstance(item, list | tuple) and len(item) in (2, 3) and all(isinstance(part, str | Real) for part in item)
    )


def source_of(given: Any, place: str, setting: str) -> list[str]:
    """Return the paths to read `given` from; objects are first written to the Parquet file `place`.

    `given` is a path; a list of paths, each a `Path` or an existing file's name; a `datasets.Dataset` or data frame; or
    rows: sentences, mappings by column, (text, label), or two sentences and their score. UserError if it is none of
    these, or an object while `place` is a URI.
    """
    if is_path(given):
        return [fspath(given)]
    if isinstance(given, list | tuple) and given and all(map(_is_file, given)):
        return [fspath(item) for item in given]
    if "://" in place:
        raise UserError(
            "storage is a URI, so this must also be a path or URI, one that all nodes can read", setting=setting
        )
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    if hasattr(given, "to_parquet"):
        try:
            given.to_parquet(new)
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise UserError(f"it cannot be written as a table: {first_line(error)}", setting=setting) from None
    elif isinstance(given, Iterable):
        _write(iter(given), new, setting)
    else:
        raise UserError(f"{given!r} is neither a path nor rows", setting=setting)
    if path.exists() and filecmp.cmp(new, path, shallow=False):
        new.unlink()  # an unchanged file keeps its time, which identifies large files
    else:
        new.replace(path)
    return [str(path)]


def _is_file(item: Any) -> bool:
    return isinstance(item, PathLike) or (isinstance(item, str) and len(item) < 256 and Path(item).is_file())


def _write(items: Iterator[Any], path: Path, setting: str) -> None:
    others = (_row(item, place, setting) for place, item in enumerate(items))
    if (first := next(others, None)) is None:
        raise UserError("nothing was given", setting=setting)
    rows = chain([first], others)
    writer = None
    try:
        while block := list(islice(rows, _ROWS)):
            if other := next((row for row in block if not row.keys() <= first.keys()), None):
                raise UserError(f"rows have {', '.join(first)}, but one has {', '.join(other)}", setting=setting)
            table = pa.Table.from_pylist(block, writer and writer.schema)
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
    except pa.ArrowException as error:
        raise UserError(f"rows are not alike: {error}", setting=setting) from None
    except UnicodeEncodeError as error:
        raise UserError(f"{error.object[:60]!r}: {half_character_in(error.object)}", setting=setting) from None
    finally:
        if writer:
            writer.close()


def _row(item: Any, place: int, setting: str) -> dict[str, Any]:
    """Return a row by column, under the names that readers know."""
    if isinstance(item, Mapping):
        return dict(item)
    if isinstance(item, str):
        return {"sentence": item}
    if isinstance(item, list | tuple):
        texts = [part for part in item if isinstance(part, str)]
        numbers = [float(part) for part in item if isinstance(part, Real)]
        if len(item) == 3 and len(texts) == 2 and len(numbers) == 1:
            return {"score": numbers[0], "sentence1": texts[0], "sentence2": texts[1]}
        if len(item) == 2 and isinstance(item[0], str):
            return {"text": item[0], "label": str(item[1])}
    known = "a sentence, a mapping by column, (text, label), or two sentences and their score"
    raise UserError(f"item {place} is {str(item)[:60]!r}; each must be {known}", setting=setting)

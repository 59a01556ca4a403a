"""Where text comes from, as settings name it: files by their ending, and ids of hub datasets."""

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from raysed.errors import UserError, first_line, public

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HALF_SURROGATE = re.compile("[\ud800-\udfff]")
NO_TEXT = "half a surrogate pair (\\ud800 to \\udfff) is no text"
"""What to say of a string that is no text, see `is_text`."""
_FILE_ENDING = re.compile(r"\.[A-Za-z][A-Za-z0-9]*$")


def is_hub_id(item: str) -> bool:
    """Whether a setting that names no file may be the id of a hub dataset.

    >>> is_hub_id("stanfordnlp/snli"), is_hub_id("data/pairs.tsv")
    (True, False)
    """
    return bool(_HUB_ID.fullmatch(item)) and not _FILE_ENDING.search(item)


def ending(path: str) -> str:
    """Returns the ending that tells the format.

    >>> ending("a.txt"), ending("A.TSV.gz")
    ('.txt', '.tsv')
    """
    stem, last = os.path.splitext(path.lower())
    inner = os.path.splitext(stem)[1]
    return inner if last == ".gz" and inner != ".parquet" else last


def json_record(line: str, where: str) -> dict[str, Any]:
    """Returns the record that stands on a line of a JSONL file; `where` names file and line.

    >>> json_record('{"sentence": "It rains."}', "a.jsonl, line 1")
    {'sentence': 'It rains.'}

    Raises:
        UserError: broken JSON, or no object.
    """
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: an object {{...}} is needed, not a {type(record).__name__}")
    return record


def delimited_cells(
    lines: Iterable[str], name: str, choose: Callable[[list[str]], Sequence[int]], **dialect: Any
) -> Iterator[tuple[int, list[str] | None]]:
    r"""Reads delimited text with a header; `name` says of which file.

    Args:
        lines: with their ends.
        name: for messages.
        choose: returns the places of the wanted columns in a header.
        dialect: as for `csv.reader`.

    Yields:
        the line (from 1) on which a row begins, and its cells at these places; None for a blank line.

    >>> list(delimited_cells(['a,b\n', '1,"It\n', 'rains."\n'], "a.csv", lambda header: [header.index("b")]))
    [(2, ['It\nrains.'])]

    Raises:
        UserError: a row with too few or too many fields, or a quotation mark that is not closed.
    """
    header, places, start = None, [], 1
    rows = csv.reader(lines, strict=True, **dialect)
    try:
        for row in rows:
            if header is None and row:
                header, places = row, choose(row)
            elif header is not None and row and not max(places) < len(row) <= len(header):
                raise UserError(
                    f"{name}, line {start}: {len(row)} fields where the header has {len(header)};"
                    " quote fields that hold the delimiter (.csv) or take it out (.tsv)"
                )
            elif header is not None:
                yield start, [row[place] for place in places] if row else None
            start = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{name}, line {start}: {error}; is a quotation mark not closed or not doubled?") from None


def plain_values(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """Returns the values of a column of a file; `name` says which.

    Values of Arrow's extension types are made by the extension's own code, and that of Ray's pickled objects does
    whatever the file says; so they are refused.

    >>> plain_values(pa.array(["It rains.", None]), "a.parquet, column 'text'")
    ['It rains.', None]

    Raises:
        UserError: the column has such a type.
    """
    if _is_extension(column.type):
        raise UserError(
            f"{name} has the type {column.type}, which brings its own code; save it as plain text or numbers"
        )
    return column.to_pylist()


def _is_extension(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if pa.types.is_dictionary(kind):
        return _is_extension(kind.value_type)
    return any(_is_extension(kind.field(index).type) for index in range(kind.num_fields))


def is_text(value: str) -> bool:
    r"""Whether a string can be written as UTF-8.

    >>> is_text("Döner"), is_text("\ud800")
    (True, False)
    """
    return value.isascii() or not _HALF_SURROGATE.search(value)


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turns failures of the file system, of decompression and of decoding into a sentence about the file."""
    try:
        yield
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"{name} cannot be read: {public(first_line(error))}") from None

"""Parquet tables; columns whose values could run code are refused before a value is read.

Ray Data registers a type whose values pyarrow unpickles when they become Python objects. A table may come from someone
else, or lie where others can write.
"""

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysed.config import Role
from raysed.errors import UserError
from raysed.store.files import visible

ROLE = pa.field("role", pa.string())
"""Column of a table with queries: `document` or `query`. Documents come first."""
TEXTS = pa.field("texts", pa.list_(pa.list_(pa.int32())))
"""Column of a table with translations: tokens of the sentence and of each translation, or the sentence's again."""

ROWS_PER_GROUP = 4096
"""Rows per row group, which learners read as a whole."""
_BUFFER_BYTES = 1 << 20
"""Read size per column; pyarrow would otherwise buffer a whole row group, perhaps the whole file."""
_ARROW_TYPES = b"ARROW:schema"
"""Key of a Parquet file's footer."""


def roles_in(table: pa.Table) -> list[Role]:
    """Return each row's role; in a table without queries, none."""
    return table.column(ROLE.name).to_pylist() if ROLE.name in table.column_names else [""] * len(table)


def open_table(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; UserError if any column could run code."""
    file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    refuse_code(file.schema_arrow, str(path))
    return file


def open_storage(path: Path) -> pq.ParquetFile:
    """Open a Parquet file by its stored types alone, so that no registered type makes its values: a tensor is a list.

    Writers keep Arrow's types in the footer, under a key that this process's copy of the footer lacks.
    """
    with open(path, "rb") as file:
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    while (place := content.find(_ARROW_TYPES, max(footer, 0))) >= 0:
        content[place : place + len(_ARROW_TYPES)] = b"-" * len(_ARROW_TYPES)
    return pq.ParquetFile(pa.BufferReader(content), buffer_size=_BUFFER_BYTES, pre_buffer=False)


@dataclass(frozen=True)
class BlockFiles:
    """A table in blocks of `size` rows; the last may be shorter.

    Attributes:
        directory: small files about the whole table, such as its mean; None until they exist.
        files: functions that lend the blocks, in order.
        facts: returns the blocks' records, in order.
        size: a divisor of `ROWS_PER_GROUP`.
        rows: of the whole table.
    """

    directory: Path | None
    files: Sequence[Callable[[], AbstractContextManager[Path]]]
    facts: Callable[[], Sequence[Mapping[str, Any]]]
    size: int
    rows: int

    @property
    def shape(self) -> dict[str, int]:
        """The table's entry in a manifest."""
        return {"blocks": len(self.files), "size": self.size, "rows": self.rows}

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the whole blocks that contain these rows."""
        wanted = self.files[start // self.size : -(-stop // self.size)]
        names, tables = None if columns is None else list(columns), []
        for lent in wanted:
            with lent() as path:
                tables.append(open_table(path).read(names))
        return pa.concat_tables(tables)


Source = Path | BlockFiles
"""A table: the directory of its Parquet files, or its blocks."""


def directory_of(source: Source) -> Path:
    """Return where small files about a table are."""
    return source.directory if isinstance(source, BlockFiles) else source


class SentenceTable:
    """A sentence or target table by position, on demand.

    Row groups are those of a directory's Parquet files in the order of names, or `ROWS_PER_GROUP` rows of blocks.

    Attributes:
        sizes: rows of each row group, int64 [G].
    """

    def __init__(self, source: Source):
        if isinstance(source, BlockFiles):
            starts = range(0, source.rows, ROWS_PER_GROUP)
            sizes = [min(ROWS_PER_GROUP, source.rows - start) for start in starts]
            self._readers = [partial(source.read, start, start + rows) for start, rows in zip(starts, sizes)]
        else:
            files = [open_table(path) for path in visible(source, "*.parquet")]
            places = [(file, index) for file in files for index in range(file.metadata.num_row_groups)]
            sizes = [file.metadata.row_group(index).num_rows for file, index in places]
            self._readers = [partial(file.read_row_group, index) for file, index in places]
        self.sizes = np.array(sizes, np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self.sizes)])
        self._loaded: dict[tuple[int, tuple[str, ...]], pa.Table] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def row_group(self, group: int, columns: Sequence[str]) -> pa.Table:
        return self._readers[group](columns=list(columns))

    def column(self, name: str) -> np.ndarray | None:
        """Return a whole column of numbers or texts, or None."""
        parts = [read(columns=[name]) for read in self._readers]
        if name not in parts[0].column_names:
            return None
        return np.concatenate([part[name].to_numpy() for part in parts])

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> pa.Table:
        """Return some rows; keep their row groups in memory for the next call."""
        groups = np.flatnonzero((self._starts[:-1] < stop) & (self._starts[1:] > start))
        wanted = [(int(group), tuple(columns)) for group in groups]
        self._loaded = {key: self._loaded[key] if key in self._loaded else self.row_group(*key) for key in wanted}
        return pa.concat_tables(self._loaded.values()).slice(start - self._starts[groups[0]], stop - start)


def refuse_code(schema: pa.Schema, where: str, columns: Iterable[str] | None = None) -> None:
    """Refuse columns (default: all) of Arrow extension types, whose own code makes values (Ray: pickles)."""
    for name in schema.names if columns is None else columns:
        for index in schema.get_all_field_indices(name):
            kind = schema.field(index).type
            if _is_extension(kind):
                problem = f"column {name!r} has the type {kind}, which can run code; save it as plain text or numbers"
                raise UserError(f"{where}, {problem}")


def _is_extension(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_extension(kind.value_type)
    fields = (kind.field(index).type for index in range(kind.num_fields))
    return isinstance(kind, pa.BaseExtensionType) or any(map(_is_extension, fields))


def with_column(table: pa.Table, name: str, matrix_BD: np.ndarray) -> pa.Table:
    """Add or replace a column of fixed-size lists."""
    kept = table.drop_columns([name]) if name in table.column_names else table
    lists = pa.FixedSizeListArray.from_arrays(pa.array(matrix_BD.reshape(-1)), matrix_BD.shape[1])
    return kept.append_column(name, lists)


def matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of fixed-size lists as a writable float32 [B, D]."""
    return list_rows(column).astype(np.float32)


def list_rows(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of fixed-size lists as a matrix, in its stored precision."""
    return pc.list_flatten(column).to_numpy().reshape(len(column), column.type.list_size)

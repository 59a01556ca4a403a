"""Parquet tables: a column whose values could run code is refused before a value is read.

Importing Ray Data makes pyarrow unpickle objects of a type that it registers, as soon as their values become Python
objects; and tables may come from someone else, or lie where others can write.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysed.errors import UserError

_BUFFER_BYTES = 1 << 20
"""Read size per column; pyarrow would otherwise buffer a whole row group of it, which may be the whole file."""


def open_table(path: Path) -> pq.ParquetFile:
    """Open a Parquet file; UserError if any of its columns, wanted or not, could run code."""
    file = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    refuse_code(file.schema_arrow, str(path))
    return file


class RowGroups:
    """Row groups of all Parquet files in a directory, in the order of names; `sizes` holds their rows, int64 [G]."""

    def __init__(self, directory: Path):
        files = [open_table(path) for path in sorted(directory.glob("*.parquet"))]
        self._places = [(file, index) for file in files for index in range(file.metadata.num_row_groups)]
        sizes = [file.metadata.row_group(index).num_rows for file, index in self._places]
        self.sizes = np.array(sizes, np.int64)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a group."""
        file, index = self._places[group]
        return file.read_row_group(index, columns=list(columns))


class SentenceTable:
    """Rows of the artefact `corpus` or of a target table by position, without all of them in memory."""

    def __init__(self, directory: Path):
        self._groups = RowGroups(directory)
        self._starts = np.concatenate([[0], np.cumsum(self._groups.sizes)])
        self._loaded: dict[tuple[int, tuple[str, ...]], pa.Table] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def column(self, name: str) -> np.ndarray | None:
        """Return a whole column of numbers; None if there is none of this name."""
        parts = [self._groups.read(group, [name]) for group in range(len(self._groups.sizes))]
        if name not in parts[0].column_names:
            return None
        return np.concatenate([part[name].to_numpy() for part in parts])

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> pa.Table:
        """Return some rows, counted from 0; the row groups they come from stay in memory for the next call."""
        groups = np.flatnonzero((self._starts[:-1] < stop) & (self._starts[1:] > start))
        wanted = [(int(group), tuple(columns)) for group in groups]
        self._loaded = {key: self._loaded[key] if key in self._loaded else self._groups.read(*key) for key in wanted}
        return pa.concat_tables(self._loaded.values()).slice(start - self._starts[groups[0]], stop - start)


def refuse_code(schema: pa.Schema, where: str, columns: Iterable[str] | None = None) -> None:
    """Refuse columns (default: all) of Arrow extension types: their own code makes the values (Ray: pickles)."""
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

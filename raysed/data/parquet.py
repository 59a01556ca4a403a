"""The one place that opens Parquet tables: a column whose values could run code is refused before a value is read.

Importing Ray Data makes pyarrow know a type for pickled objects, which are unpickled as soon as their values become
Python objects. So each table that may come from somebody else (a source, embeddings made elsewhere, an artefact of
this or another run on storage that others can write to) is checked by its schema.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysed.errors import UserError


def open_table(path: Path) -> pq.ParquetFile:
    """Open a Parquet file to be read by row groups; raises as `refuse_code`."""
    file = pq.ParquetFile(path)
    refuse_code(file.schema_arrow, str(path))
    return file


def read_table(path: Path, columns: Sequence[str] | None = None, memory_map: bool = False) -> pa.Table:
    """Read a Parquet file, or all files of a directory in the order of their names.

    Args:
        columns: names of those wanted; any column, wanted or not, must not be able to run code. None: all.
        memory_map: whether the file stays on the disk until its values are read.
    """
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    for file in files:
        refuse_code(pq.read_schema(file), str(file))
    return pa.concat_tables([pq.read_table(file, columns=columns, memory_map=memory_map) for file in files])


class RowGroups:
    """The row groups of all files of a directory, in the order of their names.

    Attributes:
        sizes: rows of each group, int64 [G].
    """

    def __init__(self, directory: Path):
        files = [open_table(path) for path in sorted(directory.glob("*.parquet"))]
        self._places = [(file, index) for file in files for index in range(file.metadata.num_row_groups)]
        sizes = [file.metadata.row_group(index).num_rows for file, index in self._places]
        self.sizes = np.array(sizes, np.int64)

    def read(self, group: int, columns: Sequence[str]) -> pa.Table:
        """Return some columns of a group."""
        file, index = self._places[group]
        return file.read_row_group(index, columns=list(columns))


def refuse_code(schema: pa.Schema, where: str, columns: Iterable[str] | None = None) -> None:
    """Check that columns are of types whose values are made by pyarrow itself.

    Values of Arrow's extension types are made by the extension's own code; that of Ray's pickles does anything.

    Args:
        columns: names of those that will be read. None: all.

    Raises:
        UserError: names the column and its type.
    """
    for name in schema.names if columns is None else columns:
        for index in schema.get_all_field_indices(name):
            kind = schema.field(index).type
            if _is_extension(kind):
                what = f"column {name!r} has the type {kind}, which can run code"
                raise UserError(f"{where}, {what}; save it as plain text or numbers")


def _is_extension(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return True
    if pa.types.is_dictionary(kind):
        return _is_extension(kind.value_type)
    return any(_is_extension(kind.field(index).type) for index in range(kind.num_fields))

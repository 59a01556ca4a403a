"""Precomputed embeddings as a teacher. Memory holds 16 bytes per sentence; row groups are read on demand."""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysed.config import Role, stable_hash
from raysed.data.corpus import clean
from raysed.data.parquet import open_storage
from raysed.errors import UserError
from raysed.model.teacher import Teacher
from raysed.store.files import check_content, digest_of, visible

log = logging.getLogger(__name__)

_SENTENCE, _EMBEDDING = ("sentence", "text"), "embedding"
_CONFIG = "config.json"  # which the directory of a model has
_WIDTHS = "must have embeddings of the same width, with none missing"
_BATCH = 4096
"""Rows decoded at a time."""


class EmbeddingFile(Teacher):
    """A Parquet file with the columns `sentence` (or `text`) and `embedding`, or a directory of such files.

    Sentences match after `clean`. Files of a directory are read in the order of their names, such as Ray Data writes.
    """

    is_stored = True

    @classmethod
    def takes(cls, path: str) -> bool:
        directory = Path(os.path.expanduser(path))
        is_directory = os.path.isdir(directory) and not (directory / _CONFIG).exists()
        return path.endswith(".parquet") or (is_directory and bool(visible(directory, "*.parquet")))

    @cached_property
    def identity(self) -> str:
        digests = [digest_of(path) for path in self._paths]
        return (digests[0] if len(digests) == 1 else stable_hash(digests))[:16]

    @cached_property
    def width(self) -> int:
        """Size of the first row's vector; `check` compares it with all others."""
        for _, x_BD in self._vectors(range(len(self._groups))):
            return x_BD.shape[1]
        raise self._refused("has no rows")

    @cached_property
    def _paths(self) -> list[Path]:
        path = Path(os.path.expanduser(self.config.path))
        paths = visible(path, "*.parquet") if path.is_dir() else [path]
        if not paths or not all(each.is_file() for each in paths):
            raise self._refused("is neither a file nor a directory of .parquet files")
        for each in paths:
            check_content(each, "teachers")
        return paths

    def _open(self, path: Path) -> pq.ParquetFile:
        try:
            file = open_storage(path)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._refused(f"cannot be read as a Parquet file: {error}") from None
        types = {field.name: field.type for field in file.schema_arrow}
        names = [name for name in _SENTENCE if name in types]
        if not names or _EMBEDDING not in types:
            raise self._refused(f"needs the columns sentence (or text) and embedding; it has {', '.join(types)}")
        for name in (names[0], _EMBEDDING):
            if file.schema_arrow.names.count(name) > 1:
                raise self._refused(f"has more than one column {name}; rename all but one")
        text = types[names[0]]
        plain = text.value_type if pa.types.is_dictionary(text) else text
        if not (pa.types.is_string(plain) or pa.types.is_large_string(plain)):
            raise self._refused(f"needs text in its column {names[0]}, which has the type {text}")
        kind = types[_EMBEDDING]
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not is_list or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
            raise self._refused(f"must hold lists of numbers in its column embedding, which has the type {kind}")
        return file

    @cached_property
    def _groups(self) -> list[tuple[pq.ParquetFile, int, int]]:
        """The row groups of all files: file, number in it, and rows."""
        files = [self._open(path) for path in self._paths]
        groups = [(file, index) for file in files for index in range(file.num_row_groups)]
        return [(file, index, file.metadata.row_group(index).num_rows) for file, index in groups]

    def _batches(self, group: int, columns: Sequence[str]) -> Iterator[pa.Array]:
        """Yield the first of some columns that a row group has, in batches."""
        file, index, _ = self._groups[group]
        name = next(name for name in columns if name in file.schema_arrow.names)
        for batch in file.iter_batches(batch_size=_BATCH, row_groups=[index], columns=[name]):
            yield batch.column(0)

    @cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorted hashes of clean sentences, and their rows. Ten million clash with probability 3e-6."""
        batches = chain.from_iterable(self._batches(group, _SENTENCE) for group in range(len(self._groups)))
        parts = [_hashes(map(_key, batch.to_pylist())) for batch in batches]
        hashes_N = np.concatenate([np.empty(0, np.int64), *parts])
        rows_N = np.argsort(hashes_N, kind="stable")
        return hashes_N[rows_N], rows_N

    def _rows_of(self, sentences: Sequence[str]) -> np.ndarray:
        """Return each sentence's first row, or -1."""
        known_N, rows_N = self._index
        keys = _hashes(map(_key, sentences))
        places = np.minimum(np.searchsorted(known_N, keys), len(known_N) - 1)
        return np.where(known_N[places] == keys, rows_N[places], -1)

    def embed(self, sentences: Sequence[str], role: Role = "") -> np.ndarray:
        rows = self._rows_of(sentences)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            example = f"such as {sentences[missing[0]][:60]!r}"
            raise self._refused(f"has no embedding for {len(missing):,} of {len(sentences):,} sentences, {example}")
        x_ND = np.empty((len(sentences), self.width), np.float32)
        groups = np.unique(np.searchsorted(np.cumsum(self._group_sizes), rows, side="right"))
        for start, x_BD in self._vectors(groups.tolist()):
            here = (rows >= start) & (rows < start + len(x_BD))
            x_ND[here] = x_BD[rows[here] - start]
        return x_ND

    def knows(self, sentences: Sequence[str]) -> bool:
        return bool((self._rows_of(sentences) >= 0).all())

    def check(self) -> None:
        """Read the whole file: widths must be equal and numbers finite."""
        for start, x_BD in self._vectors(range(len(self._groups))):
            broken = np.flatnonzero(~np.isfinite(x_BD).all(1))
            if len(broken):
                raise self._refused(f"has an embedding that is not finite in row {start + broken[0] + 1}")
            if x_BD.shape[1] != self.width:
                raise self._refused(_WIDTHS)
        super().check()
        if repeated := len(self._index[0]) - len(np.unique(self._index[0])):
            log.info("%s: %d rows repeat an earlier sentence, whose vector counts", self.config.path, repeated)

    @cached_property
    def _group_sizes(self) -> list[int]:
        return [rows for *_, rows in self._groups]

    def _vectors(self, groups: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Yield each batch's first row number and vectors, float32 [B, D]."""
        for group in groups:
            start = sum(self._group_sizes[:group])
            for lists in self._batches(group, (_EMBEDDING,)):
                if not len(lists):
                    continue
                lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)  # NaN for null
                if (lengths != lengths[0]).any():
                    raise self._refused(_WIDTHS)
                with np.errstate(over="ignore"):
                    flat = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
                yield start, flat.reshape(len(lists), -1)
                start += len(lists)

    def _refused(self, problem: str) -> UserError:
        return UserError(f"teachers: {self.config.path} {problem}")


def _key(sentence: str | None) -> str:
    return clean((sentence or "").removeprefix("\ufeff"))


def _hashes(values: Iterable[str]) -> np.ndarray:
    return np.array([hash(value) for value in values], np.int64)

"""Tokenised sentence pairs: one table format for pairs with a class, with a score, and of two views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from raysed.data.pairs import PairRows
from raysed.data.parquet import open_table
from raysed.data.tokens import EpochBatches, LengthReport, PackedTokens, TokenTable, pack, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_AT_ONCE = 1 << 16
"""Sentences that are tokenised at once: Python's lists of tokens take ten times the memory of the table."""
_FILE = "part-00000.parquet"
_TEXT = ("sentence1", "sentence2")
_TOKENS = ("input_ids1", "input_ids2")


@dataclass(frozen=True)
class PairTable:
    """P tokenised pairs; the ids of both sides are the pairs'."""

    first: TokenTable
    second: TokenTable
    labels: np.ndarray | None = None
    """Class ids, int64 [P], or scores of 0 to 1, float64 [P]; None of views."""

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: np.ndarray) -> PairTable:
        """Return the pairs at `rows` (positions, not ids), in that order."""
        labels = None if self.labels is None else self.labels[rows]
        return PairTable(self.first.take(rows), self.second.take(rows), labels)

    @classmethod
    def concatenate(cls, tables: Sequence[PairTable]) -> PairTable:
        """Return the pairs of tables of views, one table after the other, with new ids 0..P-1 that are unique."""
        sides = [TokenTable.concatenate(side) for side in zip(*((table.first, table.second) for table in tables))]
        return cls(*(TokenTable(np.arange(len(side)), side.input_ids, side.offsets) for side in sides))


def write_pairs(
    rows: PairRows,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    directory: Path,
    report: LengthReport | None = None,
) -> None:
    """Tokenise P pairs into a Parquet file: id, both texts, the tokens of both, and the label where there is one.

    `report` counts 2 P sentences.
    """
    fields = [("id", pa.int64()), *((name, pa.string()) for name in _TEXT)]
    fields += [(name, pa.large_list(pa.int32())) for name in _TOKENS]
    if rows.labels is not None:
        fields.append(("label", pa.from_numpy_dtype(rows.labels.dtype)))
    schema = pa.schema(fields)
    with pq.ParquetWriter(Path(directory) / _FILE, schema) as writer:
        for start in range(0, len(rows), _AT_ONCE):
            group = slice(start, start + _AT_ONCE)
            sides = [rows.first[group], rows.second[group]]
            tokens = [tokenize(tokenizer, side, max_length, report=report).to_arrow() for side in sides]
            columns = [np.arange(start, start + len(sides[0])), *sides, *tokens]
            columns += [] if rows.labels is None else [rows.labels[group]]
            writer.write_table(pa.table(columns, schema=schema))


def read_pairs(directory: Path) -> PairTable:
    """Read what `write_pairs` wrote, without the text."""
    file = open_table(Path(directory) / _FILE)
    table = file.read([name for name in file.schema_arrow.names if name not in _TEXT])
    labels = table.column("label").to_numpy() if "label" in table.column_names else None
    return PairTable(*(TokenTable.from_arrow(table, name) for name in _TOKENS), labels)


class LabelledBatch(NamedTuple):
    """B pairs with their class ids, int64 [B], or scores, float [B].

    The tokens are those of 2 B sentences, the B first ones and then the B second ones: one forward is enough.
    """

    tokens: PackedTokens
    labels: torch.Tensor
    ids: np.ndarray


class PairBatches(EpochBatches):
    """Batches of a shuffled `PairTable`."""

    def batch(self, rows: PairTable) -> LabelledBatch | PackedTokens:
        """Return the first sentences of B pairs and then the second ones, with labels where there are some."""
        tokens = pack(TokenTable.concatenate([rows.first, rows.second]))
        return tokens if rows.labels is None else LabelledBatch(tokens, torch.from_numpy(rows.labels), rows.first.ids)

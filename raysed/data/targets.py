"""Target tables, and the batches that learners read from them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from raysed.data.tokens import PackedTokens, TokenTable, pack

TARGET_FILE = "part-00000.parquet"
ROWS_PER_GROUP = 4096
"""Rows per Parquet row group: what the learner reads at once."""


@dataclass(frozen=True)
class TargetBatch:
    """Sentences of one worker with their targets, [B, D].

    Attributes:
        tokens: of the sentences.
        targets: their targets.
        weight: its sentences over the mean of all workers, so that the mean of their losses is that of the batch.
    """

    tokens: PackedTokens
    targets: torch.Tensor
    weight: float = 1.0

    @property
    def ids(self) -> np.ndarray:
        """The sentences' ids."""
        return self.tokens.ids


class TargetBatches:
    """Batches of a target table in an order that depends on (seed, step) only, not on the number of workers.

    Row groups are shuffled over the epoch, and rows within a window of row groups; so memory is that of a window, and
    any step can be reached at once.

    Args:
        directory: the target table.
        batch_size: sentences per update over all workers; the last, partial batch of an epoch is dropped.
        seed: of the order.
        rank: this worker.
        world: number of workers; each takes its part of every batch, as equal as can be.
        offset: subtracted from every target [D] (`sed.target: centred_mean`), or None.
        window: row groups in memory.
    """

    def __init__(
        self,
        directory: Path,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        offset: np.ndarray | None = None,
        window: int = 16,
    ):
        self._file = pq.ParquetFile(directory / TARGET_FILE)
        meta = self._file.metadata
        self._group_rows = np.array([meta.row_group(i).num_rows for i in range(meta.num_row_groups)])
        self.batch_size = min(batch_size, meta.num_rows)
        self.per_epoch = meta.num_rows // self.batch_size
        self._seed, self._window = seed, window
        start, stop = rank * self.batch_size // world, (rank + 1) * self.batch_size // world
        self._weight = (stop - start) * world / self.batch_size
        # Where there are more workers than sentences, some take a sentence of others with weight 0.
        self._part = slice(start, max(stop, start + 1))
        self._offset = 0 if offset is None else offset.astype(np.float32)
        self._loaded: tuple[int, int] = (-1, -1)

    def __call__(self, step: int) -> TargetBatch:
        """Returns this worker's part of the batch of a step."""
        epoch, index = divmod(step, self.per_epoch)
        first = index * self.batch_size
        pieces, wanted = [], np.arange(first, first + self.batch_size)[self._part]
        for window, start, stop in self._windows(epoch):
            inside = wanted[(wanted >= start) & (wanted < stop)] - start
            if len(inside):
                pieces.append(self._rows(epoch, window, inside))
        tokens = pieces[0][0] if len(pieces) == 1 else TokenTable.concatenate([piece[0] for piece in pieces])
        targets_BD = torch.from_numpy(np.concatenate([piece[1] for piece in pieces]))
        return TargetBatch(pack(tokens), targets_BD, self._weight)

    def _windows(self, epoch: int) -> list[tuple[int, int, int]]:
        """Number, first and last place in the epoch's order of every window."""
        sizes = self._group_rows[self._group_order(epoch)]
        edges = np.concatenate([[0], np.cumsum(sizes)])[:: self._window].tolist()
        edges = edges if edges[-1] == sizes.sum() else [*edges, int(sizes.sum())]
        return [(i, edges[i], edges[i + 1]) for i in range(len(edges) - 1)]

    def _group_order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._group_rows))

    def _rows(self, epoch: int, window: int, places: np.ndarray) -> tuple[TokenTable, np.ndarray]:
        if self._loaded != (epoch, window):
            groups = self._group_order(epoch)[window * self._window : (window + 1) * self._window]
            table = self._file.read_row_groups(groups.tolist(), columns=["id", "input_ids", "target"])
            self._tokens = TokenTable.from_arrow(table)
            self._targets = table.column("target").combine_chunks().flatten().to_numpy().reshape(len(table), -1)
            self._order = np.random.default_rng([self._seed, epoch, window + 1]).permutation(len(table))
            self._loaded = (epoch, window)
        rows = self._order[places]
        return self._tokens.take(rows), self._targets[rows] - self._offset

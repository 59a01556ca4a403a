"""Batches of a table: each row once per epoch, order by (seed, epoch), any step at once."""

from typing import Any

import numpy as np

from raysed.data.tokens import pack


class EpochOrder:
    """Rows of a shuffled table: each one once per epoch, order by (seed, epoch), any step at once.

    Args:
        batch_size: rows per batch; the last, partial one of an epoch is dropped.
    """

    def __init__(self, count: int, batch_size: int, seed: int):
        self.count, self.batch_size, self.seed = count, min(batch_size, count), seed
        self.per_epoch = count // self.batch_size
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def rows(self, step: int) -> np.ndarray:
        """Return the table rows of the batch of a step."""
        epoch, index = divmod(step, self.per_epoch)
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.count)
        return self._order[1][index * self.batch_size : (index + 1) * self.batch_size]


class EpochBatches(EpochOrder):
    """Batches of a shuffled table of sentences; pairs have their own."""

    def __init__(self, table: Any, batch_size: int, seed: int):
        super().__init__(len(table), batch_size, seed)
        self.table = table

    def __call__(self, step: int) -> Any:
        """Return the batch of a step."""
        return self.batch(self.table.take(self.rows(step)))

    def batch(self, rows: Any) -> Any:
        """Return rows as what an objective takes."""
        return pack(rows)

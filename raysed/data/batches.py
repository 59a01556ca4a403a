"""Batches of a table: each row once per epoch, order by (seed, epoch), any step at once."""

from typing import Any

import numpy as np

from raysed.data.tokens import pack


class EpochBatches:
    """Batches of a shuffled table of sentences; the last, partial batch of an epoch is dropped."""

    def __init__(self, table: Any, batch_size: int, seed: int):
        self.table, self.count, self.seed = table, len(table), seed
        self.batch_size = min(batch_size, self.count)
        self.per_epoch = self.count // self.batch_size
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def __call__(self, step: int) -> Any:
        """Return the batch of a step."""
        return self.batch(self.table.take(self.rows(step)))

    def rows(self, step: int) -> np.ndarray:
        """Return the table rows of the batch of a step."""
        epoch, index = divmod(step, self.per_epoch)
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.count)
        return self._order[1][index * self.batch_size : (index + 1) * self.batch_size]

    def batch(self, rows: Any) -> Any:
        """Return rows as what an objective takes."""
        return pack(rows)

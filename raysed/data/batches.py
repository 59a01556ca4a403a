"""Batches as a function of the step, so a resumed training sees the same ones."""

from typing import Any

import numpy as np

from raysed.data.tokens import pack


class Batches:
    """Batches that depend on seed and step only, not on the number of workers.

    An epoch's last, partial batch is dropped.

    Args:
        count: rows of an epoch.
        batch_size: rows per step over all `world` workers, which share them about equally.

    Attributes:
        few_shapes: see `data.tokens.pack`.
        reads_ahead: load the next rows in a thread.
    """

    few_shapes = reads_ahead = False

    def __init__(self, count: int, batch_size: int, seed: int, rank: int = 0, world: int = 1):
        self.count, self.seed = count, seed
        self.batch_size = min(batch_size, count)
        self.per_epoch = count // self.batch_size
        self._part, self._weight = part_of(self.batch_size, rank, world)

    def __call__(self, step: int) -> Any:
        """Return this worker's part of the batch of a step."""
        raise NotImplementedError

    def held_out(self) -> list[Any]:
        """Return the rows held out of training as batches."""
        return []


class EpochBatches(Batches):
    """Batches of a table, shuffled every epoch."""

    def __init__(self, table: Any, batch_size: int, seed: int):
        super().__init__(len(table), batch_size, seed)
        self.table = table
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def __call__(self, step: int) -> Any:
        return self.batch(self.table.take(self.rows(step)))

    def rows(self, step: int) -> np.ndarray:
        """Return the positions of a step's rows in the table."""
        epoch, index = divmod(step, self.per_epoch)
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.count)
        return self._order[1][index * self.batch_size : (index + 1) * self.batch_size]

    def batch(self, rows: Any) -> Any:
        """Turn table rows into an objective's input."""
        return pack(rows, few_shapes=self.few_shapes)


def part_of(count: int, rank: int, world: int) -> tuple[slice, float]:
    """Return a worker's part of a batch of `count`, and its weight: the part's size over the workers' mean.

    With more workers than rows, some repeat others' rows with weight 0.

    >>> part_of(5, 1, 2), part_of(1, 0, 2)
    ((slice(2, 5, None), 1.2), (slice(0, 1, None), 0.0))
    """
    start, stop = rank * count // world, (rank + 1) * count // world
    return slice(start, max(stop, start + 1)), (stop - start) * world / count

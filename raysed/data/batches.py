"""Batches that are a function of the step: a training that continues sees those that it would have seen."""

from __future__ import annotations

from typing import Any

import numpy as np

from raysed.data.tokens import pack


class Batches:
    """Batches in an order that depends on (seed, step) only, not on the number of workers.

    The last, partial batch of an epoch is dropped.

    Args:
        count: rows of an epoch.
        batch_size: rows per update over all `world` workers, which share them as equally as possible.

    Attributes:
        few_shapes: see `data.tokens.pack`.
        reads_ahead: load in a thread what follows, where batches come from large files.
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

    @property
    def sentences(self) -> int:
        """Sentences per update."""
        return self.batch_size

    def held_out(self) -> list[Any]:
        """Return batches of the rows that are held out of training."""
        return []


class EpochBatches(Batches):
    """Batches of a table that is shuffled every epoch."""

    def __init__(self, table: Any, batch_size: int, seed: int, rank: int = 0, world: int = 1):
        super().__init__(len(table), batch_size, seed, rank, world)
        self.table = table
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, np.int64))

    def __call__(self, step: int) -> Any:
        """Return the batch of a step."""
        return self.batch(self.table.take(self.rows(step)))

    def rows(self, step: int) -> np.ndarray:
        """Return the table rows of a step's batch."""
        epoch, index = divmod(step, self.per_epoch)
        if self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.count)
        return self._order[1][index * self.batch_size : (index + 1) * self.batch_size]

    def batch(self, rows: Any) -> Any:
        """Turn table rows into what an objective takes."""
        return pack(rows, few_shapes=self.few_shapes)


def part_of(count: int, rank: int, world: int) -> tuple[slice, float]:
    """Return a worker's part of a batch of `count`, and its weight: the part's size over the workers' mean.

    With more workers than there is to share, some take what belongs to others, with weight 0.

    >>> part_of(5, 1, 2), part_of(1, 0, 2)
    ((slice(2, 5, None), 1.2), (slice(0, 1, None), 0.0))
    """
    start, stop = rank * count // world, (rank + 1) * count // world
    return slice(start, max(stop, start + 1)), (stop - start) * world / count

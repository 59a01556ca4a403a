"""Batches of queries with their own texts and negatives, for training for search."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysed.data.targets import MOST_HELD_OUT, TargetBatch, part_of
from raysed.data.tokens import EpochBatches, pack, read_tokens

CANDIDATES, VECTORS = "candidates.npy", "targets.npy"
"""Rows of the corpus for each query, int64 [Q, 2 + N]: itself, its own text and negatives; and all targets [N, D]."""
NONE = -1
"""In place of a negative, where there are too few."""
_EVERY = 20
"""One of so many queries is held out."""


def held_out_queries(count: int) -> np.ndarray:
    """Return which of some queries are held out, bool [Q]: one in 20, but at most 2,000."""
    return np.arange(count) % max(_EVERY, -(-count // MOST_HELD_OUT)) == 0


class CandidateBatches(EpochBatches):
    """Batches in an order that depends on (seed, step) only, not on the number of workers.

    Each holds the queries first, then the distinct texts of all of them. A worker compares its queries with its own
    texts. The last, partial batch of an epoch is dropped.

    Args:
        corpus: directory of the sentence table.
        directory: what `make.candidates` wrote.
        batch_size: texts and queries per update over all `world` workers, at most, but at least one query's.
        offset: subtracted from every target, [D].
        held_out: hold some queries out of training.

    Attributes:
        few_shapes: see `data.tokens.pack`.
    """

    def __init__(
        self,
        corpus: Path,
        directory: Path,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        offset: np.ndarray | None = None,
        held_out: bool = False,
    ):
        self._tokens = read_tokens(corpus)
        self._targets_ND = np.load(directory / VECTORS, mmap_mode="r")
        rows_QC = np.load(directory / CANDIDATES)
        if held_out:
            held_Q = held_out_queries(len(rows_QC))
            self._held_QC, rows_QC = rows_QC[held_Q], rows_QC[~held_Q]
        self.rows, per_query = rows_QC.size, rows_QC.shape[1]
        super().__init__(rows_QC, max(1, batch_size // per_query), seed)
        self._queries = self.batch_size
        self.batch_size *= per_query
        self._offset = 0 if offset is None else offset.astype(np.float32)
        self._part, self._weight = part_of(self._queries, rank, world)

    def __call__(self, step: int) -> TargetBatch:
        """Return this worker's part of the batch of a step."""
        return self.batch(self.table[self.rows_of(step)[self._part]], self._weight)

    def batch(self, rows_BC: np.ndarray, weight: float = 1.0) -> TargetBatch:
        """Return the batch of some queries."""
        texts = np.unique(rows_BC[:, 1:])
        rows = np.concatenate([rows_BC[:, 0], texts[texts != NONE]])
        targets = torch.from_numpy(self._targets_ND[rows].astype(np.float32) - self._offset)
        tokens = pack(self._tokens.take(rows), few_shapes=self.few_shapes)
        return TargetBatch(tokens, targets, weight, queries=len(rows_BC))

    def held_out(self) -> list[TargetBatch]:
        """Return the batches of the queries that are held out: a twentieth, but at most 2,000."""
        cuts = range(self._queries, len(self._held_QC), self._queries)
        return [self.batch(rows_BC) for rows_BC in np.split(self._held_QC, cuts)]


def candidates_summary(meta: Mapping[str, Any]) -> str:
    """Return what `make.candidates` mined, in words."""
    texts, queries, nearest = (f"{meta[name]:,}" for name in ("texts", "queries", "nearest"))
    found = f"{queries} queries for {texts} texts, {meta['negatives']:,} negatives"
    if not meta["nearest"]:
        return found
    share = 100 * meta["spared"] / meta["nearest"]
    return f"{found}; {share:.1f} % of the {nearest} nearest texts were left out as equally good as the query's own"

"""Batches of queries with their own texts and negatives, for training for search."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raysed.data.batches import EpochBatches
from raysed.data.targets import MOST_HELD_OUT, TargetBatch
from raysed.data.tokens import pack, read_tokens

CANDIDATES, VECTORS = "candidates.npy", "targets.npy"
"""Files: each query's corpus rows (itself, its own text, negatives), int64 [Q, 2 + N]; all targets [N, D]."""
NONE = -1
"""Stands for a missing negative."""
_EVERY = 20
"""Hold out one query of this many."""


def held_out_queries(count: int) -> np.ndarray:
    """Return which queries are held out, bool [Q]: one in 20, at most 2,000."""
    return np.arange(count) % max(_EVERY, -(-count // MOST_HELD_OUT)) == 0


class CandidateBatches(EpochBatches):
    """Batches of queries, followed by their distinct texts; `count` and `batch_size` count queries.

    A worker compares its queries with its own texts.

    Args:
        corpus: directory of the sentence table.
        directory: output of `make.candidates`.
        sentences: maximum texts and queries per step over all workers; one query always fits.
        offset: subtracted from every target, [D].
    """

    def __init__(
        self,
        corpus: Path,
        directory: Path,
        sentences: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        offset: np.ndarray | float = 0.0,
        held_out: bool = False,
    ):
        self._tokens = read_tokens(corpus)
        self._targets_ND = np.load(directory / VECTORS, mmap_mode="r")
        self._offset = np.asarray(offset, np.float32)
        rows_QC = np.load(directory / CANDIDATES)
        held_Q = held_out_queries(len(rows_QC)) if held_out else np.zeros(len(rows_QC), bool)
        self._held_QC, self._per_query = rows_QC[held_Q], rows_QC.shape[1]
        super().__init__(rows_QC[~held_Q], max(1, sentences // self._per_query), seed, rank, world)

    def __call__(self, step: int) -> TargetBatch:
        return self.batch(self.table[self.rows(step)[self._part]], self._weight)

    @property
    def sentences(self) -> int:
        return self.batch_size * self._per_query

    def batch(self, rows_BC: np.ndarray, weight: float = 1.0) -> TargetBatch:
        texts = np.unique(rows_BC[:, 1:])
        rows = np.concatenate([rows_BC[:, 0], texts[texts != NONE]])
        targets = torch.from_numpy(self._targets_ND[rows].astype(np.float32) - self._offset)
        tokens = pack(self._tokens.take(rows), few_shapes=self.few_shapes)
        return TargetBatch(tokens, targets, weight, queries=len(rows_BC))

    def held_out(self) -> list[TargetBatch]:
        cuts = range(self.batch_size, len(self._held_QC), self.batch_size)
        return [self.batch(rows_BC) for rows_BC in np.split(self._held_QC, cuts)]


def candidates_summary(meta: Mapping[str, Any]) -> str:
    """Describe what `make.candidates` mined."""
    texts, queries, nearest = (f"{meta[name]:,}" for name in ("texts", "queries", "nearest"))
    found = f"{queries} queries for {texts} texts, {meta['negatives']:,} negatives"
    if not meta["nearest"]:
        return found
    share = 100 * meta["spared"] / meta["nearest"]
    return f"{found}; {share:.1f} % of the {nearest} nearest texts were left out because they may answer the query, too"

"""Target tables and their batches."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from raysed.config import TargetPrecision
from raysed.data.batches import Batches
from raysed.data.parquet import ROWS_PER_GROUP, TEXTS, BlockFiles, SentenceTable, Source, list_rows, matrix, with_column
from raysed.data.tokens import PackedTokens, TokenTable, pack
from raysed.errors import UserError

_COLUMNS = ("id", "input_ids", TEXTS.name, "target")
TARGET_FILE = "part-00000.parquet"
"""First file of a table; only file of a block."""
MEAN = "mean.npy"
"""Mean embedding of an ensemble over the corpus."""
_GROUPS_AT_ONCE = 8
"""Blocks wait for the object store, not for a core."""
_HELD_OUT, MOST_HELD_OUT = 0.05, 2000
"""Share of rows to hold out, and their maximum number."""
TARGET_TYPES = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16)}
"""By `sed.target_precision`."""


@dataclass(frozen=True)
class TargetBatch:
    """One worker's sentences, each followed by its translations if there are any, with their targets, [B, D].

    Attributes:
        weight: its number of sentences over the workers' mean; the mean of weighted losses is the batch's loss.
    """

    tokens: PackedTokens
    targets: torch.Tensor
    weight: float = 1.0

    @property
    def ids(self) -> np.ndarray:
        return self.tokens.ids


class _Window(NamedTuple):
    """One worker's rows of some row groups of a target table; `rows`: which is at each place of the shuffled window.

    Each row has as many texts, whose `tokens` follow one another.
    """

    tokens: TokenTable
    targets: np.ndarray
    rows: np.ndarray

    def take(self, places: np.ndarray) -> tuple[TokenTable, np.ndarray]:
        """Return the texts of the rows at some places, and their targets in float32."""
        rows, per_row = self.rows[places], len(self.tokens) // len(self.targets)
        texts = (rows[:, None] * per_row + np.arange(per_row)).ravel()
        return self.tokens.take(texts), np.repeat(self.targets[rows].astype(np.float32, copy=False), per_row, axis=0)


class TargetBatches(Batches):
    """Batches of a target table.

    Row groups are shuffled over the epoch, and rows within a window of row groups. Memory holds this worker's rows of
    one window (with `reads_ahead`, of two), and any step can be read directly.

    Args:
        offset: subtracted from every target, [D] (`sed.target: centred_mean`).
        held_out: leave out the rows of `held_out_batches`.
    """

    def __init__(
        self,
        source: Source,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        offset: np.ndarray | float = 0.0,
        window: int = 16,
        held_out: bool = False,
    ):
        self._source, self._table = source, SentenceTable(source)
        self._group_rows = self._table.sizes
        if held_out:
            self._group_rows = self._group_rows - _held_out_rows(self._group_rows)
        if not self._group_rows.sum():
            raise UserError("one sentence is too few to hold some out; add text, or set sed.checkpoint to last")
        super().__init__(int(self._group_rows.sum()), batch_size, seed, rank, world)
        self._window = window
        self._offset = np.asarray(offset, np.float32)
        self._loaded: tuple[tuple[int, int], _Window] | None = None
        self._ahead: tuple[tuple[int, int], Future[_Window]] | None = None
        self._reader = ThreadPoolExecutor(1, "targets")
        # Blocks are fetched and decoded side by side; the readers of a directory's files must not be shared.
        self._groups = ThreadPoolExecutor(_GROUPS_AT_ONCE if isinstance(source, BlockFiles) else 1, "row groups")

    def __call__(self, step: int) -> TargetBatch:
        epoch, index = divmod(step, self.per_epoch)
        wanted = np.arange(index * self.batch_size, (index + 1) * self.batch_size)[self._part]
        start, pieces = 0, []
        for window, groups in enumerate(self._groups_of(epoch)):
            stop = start + self._group_rows[groups].sum()
            inside = wanted[(wanted >= start) & (wanted < stop)] - start
            if len(inside):
                pieces.append(self._window_at(epoch, window).take(inside))
            start = stop
        tokens, targets = zip(*pieces)
        targets_BD = torch.from_numpy(np.concatenate(targets) - self._offset)
        return TargetBatch(pack(TokenTable.concatenate(tokens), few_shapes=self.few_shapes), targets_BD, self._weight)

    def held_out(self) -> list[TargetBatch]:
        return held_out_batches(self._source, self.batch_size, self._offset)

    def _groups_of(self, epoch: int) -> list[np.ndarray]:
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self._group_rows))
        return np.split(order, range(self._window, len(order), self._window))

    def _window_at(self, epoch: int, window: int) -> _Window:
        place = epoch, window
        if self._loaded is None or self._loaded[0] != place:
            is_ahead = self._ahead is not None and self._ahead[0] == place
            self._loaded = place, self._ahead[1].result() if is_ahead else self._load(*place)
            if self.reads_ahead:
                following = (epoch, window + 1) if window + 1 < len(self._groups_of(epoch)) else (epoch + 1, 0)
                self._ahead = following, self._reader.submit(self._load, *following)
        return self._loaded[1]

    def _load(self, epoch: int, window: int) -> _Window:
        *before, groups = self._groups_of(epoch)[: window + 1]
        starts = np.cumsum(self._group_rows[groups]) - self._group_rows[groups]
        order = np.random.default_rng([self.seed, epoch, window + 1]).permutation(self._group_rows[groups].sum())
        first = sum(self._group_rows[earlier].sum() for earlier in before)
        place_in_batch = (first + np.arange(len(order))) % self.batch_size
        own = np.flatnonzero((place_in_batch >= self._part.start) & (place_in_batch < self._part.stop))
        group_of_own = np.searchsorted(starts, order[own], side="right") - 1

        def read(group: int) -> tuple[np.ndarray, pa.Table]:
            places = own[group_of_own == group]
            return places, self._table.row_group(groups[group], _COLUMNS).take(order[places] - starts[group])

        # Workers of one machine begin with different blocks, and find those that others have fetched meanwhile.
        shift = self._part.start * len(groups) // self.batch_size
        places, tables = zip(*self._groups.map(read, np.roll(np.arange(len(groups)), -shift)))
        table, rows = pa.concat_tables(tables), np.full(len(order), -1)
        rows[np.concatenate(places)] = np.arange(len(table))
        return _Window(_texts_of(table), list_rows(table.column("target")), rows)


def held_out_batches(source: Source, batch_size: int, offset: np.ndarray | float = 0.0) -> list[TargetBatch]:
    """Return the last rows of every row group as batches: a twentieth of all rows, at most 2,000."""
    groups = SentenceTable(source)
    held = _held_out_rows(groups.sizes)
    parts = ((groups.row_group(group, _COLUMNS), held[group]) for group in np.flatnonzero(held))
    table = pa.concat_tables(part.take(np.arange(len(part) - count, len(part))) for part, count in parts)  # copied
    rows_N, targets_ND = np.arange(len(table)), matrix(table.column("target")) - np.asarray(offset, np.float32)
    window = _Window(_texts_of(table), targets_ND, rows_N)
    batches = map(window.take, np.split(rows_N, range(batch_size, len(table), batch_size)))
    return [TargetBatch(pack(tokens), torch.from_numpy(targets_BD)) for tokens, targets_BD in batches]


def _texts_of(table: pa.Table) -> TokenTable:
    """Return all texts of each row: its sentence, and its translations if the table has them."""
    if TEXTS.name not in table.column_names:
        return TokenTable.from_arrow(table)
    texts = pc.list_flatten(table.column(TEXTS.name))
    ids = np.repeat(table.column("id").to_numpy(), len(texts) // max(len(table), 1))
    return TokenTable.from_arrow(pa.table({"id": ids, "input_ids": texts}))


def rows_to_learn(rows: int) -> int:
    """Return how many rows of a table are not held out.

    >>> rows_to_learn(4000), rows_to_learn(100_000)
    (3800, 98000)
    """
    sizes = np.array([min(ROWS_PER_GROUP, rows - start) for start in range(0, rows, ROWS_PER_GROUP)])
    return int(rows - _held_out_rows(sizes).sum())


def _held_out_rows(group_rows: np.ndarray) -> np.ndarray:
    """Return how many rows of each group to hold out, at least one in total."""
    share = min(_HELD_OUT, MOST_HELD_OUT / group_rows.sum())
    until = np.floor(group_rows.cumsum() * share + 1e-9).astype(np.int64)  # 2,000 must not become 1,999
    until[-1] = max(until[-1], 1)
    return np.diff(until, prepend=0)


def with_targets(
    table: pa.Table, targets_BD: np.ndarray, precision: TargetPrecision, column: str = "target"
) -> pa.Table:
    """Add targets to the rows, in `precision`; UserError if one is not finite.

    fp16 rounds to 11 binary digits: errors are at most 1/2048 of the number, or 3e-8 if that is more.
    """
    with np.errstate(over="ignore"):
        rounded_BD = targets_BD.astype(TARGET_TYPES[precision], copy=False)
    broken = np.flatnonzero(~np.isfinite(rounded_BD).all(axis=1))
    if len(broken):
        ids = table.column("id").to_numpy()[broken[:10]]
        problem = f"teacher embeddings are not finite for sentence ids {', '.join(map(str, ids))}"
        if np.isfinite(targets_BD).all():
            most = f"{np.finfo(rounded_BD.dtype).max:,.0f}"
            problem += f" in {precision}, whose largest number is {most}; set sed.target_precision to fp32"
        raise UserError(problem)
    return with_column(table, column, rounded_BD)

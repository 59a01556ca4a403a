"""Ray Data: tokens -> running sum over groups of teachers -> mean, streamed into the target table.

Nothing holds more than a few blocks: teachers add their embeddings into one float32 sum per sentence, so memory in
flight is O(D) per sentence whatever the number of teachers, and the corpus passes through once.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from raysed.encoder import encode, load_checkpoint
from raysed.errors import UserError
from raysed.resources import Share, prepare_worker, quiet_ray_data
from raysed.storage import Storage
from raysed.tokens import TokenTable
from raysed.tracking import Progress

log = logging.getLogger(__name__)

TARGET_FILE = "part-00000.parquet"
ROWS_PER_GROUP = 4096
"""Rows per Parquet row group: what the learner reads at once."""
_BLOCK = 1024
_VERIFIED_ROWS = 32


@dataclass(frozen=True)
class TeacherPlan:
    """How teachers are laid out: `groups` stages of actors, each actor holding its group's teachers."""

    share: Share
    groups: int
    token_budget: int | None
    gpu: bool


def write_targets(teachers: Sequence[str], storage: Storage, plan: TeacherPlan, directory: Path) -> dict[str, Any]:
    """Writes the target table: id, input_ids and the float32 mean of the teachers' last-layer embeddings.

    Args:
        teachers: artefact names.
        storage: where they and the sentence table are.
        plan: from `resources.plan_teachers`.
        directory: empty; gets `part-00000.parquet` with row groups of 4,096 rows in id order, and `mean.npy`, the
            mean target [D] in float64.

    Returns:
        Counts for the manifest.

    Raises:
        UserError: an embedding is not finite; names the sentence ids.
        RuntimeError: rows were lost, repeated or mixed up on the way.
    """
    files = sorted(storage.fetch("corpus").glob("*.parquet"))
    expected = sum(pq.ParquetFile(path).metadata.num_rows for path in files)
    log.info("averaging %d teachers over %s sentences: %s", len(teachers), f"{expected:,}", plan.share)
    progress = Progress("average teachers", expected)
    batches = stream_targets(teachers, storage, plan)
    writer = _TargetWriter(directory)
    for table in batches:
        writer.add(table)
        progress.update(writer.rows, f"{writer.rows:,} of {expected:,} sentences, {len(teachers)} teachers")
    writer.close(expected)
    largest = verify_targets(directory, teachers, storage)
    progress.close(f"{writer.rows:,} sentences, re-encoded {_VERIFIED_ROWS} rows: largest difference {largest:.1e}")
    return {"rows": writer.rows, "teachers": len(teachers), "verified": largest}


def stream_targets(teachers: Sequence[str], storage: Storage, plan: TeacherPlan) -> Iterator[pa.Table]:
    """Yields tables id, input_ids, target, in id order, while the cluster works on the next ones."""
    quiet_ray_data().execution_options.preserve_order = True
    dataset = ray.data.read_parquet(storage.uri("corpus")).select_columns(["id", "input_ids"])
    # One file is one block, however long: cut, so that actors share it and little is in flight at a time.
    dataset = dataset.repartition(target_num_rows_per_block=_BLOCK)
    groups = [list(group) for group in np.array_split(np.array(teachers, dtype=object), plan.groups)]
    for index, group in enumerate(groups):
        dataset = dataset.map_batches(
            _TeacherGroup,
            fn_constructor_args=(group, storage, plan, len(teachers) if index == len(groups) - 1 else None),
            batch_format="pyarrow",
            batch_size=_BLOCK,
            compute=ray.data.ActorPoolStrategy(size=plan.share.workers),
            num_cpus=plan.share.cpus,
            num_gpus=plan.share.gpus,
        )
    yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=2)


class _TeacherGroup:
    """An actor that adds its teachers' embeddings to the running sum, and divides if it is the last of the chain."""

    def __init__(self, names: Sequence[str], storage: Storage, plan: TeacherPlan, divisor: int | None):
        prepare_worker(plan.share.threads)
        self._add = teacher_sum([storage.fetch(name) for name in names], plan.token_budget, plan.gpu)
        self._divisor = divisor

    def __call__(self, table: pa.Table) -> pa.Table:
        if not len(table):
            return table
        sums_BD = self._add(TokenTable.from_arrow(table))
        if "target" in table.column_names:
            sums_BD += _matrix(table.column("target"))
            table = table.drop_columns(["target"])
        if self._divisor:
            sums_BD /= np.float32(self._divisor)
        return table.append_column("target", _fixed_size_lists(sums_BD))


def teacher_sum(
    paths: Sequence[Path], token_budget: int | None, gpu: bool = False
) -> Callable[[TokenTable], np.ndarray]:
    """Loads teachers; returns the function from tokens to the float32 sum of their raw last-layer embeddings [B, D].

    SED section 4 averages embeddings as they are, without normalisation, and section 5.1 pools the last layer.
    """
    encoders = [load_checkpoint(path).to("cuda" if gpu else "cpu").eval() for path in paths]

    def add(tokens: TokenTable) -> np.ndarray:
        sums_BD = np.zeros((len(tokens), encoders[0].width), np.float32)
        for encoder in encoders:
            sums_BD += encode(encoder, tokens, (1,), token_budget)[0]
        return sums_BD

    return add


def verify_targets(directory: Path, teachers: Sequence[str], storage: Storage) -> float:
    """Encodes 32 random rows again, one by one, and compares.

    Returns:
        The largest absolute difference.

    Raises:
        RuntimeError: a target does not belong to its sentence.
    """
    sample = _sample(pq.ParquetFile(directory / TARGET_FILE))
    tokens = TokenTable.from_arrow(sample)
    add = teacher_sum([storage.fetch(name) for name in teachers], token_budget=1)
    difference_BD = np.abs(add(tokens) / len(teachers) - _matrix(sample.column("target")))
    scale = max(float(np.abs(_matrix(sample.column("target"))).max()), 1.0)
    largest = float(difference_BD.max())
    if largest > 2e-2 * scale:
        wrong = tokens.ids[difference_BD.max(1).argmax()]
        raise RuntimeError(f"the target of sentence {wrong} is not the mean of its teachers (off by {largest:.3g})")
    return largest


def _sample(file: pq.ParquetFile) -> pa.Table:
    """Random rows, read one row group at a time."""
    count = file.metadata.num_rows
    rows = np.sort(np.random.default_rng(count).choice(count, min(_VERIFIED_ROWS, count), replace=False))
    groups, places = np.divmod(rows, ROWS_PER_GROUP)
    return pa.concat_tables(
        [file.read_row_group(int(group)).take(places[groups == group]) for group in np.unique(groups)]
    )


class _TargetWriter:
    """Writes rows as they come and keeps the checks that need all of them: ids, finiteness, the mean."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._ids: list[np.ndarray] = []
        self._sum: np.ndarray | float = 0.0
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        if not len(table):
            return
        targets_BD = _matrix(table.column("target"))
        ids = table.column("id").to_numpy()
        broken = ~np.isfinite(targets_BD).all(axis=1)
        if broken.any():
            raise UserError(
                f"teacher embeddings are not finite for sentence ids {', '.join(map(str, ids[broken][:10]))}"
            )
        self._ids.append(ids)
        self._sum = self._sum + targets_BD.sum(axis=0, dtype=np.float64)
        self.rows += len(table)
        self._waiting.append(table)
        self._flush(ROWS_PER_GROUP)

    def close(self, expected: int) -> None:
        self._flush(1)
        if self._writer:
            self._writer.close()
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, np.int64)
        if self.rows != expected or len(np.unique(ids)) != expected:
            raise RuntimeError(
                f"{expected} sentences went in, {self.rows} rows with {len(np.unique(ids))} ids came out"
            )
        np.save(self._directory / "mean.npy", self._sum / expected)

    def _flush(self, at_least: int) -> None:
        """Writes whole row groups, so that their boundaries do not depend on how blocks were cut."""
        while (waiting := sum(map(len, self._waiting))) >= at_least and waiting:
            table = pa.concat_tables(self._waiting).combine_chunks()
            group, rest = table.slice(0, ROWS_PER_GROUP), table.slice(ROWS_PER_GROUP)
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._directory / TARGET_FILE, group.schema)
            self._writer.write_table(group, row_group_size=ROWS_PER_GROUP)
            self._waiting = [rest] if len(rest) else []


def _fixed_size_lists(matrix_BD: np.ndarray) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix_BD.reshape(-1)), matrix_BD.shape[1])


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Fixed-size lists -> float32 [B, D], writable."""
    lists = column.combine_chunks()
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    return lists.flatten().to_numpy(zero_copy_only=False).reshape(len(lists), -1).copy()

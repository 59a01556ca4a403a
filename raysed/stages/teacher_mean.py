"""Ray Data: places in the corpus -> running sum over groups of teachers -> mean, streamed into the target table.

Nothing holds more than a few blocks: teachers add their embeddings into one float32 sum per sentence, so memory in
flight is O(D) per sentence and ensemble whatever the number of teachers, and the corpus passes through once.
"""

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from raysed.cluster.heartbeat import Watch, beating, watched
from raysed.cluster.process import prepare_worker, quiet_ray_data
from raysed.cluster.resources import Share
from raysed.data.targets import ROWS_PER_GROUP, TARGET_FILE, TargetWriter, matrix, with_column
from raysed.data.tokens import SentenceTable, TokenTable
from raysed.model.encoder import encode, load_checkpoint
from raysed.store.progress import Progress, tell
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_SMALLEST_BLOCK, _LARGEST_BLOCK = 256, 1024
"""Sentences that are worked on at once: enough of equal length, few enough for little memory."""
_VERIFIED_ROWS = 32


@dataclass(frozen=True)
class TeacherPlan:
    """How teachers are laid out.

    Attributes:
        share: of one actor.
        groups: stages of actors; each actor holds the teachers of its group.
        token_budget: tokens per forward pass; None: what suits the device.
        silence_seconds: after so long without a word an actor is ended, see `heartbeat`.
        trust_remote_code: whether code that the encoder came with may run.
    """

    share: Share
    groups: int
    token_budget: int | None
    silence_seconds: float
    trust_remote_code: bool = False


def write_targets(
    ensembles: Mapping[Path, Sequence[str]], storage: Storage, plan: TeacherPlan
) -> dict[Path, dict[str, Any]]:
    """Writes target tables: id, input_ids and the float32 mean of an ensemble's last-layer embeddings.

    All tables are written in one pass over the corpus, with one start of actors.

    Args:
        ensembles: artefact names of the teachers of each table, by its directory, which is empty and gets
            `part-00000.parquet` with row groups of 4,096 rows in id order, and `mean.npy`, the mean target [D] in
            float64.
        storage: where the teachers and the sentence table are.
        plan: from `resources.plan_teachers`, for the teachers of all tables together.

    Returns:
        Counts for the manifest, by directory.

    Raises:
        UserError: an embedding is not finite; names the sentence ids.
        RuntimeError: rows were lost, repeated or mixed up on the way.
    """
    expected = len(SentenceTable(storage.fetch("corpus")))
    count = sum(map(len, ensembles.values()))
    log.info("averaging %d teachers over %s sentences: %s", count, f"{expected:,}", plan.share)
    progress = Progress("average teachers", expected)
    writers = [TargetWriter(directory) for directory in ensembles]
    with watched(plan.silence_seconds, plan.share, least=plan.groups) as watch:
        for table in stream_targets(list(ensembles.values()), storage, plan, watch, expected):
            if not len(table):
                continue
            for index, writer in enumerate(writers):
                target = table.column(_column(index))
                writer.add(table.select(["id", "input_ids"]).append_column("target", target))
            progress.update(writers[0].rows, f"{writers[0].rows:,} of {expected:,} sentences, {count} teachers")
    tell(sentences=writers[0].rows * count)
    counts = {}
    for writer, (directory, teachers) in zip(writers, ensembles.items(), strict=True):
        writer.close(expected)
        largest = verify_targets(directory, teachers, storage, plan.trust_remote_code)
        counts[directory] = {"rows": writer.rows, "teachers": len(teachers), "verified": largest}
    largest = max(found["verified"] for found in counts.values())
    progress.close(f"{expected:,} sentences, re-encoded {_VERIFIED_ROWS} rows: largest difference {largest:.1e}")
    return counts


def stream_targets(
    ensembles: Sequence[Sequence[str]], storage: Storage, plan: TeacherPlan, watch: Watch, rows: int
) -> Iterator[pa.Table]:
    """Yields tables id, input_ids, target-0, target-1, ... in id order, while the cluster works on the next ones.

    Args:
        ensembles: artefact names of the teachers of each target.
        storage: where they and the sentence table are.
        plan: see `write_targets`.
        watch: over the actors.
        rows: how many sentences there are.
    """
    quiet_ray_data().execution_options.preserve_order = True
    # Actors read for themselves: tasks that read would need a CPU, and wait for ever where actors have taken all of
    # them, as they do when a node is lost.
    block = _block_rows(rows, plan.share.workers)
    places = [{"start": start, "stop": min(start + block, rows)} for start in range(0, rows, block)]
    dataset = ray.data.from_items(places, override_num_blocks=len(places))
    teachers = [(_column(index), name) for index, names in enumerate(ensembles) for name in names]
    divisors = {_column(index): len(names) for index, names in enumerate(ensembles)}
    for first, last in itertools.pairwise(len(teachers) * group // plan.groups for group in range(plan.groups + 1)):
        dataset = dataset.map_batches(
            _TeacherGroup,
            fn_constructor_args=(teachers[first:last], storage, plan, watch, divisors if last == len(teachers) else {}),
            batch_format="pyarrow",
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(size=plan.share.workers),
            num_cpus=plan.share.cpus,
            num_gpus=plan.share.gpus,
        )
    yield from dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=2)


def _block_rows(rows: int, workers: int) -> int:
    """Small where a small corpus is to keep all actors busy.

    >>> _block_rows(10**6, 2), _block_rows(6000, 2), _block_rows(6000, 16)
    (1024, 1000, 256)
    """
    return min(max(math.ceil(rows / (3 * workers)), _SMALLEST_BLOCK), _LARGEST_BLOCK)


def _column(index: int) -> str:
    return f"target-{index}"


class _TeacherGroup:
    """An actor that adds its teachers' embeddings to the running sums.

    The first of the chain reads the sentences at the places that it is told, the last divides.

    Args:
        teachers: the column that a teacher's embeddings are added to, and its artefact.
        storage: where the artefacts are.
        plan: says what one actor may use.
        watch: over it, as long as its process lives.
        divisors: number of teachers of every column, for the last group of the chain; otherwise empty.
    """

    def __init__(
        self,
        teachers: Sequence[tuple[str, str]],
        storage: Storage,
        plan: TeacherPlan,
        watch: Watch,
        divisors: Mapping[str, int],
    ):
        prepare_worker(plan.share.threads)
        self._heard = beating(watch, "the mean of the teachers")
        self._heard.__enter__()  # for good: an actor is ended with its process
        paths: dict[str, list[Path]] = {}
        for column, name in teachers:
            paths.setdefault(column, []).append(storage.fetch(name))
        self._adds = {
            column: teacher_sum(own, plan.token_budget, plan.share.device, plan.trust_remote_code)
            for column, own in paths.items()
        }
        self._divisors = divisors
        self._sentences = SentenceTable(storage.fetch("corpus"))

    def __call__(self, table: pa.Table) -> pa.Table:
        if not len(table):
            return table
        if "start" in table.column_names:
            (place,) = table.to_pylist()
            table = self._sentences.rows(place["start"], place["stop"], ("id", "input_ids"))
        tokens = TokenTable.from_arrow(table)
        for column, add in self._adds.items():
            sums_BD = add(tokens)
            if column in table.column_names:
                sums_BD += matrix(table.column(column))
            table = with_column(table, column, sums_BD)
        for column, divisor in self._divisors.items():
            table = with_column(table, column, matrix(table.column(column)) / np.float32(divisor))
        return table


def teacher_sum(
    paths: Sequence[Path], token_budget: int | None, device: str = "cpu", trust_remote_code: bool = False
) -> Callable[[TokenTable], np.ndarray]:
    """Loads teachers; returns the function from tokens to the float32 sum of their raw last-layer embeddings [B, D].

    SED section 4 averages embeddings as they are, without normalisation, and section 5.1 pools the last layer.

    Args:
        paths: checkpoints of the teachers.
        token_budget: tokens per forward pass; None: what suits the device.
        device: to compute on.
        trust_remote_code: whether code that a teacher came with may run.
    """
    encoders = [load_checkpoint(path, trust_remote_code).to(device).eval() for path in paths]

    def add(tokens: TokenTable) -> np.ndarray:
        sums_BD = np.zeros((len(tokens), encoders[0].width), np.float32)
        for encoder in encoders:
            sums_BD += encode(encoder, tokens, (1,), token_budget)[0]
        return sums_BD

    return add


def verify_targets(
    directory: Path, teachers: Sequence[str], storage: Storage, trust_remote_code: bool = False
) -> float:
    """Encodes 32 random rows again, one by one, and compares.

    Args:
        directory: of the target table.
        teachers: their artefacts.
        storage: where those are.
        trust_remote_code: whether code that a teacher came with may run.

    Returns:
        The largest absolute difference.

    Raises:
        RuntimeError: a target does not belong to its sentence.
    """
    sample = _sample(pq.ParquetFile(directory / TARGET_FILE))
    tokens = TokenTable.from_arrow(sample)
    paths = [storage.fetch(name) for name in teachers]
    add = teacher_sum(paths, token_budget=1, trust_remote_code=trust_remote_code)
    difference_BD = np.abs(add(tokens) / len(teachers) - matrix(sample.column("target")))
    scale = max(float(np.abs(matrix(sample.column("target"))).max()), 1.0)
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

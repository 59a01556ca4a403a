"""Ray Data: places in the corpus -> running sum over groups of teachers -> mean, in blocks -> the target table.

Nothing holds more than a few blocks: teachers add their embeddings into one float32 sum per sentence, so memory in
flight is O(D) per sentence and ensemble whatever the number of teachers, and the corpus passes through once. The actors
publish every finished block, so a run that was stopped goes on with those that are missing; and what the driver gets
are the blocks' places.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray

from raysed.cluster.heartbeat import Watch, beating, watched, watched_tasks
from raysed.cluster.process import prepare_worker, quiet_ray_data
from raysed.cluster.resources import Share
from raysed.config import Precision, TargetPrecision, stable_hash
from raysed.data.parquet import read_table
from raysed.data.targets import TARGET_FILE, TargetWriter, matrix, with_column, with_targets
from raysed.data.tokens import SentenceTable, TokenTable
from raysed.errors import RunFailed, UserError
from raysed.model.encoder import load_checkpoint
from raysed.model.encoding import encode_sums
from raysed.model.precision import uses_bf16
from raysed.store.progress import Progress, tell
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_SMALLEST_BLOCK, _LARGEST_BLOCK = 256, 4096
"""Sentences of a block: what is lost where its worker is lost."""
_AT_ONCE = {"cpu": 1024, "cuda": _LARGEST_BLOCK}
"""Sentences that are embedded at once: enough of equal length to fill a pass, few enough for little memory."""
_VERIFIED_ROWS = 32
_MOST_DIFFERENCE = {False: 2e-2, True: 5e-2}
"""Of a target in fp32, or in bf16, from one that was encoded again in fp32, in units of the largest target, or of 1."""


@dataclass(frozen=True)
class TeacherPlan:
    """How teachers are laid out.

    Attributes:
        share: of one actor.
        groups: stages of actors; each actor holds the teachers of its group.
        token_budget: tokens per forward pass; None: what suits the device.
        silence_seconds: after so long without a word an actor is ended, see `heartbeat`.
        trust_remote_code: whether code that the encoder came with may run.
        precision: see `uses_bf16`.
        target_precision: see `sed.target_precision`.
    """

    share: Share
    groups: int
    token_budget: int | None
    silence_seconds: float
    trust_remote_code: bool = False
    precision: Precision = "fp32"
    target_precision: TargetPrecision = "fp32"


@dataclass(frozen=True)
class _Targets:
    """A target table to make: its artefact, what that depends on, and the artefacts of the teachers."""

    name: str
    depends: dict[str, Any]
    teachers: Sequence[str]

    @property
    def blocks(self) -> str:
        """Artefacts of the blocks lie below this one."""
        return f"{self.name}.blocks"

    def block(self, start: int) -> str:
        """Returns the artefact of the block that begins with a sentence."""
        return f"{self.blocks}/{stable_hash(self.depends)}/{start:09d}"


def write_targets(
    ensembles: Mapping[str, tuple[Sequence[str], Mapping[str, Any]]], storage: Storage, plan: TeacherPlan
) -> None:
    """Publishes target tables: id, input_ids and the mean of an ensemble's last-layer embeddings.

    All tables are made in one pass over the corpus, with one start of actors. An artefact is what
    `TargetWriter` writes, in id order.

    Args:
        ensembles: artefact names of the teachers of each table and what the table depends on, by its artefact.
        storage: where the teachers and the sentence table are.
        plan: from `resources.plan_teachers`, for the teachers of all tables together.

    Raises:
        UserError: an embedding is not finite; names the sentence ids.
        RunFailed: workers are lost at the same sentences again and again; names these.
        RuntimeError: rows were lost, repeated or mixed up on the way.
    """
    targets = [_Targets(name, dict(depends), teachers) for name, (teachers, depends) in ensembles.items()]
    rows, count = len(SentenceTable(storage.fetch("corpus"))), sum(len(target.teachers) for target in targets)
    starts = range(0, rows, _block_rows(rows))
    missing = [start for start in starts if any(not _has(storage, target, start) for target in targets)]
    log.info("averaging %d teachers over %s sentences: %s", count, f"{rows:,}", plan.share)
    if len(missing) < len(starts):
        log.info("%d of %d blocks are already there", len(starts) - len(missing), len(starts))
    progress = Progress("average teachers", rows)
    places = [{"start": start, "stop": min(start + starts.step, rows)} for start in missing]
    done = rows - sum(place["stop"] - place["start"] for place in places)
    progress.start_from(done)
    with watched(plan.silence_seconds, plan.share, least=plan.groups) as watch:
        for finished, broken, lost in _make_blocks(places, targets, storage, plan, watch):
            if broken:
                raise UserError(broken)
            if lost:
                raise RunFailed(lost)
            done += finished
            progress.update(done, f"{done:,} of {rows:,} sentences, {count} teachers")
    tell(sentences=count * sum(place["stop"] - place["start"] for place in places))
    share = replace(plan.share, workers=len(targets), cpus=0, gpus=0)
    arguments = (starts, rows, storage, plan)
    tasks = watched_tasks(_join, targets, *arguments, work="join blocks", share=share, seconds=plan.silence_seconds)
    largest = max(tasks)
    for target in targets:
        storage.remove(target.blocks)
    progress.close(f"{rows:,} sentences, re-encoded {_VERIFIED_ROWS} rows: largest difference {largest:.1e}")


def _has(storage: Storage, target: _Targets, start: int) -> bool:
    return storage.finished(target.block(start), target.depends) is not None


def _make_blocks(
    places: Sequence[Mapping[str, int]],
    targets: Sequence[_Targets],
    storage: Storage,
    plan: TeacherPlan,
    watch: Watch,
) -> Iterator[tuple[int, str, str]]:
    """Yields the sentences of each block as it is published, and what is wrong with them or with their workers.

    Args:
        places: first sentence of each block, and the one after its last.
        plan: see `write_targets`.
    """
    if not places:
        return
    quiet_ray_data()
    # Actors read for themselves: tasks that read would need a CPU, and wait for ever where actors have taken all of
    # them, as they do when a node is lost.
    dataset = ray.data.from_items(list(places), override_num_blocks=len(places))
    teachers = [(_column(index), name) for index, target in enumerate(targets) for name in target.teachers]
    for first, last in itertools.pairwise(len(teachers) * group // plan.groups for group in range(plan.groups + 1)):
        dataset = dataset.map_batches(
            _TeacherGroup,
            fn_constructor_args=(teachers[first:last], storage, plan, watch, targets if last == len(teachers) else ()),
            batch_format="pyarrow",
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(size=plan.share.workers),
            num_cpus=plan.share.cpus,
            num_gpus=plan.share.gpus,
        )
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        for row in table.to_pylist():
            yield row["sentences"], row["broken"], row["lost"]


def _block_rows(rows: int) -> int:
    """Small where a small corpus is to keep several actors busy; the same whatever their number.

    >>> _block_rows(10**6), _block_rows(6000), _block_rows(300)
    (4096, 500, 256)
    """
    return min(max(rows // 12, _SMALLEST_BLOCK), _LARGEST_BLOCK)


def _column(index: int) -> str:
    return f"target-{index}"


def _join(target: _Targets, starts: Sequence[int], rows: int, storage: Storage, plan: TeacherPlan) -> float:
    """Publishes a target table of its blocks; returns the largest difference of those rows that are encoded again."""
    prepare_worker(plan.share.threads)
    meta: dict[str, Any] = {"teachers": len(target.teachers)}

    def write(path: Path) -> None:
        writer = TargetWriter(path)
        for start in starts:
            writer.add(read_table(storage.fetch(target.block(start)) / TARGET_FILE))
        writer.close(rows)
        bf16 = any(storage.entry(target.block(start)).meta.get("bf16") for start in starts)  # by other machines
        verified = verify_targets(path, target.teachers, storage, plan.trust_remote_code, bf16)
        meta.update(rows=writer.rows, verified=verified)

    storage.commit(target.name, write, target.depends, meta)
    return meta["verified"]


class _TeacherGroup:
    """An actor that adds its teachers' embeddings to the running sums.

    The first of the chain reads the sentences at the places that it is told, the last divides and publishes.

    Args:
        teachers: the column that a teacher's embeddings are added to, and its artefact.
        watch: over it, as long as its process lives.
        targets: what is published, for the last group of the chain; otherwise empty.
    """

    def __init__(
        self,
        teachers: Sequence[tuple[str, str]],
        storage: Storage,
        plan: TeacherPlan,
        watch: Watch,
        targets: Sequence[_Targets],
    ):
        prepare_worker(plan.share.threads)
        self._heard = beating(watch, "the mean of the teachers")
        self._heard.__enter__()  # for good: an actor is ended with its process
        paths: dict[str, list[Path]] = {}
        for column, name in teachers:
            paths.setdefault(column, []).append(storage.fetch(name))
        self._bf16 = uses_bf16(plan.precision, plan.share.device)
        self._at_once = _AT_ONCE[plan.share.device]
        self._columns = list(paths)
        self._sums = teacher_sums(
            list(paths.values()), plan.token_budget, plan.share.device, plan.trust_remote_code, self._bf16
        )
        self._targets, self._storage, self._watch = targets, storage, watch
        self._target_precision = plan.target_precision
        self._who = " to ".join(dict.fromkeys([teachers[0][1], teachers[-1][1]]))
        self._sentences = SentenceTable(storage.fetch("corpus"))

    def __call__(self, table: pa.Table) -> pa.Table:
        if not len(table) or "lost" in table.column_names:
            return table
        if "start" in table.column_names:
            (place,) = table.to_pylist()
            table = self._sentences.rows(place["start"], place["stop"], ("id", "input_ids"))
        first, last = table.column("id")[0].as_py(), table.column("id")[-1].as_py()
        if lost := self._watch.begin(f"sentences {first:,} to {last:,} for the teachers {self._who}"):
            return pa.table({"sentences": [0], "broken": [""], "lost": [lost]})
        tokens = TokenTable.from_arrow(table)
        try:
            parts = [self._sums(tokens.take(rows)) for rows in self._cut(np.arange(len(tokens)))]
        except UserError as error:
            return pa.table({"sentences": [0], "broken": [str(error)], "lost": [""]})
        for column, sums in zip(self._columns, zip(*parts, strict=True), strict=True):
            sums_BD = np.concatenate(sums)
            if column in table.column_names:
                sums_BD += matrix(table.column(column))
            table = with_column(table, column, sums_BD)
        return self._publish(table) if self._targets else table

    def _cut(self, rows: np.ndarray) -> list[np.ndarray]:
        return np.split(rows, range(self._at_once, len(rows), self._at_once))

    def _publish(self, table: pa.Table) -> pa.Table:
        """Publishes the block of each target table; returns how many sentences it has, and what is wrong with them."""
        broken = ""
        for index, target in enumerate(self._targets):
            means_BD = matrix(table.column(_column(index))) / np.float32(len(target.teachers))
            try:
                block = with_targets(table.select(["id", "input_ids"]), means_BD, self._target_precision)
            except UserError as error:
                broken = str(error)
                break
            name = target.block(table.column("id")[0].as_py())
            write = partial(_write_block, block)
            self._storage.commit(name, write, target.depends, {"bf16": self._bf16})
        return pa.table({"sentences": [len(table)], "broken": [broken], "lost": [""]})


def _write_block(block: pa.Table, path: Path) -> None:
    pq.write_table(block, path / TARGET_FILE)


def teacher_sums(
    groups: Sequence[Sequence[Path]],
    token_budget: int | None,
    device: str = "cpu",
    trust_remote_code: bool = False,
    bf16: bool = False,
) -> Callable[[TokenTable], list[np.ndarray]]:
    """Loads teachers; returns what sums up each group's raw last-layer embeddings of B sentences, float32 [B, D].

    SED section 4 averages embeddings as they are, without normalisation, and section 5.1 pools the last layer.

    Args:
        token_budget: tokens per forward pass; None: what suits the device.
        trust_remote_code: whether code that a teacher came with may run.
        bf16: whether they compute in bf16.
    """
    encoders = [[load_checkpoint(path, trust_remote_code).to(device).eval() for path in paths] for paths in groups]
    return partial(encode_sums, encoders, token_budget=token_budget, bf16=bf16)


def verify_targets(
    directory: Path, teachers: Sequence[str], storage: Storage, trust_remote_code: bool = False, bf16: bool = False
) -> float:
    """Encodes 32 random rows again, one by one, and compares; this process holds one teacher at a time.

    Args:
        trust_remote_code: whether code that a teacher came with may run.
        bf16: whether some targets were made in bf16; here everything is in fp32.

    Returns:
        The largest absolute difference.

    Raises:
        RuntimeError: a target does not belong to its sentence.
    """
    sample = _sample(SentenceTable(directory))
    tokens = TokenTable.from_arrow(sample)
    target_BD = matrix(sample.column("target"))
    sums_BD = np.zeros_like(target_BD)
    for name in teachers:
        embed = teacher_sums([[storage.fetch(name)]], token_budget=1, trust_remote_code=trust_remote_code)
        sums_BD += embed(tokens)[0]
        del embed  # before the next teacher is loaded
    difference_BD = np.abs(sums_BD / len(teachers) - target_BD)
    scale = max(float(np.abs(target_BD).max()), 1.0)
    largest = float(difference_BD.max())
    if largest > _MOST_DIFFERENCE[bf16] * scale:
        wrong = tokens.ids[difference_BD.max(1).argmax()]
        raise RuntimeError(f"the target of sentence {wrong} is not the mean of its teachers (off by {largest:.3g})")
    return largest


def _sample(table: SentenceTable) -> pa.Table:
    """Random rows in their order, so that no row group is read twice."""
    count = len(table)
    rows = np.sort(np.random.default_rng(count).choice(count, min(_VERIFIED_ROWS, count), replace=False))
    return pa.concat_tables([table.rows(int(row), int(row) + 1, ("id", "input_ids", "target")) for row in rows])

"""Ray Data: the corpus through an augmenter, a block of sentences at a time, each finished block kept.

A block is the same sentences whatever the number of workers, and an augmenter's work depends on its seed and the
sentences' ids alone, so the views are the same wherever they were made; and a run that was stopped in the middle of a
long translation goes on with the blocks that are missing.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
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
from raysed.config import Config, derive_seed, stable_hash
from raysed.data.parquet import read_table
from raysed.data.tokens import SentenceTable
from raysed.errors import RunFailed, UserError, last_line
from raysed.model.augment import make_augmenter
from raysed.store.progress import Progress, tell
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_BLOCK = 512
"""Sentences of one block."""
_FILE = "views.parquet"
_SCHEMA = pa.schema([("first", pa.string()), ("second", pa.string())])


@dataclass(frozen=True)
class Rewritten:
    """Two views of every sentence of the corpus, in its order.

    Attributes:
        first: N texts.
        second: N texts.
        counts: what was done to them, in words.
    """

    first: list[str]
    second: list[str]
    counts: str


@dataclass(frozen=True)
class _Task:
    """What a worker has to know."""

    kind: str
    config: Config
    storage: Storage
    share: Share
    depends: dict[str, Any]

    def name(self, block: int) -> str:
        return f"{_blocks_of(self.kind)}/{stable_hash(self.depends)}/{block:06d}"


def rewrite(kind: str, config: Config, storage: Storage, share: Share, depends: Mapping[str, Any]) -> Rewritten:
    """Returns two views of every sentence of the corpus, which are made where no run at this location has them yet.

    Args:
        kind: `synonym`, `mlm` or `back_translation`.
        storage: the run directory, with the sentence table; gets the artefact `views/KIND.text`.
        share: how many workers, and what each gets.

    Raises:
        UserError: what the augmenter says of its model or data.
        RunFailed: the workers failed for another reason, or are lost at the same sentences again and again.
    """
    name, task = f"views/{kind}.text", _Task(kind, config, storage, share, dict(depends))
    entry = storage.finished(name, depends)
    if entry is None and (other := storage.elsewhere(name, depends)):
        log.info("%s views: reusing those of %s", kind, other)
        copied = other.fetch(name)
        read_table(copied / _FILE)  # what is refused must not become part of this run
        meta = other.entry(name).meta
        entry = storage.commit(name, lambda path: shutil.copytree(copied, path, dirs_exist_ok=True), depends, meta)
    if entry is None:
        count = _make_blocks(task)
        meta = {}
        entry = storage.commit(name, lambda path: meta.update(_join_blocks(task, count, path)), depends, meta)
    storage.remove(_blocks_of(kind))
    table = read_table(storage.fetch(name) / _FILE)
    return Rewritten(table.column("first").to_pylist(), table.column("second").to_pylist(), entry.meta["counts"])


def _blocks_of(kind: str) -> str:
    return f"views/{kind}.blocks"


def _make_blocks(task: _Task) -> int:
    """Makes the blocks that are not there yet; returns how many there are."""
    sentences = len(SentenceTable(task.storage.fetch("corpus")))
    count = -(-sentences // _BLOCK)
    missing = [block for block in range(count) if not task.storage.finished(task.name(block), task.depends)]
    progress = Progress(f"make {task.kind} views", sentences)
    done = count - len(missing)
    log.info("%s views: %d of %d blocks are already made; %s", task.kind, done, count, task.share)
    try:
        with watched(task.config.resources.silence_seconds, task.share) as watch:
            for mistake, lost in _outcomes(task, missing, watch):
                if mistake:
                    raise UserError(mistake)
                if lost:
                    raise RunFailed(lost)
                done += 1
                progress.update(min(done * _BLOCK, sentences), f"{done} of {count} blocks")
    except ray.exceptions.RayError as error:
        raise RunFailed(f"{task.kind} views: {last_line(error)}") from error
    progress.close()
    tell(sentences=min(len(missing) * _BLOCK, sentences))
    return count


def _outcomes(task: _Task, blocks: Sequence[int], watch: Watch) -> Iterator[tuple[str, str]]:
    """A user's mistake, or what is wrong with the workers, for each block as it ends; empty where all is well."""
    if not blocks:
        return
    quiet_ray_data()
    dataset = ray.data.from_items([{"block": block} for block in blocks], override_num_blocks=len(blocks))
    dataset = dataset.map_batches(
        _Rewriter,
        fn_constructor_args=(task, watch),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(task.share.workers, len(blocks))),
        num_cpus=task.share.cpus,
        num_gpus=task.share.gpus,
    )
    for batch in dataset.iter_batches(batch_size=None, prefetch_batches=0):
        yield from zip(batch["mistake"].tolist(), batch["lost"].tolist())


class _Rewriter:
    """An actor that rewrites blocks; a user's mistake is returned, because trying again would not help."""

    def __init__(self, task: _Task, watch: Watch):
        prepare_worker(task.share.threads)
        self._heard = beating(watch, f"{task.kind} views")
        self._heard.__enter__()  # for good: an actor is ended with its process
        self._task, self._watch, self._augmenter, self._mistake = task, watch, None, ""
        self._sentences = SentenceTable(task.storage.fetch("corpus"))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (block,) = batch["block"]
        start, stop = int(block) * _BLOCK, min((int(block) + 1) * _BLOCK, len(self._sentences))
        lost = self._watch.begin(f"{self._task.kind} views of sentences {start:,} to {stop - 1:,}")
        if not lost and not self._mistake:
            self._rewrite(int(block), start, stop)
        return {"mistake": np.array([self._mistake], object), "lost": np.array([lost], object)}

    def _rewrite(self, block: int, start: int, stop: int) -> None:
        task = self._task
        try:
            if self._augmenter is None:
                seed = derive_seed(task.config.seed, "views", task.kind)
                views, encoder, device = task.config.views, task.config.encoder, task.share.device
                self._augmenter = make_augmenter(task.kind, views, encoder, seed, device)
            rows = self._sentences.rows(start, stop, ("id", "sentence"))
            ids, sentences = rows.column("id").to_numpy(), rows.column("sentence").to_pylist()
            before = self._augmenter.tally
            table = pa.Table.from_arrays(list(zip(*self._augmenter(sentences, ids))), schema=_SCHEMA)
            meta = {"tally": np.subtract(self._augmenter.tally, before).tolist(), "unit": self._augmenter.unit}
            task.storage.commit(task.name(block), lambda path: pq.write_table(table, path / _FILE), task.depends, meta)
        except UserError as error:
            self._mistake = str(error)


def _join_blocks(task: _Task, count: int, path: Path) -> dict[str, Any]:
    """Writes all blocks as one file, in the order of the corpus; returns what was done in them, in words."""
    tally, unit = np.zeros(3, int), ""
    with pq.ParquetWriter(path / _FILE, _SCHEMA) as writer:
        for name in map(task.name, range(count)):
            meta = task.storage.entry(name).meta
            tally, unit = tally + meta["tally"], meta["unit"]
            writer.write_table(read_table(task.storage.fetch(name) / _FILE))
    chosen, changed, total = tally.tolist()
    share = 100 * chosen / max(total, 1)
    return {"counts": f"{chosen:,} of {total:,} {unit} rewritten ({share:.1f} %), {changed:,} differ"}

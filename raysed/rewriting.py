"""Ray Data: the corpus through an augmenter, a block of sentences at a time, each finished block kept.

A block is the same sentences whatever the number of workers, and an augmenter's work depends on its seed and the
sentences' ids alone, so the views are the same wherever they were made; and a run that was stopped in the middle of a
long translation goes on with the blocks that are missing.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch

from raysed.augment import make_augmenter
from raysed.config import Config, derive_seed, stable_hash
from raysed.errors import UserError
from raysed.resources import Share
from raysed.storage import Storage
from raysed.tracking import Progress, quiet_libraries

log = logging.getLogger(__name__)

_BLOCK = 512
"""Sentences of one block."""
_FILE = "views.parquet"


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
        return f"{blocks_of(self.kind)}/{stable_hash(self.depends)}/{block:06d}"


def rewrite(kind: str, config: Config, storage: Storage, share: Share, depends: Mapping[str, Any]) -> Rewritten:
    """Makes two views of every sentence of the corpus, on all workers; what was made before is not made again.

    Args:
        kind: `synonym`, `mlm` or `back_translation`.
        config: the run's settings.
        storage: the run directory, with the sentence table.
        share: how many workers, and what each gets.
        depends: everything that the views depend on.

    Raises:
        UserError: what the augmenter says of its model or data.
    """
    task = _Task(kind, config, storage, share, dict(depends))
    sentences = _Sentences(storage.fetch("corpus"))
    count = -(-len(sentences) // _BLOCK)
    missing = [block for block in range(count) if not storage.finished(task.name(block), task.depends)]
    progress = Progress(f"make {kind} views", len(sentences))
    done = count - len(missing)
    log.info("%s views: %d of %d blocks are there; %s", kind, done, count, share)
    for failure in _outcomes(task, missing):
        if failure:
            raise UserError(failure)
        done += 1
        progress.update(min(done * _BLOCK, len(sentences)), f"{done} of {count} blocks")
    progress.close()
    return _collect(task, count)


def blocks_of(kind: str) -> str:
    """Returns the path of the blocks of a kind, which can go when the table of views is there."""
    return f"views/{kind}.blocks"


def _outcomes(task: _Task, blocks: Sequence[int]) -> Iterator[str]:
    """The sentence that is wrong, or nothing, for each block as it ends."""
    if not blocks:
        return
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # the driver shows one line of its own
    context.print_on_execution_start = False
    dataset = ray.data.from_items([{"block": block} for block in blocks], override_num_blocks=len(blocks))
    dataset = dataset.map_batches(
        _Rewriter,
        fn_constructor_args=(task,),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(task.share.workers, len(blocks))),
        num_cpus=task.share.cpus,
        num_gpus=task.share.gpus,
    )
    for batch in dataset.iter_batches(batch_size=None, prefetch_batches=0):
        yield from batch["failure"].tolist()


class _Rewriter:
    """An actor that rewrites blocks; a user's mistake is returned, because trying again would not help."""

    def __init__(self, task: _Task):
        quiet_libraries()
        torch.set_num_threads(task.share.threads)
        self._task, self._augmenter, self._failure = task, None, ""
        self._sentences = _Sentences(task.storage.fetch("corpus"))

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        failures = [self._failure or self._rewrite(int(block)) for block in batch["block"]]
        return {"failure": np.array(failures, dtype=object)}

    def _rewrite(self, block: int) -> str:
        task = self._task
        try:
            if self._augmenter is None:
                seed = derive_seed(task.config.seed, "views", task.kind)
                device = "cuda" if task.share.gpus else "cpu"
                self._augmenter = make_augmenter(task.kind, task.config.views, task.config.encoder, seed, device)
            ids, sentences = self._sentences.block(block)
            before = self._augmenter.tally
            first, second = zip(*self._augmenter(sentences, ids))
        except UserError as error:
            self._failure = str(error)
            return self._failure
        table = pa.table({"first": pa.array(first, pa.string()), "second": pa.array(second, pa.string())})
        meta = {"tally": np.subtract(self._augmenter.tally, before).tolist(), "unit": self._augmenter.unit}
        task.storage.commit(task.name(block), lambda path: pq.write_table(table, path / _FILE), task.depends, meta)
        return ""


class _Sentences:
    """The text of the sentence table, a block at a time, without all of it in memory."""

    def __init__(self, directory: Path):
        self._files = [pq.ParquetFile(path) for path in sorted(directory.glob("*.parquet"))]
        self._groups = [(file, index) for file in self._files for index in range(file.metadata.num_row_groups)]
        sizes = [file.metadata.row_group(index).num_rows for file, index in self._groups]
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._loaded: dict[int, pa.Table] = {}

    def __len__(self) -> int:
        return int(self._starts[-1])

    def block(self, number: int) -> tuple[np.ndarray, list[str]]:
        """Returns ids and sentences of a block."""
        start, stop = number * _BLOCK, min((number + 1) * _BLOCK, len(self))
        groups = [g for g in range(len(self._groups)) if self._starts[g] < stop and self._starts[g + 1] > start]
        self._loaded = {g: self._loaded[g] if g in self._loaded else self._read(g) for g in groups}
        table = pa.concat_tables([self._loaded[g] for g in groups]).slice(start - self._starts[groups[0]], stop - start)
        return table.column("id").to_numpy(), table.column("sentence").to_pylist()

    def _read(self, group: int) -> pa.Table:
        file, index = self._groups[group]
        return file.read_row_group(index, columns=["id", "sentence"])


def _collect(task: _Task, count: int) -> Rewritten:
    """All blocks in the order of the corpus."""
    first, second, tally, unit = [], [], np.zeros(3, int), ""
    for block in range(count):
        entry = task.storage.entry(task.name(block))
        tally, unit = tally + entry.meta["tally"], entry.meta["unit"]
        table = pq.read_table(task.storage.fetch(task.name(block)) / _FILE)
        first += table.column("first").to_pylist()
        second += table.column("second").to_pylist()
    chosen, changed, total = tally.tolist()
    share = 100 * chosen / max(total, 1)
    return Rewritten(first, second, f"{chosen:,} of {total:,} {unit} rewritten ({share:.1f} %), {changed:,} differ")

"""The corpus through a maker of views, a block of sentences per task, each finished block kept.

A block is the same sentences whatever the number of workers, and a maker's work depends on its seed and the sentences'
ids alone, so the views are the same wherever they were made; and a run that was stopped in the middle of a long
translation goes on with the blocks that are missing.
"""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.cluster.heartbeat import watched_tasks
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import Share
from raysed.config import Config, derive_seed, stable_hash
from raysed.data.parquet import read_table
from raysed.data.tokens import SentenceTable
from raysed.errors import UserError
from raysed.model.views import KINDS
from raysed.model.views.common import Maker
from raysed.store.progress import Progress, tell
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_BLOCK = 512
"""Sentences of one block."""
_FILE = "views.parquet"
_SCHEMA = pa.schema([("first", pa.string()), ("second", pa.string())])


@dataclass(frozen=True)
class Rewritten:
    """Two views of every sentence of the corpus, in its order, and in words what was done to them."""

    first: list[str]
    second: list[str]
    counts: str


@dataclass(frozen=True)
class _Work:
    """What a task has to know beside its block."""

    kind: str
    config: Config
    storage: Storage
    share: Share
    depends: dict[str, Any]

    def name(self, block: int) -> str:
        return f"views/{self.kind}.blocks/{stable_hash(self.depends)}/{block:06d}"


def rewrite(kind: str, config: Config, storage: Storage, share: Share, depends: Mapping[str, Any]) -> Rewritten:
    """Return two views of every sentence of the corpus, which are made where no run at this location has them yet.

    Args:
        kind: of `model.views.KINDS`.
        storage: the run directory, with the sentence table; gets the artefact `views/KIND.text`.
        share: how many workers, and what each gets.

    Raises:
        UserError: what the maker says of its model or data.
        RunFailed: the workers failed for another reason, or are lost at the same sentences again and again.
    """
    name, work = f"views/{kind}.text", _Work(kind, config, storage, share, dict(depends))
    entry = storage.finished(name, depends)
    if entry is None and (other := storage.elsewhere(name, depends)):
        log.info("%s views: reusing those of %s", kind, other)
        copied = other.fetch(name)
        read_table(copied / _FILE)  # what is refused must not become part of this run
        meta = other.entry(name).meta
        entry = storage.commit(name, lambda path: shutil.copytree(copied, path, dirs_exist_ok=True), depends, meta)
    if entry is None:
        count, meta = _make_blocks(work), {}
        entry = storage.commit(name, lambda path: meta.update(_join_blocks(work, count, path)), depends, meta)
    storage.remove(f"views/{kind}.blocks")
    table = read_table(storage.fetch(name) / _FILE)
    return Rewritten(table.column("first").to_pylist(), table.column("second").to_pylist(), entry.meta["counts"])


def _make_blocks(work: _Work) -> int:
    """Make the blocks that are not there yet; return how many there are."""
    title, sentences = f"make {work.kind} views", len(SentenceTable(work.storage.fetch("corpus")))
    count = -(-sentences // _BLOCK)
    missing = [block for block in range(count) if not work.storage.finished(work.name(block), work.depends)]
    done = count - len(missing)
    log.info("%s views: %d of %d blocks are already made; %s", work.kind, done, count, work.share)
    # Memory is for so many workers, so tasks take the CPUs of their threads.
    share = work.share if work.share.gpus else replace(work.share, cpus=max(work.share.cpus, work.share.threads))
    seconds, progress = work.config.resources.silence_seconds, Progress(title, sentences)
    for mistake in watched_tasks(
        _make_block,
        missing,
        work,
        work=title,
        share=share,
        seconds=seconds,
        part=lambda block: f"sentences {block * _BLOCK:,} to {min((block + 1) * _BLOCK, sentences) - 1:,}",
    ):
        if mistake:
            raise UserError(mistake)
        done += 1
        progress.update(min(done * _BLOCK, sentences), f"{done} of {count} blocks")
    progress.close()
    tell(sentences=min(len(missing) * _BLOCK, sentences))
    return count


_held: dict[str, Maker] = {}
"""The maker of this process' last task."""


def _make_block(block: int, work: _Work) -> str:
    """Be one task: return a user's mistake, because trying again would not help; empty where there is none."""
    prepare_worker(work.share.threads)
    config, key = work.config, f"{stable_hash(work.depends)} {work.config.model_dump_json()}"
    try:
        if key not in _held:
            _held.clear()
            seed = derive_seed(config.seed, "views", work.kind)
            _held[key] = KINDS[work.kind].maker(config.views, config.encoder, seed, work.share.device)
        rows = SentenceTable(work.storage.fetch("corpus")).rows(
            block * _BLOCK, (block + 1) * _BLOCK, ("id", "sentence")
        )
        made = _held[key](rows.column("sentence").to_pylist(), rows.column("id").to_numpy())
    except UserError as error:
        return str(error)
    table = pa.Table.from_arrays(list(zip(*made.pairs)), schema=_SCHEMA)
    meta = {"chosen": made.chosen, "total": made.total}
    work.storage.commit(work.name(block), lambda path: pq.write_table(table, path / _FILE), work.depends, meta)
    return ""


def _join_blocks(work: _Work, count: int, path: Path) -> dict[str, Any]:
    """Write all blocks as one file, in the order of the corpus; return what was done in them, in words."""
    chosen = total = 0
    with pq.ParquetWriter(path / _FILE, _SCHEMA) as writer:
        for name in map(work.name, range(count)):
            meta = work.storage.entry(name).meta
            chosen, total = chosen + meta["chosen"], total + meta["total"]
            writer.write_table(read_table(work.storage.fetch(name) / _FILE))
    share = 100 * chosen / max(total, 1)
    return {"counts": f"{chosen:,} of {total:,} {KINDS[work.kind].UNIT} rewritten ({share:.1f} %)"}

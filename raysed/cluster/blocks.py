"""Blocks of the corpus: which exist, which are missing, and how one is made, on Ray Data or in this process.

A block holds the same sentences for any number of workers, and every finished one is an artefact, so a stopped run
continues with the missing ones.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.cluster.work import Work
from raysed.config import stable_hash
from raysed.data.parquet import SentenceTable
from raysed.data.queries import roles_in
from raysed.graph import Task
from raysed.store.progress import Progress, emit
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_FILE = "block.parquet"
Place = dict[str, int]
"""Rows of a block in the sentence table: `start` to `stop`, exclusive."""
OnBlock = Callable[[pa.Table], None]
"""Takes what `BlockWorker` returns of a block."""


@dataclass(frozen=True)
class Stream:
    """Artefacts that are made from the same blocks of the corpus.

    Attributes:
        chain: for each stage of actors, the class that adds to a block, its task and work, and a label for people.
        starts: first rows of the blocks.
        keyed: whether blocks are identified by their text, and outlive the artefact.
    """

    title: str
    tasks: Sequence[Task]
    chain: Sequence[tuple[type, Task, Work, str]]
    starts: range
    keyed: bool = False

    def block(self, task: Task, start: int) -> str:
        """Return the artefact of the block that starts at a row."""
        if self.keyed:
            return keyed_block(task.name, start // self.starts.step)
        return f"{task.name}.blocks/{stable_hash(task.depends)}/{start:09d}"

    def depends(self, task: Task, rows: pa.Table) -> dict[str, Any]:
        """Return the dependencies of the block with these rows."""
        if not self.keyed:
            return dict(task.depends)
        texts = rows.column("sentence").to_pylist()
        roles = roles_in(rows)  # a query may have another prompt
        key = stable_hash(list(zip(texts, roles)) if any(roles) else texts)
        return {**{name: of for name, of in task.depends.items() if name != "corpus"}, "sentences": key}


def keyed_block(name: str, number: int) -> str:
    """Return the artefact of a block in a keyed stream."""
    return f"{name}/{number:06d}"


def stream_of(tasks: Sequence[Task], options: Mapping[str, Any], starts: range, work: Work, groups: int = 1) -> Stream:
    """Return the stream that makes some artefacts; averaged teachers that do not fit into one actor form `groups`."""
    worker, first = options["worker"], tasks[0]
    title, keyed = options.get("title", first.title), getattr(worker, "is_keyed", False)
    if "teachers" not in first.inputs:
        return Stream(title, tasks, [(worker, first, work, title)], starts, keyed)
    of_tables, chain = [task.inputs["teachers"] for task in tasks], []
    teachers = [[index, teacher] for index, of_table in enumerate(of_tables) for teacher in of_table]
    inputs = {role: value for role, value in first.inputs.items() if role != "teachers"}
    for start, stop in pairwise(len(teachers) * group // groups for group in range(groups + 1)):
        part, counts = teachers[start:stop], [len(of) for of in of_tables] if stop == len(teachers) else []
        task = replace(first, inputs={**inputs, "part": part, "counts": counts})
        who = " to ".join(dict.fromkeys([part[0][1].name, part[-1][1].name]))
        chain.append((worker, task, work, f"the teachers {who}"))
    return Stream(title, tasks, chain, starts, keyed)


def make_missing(stream: Stream, storage: Storage, how: str, publish: Callable[[list[Place], OnBlock], None]) -> None:
    """Make the missing blocks with `publish`; log `how` and the progress."""
    total, starts, step = stream.starts.stop, list(stream.starts), stream.starts.step
    if not stream.keyed:  # otherwise the worker, which reads the text, skips finished ones
        starts = [start for start in starts if not exists(stream, storage, start)]
    places = [{"start": start, "stop": min(start + step, total)} for start in starts]
    there, done = len(stream.starts) - len(places), total - sum(place["stop"] - place["start"] for place in places)
    known = f", {there} of {len(stream.starts)} blocks done" if there else ""
    log.info("%s: %s sentences%s; %s", stream.title, f"{total:,}", known, how)
    progress, made = Progress(stream.title, total, first=done), 0

    def on_block(rows: pa.Table) -> None:
        nonlocal done, made
        done, made = done + len(rows), made + sum(rows.column("is_made").to_pylist())
        progress.update(done, f"{done:,} of {total:,} sentences")

    if places:
        publish(places, on_block)
    emit(sentences=made)
    progress.close(f"{total:,} sentences")


def exists(stream: Stream, storage: Storage, start: int) -> bool:
    """Whether a block that is not keyed exists, for all artefacts."""
    return all(storage.finished(stream.block(task, start), task.depends) for task in stream.tasks)


def publish_here(stream: Stream, storage: Storage, places: Sequence[Place], on_block: OnBlock) -> None:
    """Make blocks in this process, for a stream of one stage."""
    table, worker = SentenceTable(storage.fetch("corpus")), BlockWorker(stream, 0, storage)
    for place in places:
        on_block(worker(table.rows(place["start"], place["stop"], stream.chain[0][0].columns)))


class BlockWorker:
    """One stage of a stream; the last one publishes."""

    def __init__(self, stream: Stream, number: int, storage: Storage):
        self._stream, self._storage, self._is_last = stream, storage, number + 1 == len(stream.chain)
        self._kind, self._task, self._work, _ = stream.chain[number]
        self._worker: Any = None

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows with what this stage adds; from the last stage, their IDs and whether they were made now."""
        if not self._is_last:
            return self.added(rows)
        first = rows.column("id")[0].as_py()
        wanted = [(self._stream.block(task, first), self._stream.depends(task, rows)) for task in self._stream.tasks]
        is_made = not (self._stream.keyed and all(self._storage.finished(*block) for block in wanted))
        if is_made:
            made = self.added(rows)
            for (name, depends), (block, meta) in zip(wanted, self._worker.blocks(made), strict=True):
                self._storage.commit(name, lambda path, block=block: pq.write_table(block, path / _FILE), depends, meta)
        return rows.select(["id"]).append_column("is_made", pa.repeat(is_made, len(rows)))

    def added(self, rows: pa.Table) -> pa.Table:
        """Return the rows with what the model adds; the first call loads it."""
        if self._worker is None:
            self._worker = self._kind(self._task.resolve_inputs(self._storage), self._task.settings, self._work)
        return self._task.checked(self._worker(rows))


def blocks_of(stream: Stream, task: Task, storage: Storage) -> list[tuple[Callable[[], Path], dict[str, Any]]]:
    """Return an artefact's blocks, each as a function that fetches the file, and its metadata."""
    blocks = [stream.block(task, start) for start in stream.starts]
    return [(partial(block_file, storage, block), storage.entry(block).meta) for block in blocks]


def block_file(storage: Storage, name: str) -> Path:
    """Fetch a block; return its file on this machine."""
    return storage.fetch(name) / _FILE

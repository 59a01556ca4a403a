"""Blocks of the corpus: which there are, which are missing, and how one is made, on Ray Data or in this process.

A block is the same sentences whatever the number of workers, and every finished one is an artefact, so a run that was
stopped goes on with those that are missing.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.cluster.work import Work
from raysed.config import stable_hash
from raysed.data.parquet import SentenceTable
from raysed.graph import Task
from raysed.store.progress import Progress, emit
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_FILE = "block.parquet"
Place = dict[str, int]
"""The rows of a block in the sentence table, from `start` up to `stop`."""


@dataclass(frozen=True)
class Stream:
    """Artefacts that are made of the same blocks of the corpus.

    Attributes:
        chain: of each stage of actors, the class that adds to a block, the task and work that it is made with, and
            what it is for people.
        starts: first rows of the blocks.
        keyed: whether blocks are known by their text, and outlive the artefact.
    """

    title: str
    tasks: Sequence[Task]
    chain: Sequence[tuple[type, Task, Work, str]]
    starts: range
    keyed: bool = False

    @property
    def columns(self) -> Sequence[str]:
        """The columns of the sentence table that the first stage takes."""
        return self.chain[0][0].columns

    def block(self, task: Task, start: int) -> str:
        """Return the artefact of the block that begins with a row."""
        if self.keyed:
            return keyed_block(task.name, start // self.starts.step)
        return f"{task.name}.blocks/{stable_hash(task.depends)}/{start:09d}"

    def depends(self, task: Task, rows: pa.Table | None) -> dict[str, Any]:
        """Return what a block depends on; of a keyed one its rows have to be known."""
        if not self.keyed:
            return dict(task.depends)
        key = stable_hash(rows.column("sentence").to_pylist())
        return {**{name: of for name, of in task.depends.items() if name != "corpus"}, "sentences": key}


def keyed_block(name: str, number: int) -> str:
    """Return the artefact of a block that is known by its text."""
    return f"{name}/{number:06d}"


def stream_of(tasks: Sequence[Task], options: Mapping[str, Any], starts: range, work: Work, groups: int = 1) -> Stream:
    """Return the stream that makes some artefacts; teachers of a mean that do not fit into one actor are in groups."""
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


def missing_blocks(stream: Stream, storage: Storage) -> list[Place]:
    """Return the blocks that are not there for all artefacts."""
    table, places = SentenceTable(storage.fetch("corpus")), []
    for start in stream.starts:
        stop = min(start + stream.starts.step, stream.starts.stop)
        rows = table.rows(start, stop, stream.columns) if stream.keyed else None
        if not all(storage.finished(stream.block(task, start), stream.depends(task, rows)) for task in stream.tasks):
            places.append({"start": start, "stop": stop})
    return places


def make_missing(stream: Stream, storage: Storage, how: str, publish: Callable[[list[Place]], Iterator[int]]) -> None:
    """Have the missing blocks published, and show how far that is.

    Args:
        how: is said beside the number of sentences.
        publish: makes blocks; yields the sentences of each when it is published.
    """
    total, places = stream.starts.stop, missing_blocks(stream, storage)
    there, sentences = len(stream.starts) - len(places), sum(place["stop"] - place["start"] for place in places)
    known = f", {there} of {len(stream.starts)} blocks done" if there else ""
    log.info("%s: %s sentences%s; %s", stream.title, f"{total:,}", known, how)
    progress, done = Progress(stream.title, total), total - sentences
    progress.start_from(done)
    if places:
        with closing(publish(places)) as published:
            for rows in published:
                done += rows
                progress.update(done, f"{done:,} of {total:,} sentences")
    emit(sentences=sentences)
    progress.close(f"{total:,} sentences")


def publish_here(stream: Stream, storage: Storage, places: Sequence[Place]) -> Iterator[int]:
    """Make blocks in this process; the stream has one stage."""
    table, worker = SentenceTable(storage.fetch("corpus")), BlockWorker(stream, 0, storage)
    for place in places:
        yield len(worker(table.rows(place["start"], place["stop"], stream.columns)))


class BlockWorker:
    """One stage of a stream; the last one publishes."""

    def __init__(self, stream: Stream, number: int, storage: Storage):
        self._stream, self._storage, self._is_last = stream, storage, number + 1 == len(stream.chain)
        self._kind, self._task, self._work, _ = stream.chain[number]
        self._worker: Any = None

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows with what this stage adds, and in the end their ids alone."""
        if self._worker is None:
            self._worker = self._kind(self._task.received(self._storage), self._task.settings, self._work)
        made = self._worker(rows)
        if not self._is_last:
            return made
        first = rows.column("id")[0].as_py()
        for task, (block, meta) in zip(self._stream.tasks, self._worker.blocks(made), strict=True):
            name, depends = self._stream.block(task, first), self._stream.depends(task, rows)
            self._storage.commit(name, lambda path, block=block: pq.write_table(block, path / _FILE), depends, meta)
        return rows.select(["id"])


def blocks_of(stream: Stream, name: str, storage: Storage) -> list[tuple[Callable[[], Path], dict[str, Any]]]:
    """Return the blocks of an artefact: what fetches the file, and the meta data."""
    (task,) = [task for task in stream.tasks if task.name == name]
    blocks = [stream.block(task, start) for start in stream.starts]
    return [(File(storage, block), storage.entry(block).meta) for block in blocks]


@dataclass(frozen=True)
class File:
    """The file of a block; calling it fetches the file."""

    storage: Storage
    name: str

    def __call__(self) -> Path:
        """Return where the file is on this machine."""
        return self.storage.fetch(self.name) / _FILE

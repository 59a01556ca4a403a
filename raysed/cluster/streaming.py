"""Ray Data: places in the corpus -> a chain of actors that hold models -> blocks, which the actors publish.

Nothing holds more than a few blocks, and the driver gets their places only. A block is the same sentences whatever the
number of workers, and every finished block is an artefact, so a run that was stopped goes on with those that are
missing. Actors read for themselves: tasks that read would need a CPU, and wait for ever where actors have taken all of
them, as they do when a node is lost.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.cluster.process import prepare_worker, quiet_ray_data
from raysed.cluster.resources import Share
from raysed.cluster.work import Work
from raysed.config import stable_hash
from raysed.data.tokens import SentenceTable
from raysed.errors import RunFailed, UserError, last_line
from raysed.graph import Ref, Task
from raysed.store.progress import Progress, emit
from raysed.store.storage import Storage

if TYPE_CHECKING:
    from raysed.cluster.watchdog import Watchdog

log = logging.getLogger(__name__)

_FILE = "block.parquet"


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

    def block(self, task: Task, start: int) -> str:
        """Return the artefact of the block that begins with a row."""
        if self.keyed:
            return f"{task.name}/{start // self.starts.step:06d}"
        return f"{task.name}.blocks/{stable_hash(task.depends)}/{start:09d}"

    def depends(self, task: Task, key: str) -> dict[str, Any]:
        """Return what a block depends on."""
        if not self.keyed:
            return dict(task.depends)
        return {**{name: of for name, of in task.depends.items() if name != "corpus"}, "sentences": key}

    def is_there(self, start: int, storage: Storage) -> bool:
        """Whether the block is there for all artefacts; of a keyed one only a worker knows."""
        return not self.keyed and all(storage.finished(self.block(t, start), t.depends) for t in self.tasks)


def stream_of(tasks: Sequence[Task], options: Mapping[str, Any], starts: range, work: Work, groups: int = 1) -> Stream:
    """Return the stream that makes some artefacts; teachers of a mean that do not fit into one actor are in groups."""
    worker, first = options["worker"], tasks[0]
    title, keyed = options.get("title", first.title), getattr(worker, "is_keyed", False)
    if "teachers" not in first.inputs:
        return Stream(title, tasks, [(worker, first, work, title)], starts, keyed)
    teachers, chain = [[ref.name for ref in task.inputs["teachers"]] for task in tasks], []
    parts = teacher_groups(teachers, groups)
    for number, part in enumerate(parts, start=1):
        counts = [len(names) for names in teachers] if number == len(parts) else []
        more = {"part": [[index, Ref(name)] for index, name in part], "counts": counts}
        task = replace(first, inputs={**{r: v for r, v in first.inputs.items() if r != "teachers"}, **more})
        who = " to ".join(dict.fromkeys([part[0][1], part[-1][1]]))
        chain.append((worker, task, work, f"the teachers {who}"))
    return Stream(title, tasks, chain, starts, keyed)


def teacher_groups(teachers: Sequence[Sequence[str]], groups: int) -> list[list[tuple[int, str]]]:
    """Cut the teachers of several tables into groups, each of the number of a table and an artefact.

    >>> teacher_groups([["a", "b"], ["b"]], 2)
    [[(0, 'a')], [(0, 'b'), (1, 'b')]]
    """
    flat = [(index, name) for index, names in enumerate(teachers) for name in names]
    return [flat[first:last] for first, last in pairwise(len(flat) * group // groups for group in range(groups + 1))]


def missing_blocks(stream: Stream, storage: Storage) -> list[dict[str, int]]:
    """Return the first and last rows of blocks that are not there yet."""
    rows, step = stream.starts.stop, stream.starts.step
    missing = [start for start in stream.starts if not stream.is_there(start, storage)]
    return [{"start": start, "stop": min(start + step, rows)} for start in missing]


def make_blocks(stream: Stream, storage: Storage, share: Share, silence: float) -> None:
    """Make the blocks that are not there yet; sentences at which workers are lost again and again are named."""
    import ray

    from raysed.cluster.watchdog import watched_workers

    rows, places = stream.starts.stop, missing_blocks(stream, storage)
    there = len(stream.starts) - len(places)
    log.info(
        "%s: %s sentences%s; %s",
        stream.title,
        f"{rows:,}",
        f", {there} of {len(stream.starts)} blocks done" if there else "",
        share,
    )
    progress = Progress(stream.title, rows)
    done = rows - sum(place["stop"] - place["start"] for place in places)
    progress.start_from(done)
    made = 0
    try:
        with watched_workers(silence, share, least=len(stream.chain)) as watchdog:
            for outcome in _outcomes(stream, places, storage, share, watchdog):
                if outcome["broken"]:
                    raise UserError(outcome["broken"])
                if outcome["lost"]:
                    raise RunFailed(outcome["lost"])
                done, made = done + outcome["sentences"], made + outcome["computed"]
                progress.update(done, f"{done:,} of {rows:,} sentences")
    except ray.exceptions.RayError as error:
        raise RunFailed(f"{stream.title}: {last_line(error)}") from error
    emit(sentences=made)
    progress.close(f"{rows:,} sentences")


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


def _outcomes(
    stream: Stream, places: Sequence[dict[str, int]], storage: Storage, share: Share, watchdog: "Watchdog"
) -> Iterator[dict[str, Any]]:
    """Yield the sentences of each block as it is published, and what is wrong with them or with their workers."""
    if not places:
        return
    import ray

    quiet_ray_data()
    dataset = ray.data.from_items(list(places), override_num_blocks=len(places))
    for number in range(len(stream.chain)):
        dataset = dataset.map_batches(
            _Actor,
            fn_constructor_args=(stream, number, storage, share, watchdog),
            batch_format="pyarrow",
            batch_size=None,
            compute=ray.data.ActorPoolStrategy(size=min(share.workers, len(places))),
            num_cpus=share.cpus,
            num_gpus=share.gpus,
        )
    for table in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        yield from table.to_pylist()


class BlockWorker:
    """One stage of the chain: the first reads sentences at the places that it is told, the last publishes."""

    def __init__(self, stream: Stream, number: int, storage: Storage):
        self._stream, self._storage = stream, storage
        self._number, self._is_last = number, number + 1 == len(stream.chain)
        self._worker: Any = None
        self._sentences = SentenceTable(storage.fetch("corpus"))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the block with what this stage adds; the last stage returns how that went."""
        if not len(table) or "lost" in table.column_names:
            return table
        if "start" in table.column_names:
            (place,) = table.to_pylist()
            table = self._sentences.rows(place["start"], place["stop"], self._stream.chain[0][0].columns)
        first, last = table.column("id")[0].as_py(), table.column("id")[-1].as_py()
        if lost := self._lost_at(first, last):
            return _outcome(0, lost=lost)
        try:
            if self._stream.keyed and self._is_known(table, first):
                return _outcome(len(table))
            if self._worker is None:
                worker, task, work, _ = self._stream.chain[self._number]
                self._worker = worker(task.received(self._storage), task.settings, work)
            made = self._worker(table)
            return self._publish(table, made, first) if self._is_last else made
        except UserError as error:  # trying again would not help
            return _outcome(0, broken=str(error))

    def _lost_at(self, first: int, last: int) -> str:
        """Say where these sentences have ended several workers already."""
        return ""

    def _depends(self, task: Task, table: pa.Table) -> dict[str, Any]:
        key = stable_hash(table.column("sentence").to_pylist()) if self._stream.keyed else ""
        return self._stream.depends(task, key)

    def _is_known(self, table: pa.Table, first: int) -> bool:
        (task,) = self._stream.tasks
        return self._storage.finished(self._stream.block(task, first), self._depends(task, table)) is not None

    def _publish(self, table: pa.Table, made: pa.Table, first: int) -> pa.Table:
        for task, (block, meta) in zip(self._stream.tasks, self._worker.blocks(made), strict=True):
            name, depends = self._stream.block(task, first), self._depends(task, table)
            self._storage.commit(name, lambda path, block=block: pq.write_table(block, path / _FILE), depends, meta)
        return _outcome(len(table), computed=len(table))


class _Actor(BlockWorker):
    """A stage of the chain in a process of its own, which is watched."""

    def __init__(self, stream: Stream, number: int, storage: Storage, share: Share, watchdog: "Watchdog"):
        prepare_worker(share.threads)
        self._what, self._watchdog = stream.chain[number][-1], watchdog
        self._guard = watchdog.guard(self._what)
        self._guard.__enter__()  # for good: an actor is ended with its process
        super().__init__(stream, number, storage)

    def _lost_at(self, first: int, last: int) -> str:
        return self._watchdog.begin(f"sentences {first:,} to {last:,} for {self._what}")


def _outcome(sentences: int, computed: int = 0, broken: str = "", lost: str = "") -> pa.Table:
    return pa.table({"sentences": [sentences], "computed": [computed], "broken": [broken], "lost": [lost]})

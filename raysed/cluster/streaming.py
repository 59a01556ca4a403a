"""Ray Data: rows of the sentence table -> a chain of actors that hold models -> blocks, which a sink commits.

Readers hand out the rows of missing blocks, and every stage adds columns, such as the running sum of teachers: O(D) per
sentence. Readers and the sink reserve no CPU: they would wait forever if actors had taken all of them, as when a node
is lost. Both unpickle this file, so it imports no torch: that would cost each of them seconds.
"""

import gc
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import ray
from ray.data import Datasink
from ray.util.queue import Queue

from raysed.cluster.blocks import BlockTables, Stream, StreamStage
from raysed.cluster.events import drain
from raysed.data.parquet import SentenceTable
from raysed.errors import RunFailed, UserError, last_line
from raysed.process import prepare_worker
from raysed.resources import Share
from raysed.store.progress import repeating
from raysed.store.storage import Storage

_MAX_TRIES = 5  # per block: one lost more often than lost nodes explain takes its workers down itself


def make_blocks(stream: Stream, storage: Storage, share: Share, events: Queue, on_event: Callable[..., None]) -> None:
    """Make the missing blocks; an error names sentences at which workers are lost again and again."""

    def pass_on() -> None:
        for name, event in drain(events):
            on_event(name, event)

    with _settings_of_ray_data(in_order=share.gpus > 0), repeating(pass_on, 1.0, patience=10.0):
        _write(stream, storage, share, events)
    pass_on()


@contextmanager
def _settings_of_ray_data(in_order: bool) -> Iterator[None]:
    """Set Ray Data up for our blocks, which stay `in_order` on request; a notebook's datasets find it as it was."""
    logger, context = logging.getLogger("ray.data"), ray.data.DataContext.get_current()
    ours = {
        "enable_progress_bars": False,  # the driver shows its own line
        "print_on_execution_start": False,
        "target_max_block_size": None,  # our blocks are Ray's blocks
        "raise_original_map_exception": True,
    }
    level, before = logger.level, {name: getattr(context, name) for name in ours}
    options, was_in_order = context.execution_options, context.execution_options.preserve_order
    logger.setLevel(logging.CRITICAL)  # its errors are raised, too
    for name, value in ours.items():
        setattr(context, name, value)
    options.preserve_order = in_order
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)
        options.preserve_order = was_in_order


def _write(stream: Stream, storage: Storage, share: Share, events: Queue) -> None:
    tables, places = stream.tables, stream.places
    rows = ray.data.from_items(list(places), override_num_blocks=len(places)).map_batches(
        ReadSentences,
        fn_constructor_args=(tables, storage, events),
        compute=ray.data.ActorPoolStrategy(size=-(-share.workers // 8)),
        num_cpus=0,
        batch_format="pyarrow",
        batch_size=None,
    )
    first = next(iter(tables.depends))
    job, tries = uuid.uuid4().hex, f"{first}.blocks"
    # With GPUs, Ray refuses None and fills batches from the blocks that come: in order, as only the last block is
    # shorter, each batch is a block. Without, a block is committed as soon as it is made.
    batch_size = tables.size if share.gpus else None
    for number in range(len(stream.chain)):
        rows = rows.map_batches(
            MakeBlocks,
            fn_constructor_args=(stream, number, storage, share, f"{tries}/{number}", job),
            compute=ray.data.ActorPoolStrategy(size=min(share.workers, len(places))),
            batch_format="pyarrow",
            batch_size=batch_size,
            **share.remote_options,
        )
    rows.set_name(tables.title.replace("/", "-"))  # also the name of a log file
    failure: UserError | RunFailed | None = None
    try:
        rows.write_datasink(BlockSink(tables, storage, events), ray_remote_args={"num_cpus": 0})
    except ray.exceptions.RayError as error:
        failure = _failure_of(error, tables.title)
    finally:
        storage.remove(f"checkpoints/{tries}")
    if failure:
        del rows
        gc.collect()  # Ray's error and its frames refer to each other, and hold actors with their CPUs and GPUs
        raise failure
    storage.write_text(f"logs/data/{first.replace('/', '-')}.txt", rows.stats())


def _failure_of(error: Exception, title: str) -> UserError | RunFailed:
    """Return what ended a stream: what its actors or the sink said, or Ray's own error."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, UserError):
        return cause
    said = cause.said if isinstance(cause, RunFailed) else f"{title}: {getattr(cause, 'said', last_line(error))}"
    return RunFailed(said)


@contextmanager
def _remembered() -> Iterator[None]:
    """Keep what an error says as its attribute `said`: Ray Data appends advice on retries to the message."""
    try:
        yield
    except Exception as error:
        error.said = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {last_line(error)}"
        raise


class ReadSentences:
    """Read the rows of a block that is to be made."""

    def __init__(self, tables: BlockTables, storage: Storage, events: Queue):
        self._tables, self._storage, self._events = tables, storage, events
        self._corpus = SentenceTable(storage.fetch(tables.corpus))

    def __call__(self, places: pa.Table) -> pa.Table:
        """Return the rows of one block; none if it exists by now."""
        (place,) = places.to_pylist()
        with _remembered():
            rows = self._tables.read(self._storage, self._corpus, place)
        if not len(rows):
            self._events.put((self._tables.title, {"rows": place["stop"] - place["start"], "made": 0, "entries": []}))
        return rows


class MakeBlocks(StreamStage):
    """One stage of the stream in an actor; counts how often each block was started."""

    def __init__(self, stream: Stream, number: int, storage: Storage, share: Share, tries: str, job: str):
        prepare_worker(share.threads)
        super().__init__(stream, number, storage)
        self._tries = lambda first: storage.checkpoints(f"{tries}/{first}", {}).begin(job)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return what `StreamStage` does; raise if the block has cost too many workers, as Ray Data retries forever."""
        if not len(rows):
            return rows
        first, last = rows.column("id")[0].as_py(), rows.column("id")[-1].as_py()
        with _remembered():
            if (lost := self._tries(first)) >= _MAX_TRIES:
                raise RunFailed(
                    f"sentences {first:,} to {last:,} for {self.label}: {lost} workers in a row were lost on them; "
                    "they crash or run out of memory there"
                )
            return super().__call__(rows)


class BlockSink(Datasink):
    """Commits the blocks of a table one by one, as artefacts of the run."""

    def __init__(self, tables: BlockTables, storage: Storage, events: Queue):
        self._tables, self._storage, self._events = tables, storage, events

    def write(self, blocks: Iterable[Any], ctx: Any) -> int:
        """Commit some blocks; return the number of their rows."""
        written = 0
        for rows in blocks:
            if not len(rows):
                continue
            with _remembered():
                entries = self._tables.commit(self._storage, rows)
            written += len(rows)
            made = entries[0].meta.get("embedded", len(rows))
            self._events.put((self._tables.title, {"rows": len(rows), "made": made, "entries": entries}))
        return written

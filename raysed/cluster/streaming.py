"""Ray Data: rows of the sentence table -> a chain of actors that hold models -> blocks, which the actors publish.

Readers hand out the rows of missing blocks, and every stage adds columns, such as the running sum of teachers: O(D) per
sentence. Readers reserve no CPU: they would wait forever if actors had taken all of them, as when a node is lost.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import ray

from raysed.cluster.blocks import BlockWorker, OnBlock, Place, Stream, make_missing
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import Share
from raysed.cluster.watchdog import Watchdog, watched_workers
from raysed.data.parquet import SentenceTable
from raysed.errors import RunFailed, UserError, last_line
from raysed.store.storage import Storage

_MOST_TRIES = 5  # per block: one lost more often than lost nodes explain takes its workers down itself


def make_blocks(stream: Stream, storage: Storage, share: Share, silence: float) -> None:
    """Make the missing blocks; an error names sentences at which workers are lost again and again."""
    with watched_workers(silence, share, least=len(stream.chain)) as watchdog, _settings_of_ray_data():
        make_missing(stream, storage, str(share), partial(_publish, stream, storage, share, watchdog))


@contextmanager
def _settings_of_ray_data() -> Iterator[None]:
    """Set Ray Data up for our blocks; the datasets of a notebook find it as it was."""
    logger, context = logging.getLogger("ray.data"), ray.data.DataContext.get_current()
    ours = {
        "enable_progress_bars": False,  # the driver shows its own line
        "print_on_execution_start": False,
        "target_max_block_size": None,  # our blocks are Ray's blocks
        "raise_original_map_exception": True,
    }
    level, before = logger.level, {name: getattr(context, name) for name in ours}
    logger.setLevel(logging.CRITICAL)  # its errors are raised, too
    for name, value in ours.items():
        setattr(context, name, value)
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in before.items():
            setattr(context, name, value)


def _publish(
    stream: Stream, storage: Storage, share: Share, watchdog: Watchdog, places: Sequence[Place], on_block: OnBlock
) -> None:
    about = {"batch_format": "pyarrow", "batch_size": None}
    rows = ray.data.from_items(list(places), override_num_blocks=len(places)).map_batches(
        ReadSentences,
        fn_constructor_args=(stream.chain[0][0].columns, storage, watchdog),
        compute=ray.data.ActorPoolStrategy(size=-(-share.workers // 8)),
        num_cpus=0,
        **about,
    )
    job, tries = uuid.uuid4().hex, f"{stream.tasks[0].name}.blocks"
    for number in range(len(stream.chain)):
        rows = rows.map_batches(
            MakeBlocks,
            fn_constructor_args=(stream, number, storage, share, watchdog, f"{tries}/{number}", job),
            compute=ray.data.ActorPoolStrategy(size=min(share.workers, len(places))),
            num_cpus=share.cpus,
            num_gpus=share.gpus,
            **about,
        )
    rows.set_name(stream.title.replace("/", "-"))  # also the name of a log file
    try:
        for made in rows.iter_batches(prefetch_batches=0, **about):
            on_block(made)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, RunFailed):
            raise RunFailed(cause.said) from None
        raise RunFailed(f"{stream.title}: {getattr(cause, 'said', last_line(error))}") from error
    finally:
        storage.remove(f"checkpoints/{tries}")


@contextmanager
def _remembered() -> Iterator[None]:
    """Keep what an error says as its attribute `said`: Ray Data appends advice on retries to the message."""
    try:
        yield
    except Exception as error:
        error.said = str(error) if isinstance(error, RunFailed) else f"{type(error).__name__}: {last_line(error)}"
        raise


class ReadSentences:
    """Read the rows of a block."""

    def __init__(self, columns: Sequence[str], storage: Storage, watchdog: Watchdog):
        self._guard = watchdog.guard("the sentences")
        self._guard.__enter__()  # never left: the actor ends with its process
        self._table, self._columns = SentenceTable(storage.fetch("corpus")), columns

    def __call__(self, places: pa.Table) -> pa.Table:
        """Return the rows of one block."""
        (place,) = places.to_pylist()
        with _remembered():
            return self._table.rows(place["start"], place["stop"], self._columns)


class MakeBlocks(BlockWorker):
    """One stage of the stream in an actor; counts how often each block was started."""

    def __init__(
        self, stream: Stream, number: int, storage: Storage, share: Share, watchdog: Watchdog, tries: str, job: str
    ):
        prepare_worker(share.threads)
        super().__init__(stream, number, storage)
        self._what = stream.chain[number][-1]
        self._guard = watchdog.guard(self._what)
        self._guard.__enter__()
        self._tries = lambda first: storage.checkpoints(f"{tries}/{first}", {}).begin(job)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return what `BlockWorker` does."""
        with _remembered():
            return super().__call__(rows)

    def added(self, rows: pa.Table) -> pa.Table:
        """Return what `BlockWorker` does; raise if the block has cost too many workers, as Ray Data retries forever."""
        first, last = rows.column("id")[0].as_py(), rows.column("id")[-1].as_py()
        if (lost := self._tries(first)) >= _MOST_TRIES:
            raise RunFailed(
                f"sentences {first:,} to {last:,} for {self._what}: {lost} workers in a row were lost on them; "
                "they crash or run out of memory there"
            )
        return super().added(rows)

"""What a run makes: `Made` names a thing and its fingerprint, and its `Step` says how it is made.

A fingerprint derives from the maker's name and version, its settings, the identity of external inputs and the
fingerprints of other things. It is known before the thing exists, and describing a thing makes nothing: that is the
business of `raysed.runner.Run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from raysed.config import Block, stable_hash
from raysed.context import Context
from raysed.data.parquet import BlockFiles
from raysed.store.checkpoints import Checkpoints
from raysed.store.files import Watched
from raysed.store.storage import Entry, Storage

_STATE = 2  # format of training states, see `raysed.train.state`
BLOCK_FILE = "block.parquet"
Maker = Callable[..., Mapping[str, Any] | None]
"""`maker(directory, inputs, settings, context)` fills a directory and returns small facts for the manifest."""


@dataclass(frozen=True)
class ExternalInput:
    """An input from outside the run: the identity of its content, what the maker receives, and the files it reads."""

    identity: Any
    value: Any = field(default=None, repr=False)
    watched: Sequence[Watched] = field(default=(), repr=False)


@dataclass(frozen=True)
class RemoteValue:
    """A value that processes share, such as one in Ray's object store; `get` fetches it."""

    get: Callable[[], Any]


@dataclass(frozen=True)
class BlockShape:
    """All blocks of a table that is not finished, as the input of the maker that completes it."""

    name: str
    blocks: int
    size: int
    rows: int


# -- how it is made --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """How a model is trained; all trainings of a stage are trials of one experiment.

    Attributes:
        worker: see `raysed.make.models.Trainer`.
        memory: returns the `raysed.resources.Need`, given `gpu` and the `kind` of GPU.
        updates: returns the number of updates, given the rows of its `tables`.
        checkpoint_bytes: of one checkpoint.
        rows_per_update: batch size in sentences or pairs.
        is_gang: whether workers share it, as those of a learner do.
    """

    node: str
    bound: float | None
    index: int
    worker: type
    memory: Callable[..., Any]
    updates: Callable[[Mapping[str, int]], int]
    tables: Mapping[str, Made]
    checkpoint_bytes: int
    rows_per_update: int
    is_gang: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """Columns that identify it in tables of results."""
        return {"node": self.node, "lower_bound": self.bound, "seed": self.index}


@dataclass(frozen=True)
class Blocks:
    """How a table is made of blocks of the corpus, in actors that hold models.

    Attributes:
        corpus: the sentence table.
        worker: makes a block from rows of the corpus, see `raysed.cluster.blocks`.
        weights: returns the bytes of the model that an actor holds; None: of the step's `teachers`.
        group: tables of one group are made in one pass.
        is_keyed: whether only its text identifies a block, not all inputs of the table.
    """

    corpus: Made
    worker: type
    title: str
    weights: Callable[[], int] | None = None
    group: str = ""
    is_keyed: bool = False


Place = Literal["driver", "worker", "cpu"]
"""Where a short maker runs: in the run's own process, or in a worker if that is faster, `cpu` without a GPU."""


@dataclass(frozen=True)
class Step:
    """A maker with all that it gets, ready for this process or a worker."""

    name: str
    title: str
    make: Maker
    depends: Mapping[str, Any]
    """All dependencies, for the manifest."""
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]
    """By role: what is made as `Made`, values as they are or as `RemoteValue`, and lists of these."""
    watched: Sequence[Watched] = ()
    """Files that the maker reads."""

    def resolve_inputs(self, storage: Storage) -> dict[str, Any]:
        return {role: resolve_input(value, storage) for role, value in self.inputs.items()}

    def run(self, storage: Storage, context: Context) -> Entry:
        inputs = self.resolve_inputs(storage)
        return self.publish(storage, lambda out: self.checked(self.make(out, inputs, self.settings, context)))

    def checked(self, made: Any) -> Any:
        """Return `made`; UserError if a file has changed since the fingerprint in `depends`."""
        for files in self.watched:
            files.check()
        return made

    def publish(self, storage: Storage, write: Callable[[Path], Mapping[str, Any] | None]) -> Entry:
        """Commit the files and facts of `write`; delete blocks of an earlier, larger corpus."""
        meta = {"title": self.title}
        entry = storage.commit(self.name, lambda out: meta.update(write(out) or {}), self.depends, meta)
        if isinstance(blocks := self.inputs.get("blocks"), BlockShape):
            own = {block_name(self.name, number) for number in range(blocks.blocks)}
            for name in set(storage.names(self.name)) - own:
                storage.remove(name)
        return entry

    def exists(self, storage: Storage) -> bool:
        return storage.finished(self.name, self.depends) is not None

    def checkpoints(self, storage: Storage) -> Checkpoints:
        """Return the checkpoints of its training; those in an earlier format do not count."""
        return storage.checkpoints(self.name, {**self.depends, "state": _STATE})


@dataclass(frozen=True, eq=False, repr=False)
class Made:
    """A directory that a run has or can make. In other processes it is only a name: they read it.

    Attributes:
        name: path below the run directory.
        stage: of the run, in timings and status.
        how: a short maker's place, a training, or blocks.
        group: one worker makes all short ones of a group, one after the other.
        may_fail: the run continues without it.
        weights: returns the bytes of the model that a short maker loads; None: at most the run's encoder.
        lines: yields lines for the user, given its entry.
    """

    name: str
    step: Step | None = None
    stage: str = ""
    how: Place | Training | Blocks = "driver"
    group: str = ""
    may_fail: bool = False
    weights: Callable[[], int] | None = None
    lines: Callable[[Entry], Iterable[str]] | None = None

    def __reduce__(self) -> tuple:
        return Made, (self.name,)

    def __repr__(self) -> str:
        return f"Made({self.name!r})"

    @cached_property
    def fingerprint(self) -> str:
        return stable_hash(self.step.depends)

    @property
    def needs(self) -> Iterator[Made]:
        """What its maker reads, and so must exist before."""
        for value in self.step.inputs.values():
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, Made))


class Trained(NamedTuple):
    """A model after its training, or as an earlier job left it.

    Attributes:
        failure: why it could not be trained; None: it was.
        is_mistake: whether the user can fix `failure`.
        dev: score on the dev task.
        collapsed: why it is scored, but not used otherwise.
    """

    made: Made
    failure: str | None = None
    is_mistake: bool = False
    dev: float | None = None
    collapsed: str | None = None

    @property
    def name(self) -> str:
        return self.made.name

    @property
    def bound(self) -> float | None:
        """The lower bound of a grid's model."""
        return self.made.how.bound


def made(
    name: str,
    title: str,
    stage: str,
    make: Maker,
    inputs: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    untracked: Mapping[str, Any] | None = None,
    **about: Any,
) -> Made:
    """Describe something that a run can make.

    Args:
        inputs: by role: other things, lists of them, `ExternalInput` or None.
        settings: blocks of settings and values that change the result.
        untracked: further inputs that do not change the result, of any type.
        about: further attributes of `Made`.
    """
    settings, values, watched = settings or {}, dict[str, Any](), list[Watched]()
    depends = {"make": f"{make.__name__} {getattr(make, 'version', 1)}", **_plain(settings)}
    for role, value in {**(untracked or {}), **inputs}.items():
        identity, values[role] = _identity(value), value
        if isinstance(value, ExternalInput):
            values[role] = value.value
            watched += value.watched
        if role in inputs:
            depends[role] = identity
    return Made(name, Step(name, title, make, depends, settings, values, watched), stage, **about)


def _identity(value: Any) -> Any:
    """Return an input's part of the fingerprint."""
    match value:
        case ExternalInput():
            return value.identity
        case Made():
            return value.fingerprint
        case list():
            return stable_hash([_identity(each) for each in value])
    return ""


def _plain(value: Any) -> Any:
    """Return settings as plain JSON values; of a block, only those that change results."""
    if isinstance(value, Block):
        return value.identity()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


# -- what makers receive ---------------------------------------------------------------------------------------------


def resolve_input(value: Any, storage: Storage) -> Any:
    """Return what a maker receives for an input: a directory, a table's blocks, or the value."""
    match value:
        case BlockShape():
            return _block_files(storage, value.name, None, vars(value))
        case Made():
            directory, entry = storage.fetch(value.name), storage.entry(value.name)
            return _block_files(storage, value.name, directory, entry.meta) if "blocks" in entry.meta else directory
        case list():
            return [resolve_input(item, storage) for item in value]
        case RemoteValue():
            return value.get()
    return value


def block_name(name: str, number: int) -> str:
    """Return the name of a block of the table `name`."""
    return f"{name}/{number:06d}"


def _block_files(storage: Storage, name: str, directory: Path | None, shape: Mapping[str, Any]) -> BlockFiles:
    names = [block_name(name, number) for number in range(shape["blocks"])]
    files = [partial(_block_file, storage, block) for block in names]
    facts = partial(_facts_of_blocks, storage, name, names)
    return BlockFiles(directory, files, facts, shape["size"], shape["rows"])


@contextmanager
def _block_file(storage: Storage, name: str) -> Iterator[Path]:
    directory = storage.fetch(name)
    try:
        yield directory / BLOCK_FILE
    finally:
        storage.release(directory)


def _facts_of_blocks(storage: Storage, name: str, blocks: Sequence[str]) -> list[Mapping[str, Any]]:
    facts = {entry.name: entry.meta for entry in storage.listed(name)}
    return [facts[block] for block in blocks]

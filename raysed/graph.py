"""The artefacts of a run, their inputs and their fingerprints.

A fingerprint derives from the maker's name and version, its settings, the identity of external inputs and the
fingerprints of other artefacts. Facts known only at run time (failed or collapsed members, the winner of a grid) are an
artefact too, an outcome. Other artefacts depend on an outcome's content, not on how it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysed.config import Block, stable_hash
from raysed.data.parquet import BlockFiles
from raysed.store.checkpoints import Checkpoints
from raysed.store.files import Watched
from raysed.store.storage import Entry, Storage

if TYPE_CHECKING:
    from raysed.context import Context

LISTS = "lists"
"""Key of an outcome's metadata: its lists of artefacts by name, as pairs of name and fingerprint."""
_STATE = 2  # format of training states, see `raysed.train.state`
BLOCK_FILE = "block.parquet"


# -- inputs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExternalInput:
    """An input from outside the run: the identity of its content, what the maker receives, and the files it reads."""

    identity: Any
    value: Any = field(default=None, repr=False)
    watched: Sequence[Watched] = field(default=(), repr=False)


@dataclass(frozen=True)
class OutcomeMember:
    """An artefact from the list `among` of an outcome, or without an index all of that list.

    An outcome lists its models in three ways: `all`, `healthy` without the collapsed ones, and `sound`, which is `all`
    with a gap for each collapsed one.
    """

    outcome: Artefact
    index: int | None = None
    among: str = "all"
    instead: tuple[Artefact, ...] = ()
    """Artefacts to use instead of those at the same positions of the list."""


@dataclass(frozen=True)
class Candidates:
    """Artefacts that an outcome chooses from; some may not exist."""

    artefacts: tuple[Artefact, ...]


@dataclass(frozen=True)
class CandidateResult:
    """One of `Candidates`: `meta` is None if it does not exist; `is_mistake`: whether the user can fix `reason`."""

    name: str
    fingerprint: str
    meta: Mapping[str, Any] | None
    reason: str = ""
    is_mistake: bool = False


# -- how artefacts are made ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InDriver:
    """Make it in the run's own process."""


@dataclass(frozen=True)
class Short:
    """Make it in a worker if that is faster, with others of the same `group`; `on_cpus`: without a GPU."""

    group: str = ""
    on_cpus: bool = False


@dataclass(frozen=True)
class Training:
    """Train it in a worker; all trainings of a stage are trials of one experiment.

    Attributes:
        worker: the training, see `raysed.make.models.Trainer`.
        memory: returns the `raysed.resources.Need`, given `gpu` and the `kind` of GPU.
        updates: returns the number of updates, given the rows of its `tables`.
        rows_per_update: batch size in sentences or pairs.
        config: columns that identify it in tables of results: node, lower_bound, seed.
    """

    worker: type
    memory: Callable[..., Any]
    updates: Callable[[Mapping[str, int]], int]
    tables: Mapping[str, Artefact]
    rows_per_update: int
    config: Mapping[str, Any]


@dataclass(frozen=True)
class GangTraining:
    """Train it in workers that share the work, see `Training`."""

    worker: type
    memory: Callable[..., Any]
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Blocks:
    """Make it from blocks of the corpus, in actors that hold models; the artefact consists of these blocks.

    Attributes:
        corpus: the sentence table.
        worker: makes a block from rows of the corpus, see `raysed.cluster.blocks`.
        weights: returns the bytes of the model that an actor holds; None: of the artefact's `teachers`.
        group: artefacts of one group are made in one pass.
        is_keyed: whether only its text identifies a block, not all inputs of the artefact.
    """

    corpus: Artefact
    worker: type
    title: str
    weights: Callable[[], int] | None = None
    group: str = ""
    is_keyed: bool = False


Execution = InDriver | Short | Training | GangTraining | Blocks


@dataclass(frozen=True, eq=False, repr=False)
class Artefact:
    """A directory that a run makes.

    Attributes:
        name: path below the run directory.
        stage: of the run, in timings and status.
        make: `make(directory, inputs, settings, context)` fills a directory and returns small facts for the manifest.
        settings: blocks of settings and values that change the result.
        untracked: further inputs, by role, that do not change the result.
        is_intermediate: make it only for a missing artefact that needs it.
        is_outcome: others depend on its content.
        may_fail: the run continues without it.
        lines: yields lines for the user once it exists.
    """

    name: str
    title: str
    stage: str
    make: Callable[..., Mapping[str, Any] | None]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    untracked: Mapping[str, Any] = field(default_factory=dict)
    execution: Execution = InDriver()
    is_intermediate: bool = False
    is_outcome: bool = False
    may_fail: bool = False
    lines: Callable[[Entry], Iterable[str]] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def sources(self) -> Iterable[Artefact]:
        """Yield the artefacts that must precede this one."""
        for value in (*self.inputs.values(), *self.untracked.values()):
            match value:
                case Artefact():
                    yield value
                case tuple():
                    yield from value
                case Candidates():
                    yield from value.artefacts
                case OutcomeMember():
                    yield value.outcome
                    yield from value.instead


# -- artefacts whose inputs are known ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ref:
    """An artefact that a maker receives as the path of its directory, or as `BlockFiles`."""

    name: str


@dataclass(frozen=True)
class BlocksRef(Ref):
    """The blocks of an unfinished artefact, for the maker that completes it."""

    blocks: int
    size: int
    rows: int


@dataclass(frozen=True)
class RemoteValue:
    """A value that processes share, such as one in Ray's object store; `get` fetches it."""

    get: Callable[[], Any]


@dataclass(frozen=True)
class Task:
    """An artefact with known inputs, ready to be made in this process or in a worker."""

    name: str
    title: str
    make: Callable[..., Mapping[str, Any] | None]
    depends: Mapping[str, Any]
    """All dependencies, for the manifest."""
    settings: Mapping[str, Any]
    inputs: Mapping[str, Any]
    """By role: artefacts as `Ref`, values as they are or as `RemoteValue`, and lists of these."""
    watched: Sequence[Watched] = ()
    """Files that the maker reads."""

    @property
    def fingerprint(self) -> str:
        return stable_hash(self.depends)

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
        if isinstance(blocks := self.inputs.get("blocks"), BlocksRef):
            own = {block_name(self.name, number) for number in range(blocks.blocks)}
            for name in set(storage.names(self.name)) - own:
                storage.remove(name)
        return entry

    def exists(self, storage: Storage) -> bool:
        return storage.finished(self.name, self.depends) is not None

    def checkpoints(self, storage: Storage) -> Checkpoints:
        """Return the checkpoints of its training; those in an earlier format do not count."""
        return storage.checkpoints(self.name, {**self.depends, "state": _STATE})


def resolve_input(value: Any, storage: Storage) -> Any:
    """Return what a maker receives for an input: an artefact's directory or blocks, or the value."""
    match value:
        case BlocksRef():
            return _block_files(storage, value.name, None, vars(value))
        case Ref():
            directory, entry = storage.fetch(value.name), storage.entry(value.name)
            return _block_files(storage, value.name, directory, entry.meta) if "blocks" in entry.meta else directory
        case list():
            return [resolve_input(item, storage) for item in value]
        case RemoteValue():
            return value.get()
    return value


def block_name(name: str, number: int) -> str:
    """Return the name of the artefact that is a block of `name`."""
    return f"{name}/{number:06d}"


def _block_files(storage: Storage, name: str, directory: Path | None, shape: Mapping[str, Any]) -> BlockFiles:
    names = [block_name(name, number) for number in range(shape["blocks"])]
    files = [partial(_block_file, storage, block) for block in names]
    facts = partial(_facts_of_blocks, storage, name, names)
    return BlockFiles(directory, files, facts, shape["size"], shape["rows"])


@contextmanager
def _block_file(storage: Storage, name: str) -> Iterator[Path]:
    with storage.borrowed(name) as directory:
        yield directory / BLOCK_FILE


def _facts_of_blocks(storage: Storage, name: str, blocks: Sequence[str]) -> list[Mapping[str, Any]]:
    facts = {entry.name: entry.meta for entry in storage.listed(name)}
    return [facts[block] for block in blocks]


# -- the graph ---------------------------------------------------------------------------------------------------------


class Graph:
    """All artefacts of a run, each after its inputs."""

    def __init__(self, artefacts: Iterable[Artefact] = ()):
        self.artefacts: dict[str, Artefact] = {}
        self._users: dict[str, list[Artefact]] = {}
        for artefact in artefacts:
            self.add(artefact)

    def add(self, artefact: Artefact) -> Artefact:
        if artefact.name in self.artefacts:
            raise ValueError(f"two artefacts are called {artefact.name}")
        for source in artefact.sources():
            if self.artefacts.get(source.name) is not source:
                raise ValueError(f"{artefact.name} needs {source.name}, which no earlier artefact provides")
            self._users.setdefault(source.name, []).append(artefact)
        self.artefacts[artefact.name] = artefact
        return artefact

    def batches(self) -> list[list[Artefact]]:
        """Return the artefacts in order, split where the stage or the kind of execution changes."""
        same = groupby(self.artefacts.values(), key=lambda artefact: (artefact.stage, type(artefact.execution)))
        return [list(batch) for _, batch in same]

    def users(self, artefact: Artefact) -> Sequence[Artefact]:
        return self._users.get(artefact.name, ())


class State:
    """The finished artefacts of a graph; `failures`: why others are missing, and whether the user can fix it."""

    def __init__(self, graph: Graph, storage: Storage):
        self.graph, self.storage = graph, storage
        self.failures: dict[str, tuple[str, bool]] = {}
        self._finished: dict[str, Entry] = {}
        self._tasks: dict[str, Task] = {}

    def entry(self, artefact: Artefact | str) -> Entry | None:
        """Return the manifest entry of an artefact, or of its name; None if it is not planned, missing or outdated."""
        artefact = self.graph.artefacts.get(artefact) if isinstance(artefact, str) else artefact
        if artefact is None:
            return None
        if artefact.name not in self._finished:
            task = self.task(artefact)
            if entry := task and self.storage.finished(artefact.name, task.depends):
                self._finished[artefact.name] = entry
        return self._finished.get(artefact.name)

    def forget(self, artefact: Artefact) -> None:
        """Check storage again for an artefact."""
        self._finished.pop(artefact.name, None)

    def task(self, artefact: Artefact | str) -> Task | None:
        """Return an artefact with its inputs; None if an outcome among them is missing or lists nothing for it."""
        artefact = self.graph.artefacts[artefact] if isinstance(artefact, str) else artefact
        if artefact.name not in self._tasks:
            inputs = {**artefact.untracked, **artefact.inputs}
            resolved = {role: self._resolved(value) for role, value in inputs.items()}
            if None in resolved.values():
                return None
            make = artefact.make
            depends = {"make": f"{make.__name__} {getattr(make, 'version', 1)}", **_plain(artefact.settings)}
            depends |= {role: resolved[role][0] for role in artefact.inputs}
            values = {role: value for role, (_, value) in resolved.items()}
            external = [value for value in inputs.values() if isinstance(value, ExternalInput)]
            watched = [files for value in external for files in value.watched]
            task = Task(artefact.name, artefact.title, make, depends, artefact.settings, values, watched)
            if any(isinstance(value, Candidates) for value in artefact.inputs.values()):
                return task  # uncached: results of candidates may still change
            self._tasks[artefact.name] = task
        return self._tasks[artefact.name]

    def is_wanted(self, artefact: Artefact) -> bool:
        if self.task(artefact) is None or self.entry(artefact):
            return False
        if not artefact.is_intermediate:
            return True
        return any(self._wants(user, artefact) for user in self.graph.users(artefact))

    def _wants(self, user: Artefact, artefact: Artefact) -> bool:
        entry = self.entry(user)
        if user.is_outcome:
            return entry is None or artefact.name in {name for name, _ in entry.meta[LISTS]["all"]}
        if entry is not None:
            return False
        return not user.is_intermediate or any(self._wants(n, user) for n in self.graph.users(user))

    def listed(self, outcome: Artefact | str, among: str = "all") -> list[tuple[str, str]]:
        """Return names and fingerprints in a list of an outcome; none if the outcome does not exist yet."""
        entry = self.entry(outcome)
        return [tuple(item) for item in entry.meta[LISTS].get(among, [])] if entry else []

    def fingerprint(self, artefact: Artefact) -> str | None:
        """Return an artefact's fingerprint for its dependants; that of an outcome is a hash of its content."""
        if artefact.is_outcome:
            entry = self.entry(artefact)
            return stable_hash(entry.meta[LISTS]) if entry else None
        task = self.task(artefact)
        return task and task.fingerprint

    def _resolved(self, value: Any) -> tuple[Any, Any] | None:
        """Return an input's part of the fingerprint and the maker's value; None if it does not exist."""
        match value:
            case ExternalInput():
                return value.identity, value.value
            case OutcomeMember():
                listed = self.listed(value.outcome, value.among)
                if value.index is None:
                    found = {at: item for at, item in enumerate(listed) if item[0]}
                    names = [value.instead[at].name if value.instead else name for at, (name, _) in found.items()]
                    return (dict(found.values()), [Ref(name) for name in names]) if found else None
                name, fingerprint = listed[value.index] if value.index < len(listed) else ("", "")
                return (fingerprint, Ref(name)) if name else None
            case Candidates():
                results = [self._result(artefact) for artefact in value.artefacts]
                return stable_hash([each.fingerprint for each in results]), results
            case tuple():
                fingerprints = [self.fingerprint(artefact) for artefact in value]
                refs = [Ref(artefact.name) for artefact in value]
                return None if None in fingerprints else (stable_hash(fingerprints), refs)
            case Artefact():
                found = self.fingerprint(value)
                return None if found is None else (found, Ref(value.name))
        return "", value

    def _result(self, artefact: Artefact) -> CandidateResult:
        task, entry = self.task(artefact), self.entry(artefact)
        failure = self.failures.get(artefact.name, ("", False))
        return CandidateResult(artefact.name, task.fingerprint if task else "", entry.meta if entry else None, *failure)


def _plain(value: Any) -> Any:
    """Return settings as plain JSON values; of a block, only those that change results."""
    if isinstance(value, Block):
        return value.identity()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

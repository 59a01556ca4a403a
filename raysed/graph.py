"""What a run makes: artefacts, what each is made from, and the resulting fingerprints.

A fingerprint derives from the maker's name and version, its settings, the identity of external inputs and the
fingerprints of other artefacts. What is known only at run time (failed or collapsed members, the winner of a grid) is
an artefact itself, an outcome: others depend on its content, not on its recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from raysed.config import Block, stable_hash
from raysed.store.checkpoints import Checkpoints
from raysed.store.files import Watched
from raysed.store.storage import Entry, Storage

LISTS = "lists"
"""Key of an outcome's metadata: the artefacts it lists, as pairs of name and fingerprint, by list."""
_STATE = 2  # format of training states, see `raysed.train.state`


@dataclass(frozen=True)
class ExternalInput:
    """An input from outside the run: the identity of its content, what the maker receives, and the files it reads."""

    identity: Any
    value: Any = field(default=None, repr=False)
    watched: Sequence[Watched] = field(default=(), repr=False)


@dataclass(frozen=True)
class OutcomeMember:
    """An artefact from the list `among` of an outcome, or all of them without an index."""

    outcome: str
    index: int | None = None
    among: str = "all"
    names: tuple[str, ...] = ()
    """Artefacts to take instead, at the positions of those in the list."""


@dataclass(frozen=True)
class Candidates:
    """Artefacts that an outcome chooses from; some of them may not exist."""

    names: tuple[str, ...]


Input = str | tuple[str, ...] | OutcomeMember | Candidates | ExternalInput


@dataclass(frozen=True)
class CandidateResult:
    """What became of one of the `Candidates`: `meta` is None if it does not exist; an `is_mistake` can be fixed."""

    name: str
    fingerprint: str
    meta: Mapping[str, Any] | None
    reason: str = ""
    is_mistake: bool = False


@dataclass(frozen=True)
class Needs:
    """How an artefact is made.

    Attributes:
        stage: of the run, in timings and status.
        by: `driver` (this process), `task`, `tune`, `train` or `blocks`, see `raysed.cluster.execute`.
        group: artefacts of one group share a worker.
        is_intermediate: make it only if something that needs it is missing.
        is_outcome: others depend on its content.
        may_fail: the run continues without it.
        say: yields lines for the user once it exists.
        options: for the code that runs it, such as its memory.
    """

    stage: str
    by: str = "driver"
    group: str = ""
    is_intermediate: bool = False
    is_outcome: bool = False
    may_fail: bool = False
    say: Callable[[Entry], Iterable[str]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Artefact:
    """Something that a run makes.

    Attributes:
        name: path below the run directory.
        make: `make(directory, inputs, settings, work)` fills a directory and returns small facts for the manifest.
        settings: blocks of settings and values that change the result.
        untracked: further inputs, by role, that do not change the result.
    """

    name: str
    title: str
    make: Callable[..., Mapping[str, Any] | None]
    needs: Needs
    inputs: Mapping[str, Input] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    untracked: Mapping[str, Any] = field(default_factory=dict)

    def sources(self) -> Iterable[str]:
        """Yield the names of artefacts that must precede this one."""
        for value in (*self.inputs.values(), *self.untracked.values()):
            if value and isinstance(value, str):
                yield value
            if isinstance(value, tuple):
                yield from value
            if isinstance(value, OutcomeMember):
                yield value.outcome
            if isinstance(value, OutcomeMember | Candidates):
                yield from value.names


@dataclass(frozen=True)
class Ref:
    """An artefact that a maker receives as the path of its directory."""

    name: str


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
    """Files that it is made from."""

    @property
    def fingerprint(self) -> str:
        """Stable hash of the dependencies."""
        return stable_hash(self.depends)

    def resolve_inputs(self, storage: Storage) -> dict[str, Any]:
        """Return what the maker receives: directories of artefacts, and values."""
        return {role: _resolve(value, storage) for role, value in self.inputs.items()}

    def run(self, storage: Storage, work: Any) -> Entry:
        """Make the artefact and publish it."""
        inputs = self.resolve_inputs(storage)
        return self.publish(storage, lambda out: self.checked(self.make(out, inputs, self.settings, work)))

    def checked(self, made: Any) -> Any:
        """Return what was made; UserError if a file that was read for it is not what `depends` says."""
        for files in self.watched:
            files.check()
        return made

    def publish(self, storage: Storage, write: Callable[[Path], Mapping[str, Any] | None]) -> Entry:
        """Commit what `write` writes, with the facts it returns."""
        meta = {"title": self.title}
        return storage.commit(self.name, lambda out: meta.update(write(out) or {}), self.depends, meta)

    def exists(self, storage: Storage) -> bool:
        """Whether it exists by now."""
        return storage.finished(self.name, self.depends) is not None

    def checkpoints(self, storage: Storage) -> Checkpoints:
        """Return the states of its training; those in an earlier format are not resumed."""
        return storage.checkpoints(self.name, {**self.depends, "state": _STATE})


def _resolve(value: Any, storage: Storage) -> Any:
    if isinstance(value, Ref):
        return storage.fetch(value.name)
    if isinstance(value, list):
        return [_resolve(item, storage) for item in value]
    return value.get() if isinstance(value, RemoteValue) else value


class Graph:
    """All artefacts of a run, each after its inputs."""

    def __init__(self, artefacts: Sequence[Artefact]):
        self.artefacts: dict[str, Artefact] = {}
        self._users: dict[str, list[Artefact]] = {}
        for artefact in artefacts:
            if artefact.name in self.artefacts:
                raise ValueError(f"two artefacts are called {artefact.name}")
            for source in artefact.sources():
                if source not in self.artefacts:
                    raise ValueError(f"{artefact.name} needs {source}, which no earlier artefact provides")
                self._users.setdefault(source, []).append(artefact)
            self.artefacts[artefact.name] = artefact

    def batches(self) -> list[list[Artefact]]:
        """Return consecutive artefacts of the same stage that are made in the same way, in order."""
        same = groupby(self.artefacts.values(), key=lambda a: (a.needs.stage, a.needs.by))
        return [list(batch) for _, batch in same]

    def users(self, name: str) -> Sequence[Artefact]:
        """Return the artefacts that have this one as an input."""
        return self._users.get(name, ())


class State:
    """What exists of a graph in the run's storage; `failures`: why others do not, and if the user can fix it."""

    def __init__(self, graph: Graph, storage: Storage):
        self.graph, self.storage = graph, storage
        self.failures: dict[str, tuple[str, bool]] = {}
        self._finished: dict[str, Entry] = {}
        self._tasks: dict[str, Task] = {}

    def entry(self, name: str) -> Entry | None:
        """Return an artefact's manifest entry; None unless it exists and is up to date."""
        if name not in self._finished:
            task = self.task(name)
            if entry := task and self.storage.finished(name, task.depends):
                self._finished[name] = entry
        return self._finished.get(name)

    def forget(self, name: str) -> None:
        """Look again whether an artefact exists."""
        self._finished.pop(name, None)

    def task(self, name: str) -> Task | None:
        """Return an artefact with its inputs; None if an outcome lists none for it, or does not exist yet."""
        if name not in self._tasks:
            artefact = self.graph.artefacts[name]
            given = {**artefact.untracked, **artefact.inputs}
            resolved = {role: self._resolved(value) for role, value in given.items()}
            if None in resolved.values():
                return None
            make = artefact.make
            depends = {"make": f"{make.__name__} {getattr(make, 'version', 1)}", **_plain(artefact.settings)}
            depends |= {role: resolved[role][0] for role in artefact.inputs}
            inputs = {role: value for role, (_, value) in resolved.items()}
            watched = [files for value in given.values() if isinstance(value, ExternalInput) for files in value.watched]
            task = Task(name, artefact.title, make, depends, artefact.settings, inputs, watched)
            if any(isinstance(value, Candidates) for value in artefact.inputs.values()):
                return task  # what was found may still change
            self._tasks[name] = task
        return self._tasks[name]

    def is_wanted(self, artefact: Artefact) -> bool:
        """Whether an artefact is missing and something needs it."""
        if self.task(artefact.name) is None or self.entry(artefact.name):
            return False
        if not artefact.needs.is_intermediate:
            return True
        return any(self._wants(user, artefact) for user in self.graph.users(artefact.name))

    def _wants(self, user: Artefact, artefact: Artefact) -> bool:
        entry = self.entry(user.name)
        if user.needs.is_outcome:
            return entry is None or artefact.name in {name for name, _ in entry.meta[LISTS]["all"]}
        if entry is not None:
            return False
        return not user.needs.is_intermediate or any(self._wants(n, user) for n in self.graph.users(user.name))

    def listed(self, outcome: str, among: str = "all") -> list[tuple[str, str]]:
        """Return names and fingerprints of what an outcome lists; nothing if it does not exist yet."""
        entry = self.entry(outcome)
        return [tuple(item) for item in entry.meta[LISTS].get(among, [])] if entry else []

    def fingerprint(self, name: str) -> str | None:
        """Return what identifies an artefact in its dependants; for an outcome, a hash of its content."""
        if self.graph.artefacts[name].needs.is_outcome:
            entry = self.entry(name)
            return stable_hash(entry.meta[LISTS]) if entry else None
        task = self.task(name)
        return task and task.fingerprint

    def _resolved(self, value: Any) -> tuple[Any, Any] | None:
        """Return what an input adds to the fingerprint, and what the maker gets; None if it does not exist."""
        match value:
            case ExternalInput():
                return value.identity, value.value
            case OutcomeMember():
                listed = self.listed(value.outcome, value.among)
                if value.index is None:
                    there = {at: item for at, item in enumerate(listed) if item[0]}
                    names = [value.names[at] if value.names else name for at, (name, _) in there.items()]
                    return (dict(there.values()), [Ref(name) for name in names]) if there else None
                name, of = listed[value.index] if value.index < len(listed) else ("", "")
                return (of, Ref(name)) if name else None
            case Candidates():
                found = []
                for name in value.names:
                    task, entry = self.task(name), self.entry(name)
                    meta, failure = entry.meta if entry else None, self.failures.get(name, ("", False))
                    found.append(CandidateResult(name, task.fingerprint if task else "", meta, *failure))
                return stable_hash([each.fingerprint for each in found]), found
            case tuple():
                of = [self.fingerprint(name) for name in value]
                return None if None in of else (stable_hash(of), [Ref(name) for name in value])
            case str() if value:
                of = self.fingerprint(value)
                return None if of is None else (of, Ref(value))
        return "", value


def _plain(value: Any) -> Any:
    """Return settings as plain JSON values; of a block only those that change a result."""
    if isinstance(value, Block):
        return value.identity()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

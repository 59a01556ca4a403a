"""Jobs: what a run hands to a backend, and what it hears of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysed.context import Context
from raysed.errors import UserError
from raysed.made import Step
from raysed.process import prepare_worker
from raysed.store.progress import Progress
from raysed.store.storage import Storage

OnEvent = Callable[[str, Mapping[str, Any]], None]
"""Takes the name of a job and an event, which is one of:

- a history entry of a training: `step`, `total`, `loss`, `dev` (None between evaluations); any number;
- `outcome`, an `Outcome`: the end of a training, exactly once;
- `failed`: the end of a short job; why some of it could not be made, by name;
- `rows`, `made` and `entries`: of a block that exists now, how many rows were made for it, and the manifest entries
  that were written; once per block.
"""


@dataclass(frozen=True)
class ShortJob:
    """What one worker makes one after the other."""

    name: str
    steps: Sequence[Step]

    def run(self, storage: Storage, context: Context, threads: int | None = None) -> dict[str, str]:
        """Make it; return why some could not be made, by name."""
        if threads:
            prepare_worker(threads)
        failed = {}
        for step in self.steps:
            try:
                step.run(storage, context)
            except UserError as error:
                failed[step.name] = str(error)
        return failed


@dataclass(frozen=True)
class TrainingJob:
    """A training: by one worker, or by a gang of workers that share it.

    Attributes:
        worker: see `raysed.made.Training`.
        config: node, lower_bound and seed.
        updates: how many it makes; 0 if only its worker knows.
    """

    step: Step
    worker: type
    config: Mapping[str, Any]
    updates: int = 0
    is_gang: bool = False

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.step.name

    @property
    def key(self) -> tuple:
        """What distinguishes it in its experiment."""
        return key_of(self.config)


def key_of(config: Mapping[str, Any]) -> tuple:
    """Return what distinguishes a training by its node, lower bound and seed."""
    return tuple(config.get(name) for name in ("node", "lower_bound", "seed"))


class TrainingLine:
    """One progress line for several trainings, parallel or sequential."""

    def __init__(self, title: str, what: str, count: int, updates: int | None = None):
        self._title, self._what, self._count, self._updates = title, what, count, updates
        self._latest: dict[str, Mapping[str, Any]] = {}
        self._done: set[str] = set()
        self._progress: Progress | None = None

    def report(self, name: str, entry: Mapping[str, Any]) -> None:
        """Take a history entry of a training: step, total, loss and dev."""
        self._progress = self._progress or Progress(self._title, self._updates or entry["total"] * self._count)
        known = self._latest.get(name, entry)["dev"]
        self._latest[name] = {**entry, "dev": known if entry["dev"] is None else entry["dev"]}
        if entry["step"] == entry["total"]:
            self._done.add(name)
        dev = [latest["dev"] for latest in self._latest.values() if latest["dev"] is not None]
        score = f" · dev {min(dev):.1f}..{max(dev):.1f}" if dev else ""
        note = f"{len(self._done)}/{self._count} {self._what} · loss {entry['loss']:.4f}{score}"
        self._progress.update(sum(latest["step"] for latest in self._latest.values()), note)

    def close(self, done: int | None = None) -> None:
        """Show the final line; of trainings that may stop early, it has to be told how many are `done`."""
        if self._progress:
            done = len(self._done) if done is None else done
            self._progress.close(f"{done} of {self._count} {self._what}")

"""raysed's pieces in a Ray program of its user's own: which artefacts of a run a `config` means, and what they need."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import ray
import torch

from raysed.cluster.blocks import BlockTables, block_size
from raysed.cluster.execute import ExecutionOptions, Executor
from raysed.cluster.jobs import TrainingJob, key_of
from raysed.cluster.local import LocalBackend
from raysed.cluster.streaming import BlockSink
from raysed.cluster.tuning import Prepared
from raysed.config import Config, dump_config, find_config, load_config, make_config, stable_hash
from raysed.context import Context, ignore
from raysed.errors import UserError
from raysed.graph import Artefact, Task
from raysed.make.models import Learner, Member
from raysed.make.scores import FittedCalibration
from raysed.make.targets import MeanTargets
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.process import prepare_worker
from raysed.resources import device_here
from raysed.store.progress import shown
from raysed.store.storage import Storage

_OWN = ("run", "storage", "node", "lower_bound", "seed")
_KINDS = {
    Member: ("ensembles", " (members.count)"),
    Learner: ("learners", " (sed.learners)"),
    FittedCalibration: ("calibrations", ""),
}
"""By class of artefact, what a run calls them, and the setting of how many there are per node."""


class Program:
    """A run as one process of a Ray program sees it."""

    def __init__(self, config: Mapping[str, Any]):
        self.job = check(_settings(config))
        config, plan = self.job.config, Plan(self.job)
        self.storage, self.artefacts = Storage(config.storage, config.run), plan.graph.artefacts
        planned = {"gpu": None if config.resources.gpu else config.resources.gpu}  # this process may have none
        self._resources = config.resources.model_copy(update={**planned, "gpus_per_member": None})
        backend, options = (
            LocalBackend(self.storage, self._resources, ignore),
            ExecutionOptions(self._resources, "local"),
        )
        with shown(False):
            self._executor = Executor(plan.graph, self.storage, options, backend, ignore)
        self.entry, self.record_blocks = self._executor.state.entry, self._executor.record_blocks

    def find(self, config: Mapping[str, Any], kind: type[Artefact]) -> Artefact:
        """Return the artefact of a class that a config means; UserError if the run has none of this node or seed."""
        (node, bound, seed), (what, setting) = key_of(config), _KINDS[kind]
        found = {_key(each): each for each in self.artefacts.values() if isinstance(each, kind)}
        nodes = list(dict.fromkeys(key[0] for key in found))
        if node not in nodes:
            raise UserError(f"node is {node!r}; the run's {what} are: {', '.join(nodes) or 'none'} (recipes)")
        bounds = list(dict.fromkeys(key[1] for key in found if key[0] == node))
        if bound not in bounds:
            listed = ", ".join(f"{each:g}" for each in bounds if each is not None)
            right = f"it must be one of sts.lower_bounds: {listed}" if listed else f"{node} has no grid; leave it out"
            raise UserError(f"lower_bound is {bound!r}; {right}")
        seeds = [key[2] for key in found if key[:2] == (node, bound)]
        if not isinstance(seed, Integral) or isinstance(seed, bool) or seed not in seeds:
            setting = setting if bound is None else " (sts.models)"
            right = f"it numbers the models of {node}{setting}, so it must be a whole number from 0 to {seeds[-1]}"
            raise UserError(f"seed is {seed!r}; {right}")
        return found[node, bound, seed]

    def completed(self, artefact: Artefact) -> Task:
        """Make what an artefact needs, except trainings; UserError if one of those is missing."""
        with self._alone(), shown(False):
            self.storage.write_text("config.yaml", dump_config(self.job.config))
            for source in artefact.sources():
                self._executor.complete(source)
        if task := self._executor.state.task(artefact):
            return task
        raise UserError(f"{artefact.name} needs a model that does not exist; train it first")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Have other processes of the program wait, where they could make the same thing."""
        if not self.storage.is_local:  # both make it, and one of two equal results stays
            yield
            return
        os.makedirs(self.storage.uri(""), exist_ok=True)
        with open(self.storage.uri(".preparing"), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def context(self) -> Context:
        """Return what this worker computes with."""
        return Context(device_here(self._resources.gpu), self._resources.encode_precision)

    def prepare(self, artefact: Artefact) -> Prepared:
        """Make what a training needs, except other trainings, and return all that a worker needs for it."""
        task, execution = self.completed(artefact), artefact.execution
        job = TrainingJob(task, execution.worker, execution.config)
        context = replace(self.context(), stall_seconds=self._resources.stall_seconds)
        return Prepared(self.storage, context, _threads(), {job.key: job})


def _key(artefact: Artefact) -> tuple[str, float | None, int]:
    """Return what `key_of` returns of the config that means an artefact."""
    node, *_, number = artefact.name.split("/")
    return node, artefact.settings.get("lower_bound"), int(number)


def _threads() -> int:
    """Return the CPUs that Ray has given to this worker, at least one; elsewhere torch's threads."""
    with suppress(AssertionError):  # the program's own process is no worker
        if ray.is_initialized():
            return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    return torch.get_num_threads()


def _settings(config: Mapping[str, Any]) -> Config:
    """Return the settings of a run, with overrides; those make it a run of its own."""
    run, overrides = config.get("run"), {name: value for name, value in config.items() if name not in _OWN}
    if not isinstance(run, str | Path | Mapping):
        raise UserError("config has no run; set it to the path of a configuration, or to a dictionary of settings")
    data = _copied(run if isinstance(run, Mapping) else load_config(find_config(str(run))).model_dump(mode="json"))
    data |= {"storage": str(config["storage"])} if "storage" in config else {}
    for name, value in overrides.items():
        *blocks, setting = name.split(".")
        place = data
        for block in blocks:
            place = place.setdefault(block, {}) if isinstance(place, dict) else None
        if not (blocks and isinstance(place, dict)):
            raise UserError(f"config has {name!r}; write an override with its block, such as ct.steps")
        place[setting] = value
    found = make_config(data)
    if not ("://" in found.storage or os.path.isabs(found.storage)):
        raise UserError(
            f"storage is {found.storage!r}; workers have other working directories, so it must be a full path or a URI"
        )
    return found.model_copy(update={"run": f"{found.run}-{stable_hash(overrides)[:8]}"}) if overrides else found


def _copied(value: Any) -> Any:
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, Mapping) else value


# -- the pieces ------------------------------------------------------------------------------------------------------


def prepare_member(config: Mapping[str, Any]) -> Prepared:
    """Make the corpus and what else a member needs, and return that.

    Trials do so themselves. Called before them, it raises UserError for a mistake that all of them would repeat.

    Args:
        config: as of `train_member`.
    """
    program = Program(config)
    return program.prepare(program.find(config, Member))


def prepare_learner(config: Mapping[str, Any]) -> Prepared:
    """Return what `distill_loop` needs; UserError if the targets do not exist."""
    program = Program(config)
    learner = program.find(config, Learner)
    targets = learner.inputs["targets"]
    if not program.entry(targets):
        makes_them = "raysed.ray.TargetSink" if isinstance(targets, MeanTargets) else "raysed run"
        raise UserError(f"there are no {targets.title}; make them with {makes_them}")
    return program.prepare(learner)


def fit_flow(config: Mapping[str, Any]) -> str:
    """Fit the calibration of one model on frozen embeddings; return the path of the result. For a task of Ray.

    Args:
        config: `run`, `seed` and overrides as of `train_member`; `node` is a recipe that ends with a calibration, such
            as `ct-sed-flow`.
    """
    program = Program(config)
    task = program.completed(program.find(config, FittedCalibration))
    if not task.exists(program.storage):
        prepare_worker(_threads())
        task.run(program.storage, program.context())
    return program.storage.uri(program.storage.entry(task.name).place)


@dataclass(frozen=True)
class _Fetched(os.PathLike):
    """The directory of an artefact, on the machine that opens it."""

    storage: Storage
    name: str

    def __fspath__(self) -> str:
        return os.fspath(self.storage.fetch(self.name))


class TargetSink(BlockSink):
    """Where the mean of an ensemble's members becomes a run's targets; for `Dataset.write_datasink`.

        targets = TargetSink({"run": "/shared/mine.yaml", "node": "ct-sed"}, workers=2)
        ray.data.read_parquet(targets.sentences).repartition(target_num_rows_per_block=targets.size).map_batches(
            MeanOfTeachers, fn_constructor_args=(targets.teachers, "target", len(targets.teachers)), num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=2), batch_format="pyarrow", batch_size=None,
        ).write_datasink(targets)

    Rows must come in blocks of `size`, in order: set `execution_options.preserve_order` of Ray's `DataContext`.

    Args:
        config: `run` and overrides as of `train_member`; `node` is a recipe such as `ct-sed`, whose members must exist.
        workers: actors that make blocks, so that all of them have some.

    Attributes:
        sentences: the directory or URI of the sentence table.
        teachers: the directories of the members, for `MeanOfTeachers`.
        size: sentences per block.
    """

    def __init__(self, config: Mapping[str, Any], workers: int = 1):
        program, self._config, node = Program(config), dict(config), config.get("node")
        artefact, storage = program.artefacts.get(f"{node}/targets"), program.storage
        if not isinstance(artefact, MeanTargets):
            known = [name.split("/")[0] for name, each in program.artefacts.items() if isinstance(each, MeanTargets)]
            raise UserError(f"node is {node!r}; the run has targets of: {', '.join(known) or 'none'} (recipes)")
        task, execution = program.completed(artefact), artefact.execution
        self.teachers = [_Fetched(storage, teacher.name) for teacher in task.inputs["teachers"]]
        corpus = storage.entry(execution.corpus.name)
        self.sentences, rows = storage.uri(corpus.place), corpus.meta["rows"]
        self.size, worker = block_size(storage, [task], rows, workers), execution.worker
        about = {artefact.name: task.depends}, worker.columns, worker.kept, rows, self.size
        storage.forget(artefact.name)
        super().__init__(BlockTables("targets", corpus.name, *about), storage)

    def on_write_complete(self, write_result: Any) -> None:
        """Record that all blocks exist."""
        program, (name,) = Program(self._config), self._tables.depends
        program.record_blocks([program.artefacts[name]], self._tables)

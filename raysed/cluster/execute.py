"""Make what is missing of a graph: stages, failures and timings, once for all backends.

Batches run in order. What is short and belongs to the run as a whole is made in this process; all else goes to one of
two backends: `raysed.cluster.on_ray` (Ray Tune, Train and Data) or `raysed.cluster.local` (this process).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from time import monotonic
from typing import Any, Literal, Protocol

from raysed.cluster.blocks import BlockTables, Stream, block_size, chain_of
from raysed.cluster.jobs import OnEvent, ShortJob, TrainingJob, TrainingLine
from raysed.config import ResourcesConfig
from raysed.context import Context, Outcome
from raysed.errors import RunFailed, UserError
from raysed.graph import (
    Artefact,
    Blocks,
    BlocksRef,
    GangTraining,
    Graph,
    InDriver,
    Short,
    State,
    Task,
    Training,
    block_name,
)
from raysed.resources import (
    Cluster,
    Demand,
    Need,
    Share,
    plan_learners,
    plan_members,
    plan_teachers,
    too_large,
    uses_gpu,
)
from raysed.store.progress import Progress, emit, listening
from raysed.store.status import read_timings
from raysed.store.storage import Entry, Storage
from raysed.train.memory import embedding_need

log = logging.getLogger(__name__)

Engine = Literal["ray", "local"]
_PACKED = 1000
"""Manifest entries of blocks per file that copies them."""


class Backend(Protocol):
    """Where jobs are done. It places and repeats work; what is made, and in which order, the executor decides.

    The jobs publish artefacts themselves. What is lost with a worker, the backend does again; a maker's error ends the
    stage, and a training that fails for good has that as its outcome. No wait is silent: a backend logs what it waits
    for, and ends trainings that hang (`resources.stall_seconds`).

    Attributes:
        where: name of the place, for people.
        share: what the run's own process may use; None: what is planned for the machines.
    """

    where: str
    share: Share | None

    def machines(self, demand: Demand | None = None) -> Cluster:
        """Return the machines to plan for; with a demand, wait for more, and refuse what can never be met."""

    def map(self, jobs: Sequence[ShortJob | TrainingJob], share: Share, context: Context, on_event: OnEvent) -> None:
        """Do jobs, all short, all trainings by one worker, or all by gangs, and return when all have ended."""

    def stream(self, stream: Stream, share: Share, on_event: OnEvent) -> None:
        """Make and commit the missing blocks of a stream."""

    def close(self) -> None:
        """End what was started."""


@dataclass(frozen=True)
class ExecutionOptions:
    """How a run is executed.

    Attributes:
        members: per ensemble, the number of workers to plan for when nothing better is known.
        check_room: raises if storage is too small; takes the cluster, and the corpus' rows if known.
        settings: the configuration, for people.
    """

    resources: ResourcesConfig
    engine: Engine = "ray"
    members: int = 1
    learner_workers: int | None = None
    check_room: Callable[[Cluster, int | None], None] = lambda cluster, rows: None
    settings: str = ""


def execute(graph: Graph, storage: Storage, options: ExecutionOptions, say: Callable[[str], None]) -> tuple[State, str]:
    """Make what is missing; return the final state and a description of the cluster."""
    with closing(backend_of(storage, options, say)) as backend:
        executor = Executor(graph, storage, options, backend, say)
        storage.write_text("config.yaml", options.settings)  # from here on, an earlier run of this name is modified
        for batch in graph.batches():
            executor.make(batch)
    _clear(graph, storage)
    return executor.state, str(executor.cluster)


def backend_of(storage: Storage, options: ExecutionOptions, say: Callable[[str], None]) -> Backend:
    """Return the backend of the requested engine."""
    if options.engine == "local":
        from raysed.cluster.local import LocalBackend

        return LocalBackend(storage, options.resources, say)
    from raysed.cluster.on_ray import RayBackend

    return RayBackend(storage, options.resources, say)


def _clear(graph: Graph, storage: Storage) -> None:
    """Remove checkpoints of failed trainings and killed jobs; artefacts outside this graph keep theirs."""
    left = (*storage.names("checkpoints"), *storage.plain.sizes_below("checkpoints"))
    for name in graph.artefacts:
        for place in (f"checkpoints/{name}", f"checkpoints/{name}.blocks"):
            if any(path.startswith(f"{place}/") for path in left):
                storage.remove(place)


class Executor:
    """Makes batches of artefacts.

    Attributes:
        cluster: the machines known so far; more may join.
    """

    def __init__(
        self,
        graph: Graph,
        storage: Storage,
        options: ExecutionOptions,
        backend: Backend,
        say: Callable[[str], None],
    ):
        self._graph, self._storage, self._options, self._backend, self._say = graph, storage, options, backend, say
        self._resources = options.resources
        self.state = State(graph, storage)
        self.cluster, self._is_gathered = backend.machines(), False
        if not self.cluster.autoscaling:
            self.gather()

    @property
    def gpu(self) -> bool:
        """Whether workers use GPUs."""
        return uses_gpu(self._resources, self.cluster)

    def make(self, batch: Sequence[Artefact]) -> None:
        """Make what is missing of a batch, then report on its artefacts."""
        kind = type(batch[0].execution)
        if kind is Blocks:
            self._forget_incomplete(batch)
        wanted = [artefact for artefact in batch if self.state.is_wanted(artefact)]
        if wanted and kind is not InDriver:
            self.gather()
        if kind is Training:
            self._train(batch)
        elif wanted and kind is not InDriver:
            with self._timed(wanted[0].stage):
                {Short: self._short, GangTraining: self._distil, Blocks: self._blocks}[kind](wanted, batch)
        for artefact in batch:
            if kind is InDriver and self.state.is_wanted(artefact):
                with self._timed(artefact.stage):
                    self._task(artefact).run(self._storage, self._context())
            if artefact.lines and (entry := self.state.entry(artefact)):
                for line in artefact.lines(entry):
                    self._say(line)
        is_corpus = any(artefact.name == "corpus" for artefact in batch)
        if is_corpus and self._is_gathered and (entry := self.state.entry("corpus")):
            self._options.check_room(self.cluster, entry.meta["rows"])

    def gather(self) -> None:
        """Wait for usable machines if more may join, and refuse what fits on none; only the first call acts."""
        if self._is_gathered:
            return
        options, artefacts = self._options, list(self._graph.artefacts.values())
        members = [artefact for artefact in artefacts if isinstance(artefact.execution, Training)]
        workers = options.members if members else 1
        learners = sum(isinstance(artefact.execution, GangTraining) for artefact in artefacts)
        demand = Demand(workers, learners, options.learner_workers)
        self.cluster = self._backend.machines(demand)
        self._is_gathered = True
        share = self._share(plan_members(self.cluster, self._resources, workers, self._memory(members)))
        corpus = self.state.entry("corpus")
        options.check_room(self.cluster, corpus.meta["rows"] if corpus else None)
        self._say(f"{self._backend.where}: {self.cluster}" + (f"; members: {share}" if members else ""))

    def _memory(self, artefacts: Iterable[Artefact]) -> Need:
        """Return what the largest of some trainings needs."""
        memories = {artefact.execution.config["node"]: artefact.execution.memory for artefact in artefacts}
        found = [memory(gpu=self.gpu, kind=self.cluster.gpu) for memory in memories.values()]
        return max(found, key=lambda need: (need.device, need.host), default=Need())

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Announce a stage, and add its seconds and emitted sentences to those of earlier attempts."""
        emit(stage=stage)
        timings, started = read_timings(self._storage), monotonic()
        took = timings.setdefault(stage, {"seconds": 0.0})

        def count(facts: dict[str, Any]) -> None:
            if "sentences" in facts:
                took["sentences"] = took.get("sentences", 0) + facts["sentences"]

        try:
            with listening(count):
                yield
        finally:
            took["seconds"] = round(took["seconds"] + monotonic() - started, 1)
            self._storage.write_text("timings.json", json.dumps(timings, indent=1))

    def _task(self, artefact: Artefact, **more: Any) -> Task:
        task = self.state.task(artefact)
        return replace(task, inputs={**task.inputs, **more})

    def _share(self, planned: Share) -> Share:
        """Return what is planned, which is refused where it is too large, or all of this machine."""
        return self._backend.share or planned

    def _context(self, share: Share | None = None) -> Context:
        share, res = share or self._backend.share, self._resources
        return Context(share.device if share else "cpu", res.encode_precision)

    # short makers

    def _short(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        groups: dict[str, list[Task]] = {}
        for artefact in wanted:
            groups.setdefault(artefact.execution.group or artefact.name, []).append(self._task(artefact))
        kind = wanted[0].title.split(" ")[0]
        kind = f"{kind}s" if len(wanted) > 1 and not kind.endswith("s") else kind
        title = f"{'fit' if wanted[0].stage == 'calibration' else 'compute'} {kind}"
        progress, done = Progress(title, len(wanted)), 0

        def on_event(name: str, event: Mapping[str, Any]) -> None:
            nonlocal done
            self._leave_out(event["failed"])
            done += 1
            progress.update(round(done * len(wanted) / len(groups)), f"{done} of {len(groups)}")

        self._map_short([ShortJob(title, group) for group in groups.values()], wanted[0].execution.on_cpus, on_event)
        progress.close()

    def _map_short(self, jobs: Sequence[ShortJob], on_cpus: bool, on_event: OnEvent) -> None:
        share = self._share(plan_members(self._backend.machines(), self._resources, self._options.members))
        share = replace(share, gpus=0.0) if on_cpus else share
        self._backend.map(jobs, share, self._context(share), on_event)

    def _leave_out(self, failed: Mapping[str, str]) -> None:
        """Go on without what could not be made, by name; raise if the run needs it."""
        for name, reason in failed.items():
            if not self._graph.artefacts[name].may_fail:
                raise UserError(f"{name}: {reason}")
            self.state.task(name).checked(None)
            self.state.failures[name] = reason, True
            self._say(f"left out: {name}: {reason}")

    # members

    def _train(self, batch: Sequence[Artefact]) -> None:
        """Train the members of one depth in one experiment, alternating between nodes so that all advance."""
        by_node: dict[str, list[Artefact]] = {}
        for artefact in batch:
            if self.state.task(artefact):
                by_node.setdefault(artefact.execution.config["node"], []).append(artefact)
        jobs, count = [], 0
        for members in by_node.values():
            (outcome,) = [user for user in self._graph.users(members[0]) if user.is_outcome]
            is_undecided = self.state.entry(outcome) is None
            # Finished members count too: one that is trained again gets as many threads as before.
            count += len(members) if is_undecided else len(self.state.listed(outcome))
            jobs.append([self._training_job(member) for member in members if self.state.is_wanted(member)])
        jobs = [job for job in chain(*zip_longest(*jobs)) if job]
        if not jobs:
            return
        share = self._share(plan_members(self._backend.machines(), self._resources, count, self._memory(batch)))
        updates, title = sum(job.updates for job in jobs), "+".join(dict.fromkeys(job.config["node"] for job in jobs))
        line = TrainingLine(f"train {title}", "members", len(jobs), updates)

        def on_event(name: str, event: Mapping[str, Any]) -> None:
            if "outcome" not in event:
                line.report(name, event)
                return
            outcome: Outcome = event["outcome"]
            emit(sentences=outcome.updates * self._graph.artefacts[name].execution.rows_per_update)
            if outcome.failure:
                self.state.failures[name] = outcome.failure, outcome.is_mistake

        with self._timed(batch[0].stage):
            log.info("training %d of %d members: %s", len(jobs), len(batch), share)
            self._backend.map(jobs, share, self._context(share), on_event)
            line.close()

    def _training_job(self, member: Artefact) -> TrainingJob:
        execution: Training = member.execution
        rows = {name: self.state.entry(table).meta["rows"] for name, table in execution.tables.items()}
        return TrainingJob(self._task(member), execution.worker, execution.config, execution.updates(rows))

    # learners

    def _distil(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        """Train learners, each with its own workers."""
        workers, machines = self._options.learner_workers, self._backend.machines()
        share = self._share(plan_learners(machines, self._resources, len(batch), self._memory(wanted[:1]), workers))
        jobs = [
            TrainingJob(self._task(each), each.execution.worker, each.execution.config, is_gang=True) for each in wanted
        ]
        line = TrainingLine(f"distil {wanted[0].stage}", "learners", len(wanted))
        failures: dict[str, Outcome] = {}

        def on_event(name: str, event: Mapping[str, Any]) -> None:
            if "outcome" not in event:
                line.report(name, event)
            elif event["outcome"].failure:
                failures[name] = event["outcome"]

        log.info("distilling %d learner%s: %s", len(jobs), "s" * (len(jobs) > 1), share)
        self._backend.map(jobs, share, self._context(share), on_event)
        done = [entry for artefact in wanted if (entry := self.state.entry(artefact))]
        emit(sentences=sum(entry.meta["sentences"] for entry in done))
        for name, outcome in failures.items():
            raise replace(outcome, failure=f"{name}: {outcome.failure}").error()
        if len(done) < len(wanted):
            missing = next(artefact.name for artefact in wanted if not self.state.entry(artefact))
            raise RunFailed(f"{missing} ended without a result; see its log at {self._storage.uri('train')}")
        line.close(len(wanted))

    # blocks of the corpus

    def _blocks(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        """Stream the corpus through models, once per group of artefacts."""
        groups: dict[str, list[Artefact]] = {}
        for artefact in wanted:
            groups.setdefault(artefact.execution.group, []).append(artefact)
        for group in groups.values():
            self._stream(group)

    def _stream(self, group: Sequence[Artefact]) -> None:
        execution: Blocks = group[0].execution
        tasks, corpus = [self._task(artefact) for artefact in group], execution.corpus
        for task in tasks:
            self._storage.forget(task.name)  # its blocks are replaced: from here on they are no longer all of it
        share, parts = self._plan_stream(execution, tasks)
        rows = self.state.entry(corpus).meta["rows"]
        size = block_size(self._storage, tasks, rows, share.workers, execution.is_keyed)
        links = chain_of(tasks, execution.title, parts)
        worker, depends = execution.worker, {task.name: task.depends for task in tasks}
        about = worker.columns, worker.kept, rows, size, execution.is_keyed
        tables = BlockTables(execution.title, corpus.name, depends, *about)
        log.info("%s: %s sentences in blocks of %d; %s", tables.title, f"{rows:,}", size, share)
        left = tables.missing(self._storage)
        done = rows - sum(place["stop"] - place["start"] for place in left)
        progress, made = Progress(tables.title, rows, first=done), 0
        unpacked: dict[str, list[Entry]] = {task.name: [] for task in tasks}

        def on_event(name: str, event: Mapping[str, Any]) -> None:
            nonlocal done, made
            done, made = done + event["rows"], made + event["made"]
            progress.update(done, f"{done:,} of {rows:,} sentences")
            for entry in event["entries"]:
                table = entry.name.rpartition("/")[0]
                unpacked[table].append(entry)
                if len(unpacked[table]) == _PACKED:
                    self._storage.pack(table, unpacked[table])
                    unpacked[table].clear()

        if left:
            self._backend.stream(Stream(tables, left, links, worker, self._context(share)), share, on_event)
        for table, entries in unpacked.items():
            self._storage.pack(table, entries)
        emit(sentences=made)
        progress.close(f"{rows:,} sentences")
        # All blocks exist: each artefact that consists of them is complete.
        refs = [BlocksRef(artefact.name, tables.count, tables.size, tables.rows) for artefact in group]
        jobs = [ShortJob(ref.name, [self._task(artefact, blocks=ref)]) for artefact, ref in zip(group, refs)]
        self._map_short(jobs, on_cpus=True, on_event=lambda name, event: self._leave_out(event["failed"]))

    def _plan_stream(self, execution: Blocks, tasks: Sequence[Task]) -> tuple[Share, int]:
        """Return the actors of a stream, and the number of groups that the teachers of a mean are divided into."""
        machines, res, count = self._backend.machines(), self._resources, 1
        if execution.weights is None:
            teachers = [task.inputs["teachers"] for task in tasks]
            files = [self._storage.fetch(refs[0].name).iterdir() for refs in teachers]
            weights = max(sum(file.stat().st_size for file in of_teacher) for of_teacher in files)
            count = sum(map(len, teachers))
        elif not (weights := execution.weights()):
            res = res.model_copy(update={"gpu": False})
        elif problem := too_large(machines, res, embedding_need(execution.title, weights)):
            raise UserError(problem)
        if self._backend.share:
            return self._backend.share, 1
        return plan_teachers(machines, res, count, weights)

    def _forget_incomplete(self, batch: Sequence[Artefact]) -> None:
        """Have artefacts completed that are to be read and lack blocks, which have manifest entries of their own."""
        for artefact in batch:
            entry = self.state.entry(artefact)
            if entry and "blocks" in entry.meta and any(map(self.state.is_wanted, self._graph.users(artefact))):
                names = {block_name(artefact.name, number) for number in range(entry.meta["blocks"])}
                if names - self._storage.finished_below(artefact.name):
                    self._storage.forget(artefact.name)
                    self.state.forget(artefact)

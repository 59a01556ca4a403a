"""Make what a script asks for, once for all backends: what is missing, in which order, with timings and failures.

What is short and belongs to the run as a whole is made in this process; all else goes to one of two backends:
`raysed.cluster.on_ray` (Ray Tune, Train and Data) or `raysed.cluster.local` (this process).
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, zip_longest
from time import monotonic
from typing import Any, Literal, Protocol

from raysed.cluster.blocks import BlockTables, Stream, block_size, chain_of, make_blocks_here
from raysed.cluster.jobs import OnEvent, ShortJob, TrainingJob, TrainingLine
from raysed.config import ResourcesConfig, stable_hash
from raysed.context import Context, Outcome
from raysed.data.parquet import ROWS_PER_GROUP
from raysed.errors import RunFailed, UserError
from raysed.made import Blocks, BlockShape, Made, Trained, Training, block_name
from raysed.plan.size import largest_need
from raysed.resources import (
    Cluster,
    Demand,
    Need,
    Share,
    plan_learners,
    plan_members,
    plan_teachers,
    plans_bf16,
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
_FAILED = "failed.json"
"""File of trainings that the run went on without: reasons, see `_record_of`."""


class Backend(Protocol):
    """Where jobs are done. It places and repeats work; what is made, and in which order, `Run` decides.

    The jobs publish what they make. What is lost with a worker, the backend does again; a maker's error ends the
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


def backend_of(engine: Engine, storage: Storage, resources: ResourcesConfig, say: Callable[[str], None]) -> Backend:
    """Return the backend of the requested engine."""
    if engine == "local":
        from raysed.cluster.local import LocalBackend

        return LocalBackend(storage, resources)
    from raysed.cluster.on_ray import RayBackend

    return RayBackend(storage, resources, say)


class Run:
    """A run directory, the machines that fill it, and what has become of it; see `raysed.pipeline`.

    Args:
        trainings: all that the script will ask for if none fails.
        members: workers to plan for when nothing better is known.
        check_room: raises if storage or machines are too small; takes the machines and the rows of tables, if known.

    Attributes:
        cluster: the machines known so far; more may join.
        failures: why others than trainings are missing, by name.
    """

    def __init__(
        self,
        storage: Storage,
        backend: Backend,
        resources: ResourcesConfig,
        say: Callable[[str], None],
        trainings: Sequence[Made] = (),
        members: int = 1,
        learner_workers: int | None = None,
        check_room: Callable[[Cluster, Mapping[str, int] | None], None] = lambda cluster, rows: None,
    ):
        self._storage, self._backend, self._resources, self._say = storage, backend, resources, say
        self._trainings, self._learner_workers, self._check_room = trainings, learner_workers, check_room
        self._members = members
        self._entries: dict[str, Entry] = {}  # as read, because an object store needs a request for each
        self._sure: set[str] = set()  # what exists with all its files
        self._made: set[str] = set()  # by this job, perhaps as an input of what was asked for beside it
        self._told: set[str] = set()
        self._experiments: dict[str, Sequence[Made]] = {}
        self._rows: Mapping[str, int] | None = None
        self.failures: dict[str, str] = {}
        self.cluster, self._is_gathered = backend.machines(), False
        if not self.cluster.autoscaling:
            self._gather()

    # -- what the script asks for ------------------------------------------------------------------------------------

    def ensure(self, *asked: Made | None) -> None:
        """Make what is missing, its inputs first, and side by side what can be; then say what there is to say."""
        wanted = [made for made in asked if made]
        self._make([made for made in wanted if not self._exists(made)])
        for made in (made for made in wanted if made.lines and made.name not in self._told):
            if entry := self._entry(made):
                self._told.add(made.name)
                for line in made.lines(entry):
                    self._say(line)

    def train(self, models: Sequence[Made]) -> list[Trained]:
        """Train what has no manifest entry: of members in one experiment, of learners a run each.

        A model that has an entry counts as trained even if its files are gone: only what reads them needs them. So do
        failures of an earlier job that went on without these models, see `decide`.
        """
        self._experiments |= {made.name: models for made in models}
        known = self._storage.read_json(_FAILED)
        failed = {made.name: known[record] for made in models if (record := _record_of(made)) in known}
        outcomes = self._train([made for made in models if made.name not in failed and not self._entry(made)])
        failed |= {name: outcome.failure for name, outcome in outcomes.items() if outcome.failure}
        found = []
        for made in models:
            if entry := self._entry(made):
                found.append(Trained(made, dev=entry.meta.get("dev"), collapsed=entry.meta.get("collapsed")))
            else:
                why = failed.get(made.name, "it ended without a result")
                found.append(Trained(made, why, outcomes.get(made.name, Outcome()).is_mistake))
        return found

    def decide(self, trained: Sequence[Trained], lines: Iterable[str]) -> None:
        """Go on without the trainings that have failed: no later job tries them again. Say `lines`."""
        failed = {_record_of(each.made): each.failure for each in trained if each.failure}
        if failed:
            self._storage.write_text(_FAILED, json.dumps(self._storage.read_json(_FAILED) | failed, indent=1))
        for line in lines:
            self._say(line)

    def meta(self, made: Made | None) -> Mapping[str, Any] | None:
        """Return the facts of its manifest entry; None if it does not exist."""
        entry = self._entry(made) if made else None
        return entry.meta if entry else None

    def rows(self, table: Made) -> int:
        """Return the number of rows of a table that exists."""
        return self._entry(table).meta["rows"]

    def check_room(self, tables: Mapping[str, Made]) -> None:
        """Refuse to go on if the run is too large, now that the tables' rows are known."""
        self._rows = {name: self.rows(table) for name, table in tables.items()}
        if self._is_gathered:
            self._check_room(self.cluster, self._rows)

    def clear(self) -> None:
        """Remove checkpoints of failed and killed trainings; those of other settings stay."""
        left = (*self._storage.names("checkpoints"), *self._storage.plain.sizes_below("checkpoints"))
        for place in (f"checkpoints/{name}" for name in self._experiments):
            if any(path.startswith(f"{place}/") for path in left):
                self._storage.remove(place)

    # -- what exists -------------------------------------------------------------------------------------------------

    def _entry(self, made: Made) -> Entry | None:
        """Return its manifest entry, whether or not its files are still there; None if it is missing or outdated."""
        if made.name not in self._entries and (entry := self._storage.known(made.name, made.step.depends)):
            self._entries[made.name] = entry
        return self._entries.get(made.name)

    def _exists(self, made: Made) -> bool:
        """Return whether all its files are there; those of a table are in its blocks."""
        if made.name not in self._sure:
            entry = self._storage.finished(made.name, made.step.depends)
            if entry and "blocks" in entry.meta:
                blocks = {block_name(made.name, number) for number in range(entry.meta["blocks"])}
                left = blocks - {block.name for block in self._storage.finished_below(made.name)}
                entry = None if left else entry
            if entry is None:
                return False
            self._sure.add(made.name)
        return True

    # -- machines ----------------------------------------------------------------------------------------------------

    def _gather(self) -> None:
        """Wait for usable machines if more may join, and refuse what fits on none; only the first call acts."""
        if self._is_gathered:
            return
        members = [made for made in self._trainings if not made.how.is_gang]
        workers = self._members if members else 1
        demand = Demand(workers, len(self._trainings) - len(members), self._learner_workers)
        self.cluster = self._backend.machines(demand)
        self._is_gathered = True
        share = self._share(plan_members(self.cluster, self._resources, workers, self._memory(members)))
        self._check_room(self.cluster, self._rows)
        self._say(f"{self._backend.where}: {self.cluster}" + (f"; members: {share}" if members else ""))

    def _memory(self, models: Sequence[Made]) -> Any:
        return largest_need(models, gpu=uses_gpu(self._resources, self.cluster), kind=self.cluster.gpu)

    def _share(self, planned: Share) -> Share:
        """Return what is planned, which is refused where it is too large, or all of this machine."""
        return self._backend.share or planned

    def _context(self, share: Share | None = None) -> Context:
        share = share or self._backend.share
        return Context(share.device if share else "cpu", self._resources.encode_precision)

    # -- making ------------------------------------------------------------------------------------------------------

    def _make(self, missing: Sequence[Made]) -> None:
        """Make things that do not depend on each other, after what they need."""
        self._make_needs(missing)
        missing = list({made.name: made for made in missing if made.name not in self._made}.values())
        self._made |= {made.name for made in missing}
        for made in missing:
            self._entries.pop(made.name, None)
        for made in (made for made in missing if made.how == "driver"):
            with self._timed(made.stage):
                made.step.run(self._storage, self._context())
        for place in ("worker", "cpu"):
            self._short([made for made in missing if made.how == place])
        tables = [made for made in missing if isinstance(made.how, Blocks)]
        for group in dict.fromkeys(made.how.group for made in tables):
            self._stream([made for made in tables if made.how.group == group])
        trainings = [made for made in missing if isinstance(made.how, Training)]
        for stage in dict.fromkeys(made.stage for made in trainings):
            _raise_failure(self._train([made for made in trainings if made.stage == stage]))

    def _make_needs(self, missing: Sequence[Made]) -> None:
        needed = {need.name: need for made in missing for need in made.needs}
        if needed:
            self._make([need for need in needed.values() if not self._exists(need)])

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

    # short makers

    def _short(self, wanted: Sequence[Made]) -> None:
        if not wanted:
            return
        self._gather()
        groups: dict[str, list[Made]] = {}
        for made in wanted:
            groups.setdefault(made.group or made.name, []).append(made)
        stage, kind = wanted[0].stage, wanted[0].step.title.split(" ")[0]
        kind = f"{kind}s" if len(wanted) > 1 and not kind.endswith("s") else kind
        title = f"{'fit' if stage == 'calibration' else 'compute'} {kind}"
        done = 0
        with self._timed(stage):
            progress = Progress(title, len(wanted))

            def on_event(name: str, event: Mapping[str, Any]) -> None:
                nonlocal done
                self._leave_out(wanted, event["failed"])
                done += 1
                progress.update(round(done * len(wanted) / len(groups)), f"{done} of {len(groups)}")

            jobs = [ShortJob(title, [made.step for made in group]) for group in groups.values()]
            weights = max((made.weights() for made in wanted if made.weights), default=0)
            self._map_short(jobs, wanted[0].how == "cpu", on_event, weights)
            progress.close()

    def _map_short(self, jobs: Sequence[ShortJob], on_cpus: bool, on_event: OnEvent, weights: int = 0) -> None:
        machines, res, count, need = self._backend.machines(), self._resources, self._members, Need()
        if weights:
            weights //= 1 + plans_bf16(res.encode_precision, False, "")  # `auto` means fp32 for what is scored
            count, need = len(jobs), embedding_need(jobs[0].name, weights)
            if too_large(machines, res, need):  # in bf16 it may fit, for the corpus
                on_cpus, need = True, Need()
        share = self._share(plan_members(machines, res, count, need))
        share = replace(share, gpus=0.0) if on_cpus else share
        self._backend.map(jobs, share, self._context(share), on_event)

    def _leave_out(self, wanted: Sequence[Made], failed: Mapping[str, str]) -> None:
        """Go on without what could not be made, by name with the reason; raise if the run needs it."""
        for made in (made for made in wanted if made.name in failed):
            reason = failed[made.name]
            if not made.may_fail:
                raise UserError(f"{made.name}: {reason}")
            made.step.checked(None)
            self.failures[made.name] = reason
            self._say(f"left out: {made.name}: {reason}")

    # trainings

    def _train(self, models: Sequence[Made]) -> dict[str, Outcome]:
        """Train models; return how each ended, by name."""
        if not models:
            return {}
        self._make_needs(models)
        self._gather()
        with self._timed(models[0].stage):
            return self._distil(models) if models[0].how.is_gang else self._train_members(models)

    def _train_members(self, models: Sequence[Made]) -> dict[str, Outcome]:
        """Train members in one experiment, alternating between nodes so that all advance."""
        by_node: dict[str, list[Made]] = {}
        for made in models:
            by_node.setdefault(made.how.node, []).append(made)
        ordered = [made for made in chain(*zip_longest(*by_node.values())) if made]
        # Finished members count too: one that is trained again gets as many threads as before.
        together = self._experiments.get(models[0].name, models)
        share = plan_members(self._backend.machines(), self._resources, len(together), self._memory(together))
        jobs = [self._job(made) for made in ordered]
        line = TrainingLine(f"train {'+'.join(by_node)}", "members", len(jobs), sum(job.updates for job in jobs))
        log.info("training %d of %d members: %s", len(jobs), len(together), self._share(share))
        outcomes = self._map_trainings(jobs, self._share(share), line)
        emit(sentences=sum(outcomes[made.name].updates * made.how.rows_per_update for made in models))
        line.close()
        return outcomes

    def _distil(self, models: Sequence[Made]) -> dict[str, Outcome]:
        """Train learners, each with its own workers; raise if one fails."""
        count, workers = len(self._experiments.get(models[0].name, models)), self._learner_workers
        share = plan_learners(self._backend.machines(), self._resources, count, self._memory(models[:1]), workers)
        jobs = [self._job(made) for made in models]
        line = TrainingLine(f"distil {models[0].stage}", "learners", len(jobs))
        log.info("distilling %d learner%s: %s", len(jobs), "s" * (len(jobs) > 1), self._share(share))
        outcomes = self._map_trainings(jobs, self._share(share), line)
        done = [entry for made in models if (entry := self._entry(made))]
        emit(sentences=sum(entry.meta["sentences"] for entry in done))
        _raise_failure(outcomes)
        if len(done) < len(models):
            missing = next(made.name for made in models if not self._entry(made))
            raise RunFailed(f"{missing} ended without a result; see its log at {self._storage.uri('train')}")
        line.close(len(done))
        return outcomes

    def _job(self, made: Made) -> TrainingJob:
        how: Training = made.how
        rows = {name: self.rows(table) for name, table in how.tables.items()}
        return TrainingJob(made.step, how.worker, how.config, how.updates(rows), how.is_gang)

    def _map_trainings(self, jobs: Sequence[TrainingJob], share: Share, line: TrainingLine) -> dict[str, Outcome]:
        outcomes: dict[str, Outcome] = {}

        def on_event(name: str, event: Mapping[str, Any]) -> None:
            if "outcome" in event:
                outcomes[name] = event["outcome"]
            else:
                line.report(name, event)

        self._backend.map(jobs, share, self._context(share), on_event)
        return {job.name: outcomes.get(job.name, Outcome()) for job in jobs}

    # blocks of the corpus

    def _stream(self, group: Sequence[Made]) -> None:
        """Stream the corpus through models, and so make all tables of a group."""
        self._gather()
        with self._timed(group[0].stage):
            self._make_tables(group)

    def _make_tables(self, group: Sequence[Made]) -> None:
        how: Blocks = group[0].how
        steps, storage = [made.step for made in group], self._storage
        for step in steps:
            storage.forget(step.name)  # its blocks are replaced: from here on they are no longer all of it
        share, parts = self._plan_stream(how, steps)
        rows = self.rows(how.corpus)
        size = block_size(storage, steps, rows, share.workers, how.is_keyed)
        links = chain_of(steps, how.title, parts)
        worker, depends = how.worker, {step.name: step.depends for step in steps}
        about = worker.columns, worker.kept, rows, size, how.is_keyed
        tables = BlockTables(how.title, how.corpus.name, depends, *about)
        log.info("%s: %s sentences in blocks of %d; %s", tables.title, f"{rows:,}", size, share)
        left = tables.missing(storage)
        done = rows - sum(place["stop"] - place["start"] for place in left)
        progress, embedded = Progress(tables.title, rows, first=done), 0
        unpacked: dict[str, list[Entry]] = {step.name: [] for step in steps}

        def on_event(name: str, event: Mapping[str, Any]) -> None:
            nonlocal done, embedded
            done, embedded = done + event["rows"], embedded + event["made"]
            progress.update(done, f"{done:,} of {rows:,} sentences")
            for entry in event["entries"]:
                table = entry.name.rpartition("/")[0]
                unpacked[table].append(entry)
                if len(unpacked[table]) >= _PACKED:
                    storage.pack(table, unpacked[table])
                    unpacked[table].clear()

        if left:
            stream = Stream(tables, left, links, worker, self._context(share), tables.known(storage))
            if not how.is_keyed and how.weights and not how.weights() and rows - done <= ROWS_PER_GROUP:
                make_blocks_here(stream, storage, on_event)  # without a model, which takes less time than actors' start
            else:
                self._backend.stream(stream, share, on_event)
        for table, entries in unpacked.items():
            storage.pack(table, entries)
        emit(sentences=embedded)
        found = f", {rows - embedded:,} found, {embedded:,} embedded" if embedded < rows else ""
        progress.close(f"{rows:,} sentences{found}")
        # All blocks exist: each table that consists of them is complete.
        shape = -(-rows // size), size, rows
        whole = [replace(step, inputs={**step.inputs, "blocks": BlockShape(step.name, *shape)}) for step in steps]
        jobs = [ShortJob(step.name, [step]) for step in whole]
        self._map_short(jobs, True, lambda name, event: self._leave_out(group, event["failed"]))

    def _plan_stream(self, how: Blocks, steps: Sequence[Any]) -> tuple[Share, int]:
        """Return the actors of a stream, and the number of groups that the teachers of a mean are divided into."""
        machines, res, count = self._backend.machines(), self._resources, 1
        if how.weights is None:
            teachers = [step.inputs["teachers"] for step in steps]
            files = [self._storage.fetch(models[0].name).iterdir() for models in teachers]
            weights = max(sum(file.stat().st_size for file in of_teacher) for of_teacher in files)
            count = sum(map(len, teachers))
        elif not (weights := how.weights()):
            res = res.model_copy(update={"gpu": False})
        else:
            weights //= 1 + plans_bf16(res.encode_precision, uses_gpu(res, machines), machines.gpu)
            if problem := too_large(machines, res, embedding_need(how.title, weights)):
                raise UserError(problem)
        if self._backend.share:
            return self._backend.share, 1
        return plan_teachers(machines, res, count, weights)


def _record_of(made: Made) -> str:
    """Return what names a failed training: with other `members.max_retries` or `members.min_members` it is another."""
    return f"{made.name} {stable_hash([made.fingerprint, str(made.step.inputs['options'])])}"


def _raise_failure(outcomes: Mapping[str, Outcome]) -> None:
    """Raise the first failure of some trainings, if any."""
    for name, outcome in outcomes.items():
        if outcome.failure:
            raise replace(outcome, failure=f"{name}: {outcome.failure}").error()

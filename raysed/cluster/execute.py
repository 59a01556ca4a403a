"""Makes what is missing of a graph: the only code that runs work.

Batches are made in order. By `driver` an artefact is made in this process, by `task` in a Ray task where that pays;
members of one depth (`tune`) are one experiment of Ray Tune, learners (`train`) run on Ray Train, and what is made of
`blocks` of the corpus streams through Ray Data.
"""

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import ray

from raysed.cluster.autoscaling import gather
from raysed.cluster.forks import are_forked
from raysed.cluster.need import Need
from raysed.cluster.nodes import HubModels, check_versions
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import (
    Cluster,
    Share,
    current_cluster,
    plan_learners,
    plan_members,
    plan_rewriters,
    plan_teachers,
    uses_gpu,
    waste_of_members,
)
from raysed.cluster.usage import measured
from raysed.cluster.watchdog import watched_tasks
from raysed.cluster.work import Bench, Work
from raysed.config import ResourcesConfig, TrackingConfig
from raysed.errors import UserError
from raysed.graph import Artefact, Graph, Ref, Shared, State, Task
from raysed.store.progress import Progress, emit
from raysed.store.status import read_timings
from raysed.store.storage import Storage

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class How:
    """How a run is executed.

    Attributes:
        members: of an ensemble, which is how many are planned for where nothing else is known.
        check_room: refuses a storage that is too small, given the cluster, the corpus' rows if known, and free bytes.
        settings: what `config.yaml` says.
        notes: lines for the user before anything is made.
    """

    resources: ResourcesConfig
    tracking: TrackingConfig
    run: str
    members: int = 1
    learner_workers: int | None = None
    stack: int = 1
    hub_models: HubModels | None = None
    check_room: Callable[[Cluster, int | None, int | None], None] = lambda cluster, rows, free: None
    settings: str = ""
    notes: Sequence[str] = ()


def execute(graph: Graph, storage: Storage, how: How, say: Callable[[str], None]) -> tuple[State, str]:
    """Make what is missing; return what is there, and the cluster in words."""
    executor = Executor(graph, storage, how, say)
    storage.write_text("config.yaml", how.settings)  # from here on an earlier run of that name is changed
    for note in how.notes:
        say(note)
    for batch in graph.batches():
        executor.make(batch)
    return executor.state, str(executor.cluster)


class Executor:
    """Makes batches of artefacts."""

    def __init__(self, graph: Graph, storage: Storage, how: How, say: Callable[[str], None]):
        self._graph, self._storage, self._how, self._say = graph, storage, how, say
        self._res = how.resources
        self.failures: dict[str, tuple[str, bool]] = {}
        self.state = State(graph, storage, self.failures)
        self.cluster, self._is_gathered = current_cluster(), False
        self.gpu = uses_gpu(self._res, self.cluster)
        self._ladders: dict[str, Any] = {}
        self._shared: dict[int, tuple[Any, Shared]] = {}
        if not self.cluster.autoscaling:
            self.gather()

    def make(self, batch: Sequence[Artefact]) -> None:
        """Make what is missing of a batch, and say what there is to say of it."""
        by = batch[0].needs.by
        if by != "driver":
            self.gather()
        if by == "tune":
            self._by_tune(batch)
        elif by != "driver" and (wanted := [artefact for artefact in batch if self.state.is_wanted(artefact)]):
            with self._timed(wanted[0].needs.stage):
                {"task": self._by_task, "train": self._by_train, "blocks": self._by_blocks}[by](wanted, batch)
        for artefact in batch:
            if by == "driver":
                self._by_driver(artefact)
            if artefact.needs.say and (entry := self.state.entry(artefact.name)):
                for line in artefact.needs.say(entry):
                    self._say(line)
        if batch[-1].name == "corpus" and self._is_gathered and (entry := self.state.entry("corpus")):
            self._how.check_room(self.cluster, entry.meta["rows"], self._storage.free_bytes())

    def gather(self) -> None:
        """Wait for the machines that can be used, where more may come, and refuse what fits on none of them."""
        if self._is_gathered:
            return
        how, artefacts = self._how, list(self._graph.artefacts.values())
        members = [artefact for artefact in artefacts if artefact.needs.by == "tune"]
        learners = [artefact for artefact in artefacts if artefact.needs.by == "train"]
        together = min((a.needs.options["together"] for a in members), default=1)
        workers = -(-how.members // together) if members else 1
        need = self._memory(members)
        self.cluster = gather(self._res, need, len(learners), self._say, workers, how.learner_workers)
        self.gpu = uses_gpu(self._res, self.cluster)  # GPUs may have come
        self._is_gathered = True
        check_versions(how.hub_models or {})
        share = plan_members(self.cluster, self._res, workers, self._memory(members))
        corpus = self.state.entry("corpus") if "corpus" in self._graph.artefacts else None
        how.check_room(self.cluster, corpus.meta["rows"] if corpus else None, self._storage.free_bytes())
        self._say(f"cluster: {self.cluster}; members: {share}")
        if self._storage.is_local and len(self.cluster.nodes) > 1:
            log.warning("storage %s must be a directory that all nodes share; otherwise use a URI", self._storage)

    def _memory(self, artefacts: Iterable[Artefact]) -> Need:
        """What the largest of some trainings needs."""
        needs = {a.needs.group or a.needs.stage: a.needs.options["memory"] for a in artefacts}
        found = [memory(gpu=self.gpu, kind=self.cluster.gpu) for memory in needs.values()]
        return max(found, key=lambda need: (need.device, need.host), default=Need())

    def _cluster_now(self) -> Cluster:
        """What to plan a stage for: lost nodes of a cluster without an autoscaler may never come back."""
        if self.cluster.autoscaling:
            return self.cluster
        now = current_cluster()
        is_enough = now.largest_cpus >= 1 and (now.gpus > 0 or not self.gpu)
        return now if is_enough else self.cluster  # else the stage waits, and says for what

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        """Announce a stage, and add its cost to that of earlier attempts."""
        emit(stage=stage)
        usages = read_timings(self._storage)
        try:
            with measured(usages.setdefault(stage, {})):
                yield
        finally:
            self._storage.write_text("timings.json", json.dumps(usages, indent=1))

    def _task(self, artefact: Artefact, is_elsewhere: bool = False, **more: Any) -> Task:
        """Return the task of an artefact; what goes to other processes goes there once."""
        task = self.state.task(artefact.name)
        inputs = {role: self._as_blocks(value) for role, value in task.inputs.items()} | more
        if is_elsewhere:
            inputs = {role: self._as_shared(value) for role, value in inputs.items()}
        return replace(task, inputs=inputs)

    def _as_blocks(self, value: Any) -> Any:
        """Return the blocks of an artefact that has no files beside them, and anything else as it is."""
        from raysed.cluster.streaming import File

        options = self._graph.artefacts[value.name].needs.options if isinstance(value, Ref) else {}
        if not getattr(options.get("worker"), "is_keyed", False):
            return value
        rows = self.state.entry("corpus").meta["rows"]
        count = -(-rows // options["rows"](rows))
        return [(File(self._storage, f"{value.name}/{number:06d}"), {}) for number in range(count)]

    def _as_shared(self, value: Any) -> Any:
        if isinstance(value, Ref | list | dict | str | int | float | None):
            return value
        if id(value) not in self._shared:
            self._shared[id(value)] = value, Shared(partial(ray.get, ray.put(value)))
        return self._shared[id(value)][1]

    def _work(self, share: Share | None = None, **more: Any) -> Work:
        device = share.device if share else "cpu"
        return Work(device, self._res.encode_token_budget, self._res.encode_precision, **more)

    def _bench(self, share: Share) -> Bench:
        return Bench(self._storage, self._res, self._how.tracking, self._how.run, share)

    # in this process

    def _by_driver(self, artefact: Artefact) -> None:
        if not self.state.is_wanted(artefact):
            return
        more = {"ladder": self._ladders.get(artefact.needs.group)} if artefact.needs.is_outcome else {}
        with self._timed(artefact.needs.stage):
            self._task(artefact, **more).run(self._storage, self._work(map=partial(self._map, artefact.title)))

    def _map(self, title: str, function: Callable[..., Any], items: Sequence[Any], shared: Any) -> Iterator[Any]:
        """Apply a function in Ray tasks of one CPU."""
        progress = Progress(title, len(items))
        about = {"work": title, "share": Share(len(items), 1, 0.0, threads=1), "seconds": self._res.silence_seconds}
        for count, result in enumerate(watched_tasks(function, items, ray.put(shared), **about), start=1):
            progress.update(count, f"{count} of {len(items)}")
            yield result
        progress.close()

    # tasks

    def _by_task(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        """Make artefacts as tasks, those of one group one after the other; or in this process."""
        share = self._task_share(len({a.needs.group or a.name for a in batch}))
        groups: dict[str, list[Task]] = {}
        for artefact in wanted:
            task = self._task(artefact, is_elsewhere=share is not None)
            groups.setdefault(artefact.needs.group or artefact.name, []).append(task)
        if share and wanted[0].needs.options.get("on_cpus"):
            share = share.on_cpus
        verb = "fit" if wanted[0].needs.stage == "calibration" else "compute"
        title = f"{verb} {_plural(wanted)}"
        progress = Progress(title, len(wanted))
        arguments = self._storage, self._work(share), share and share.threads
        if share is None:
            outcomes: Iterable[dict[str, str]] = (_make_group(group, *arguments) for group in groups.values())
        else:
            about = {"work": title, "share": share, "seconds": self._res.silence_seconds}
            outcomes = watched_tasks(_make_group, list(groups.values()), *arguments, **about)
        for done, failed in enumerate(outcomes, start=1):
            for name, reason in failed.items():
                if not self._graph.artefacts[name].needs.may_fail:
                    raise UserError(f"{name}: {reason}")
                self.failures[name] = reason, True
                self._say(f"left out: {name}: {reason}")
            progress.update(round(done * len(wanted) / len(groups)), f"{done} of {len(groups)}")
        progress.close()

    def _task_share(self, count: int) -> Share | None:
        """Return the share of one of so many tasks, of which some may be done; None: this process does them."""
        if self.gpu or len(self.cluster.nodes) > 1:
            return plan_members(self._cluster_now(), self._res, self._how.members)
        if are_forked() and count > 1:
            return plan_members(self._cluster_now(), self._res, count)
        return None  # it is as good as any, and has imported everything

    # members

    def _by_tune(self, batch: Sequence[Artefact]) -> None:
        """Train the members of one depth in one experiment."""
        from raysed.cluster.tuning import Group, train_groups

        by_node: dict[str, list[Artefact]] = {}
        for artefact in batch:
            if self.state.task(artefact.name):
                by_node.setdefault(artefact.needs.group, []).append(artefact)
        groups, count = [], 0
        for node, members in by_node.items():
            (outcome,) = [user for user in self._graph.users(members[0].name) if user.needs.is_outcome]
            wanted = [artefact for artefact in members if self.state.is_wanted(artefact)]
            is_open = self.state.entry(outcome.name) is None
            # Also of those that are done: one that is trained again gets as many threads as before.
            all_of_node = len(members) if is_open else len(self.state.listed(outcome.name))
            count += -(-all_of_node // members[0].needs.options["together"])
            if wanted or is_open:
                groups.append(self._group(Group, node, members if is_open else wanted, is_open))
        if not groups:
            return
        cluster = self._cluster_now()
        share = plan_members(cluster, self._res, count, self._memory(batch))
        if self._how.stack == 1 and (waste := waste_of_members(cluster, self._res, share, count)):
            log.warning(waste)
        left = sum(group.left() for group in groups)
        if left:
            log.info("training %d of %d members: %s", left, len(batch), share)
        with self._timed(batch[0].needs.stage):
            self.failures |= train_groups(groups, self._bench(share))

    def _group(self, kind: type, node: str, members: Sequence[Artefact], is_open: bool) -> Any:
        options, first = members[0].needs.options, members[0]
        rows = {table: self.state.entry(table).meta["rows"] for table in options["tables"]}
        steps = options["updates"](first.settings, rows)
        tasks = {a.name: self._task(a, is_elsewhere=True) for a in members}
        group = kind(node, options["worker"], steps, options["together"], options["rows_per_update"])
        if not is_open or "ladder" not in options:
            group.members.extend(task for task in tasks.values() if not self.state.entry(task.name))
            return group
        group.ladder = self._ladders[node] = options["ladder"](steps)
        group.by_place = {a.needs.options["place"]: tasks[a.name] for a in members}
        entries = {name: self.state.entry(name) for name in tasks}
        group.pass_over_finished({name: entry.meta["dev"] for name, entry in entries.items() if entry})
        return group

    # learners

    def _by_train(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        """Train all learners that are missing, as many at a time as there is room for."""
        from raysed.cluster.distilling import distill

        share, at_once = plan_learners(
            self._cluster_now(), self._res, len(batch), self._memory(wanted[:1]), self._how.learner_workers
        )
        tasks = [self._task(artefact, is_elsewhere=True) for artefact in wanted]
        distill(tasks, wanted[0].needs.options["worker"], self._bench(share), at_once)

    # blocks of the corpus

    def _by_blocks(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        """Stream the corpus through models, once for each group of artefacts, and join what comes out."""
        from raysed.cluster.streaming import blocks_of, make_blocks

        groups: dict[str, list[Artefact]] = {}
        for artefact in wanted:
            groups.setdefault(artefact.needs.group, []).append(artefact)
        for group in groups.values():
            tasks, options = [self._task(artefact) for artefact in group], group[0].needs.options
            if "check" in options and self._copy_from_another_run(tasks[0], options["check"]):
                continue
            stream, share = self._stream(tasks, options)
            make_blocks(stream, self._storage, share, self._res.silence_seconds)
            joined = [self._task(a, blocks=blocks_of(stream, a.name, self._storage)) for a in group]
            if options.get("joins_here"):
                _make_group(joined, self._storage, self._work(), None)
            else:
                no_cpu = Share(len(joined), 0, 0.0, share.threads)
                arguments = self._storage, self._work(), share.threads
                seconds, each = self._res.silence_seconds, [[task] for task in joined]
                list(watched_tasks(_make_group, each, *arguments, work="join", share=no_cpu, seconds=seconds))
            for task in tasks:
                self._storage.remove(f"{task.name}.blocks")

    def _stream(self, tasks: Sequence[Task], options: Mapping[str, Any]) -> tuple[Any, Share]:
        """Return what flows through which actors, and their share."""
        from raysed.cluster.streaming import stream_of

        rows, cluster, groups = self.state.entry("corpus").meta["rows"], self._cluster_now(), 1
        starts = range(0, rows, options["rows"](rows))
        if "teachers" in tasks[0].inputs:
            teachers = [task.inputs["teachers"] for task in tasks]
            sizes = [self._bytes(refs[0].name) for refs in teachers]
            share, groups = plan_teachers(cluster, self._res, sum(map(len, teachers)), max(sizes))
        elif "weights" in options:
            share = plan_rewriters(cluster, self._res, options["weights"]())
        else:
            share = plan_members(cluster, self._res, len(starts))
        return stream_of(tasks, options, starts, self._work(share), groups), share

    def _bytes(self, name: str) -> int:
        return sum(file.stat().st_size for file in self._storage.fetch(name).iterdir())

    def _copy_from_another_run(self, task: Task, check: Callable[[Path], None]) -> bool:
        """Take what another run at this location has made of the same inputs."""
        other = self._storage.elsewhere(task.name, task.depends)
        if not other:
            return False
        log.info("%s: reusing those of %s", task.title, other)
        copied = other.fetch(task.name)
        check(copied)  # what is refused must not become part of this run
        meta = other.entry(task.name).meta
        self._storage.commit(
            task.name, lambda path: shutil.copytree(copied, path, dirs_exist_ok=True), task.depends, meta
        )
        return True


# -- on workers ------------------------------------------------------------------------------------------------------


def _make_group(group: Sequence[Task], storage: Storage, work: Work, threads: int | None) -> dict[str, str]:
    """Make artefacts one after the other, with no `threads` in the driver; return why some cannot be made, by name."""
    if threads:
        prepare_worker(threads)
    failed = {}
    for task in group:
        try:
            task.run(storage, work)
        except UserError as error:
            failed[task.name] = str(error)
    return failed


def _plural(artefacts: Sequence[Artefact]) -> str:
    """What a stage makes, for its line of progress."""
    kind = artefacts[0].title.split(" ")[0]
    return f"{kind}s" if len(artefacts) > 1 and not kind.endswith("s") else kind

"""Make what is missing of a graph: the only code that runs work.

Batches run in order. `driver` artefacts are made in this process, `task` artefacts wherever that pays. Members of one
depth (`tune`), learners (`train`) and artefacts made from `blocks` of the corpus go to one of two engines:
`raysed.cluster.on_ray` (Ray Tune, Train and Data) or `raysed.cluster.local` (this process and others beside it).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, zip_longest
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import Cluster, Need, Share, plan_members, plan_teachers, uses_gpu
from raysed.cluster.work import Bench, Trial, Work
from raysed.config import ResourcesConfig
from raysed.errors import UserError
from raysed.graph import Artefact, Graph, Ref, State, Task
from raysed.store.progress import Progress, emit, listening
from raysed.store.status import read_timings
from raysed.store.storage import Storage

if TYPE_CHECKING:
    from raysed.cluster.blocks import Stream

log = logging.getLogger(__name__)

Engine = Literal["ray", "local"]


@dataclass(frozen=True)
class How:
    """How a run is executed.

    Attributes:
        members: per ensemble, the number of workers to plan for when nothing better is known.
        check_room: raises if storage is too small; takes the cluster, and rows and free bytes if known.
    """

    resources: ResourcesConfig
    engine: Engine = "ray"
    members: int = 1
    learner_workers: int | None = None
    hub_models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    check_room: Callable[[Cluster, int | None, int | None], None] = lambda cluster, rows, free: None
    settings: str = ""


def execute(graph: Graph, storage: Storage, how: How, say: Callable[[str], None]) -> tuple[State, str]:
    """Make what is missing; return the final state and a description of the cluster."""
    with closing(make_executor(graph, storage, how, say)) as executor:
        storage.write_text("config.yaml", how.settings)  # from here on, an earlier run of this name is modified
        for batch in graph.batches():
            executor.make(batch)
    _clear(graph, storage)
    return executor.state, str(executor.cluster)


def _clear(graph: Graph, storage: Storage) -> None:
    """Remove checkpoints of stopped bounds, and leftovers of killed jobs; artefacts outside this graph keep theirs."""
    left = (*storage.names("checkpoints"), *storage.plain.sizes_below("checkpoints"))
    for name, artefact in graph.artefacts.items():
        if artefact.needs.by == "blocks":
            storage.remove(f"{name}.blocks")
        if any(path.startswith((f"checkpoints/{name}/", f"checkpoints/{name}.blocks/")) for path in left):
            storage.remove(f"checkpoints/{name}")
            storage.remove(f"checkpoints/{name}.blocks")


def make_executor(graph: Graph, storage: Storage, how: How, say: Callable[[str], None]) -> Executor:
    """Return the executor of the requested engine."""
    if how.engine == "local":
        from raysed.cluster import local

        return local.LocalExecutor(graph, storage, how, say, local.this_machine(how.resources.gpu))
    from raysed.cluster import on_ray

    return on_ray.RayExecutor(graph, storage, how, say, on_ray.current_cluster())


class Executor:
    """Make batches of artefacts.

    An engine adds `_gathered` (the machines to plan for), `_train_members`, `_by_train` (learners) and `_streamed`
    (blocks of the corpus).

    Attributes:
        cluster: the machines known so far; more may join.
        share: what this process may use itself; None: the CPU.
    """

    where = "cluster"
    share: Share | None = None

    def __init__(self, graph: Graph, storage: Storage, how: How, say: Callable[[str], None], cluster: Cluster):
        self._graph, self._storage, self._how, self._say = graph, storage, how, say
        self._res = how.resources
        self.state = State(graph, storage)
        self.cluster, self._is_gathered = cluster, False
        self.gpu = uses_gpu(self._res, self.cluster)
        self._trained: dict[str, dict[str, Any]] = {}
        if not self.cluster.autoscaling:
            self.gather()

    def make(self, batch: Sequence[Artefact]) -> None:
        """Make what is missing of a batch, then report on its artefacts."""
        by = batch[0].needs.by
        if by == "blocks":
            self._forget_incomplete(batch)
        if by != "driver" and any(map(self.state.is_wanted, batch)):
            self.gather()
        if by == "tune":
            self._by_tune(batch)
        elif by != "driver" and (wanted := [artefact for artefact in batch if self.state.is_wanted(artefact)]):
            with self._timed(wanted[0].needs.stage):
                {"task": self._by_task, "train": self._by_train, "blocks": self._by_blocks}[by](wanted, batch)
        for artefact in batch:
            if by == "driver" and self.state.is_wanted(artefact):
                more = {"trained": self._trained.get(artefact.needs.group)} if artefact.needs.is_outcome else {}
                with self._timed(artefact.needs.stage):
                    self._task(artefact, **more).run(self._storage, self._work())
            if artefact.needs.say and (entry := self.state.entry(artefact.name)):
                for line in artefact.needs.say(entry):
                    self._say(line)
        is_corpus = any(artefact.name == "corpus" for artefact in batch)
        if is_corpus and self._is_gathered and (entry := self.state.entry("corpus")):
            self._how.check_room(self.cluster, entry.meta["rows"], self._storage.free_bytes())

    def gather(self) -> None:
        """Wait for usable machines if more may join, and refuse what fits on none; only the first call acts."""
        if self._is_gathered:
            return
        artefacts = list(self._graph.artefacts.values())
        members = [artefact for artefact in artefacts if artefact.needs.by == "tune"]
        workers = self._how.members if members else 1
        learners = sum(artefact.needs.by == "train" for artefact in artefacts)
        self.cluster = self._gathered(self._memory(members), learners, workers)
        self.gpu = uses_gpu(self._res, self.cluster)  # GPUs may have come
        self._is_gathered = True
        share = plan_members(self.cluster, self._res, workers, self._memory(members))
        corpus = self.state.entry("corpus") if "corpus" in self._graph.artefacts else None
        self._how.check_room(self.cluster, corpus.meta["rows"] if corpus else None, self._storage.free_bytes())
        self._say(f"{self.where}: {self.cluster}" + (f"; members: {share}" if members else ""))

    def close(self) -> None:
        """End what was started."""

    def _now(self) -> Cluster:
        return self.cluster

    def _memory(self, artefacts: Iterable[Artefact]) -> Need:
        """Return what the largest of some trainings needs."""
        needs = {a.needs.group or a.needs.stage: a.needs.options["memory"] for a in artefacts}
        found = [memory(gpu=self.gpu, kind=self.cluster.gpu) for memory in needs.values()]
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
        task = self.state.task(artefact.name)
        return replace(task, inputs={role: self._as_blocks(value) for role, value in task.inputs.items()} | more)

    def _as_blocks(self, value: Any) -> Any:
        """Return the blocks of an artefact that consists of nothing else; return any other value unchanged."""
        from raysed.cluster.blocks import block_file

        if not (isinstance(value, Ref) and _is_keyed(artefact := self._graph.artefacts[value.name])):
            return value
        return [(partial(block_file, self._storage, name), {}) for name in self._keyed_blocks(artefact)]

    def _keyed_blocks(self, artefact: Artefact) -> list[str]:
        from raysed.cluster.blocks import keyed_block

        options = artefact.needs.options
        rows = self.state.entry("corpus").meta["rows"]
        return [keyed_block(artefact.name, number) for number in range(-(-rows // options["rows"](rows)))]

    def _forget_incomplete(self, batch: Sequence[Artefact]) -> None:
        """Have artefacts completed that are to be read and lack blocks, which have manifest entries of their own."""
        for artefact in filter(_is_keyed, batch):
            is_read = any(map(self.state.is_wanted, self._graph.users(artefact.name)))
            if is_read and self.state.entry(artefact.name):
                entries = map(self._storage.entry, self._keyed_blocks(artefact))
                if not all(entry and self._storage.finished(entry.name, entry.depends) for entry in entries):
                    self._storage.forget(artefact.name)
                    self.state.forget(artefact.name)

    def _work(self, share: Share | None = None) -> Work:
        share = share or self.share
        return Work(share.device if share else "cpu", self._res.encode_token_budget, self._res.encode_precision)

    # tasks

    def _make_groups(
        self, title: str, groups: Sequence[Sequence[Task]], on_cpus: bool, on_made: Callable[[dict[str, str]], None]
    ) -> None:
        """Make artefacts, those of a group one after the other; say after each why some could not be made, by name."""
        for group in groups:
            on_made(make_group(group, self._storage, self._work(), None))

    def _by_task(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        groups: dict[str, list[Task]] = {}
        for artefact in wanted:
            groups.setdefault(artefact.needs.group or artefact.name, []).append(self._task(artefact))
        kind = wanted[0].title.split(" ")[0]
        kind = f"{kind}s" if len(wanted) > 1 and not kind.endswith("s") else kind
        title = f"{'fit' if wanted[0].needs.stage == 'calibration' else 'compute'} {kind}"
        progress, done = Progress(title, len(wanted)), 0

        def on_made(failed: dict[str, str]) -> None:
            nonlocal done
            self._leave_out(failed)
            done += 1
            progress.update(round(done * len(wanted) / len(groups)), f"{done} of {len(groups)}")

        self._make_groups(title, list(groups.values()), bool(wanted[0].needs.options.get("on_cpus")), on_made)
        progress.close()

    def _leave_out(self, failed: Mapping[str, str]) -> None:
        """Go on without what could not be made, by name; raise if the run needs it."""
        for name, reason in failed.items():
            if not self._graph.artefacts[name].needs.may_fail:
                raise UserError(f"{name}: {reason}")
            self.state.task(name).checked(None)
            self.state.failures[name] = reason, True
            self._say(f"left out: {name}: {reason}")

    # members

    def _by_tune(self, batch: Sequence[Artefact]) -> None:
        """Train the members of one depth in one experiment, alternating between nodes so that all advance."""
        by_node: dict[str, list[Artefact]] = {}
        for artefact in batch:
            if self.state.task(artefact.name):
                by_node.setdefault(artefact.needs.group, []).append(artefact)
        trials, count = [], 0
        for node, members in by_node.items():
            (outcome,) = [user for user in self._graph.users(members[0].name) if user.needs.is_outcome]
            is_open = self.state.entry(outcome.name) is None
            # Finished members count too: one that is trained again gets as many threads as before.
            count += len(members) if is_open else len(self.state.listed(outcome.name))
            trials.append(self._trials(node, members, is_open))
        # Halving compares the bounds of one node, so any further node with halving gets its own experiment.
        halved = [of_node for of_node in trials if any(trial.reduction for trial in of_node)]
        first = [of_node for of_node in trials if of_node not in halved[1:]]
        experiments = [[trial for trial in chain(*zip_longest(*first)) if trial], *halved[1:]]
        if not experiments[0]:
            return
        share = plan_members(self._now(), self._res, count, self._memory(batch))
        with self._timed(batch[0].needs.stage):
            for in_turn in experiments:
                missing = sum(not self.state.entry(task.name) for trial in in_turn for task in trial.tasks)
                log.info("training %d of %d members: %s", missing, len(batch), share)
                failed, stopped = self._train_members(in_turn, Bench(self._storage, self._res, share))
                self.state.failures |= failed
                for trial in in_turn:
                    if trial.name in stopped:
                        self._trained[trial.node]["stopped"].append(stopped[trial.name])

    def _trials(self, node: str, members: Sequence[Artefact], is_open: bool) -> list[Trial]:
        """Return the trials of a node: what is missing, or with halving all bounds, which are compared again."""
        options, first = members[0].needs.options, members[0]
        rows = {table: self.state.entry(name).meta["rows"] for table, name in options["tables"].items()}
        steps = options["updates"](first.settings, rows)
        about = {"rungs": (steps,), **{name: options[name] for name in ("worker", "rows_per_update")}}
        if is_open:
            self._trained[node] = {"steps": steps, "stopped": []}
        tasks = [self._task(artefact) for artefact in members if self.state.is_wanted(artefact)]
        if not (is_open and tasks and "halving" in options):
            return [Trial(node, task.name, [task], **about) for task in tasks]
        by_bound: dict[float, list[Task]] = {}
        for artefact in members:
            by_bound.setdefault(artefact.settings["lower_bound"], []).append(self._task(artefact))
        about |= options["halving"](steps)
        about["least"] = min(about["least"], *map(len, by_bound.values()))  # some may have no member to go on from
        # High bounds, mostly the better ones, go first: a bound is stopped if it is worse than those before it.
        falling = sorted(by_bound.items(), reverse=True)
        return [Trial(node, f"{node}/grid/{bound:g}", some, **about) for bound, some in falling]

    # blocks of the corpus

    def _by_blocks(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        """Stream the corpus through models, once per group of artefacts, and join the resulting blocks."""
        from raysed.cluster.blocks import blocks_of

        groups: dict[str, list[Artefact]] = {}
        for artefact in wanted:
            groups.setdefault(artefact.needs.group, []).append(artefact)
        for group in groups.values():
            tasks, options = [self._task(artefact) for artefact in group], group[0].needs.options
            for task in tasks if _is_keyed(group[0]) else ():
                self._storage.forget(task.name)  # its blocks are replaced: from here on they are no longer all of it
            stream = self._streamed(tasks, options)
            joined = [self._task(a, blocks=blocks_of(stream, task, self._storage)) for a, task in zip(group, tasks)]
            self._make_groups("join", [[task] for task in joined], on_cpus=True, on_made=self._leave_out)
            for task in tasks:
                self._storage.remove(f"{task.name}.blocks")

    def _stream(
        self, tasks: Sequence[Task], options: Mapping[str, Any], share: Share | None = None, groups: int = 1
    ) -> Stream:
        from raysed.cluster.blocks import stream_of

        rows = self.state.entry("corpus").meta["rows"]
        return stream_of(tasks, options, range(0, rows, options["rows"](rows)), self._work(share), groups)

    def _plan_mean(self, tasks: Sequence[Task]) -> tuple[Share, int]:
        """Return how `plan_teachers` divides the members whose mean is taken."""
        teachers = [task.inputs["teachers"] for task in tasks]
        files = [self._storage.fetch(refs[0].name).iterdir() for refs in teachers]
        largest = max(sum(file.stat().st_size for file in of_teacher) for of_teacher in files)
        return plan_teachers(self._now(), self._res, sum(map(len, teachers)), largest)


def _is_keyed(artefact: Artefact) -> bool:
    """Whether it consists of blocks that are known by their text."""
    return getattr(artefact.needs.options.get("worker"), "is_keyed", False)


def make_group(group: Sequence[Task], storage: Storage, work: Work, threads: int | None) -> dict[str, str]:
    """Make artefacts one after the other, in a worker with `threads`; return why some could not be made, by name."""
    if threads:
        prepare_worker(threads)
    failed = {}
    for task in group:
        try:
            task.run(storage, work)
        except UserError as error:
            failed[task.name] = str(error)
    return failed

"""The local engine: without Ray, in this process, and on CPUs further ones that train and embed beside it.

Makers and settings are the same, so a run can continue with either engine.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from raysed.cluster.blocks import OnBlock, Place, Stream, exists, make_missing, publish_here
from raysed.cluster.execute import Executor, make_group
from raysed.cluster.process import prepare_worker
from raysed.cluster.processes import SideBySide, Training
from raysed.cluster.resources import (
    Cluster,
    Need,
    Share,
    plan_learners,
    plan_members,
    smallest_gpu_here,
    unmet_requirement,
    uses_gpu,
)
from raysed.cluster.watchdog import Watchdog
from raysed.cluster.work import (
    MOST_RESTARTS,
    Bench,
    Ended,
    Failures,
    Stopped,
    TrainingLine,
    Trial,
    Work,
    line_of_members,
    refuse_unfinished,
)
from raysed.errors import RunFailed, UserError, last_line
from raysed.graph import Artefact, Task
from raysed.store.progress import emit
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_MOST_TRIES = 3  # of what cannot count its starts: a process that is lost more often ran out of memory


class LocalExecutor(Executor):
    """Make batches of artefacts in this process, and on CPUs in others beside it."""

    where = "this machine"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._processes = SideBySide(Watchdog(self._res.silence_seconds, self._res.stall_seconds))

    def _gathered(self, need: Need, learners: int, workers: int) -> Cluster:
        if missing := unmet_requirement(self.cluster, self._res):
            raise UserError(missing)
        cpus = int(self.cluster.cpus)
        self.share = Share(1, cpus, float(uses_gpu(self._res, self.cluster)), threads=cpus)
        prepare_worker(cpus)
        return self.cluster

    def _side_by_side(
        self, trainings: Mapping[str, Training], count: int, tell: Callable, **about: Any
    ) -> dict[str, Any]:
        """Share the CPUs among trainings as Ray would, so that sums are the same; then use all again.

        A GPU is not shared.
        """
        try:
            return self._processes.train(trainings, 1 if self.gpu else count, tell, **about)
        finally:
            prepare_worker(self.share.threads)

    def close(self) -> None:
        """End the other processes."""
        self._processes.close()

    def _train_members(self, trials: Sequence[Trial], bench: Bench) -> tuple[Failures, dict[str, Stopped]]:
        """Train members; with halving in rounds, each of which ends with a choice of the bounds that go on."""
        line = line_of_members(trials)
        failed: Failures = {}
        stopped: dict[str, Stopped] = {}
        left = {trial: list(trial.tasks) for trial in trials}
        for rung in range(max(len(trial.rungs) for trial in trials)):
            trainings = {
                task.name: partial(_train_member, trial, task, bench, trial.rungs[rung])
                for trial, tasks in left.items()
                for task in tasks
            }
            ended = self._side_by_side(trainings, bench.share.workers, line.report)
            failed |= {name: each.failed for name, each in ended.items() if each.failed}
            scores: dict[Trial, list[float]] = {}
            for trial, tasks in left.items():
                emit(sentences=sum(ended[task.name].updates for task in tasks) * trial.rows_per_update)
                left[trial] = sound = [task for task in tasks if task.name not in failed]
                if rung + 1 < len(trial.rungs) and len(sound) >= trial.least:
                    scores[trial] = [ended[task.name].score for task in sound]
            kept = _best(scores)
            for trial in scores.keys() - kept:
                bound = trial.tasks[0].settings["lower_bound"]
                stopped[trial.name] = {"lower_bound": bound, "updates": trial.rungs[rung], "scores": scores[trial]}
            left = {trial: left[trial] for trial in kept}
        line.close()
        return failed, stopped

    def _by_train(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        share, at_once = plan_learners(self.cluster, self._res, len(batch), self._memory(wanted[:1]))
        tasks = [self._task(artefact) for artefact in wanted]
        line = TrainingLine(f"distil {wanted[0].needs.stage}", "learners", len(tasks))
        said: dict[str, dict[str, Any]] = {}

        def told(kind: str, name: str, words: dict[str, Any]) -> None:
            line.report(name, words) if kind == "report" else said.setdefault(name, {}).update(words)

        worker, bench = wanted[0].needs.options["worker"], Bench(self._storage, self._res, share)
        trainings = {task.name: partial(_train_learner, worker, task, bench) for task in tasks}
        self._side_by_side(trainings, at_once, told, is_over=lambda: any("failed" in of for of in said.values()))
        refuse_unfinished(tasks, said, self._storage)
        line.close(len(tasks))

    def _make_groups(
        self, title: str, groups: Sequence[Sequence[Task]], on_cpus: bool, on_made: Callable[[dict[str, str]], None]
    ) -> None:
        """Make artefacts, groups side by side if processes are there: to start one takes longer than most groups."""
        share = plan_members(self.cluster, self._res, min(len(groups), self._processes.count))
        if share.workers == 1:
            super()._make_groups(title, groups, on_cpus, on_made)
            return
        about = self._storage, self._work(), share.threads
        makers = {group[0].name: partial(_make_group, group, *about) for group in groups}
        self._side_by_side(makers, share.workers, on_made, tries=_MOST_TRIES)

    def _streamed(self, tasks: Sequence[Task], options: Mapping[str, Any]) -> Stream:
        """Make the missing blocks; for the mean of members side by side, as each holds little."""
        if self.gpu or "teachers" not in tasks[0].inputs:
            stream = self._stream(tasks, options)
            make_missing(stream, self._storage, "in this process", partial(publish_here, stream, self._storage))
            return stream
        share, _ = self._plan_mean(tasks)
        stream = self._stream(tasks, options, share)

        def publish(places: Sequence[Place], on_block: OnBlock) -> None:
            parts = {f"{stream.title}, part {k + 1}": places[k :: share.workers] for k in range(share.workers)}
            about = stream, self._storage, share.threads
            makers = {name: partial(_make_blocks, *about, part) for name, part in parts.items() if part}
            self._side_by_side(makers, share.workers, on_block, tries=_MOST_TRIES)

        make_missing(stream, self._storage, str(share), publish)
        return stream


def _best(scores: Mapping[Trial, Sequence[float]]) -> list[Trial]:
    """Return the bounds that go on, best first: one in `reduction`, rounded up."""
    best = sorted(scores, key=lambda trial: trial.statistic(scores[trial]), reverse=True)
    return best[: math.ceil(len(best) / best[0].reduction)] if best else []


def _train_member(trial: Trial, task: Task, bench: Bench, until: int, tell: Callable) -> Ended:
    train = partial(trial.train, [task], until, replace(bench, report=tell))
    (ended,) = _until_it_ends(train, task.name, bench.share)
    return ended


def _train_learner(worker: Callable[[Sequence[Task], Bench], None], task: Task, bench: Bench, tell: Callable) -> None:
    told = replace(bench, report=partial(tell, "report"), say=partial(tell, "say"))
    _until_it_ends(partial(worker, [task], told), task.name, bench.share)


def _make_group(group: Sequence[Task], storage: Storage, work: Work, threads: int, tell: Callable) -> None:
    tell(make_group(group, storage, work, threads))


def _make_blocks(stream: Stream, storage: Storage, threads: int, places: Sequence[Place], tell: Callable) -> None:
    """Make blocks, but for those that a lost process has made."""
    prepare_worker(threads)
    publish_here(stream, storage, [place for place in places if not exists(stream, storage, place["start"])], tell)


def _until_it_ends(train: Callable[[], Any], name: str, share: Share) -> Any:
    """Train, and retry after failures; the training itself counts its starts and gives up."""
    prepare_worker(share.threads)
    for start in range(MOST_RESTARTS + 1):
        try:
            return train()
        except Exception as error:
            if start == MOST_RESTARTS or isinstance(error, UserError | RunFailed):
                raise
            log.warning("%s failed; trying again: %s", name, last_line(error))


def _limits(file: str, below: Path = Path("/sys/fs/cgroup")) -> list[float]:
    """Return what a container's limit (cgroup v2) says in numbers; infinity where there is none."""
    try:
        return [math.inf if word == "max" else float(word) for word in (below / file).read_text().split()]
    except (OSError, ValueError):
        return [math.inf]


def this_machine(gpu: bool | None = None) -> Cluster:
    """Return what this machine has, without its GPUs if `gpu` is False."""
    import torch

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = 0 if gpu is False else torch.cuda.device_count()
    memory = psutil.virtual_memory().available
    quota, period, *_ = [*_limits("cpu.max"), 1]
    cpus, memory = max(1, int(min(cpus, quota / period))), min(memory, *_limits("memory.max"))
    gpu_bytes = (gpus and smallest_gpu_here()) or Cluster.gpu_bytes
    return Cluster(((float(cpus), float(gpus)),), node_bytes=memory, gpu_bytes=gpu_bytes)

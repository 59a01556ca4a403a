"""The Ray engine: members on Tune, blocks on Data, learners on Train, and tasks where the cluster can speed them up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from raysed.cluster.autoscaling import gather
from raysed.cluster.blocks import Stream
from raysed.cluster.distilling import distill
from raysed.cluster.execute import Executor, make_group
from raysed.cluster.nodes import check_versions
from raysed.cluster.resources import Cluster, Need, current_cluster, plan_learners, plan_members, plan_teachers
from raysed.cluster.streaming import make_blocks
from raysed.cluster.watchdog import watched_tasks
from raysed.cluster.work import Bench, Failures, Stopped, Trial
from raysed.graph import Artefact, Ref, RemoteValue, Task

log = logging.getLogger(__name__)


class RayExecutor(Executor):
    """Make batches of artefacts on the Ray that this process is connected to."""

    def __init__(self, *arguments: Any):
        self._shared: dict[int, tuple[Any, RemoteValue]] = {}
        super().__init__(*arguments)

    def _gathered(self, need: Need, learners: int, workers: int) -> Cluster:
        cluster = gather(self._res, need, learners, self._say, workers, self._how.learner_workers)
        check_versions(self._how.hub_models)
        if self._storage.is_local and len(cluster.nodes) > 1:
            log.warning("storage %s must be a directory that all nodes share; otherwise use a URI", self._storage)
        return cluster

    def _now(self) -> Cluster:
        """Return the cluster to plan a stage for: without an autoscaler, lost nodes may never come back."""
        now = self.cluster if self.cluster.autoscaling else current_cluster()
        is_enough = now.largest_cpus >= 1 and (now.gpus > 0 or not self.gpu)
        return now if is_enough else self.cluster  # otherwise the stage waits, and logs for what

    def _to_workers(self, task: Task) -> Task:
        """Return a task whose large inputs are in the object store, each put there once."""
        inputs = dict(task.inputs)
        for role, value in task.inputs.items():
            if not isinstance(value, Ref | list | dict | str | int | float | None):
                if id(value) not in self._shared:
                    self._shared[id(value)] = value, RemoteValue(partial(ray.get, ray.put(value)))
                inputs[role] = self._shared[id(value)][1]
        return replace(task, inputs=inputs)

    def _make_groups(
        self, title: str, groups: Sequence[Sequence[Task]], on_cpus: bool, on_made: Callable[[dict[str, str]], None]
    ) -> None:
        """Make artefacts in tasks; on one machine without GPUs, in this process, which has imported everything."""
        if not self.gpu and len(self.cluster.nodes) == 1:
            super()._make_groups(title, groups, on_cpus, on_made)
            return
        share = plan_members(self._now(), self._res, self._how.members)
        share = replace(share, gpus=0.0) if on_cpus else share
        groups = [[self._to_workers(task) for task in group] for group in groups]
        arguments = self._storage, self._work(share), share.threads
        seconds = self._res.silence_seconds
        for failed in watched_tasks(make_group, groups, *arguments, work=title, share=share, seconds=seconds):
            on_made(failed)

    def _train_members(self, trials: Sequence[Trial], bench: Bench) -> tuple[Failures, dict[str, Stopped]]:
        from raysed.cluster.tuning import train_members

        trials = [replace(trial, tasks=[self._to_workers(task) for task in trial.tasks]) for trial in trials]
        return train_members(trials, bench)

    def _by_train(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        share, at_once = plan_learners(
            self._now(), self._res, len(batch), self._memory(wanted[:1]), self._how.learner_workers
        )
        tasks = [self._to_workers(self._task(artefact)) for artefact in wanted]
        distill(tasks, wanted[0].needs.options["worker"], Bench(self._storage, self._res, share), at_once)

    def _streamed(self, tasks: Sequence[Task], options: Mapping[str, Any]) -> Stream:
        groups = 1
        if "teachers" in tasks[0].inputs:
            share, groups = self._plan_mean(tasks)
        elif "weights" in options:
            weights = options["weights"]()
            res = self._res if weights else self._res.model_copy(update={"gpu": False})
            share, _ = plan_teachers(self._now(), res, 1, weights)
        else:
            need = options["need"]()
            res = self._res if need.device else self._res.model_copy(update={"gpu": False})
            share = plan_members(self._now(), res, len(self._stream(tasks, options).starts), need)
        stream = self._stream(tasks, options, share, groups)
        make_blocks(stream, self._storage, share, self._res.silence_seconds)
        return stream

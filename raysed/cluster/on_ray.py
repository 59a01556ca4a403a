"""The Ray backend: members on Tune, blocks on Data, learners on Train, and tasks where the cluster speeds them up."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import ray
from ray.util.queue import Queue
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysed.cluster.blocks import Stream
from raysed.cluster.distilling import run_learners
from raysed.cluster.jobs import OnEvent, ShortJob, TrainingJob
from raysed.cluster.machines import current_cluster, free_resources, gather
from raysed.cluster.streaming import make_blocks
from raysed.cluster.tasks import missing_nodes_logged, run_tasks
from raysed.cluster.tuning import Prepared, run_trials
from raysed.config import ResourcesConfig
from raysed.context import Context
from raysed.made import BlockShape, Made, RemoteValue, Step
from raysed.resources import Cluster, Demand, Share, uses_gpu
from raysed.store.storage import Storage

log = logging.getLogger(__name__)


class RayBackend:
    """See `raysed.runner.Backend`; uses the Ray that this process is connected to."""

    where = "cluster"
    share: Share | None = None

    def __init__(self, storage: Storage, resources: ResourcesConfig, say: Callable[[str], None]):
        self._storage, self._resources, self._say = storage, resources, say
        self._shared: dict[int, tuple[Any, RemoteValue]] = {}
        self._planned: Cluster | None = None

    @cached_property
    def _events(self) -> Queue:
        """What workers report; one for all stages, as it is a process of its own, on a node that is not lost."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})

    def machines(self, demand: Demand | None = None) -> Cluster:
        """Return the cluster to plan for; with a demand, wait until that is met as far as it can be.

        Later that is what is left: without an autoscaler, lost nodes may never come back.
        """
        if demand:
            self._planned = gather(self._resources, demand, self._say)
            if self._storage.is_local and len(self._planned.nodes) > 1:
                place = self._storage
                log.warning("storage %s must be a directory that all nodes share; otherwise use a URI", place)
        if demand or self._planned is None:
            return self._planned or current_cluster(self._resources)
        left = self._left()
        is_planned = left is self._planned  # by an autoscaler; or the stage waits, and logs for what
        return left if is_planned else replace(left, free=free_resources())

    def _left(self) -> Cluster:
        """Return what is left of the planned cluster, or that if it is too little."""
        if self._planned is None or self._planned.autoscaling:
            return self._planned or current_cluster(self._resources)
        now = current_cluster(self._resources)
        is_enough = now.largest_cpus >= 1 and (now.gpus > 0 or not uses_gpu(self._resources, self._planned))
        return now if is_enough else self._planned

    def map(self, jobs: Sequence[ShortJob | TrainingJob], share: Share, context: Context, on_event: OnEvent) -> None:
        """Do jobs: members as trials of Tune, learners as runs of Train, and short ones as tasks.

        Short jobs on one machine without GPUs are done in this process, which has imported everything.
        """
        share = self._selecting(share)
        if isinstance(jobs[0], ShortJob):
            here = self._left()
            if not uses_gpu(self._resources, here) and len(here.nodes) == 1:
                for job in jobs:
                    on_event(job.name, {"failed": job.run(self._storage, context)})
                return
            jobs = [replace(job, steps=[self._to_workers(step) for step in job.steps]) for job in jobs]
            arguments = self._storage, context, share.threads
            for failed in run_tasks(ShortJob.run, jobs, *arguments, work=jobs[0].name, share=share):
                on_event("", {"failed": failed})
            return
        jobs = [replace(job, step=self._to_workers(job.step)) for job in jobs]
        context, run = replace(context, stall_seconds=self._resources.stall_seconds), self._storage.uri("")
        with missing_nodes_logged(share):
            prepared = Prepared(self._storage, context, share.threads, {job.key: job for job in jobs})
            if jobs[0].is_gang:
                run_learners(run, jobs, share, prepared, self._events, on_event)
            else:
                title = "+".join(dict.fromkeys(job.config["node"] for job in jobs))
                run_trials(title, run, jobs, share, prepared, on_event)

    def stream(self, stream: Stream, share: Share, on_event: OnEvent) -> None:
        """Make the missing blocks with Ray Data."""
        share = self._selecting(share)
        with missing_nodes_logged(share, least=len(stream.chain)):
            make_blocks(stream, self._storage, share, self._events, on_event)

    def _selecting(self, share: Share) -> Share:
        return replace(share, label_selector=self._resources.label_selector)

    def _to_workers(self, step: Step) -> Step:
        """Return a step whose large inputs are in the object store, each put there once."""
        inputs: dict[str, Any] = dict(step.inputs)
        for role, value in step.inputs.items():
            if not isinstance(value, Made | BlockShape | list | Mapping | str | int | float | None):
                if id(value) not in self._shared:
                    self._shared[id(value)] = value, RemoteValue(partial(ray.get, ray.put(value)))
                inputs[role] = self._shared[id(value)][1]
        return replace(step, inputs=inputs)

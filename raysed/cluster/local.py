"""The local backend: this process, one thing after another, with all cores and a GPU if there is one.

Makers and settings are those of Ray's backend, so a run can continue with either.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from raysed.cluster.blocks import Stream, make_blocks_here
from raysed.cluster.jobs import OnEvent, ShortJob, TrainingJob
from raysed.config import ResourcesConfig
from raysed.context import Context, Outcome
from raysed.errors import UserError, last_line
from raysed.make.models import train
from raysed.process import prepare_worker
from raysed.resources import Cluster, Demand, Share, this_machine, unmet_requirement, uses_gpu
from raysed.store.storage import Storage

log = logging.getLogger(__name__)


class LocalBackend:
    """See `raysed.runner.Backend`."""

    where = "this machine"

    def __init__(self, storage: Storage, resources: ResourcesConfig):
        self._storage, self._resources = storage, resources
        self._machine = this_machine(resources.gpu)
        gpu = uses_gpu(resources, self._machine)
        self.share = Share(1, int(self._machine.cpus), float(gpu), int(self._machine.cpus))

    def machines(self, demand: Demand | None = None) -> Cluster:
        """Return this machine."""
        if demand and (problem := unmet_requirement(self._machine, self._resources)):
            raise UserError(problem)
        if demand:
            prepare_worker(self.share.threads)
        return self._machine

    def map(self, jobs: Sequence[ShortJob | TrainingJob], share: Share, context: Context, on_event: OnEvent) -> None:
        """Do jobs one after the other."""
        context = replace(context, device=self.share.device)
        for job in jobs:
            if isinstance(job, ShortJob):
                on_event(job.name, {"failed": job.run(self._storage, context)})
            else:
                outcome = self._train(job, replace(context, report=partial(on_event, job.name)))
                on_event(job.name, {"outcome": outcome})

    def _train(self, job: TrainingJob, context: Context) -> Outcome:
        """Train, and retry after failures; the training itself counts its starts and gives up."""
        while True:
            try:
                return train(job.step, job.worker, self._storage, context)
            except Exception as error:
                log.warning("%s failed; trying again: %s", job.name, last_line(error))

    def stream(self, stream: Stream, share: Share, on_event: OnEvent) -> None:
        """Make the missing blocks one after the other."""
        make_blocks_here(stream, self._storage, on_event)

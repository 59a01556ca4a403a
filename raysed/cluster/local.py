"""The local engine: everything in this process, in order, without Ray, for a machine with nothing to gain from it.

Makers and settings are the same, so a run can continue with either engine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import psutil

from raysed.cluster.blocks import Stream
from raysed.cluster.execute import Executor
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import Cluster, Need, Share, plan_learners, smallest_gpu_here, uses_gpu, what_is_missing
from raysed.cluster.work import MOST_RESTARTS, Bench, Failures, Stopped, TrainingLine, Trial, refuse_unfinished
from raysed.errors import RunFailed, UserError, last_line
from raysed.graph import Artefact, Task
from raysed.store.progress import emit

log = logging.getLogger(__name__)


class LocalExecutor(Executor):
    """Make batches of artefacts in this process."""

    where = "this machine"

    def _gathered(self, need: Need, learners: int, workers: int) -> Cluster:
        if missing := what_is_missing(self.cluster, self._res):
            raise UserError(missing)
        cpus = int(self.cluster.cpus)
        self.share = Share(1, cpus, float(uses_gpu(self._res, self.cluster)), threads=cpus)
        prepare_worker(cpus)
        return self.cluster

    def _until_it_ends(self, train: Callable[[], Any], name: str, share: Share) -> Any:
        """Train, and retry after failures; the training itself counts its starts and gives up.

        It gets as many threads as a Ray worker would, so that sums are the same.
        """
        prepare_worker(share.threads)
        try:
            for start in range(MOST_RESTARTS + 1):
                try:
                    return train()
                except Exception as error:
                    if start == MOST_RESTARTS or isinstance(error, UserError | RunFailed):
                        raise
                    log.warning("%s failed; trying again: %s", name, last_line(error))
        finally:
            prepare_worker(self.share.threads)

    def _train_members(self, trials: Sequence[Trial], bench: Bench) -> tuple[Failures, dict[str, Stopped]]:
        names = [task.name for trial in trials for task in trial.tasks]
        updates = sum(trial.rungs[-1] * len(trial.tasks) for trial in trials)
        nodes = "+".join(dict.fromkeys(trial.node for trial in trials))
        line = TrainingLine(f"train {nodes}", "members", len(names), updates)
        bench, failed = replace(bench, report=line.report), {}
        for trial in trials:
            train = partial(trial.train, trial.tasks, trial.rungs[-1], bench)
            ended = self._until_it_ends(train, trial.name, bench.share)
            emit(sentences=sum(each.updates for each in ended) * trial.rows_per_update)
            failed |= {task.name: each.failed for task, each in zip(trial.tasks, ended) if each.failed}
        line.close()
        return failed, {}

    def _by_train(self, wanted: Sequence[Artefact], batch: Sequence[Artefact]) -> None:
        share, _ = plan_learners(self.cluster, self._res, 1, self._memory(wanted[:1]))
        tasks = [self._task(artefact) for artefact in wanted]
        line = TrainingLine(f"distil {wanted[0].needs.stage}", "learners", len(tasks))
        said: dict[str, dict[str, Any]] = {}
        bench = replace(
            Bench(self._storage, self._res, share),
            report=line.report,
            say=lambda name, words: said.setdefault(name, {}).update(words),
            has_failed=lambda: any("failed" in words for words in said.values()),
        )
        self._until_it_ends(partial(wanted[0].needs.options["worker"], tasks, bench), wanted[0].needs.stage, share)
        refuse_unfinished(tasks, said, self._storage)
        line.close()

    def _streamed(self, tasks: Sequence[Task], options: Mapping[str, Any]) -> Stream:
        return self._streamed_here(tasks, {"table": "corpus", **options})


def this_machine(gpu: bool | None = None) -> Cluster:
    """Return what this machine has, without its GPUs if `gpu` is False."""
    import torch

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = 0 if gpu is False else torch.cuda.device_count()
    memory = psutil.virtual_memory().available
    gpu_bytes = (gpus and smallest_gpu_here()) or Cluster.gpu_bytes
    return Cluster(((float(cpus), float(gpus)),), node_bytes=memory, gpu_bytes=gpu_bytes)

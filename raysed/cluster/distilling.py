"""Ray Train + DeepSpeed: tokens and their targets -> learner; one run per learner, and the same loop in each worker.

A worker reads its rows of targets by (seed, step), and not from `get_dataset_shard`: a continued learner then equals an
uninterrupted one, on any number of workers.
"""

import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.queue import Queue

from raysed import interrupts
from raysed.cluster.events import Reports, drain
from raysed.cluster.jobs import OnEvent, TrainingJob, key_of
from raysed.cluster.tuning import Prepared
from raysed.context import MAX_RESTARTS, Outcome
from raysed.errors import last_line
from raysed.make.models import train
from raysed.process import prepare_worker
from raysed.resources import Share

log = logging.getLogger(__name__)

_STATE = "train"
_ENDING_S = 120.0  # for Ray Train to end after its learner
_MAX_CONTROLLERS = 3
"""Starts of a training's controller. On an overloaded machine, Ray Train takes a live controller for dead and removes
its workers' placement group; learners continue from their checkpoints."""
_REPORT_EVERY_S = 1.0
"""A report waits until the one before has been fetched, so rows of the history go together."""


def run_learners(
    run: str, jobs: Sequence[TrainingJob], share: Share, prepared: Prepared, events: Queue, on_event: OnEvent
) -> None:
    """Train learners, each in a run of its own, `share.at_once` of them at a time.

    Ray Train runs in threads: in the main thread it would take Ctrl-C for itself and end the process with exit code 0.
    """
    prepared.storage.remove(_STATE)  # our state is in the manifest; Ray Train must not resume from its own
    slots, errors = threading.Semaphore(share.at_once), dict[str, BaseException]()
    trainers = {job.name: partial(_trainer, job, run, share, prepared, events) for job in jobs}
    threads = [threading.Thread(target=_fit, args=(*each, slots, errors), daemon=True) for each in trainers.items()]
    for thread in threads:
        thread.start()
    done, done_at = set[str](), time.monotonic()

    def pass_on(patience: float) -> None:
        nonlocal done_at
        for name, entry in drain(events, patience):
            for row in entry.get("rows", []):
                on_event(name, row)
            if "path" in entry or "failure" in entry:
                outcome = Outcome(failure=entry.get("failure"), is_mistake=bool(entry.get("mistake")))
                on_event(name, {"outcome": outcome})
                done.add(name)
                done_at = time.monotonic()

    while any(thread.is_alive() for thread in threads):
        pass_on(patience=1.0)
        if len(done) == len(jobs) and time.monotonic() - done_at > _ENDING_S:
            log.warning("all learners are finished, but Ray Train has not ended; continuing without it")
            break
    pass_on(patience=0.0)
    for name in errors.keys() - done:
        on_event(name, {"outcome": Outcome(failure=last_line(errors[name]))})


def _fit(
    name: str, trainer: Callable[[int], TorchTrainer], slots: threading.Semaphore, errors: dict[str, BaseException]
) -> None:
    """Train a learner once there is a slot."""
    with slots:
        for attempt in range(_MAX_CONTROLLERS):
            if interrupts.received_signal() is not None:  # while it waited
                return
            try:
                trainer(attempt).fit()
                return
            except BaseException as error:  # handed to the main thread
                errors[name] = error
                if not isinstance(error, ray.train.ControllerError):
                    return
                log.warning("%s: Ray Train failed; restarting it: %s", name, last_line(error))


def _trainer(job: TrainingJob, run: str, share: Share, prepared: Prepared, events: Queue, attempt: int) -> TorchTrainer:
    name = job.name.replace("/", "-")
    return TorchTrainer(
        partial(distill_loop, prepared=prepared),
        train_loop_config={"run": run, **job.config, "sed": job.step.settings["sed"].model_dump(mode="json")},
        scaling_config=ScalingConfig(
            # Fewer than planned after nodes are lost, and all again when others join.
            num_workers=(1, share.gang) if share.gang > 1 else 1,
            elastic_resize_monitor_interval_s=30.0,  # taking in another node means a restart
            use_gpu=share.gpus > 0,
            resources_per_worker=share.resources,
            **({"label_selector": dict(share.label_selector)} if share.label_selector else {}),
        ),
        torch_config=TorchConfig(backend="nccl" if share.gpus else "gloo"),
        run_config=RunConfig(
            name=f"{name}-{attempt}" if attempt else name,  # a retry must not resume from Ray Train's state
            storage_path=prepared.storage.uri(_STATE),
            failure_config=FailureConfig(max_failures=MAX_RESTARTS),
            callbacks=[Reports(job.name, events)],
        ),
    )


# -- in a worker -----------------------------------------------------------------------------------------------------


def distill_loop(config: dict[str, Any], prepared: Prepared) -> None:
    """Distil one learner: the loop of each worker of a `TorchTrainer`, with DeepSpeed inside; it resumes by itself.

    Workers report `step`, `total`, `loss` and `dev`, and in the end a checkpoint whose `learner.json` has the `path` of
    the model.

    Args:
        config: `node` is a recipe such as `ct-sed`, and `seed` the number of the learner; the rest is for people.
    """
    job, storage, place = prepared.jobs[key_of(config)], prepared.storage, ray.train.get_context()
    prepare_worker(prepared.threads)
    rank, world, rows, told_at = place.get_world_rank(), place.get_world_size(), list[dict[str, Any]](), 0.0
    latest: dict[str, Any] = {}

    def report(entry: Mapping[str, Any]) -> None:
        """Report the latest row of the history, with those before it; all workers do so equally often."""
        nonlocal told_at
        rows.append(dict(entry))
        latest.update({key: value for key, value in entry.items() if value is not None})
        is_due = time.monotonic() - told_at >= _REPORT_EVERY_S or entry["step"] == entry["total"]
        if world > 1 or is_due or entry["dev"] is not None:
            ray.train.report({**entry, "rows": [*rows]})
            rows.clear()
            told_at = time.monotonic()

    context = replace(
        prepared.context,
        rank=rank,
        world=world,
        report=report,
        warned=_is_warned,
        broadcast=broadcast_from_rank_zero,
    )
    outcome = train(job.step, job.worker, storage, context)
    if outcome.failure:
        ray.train.report({"failure": outcome.failure, "mistake": outcome.is_mistake})
        return
    with tempfile.TemporaryDirectory() as directory:  # the model's files are in place already
        path = storage.uri(storage.entry(job.name).place) if rank == 0 else ""
        Path(directory, "learner.json").write_text(json.dumps({"learner": job.name, "path": path}))
        ray.train.report({**latest, "path": path}, Checkpoint.from_directory(directory) if rank == 0 else None)


def _is_warned() -> bool:
    """Return whether Ray has announced that the machine of this worker will go, which older ones cannot."""
    ask = getattr(ray.train, "get_preemption_info", None)
    return ask is not None and ask() is not None

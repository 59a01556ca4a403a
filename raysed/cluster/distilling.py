"""Ray Train + DeepSpeed: tokens and their targets -> learner; the same loop in every worker.

Workers report through small files below the run's `train/notes`, so the driver never waits for an answer.
"""

import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer

from raysed import interrupts
from raysed.cluster.process import prepare_worker
from raysed.cluster.watchdog import watched_workers
from raysed.cluster.work import MOST_RESTARTS, Bench, TrainingLine, refuse_unfinished
from raysed.errors import RunFailed, last_line
from raysed.graph import Task
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_STATE, _NOTES = "train", "train/notes"
_ENDING_S = 120.0  # for Ray Train to end after its learners
_MOST_CONTROLLERS = 3
"""Starts of a training's controller. On an overloaded machine, Ray Train takes a live controller for dead and removes
its workers' placement group; learners continue from their checkpoints."""
_LOCAL_EVERY_S, _REMOTE_EVERY_S = 1.0, 15.0
"""Seconds between notes, and between reads of them: on an object store each is a request."""


def distill(learners: Sequence[Task], worker: Callable[..., None], bench: Bench, at_once: int = 1) -> None:
    """Train and publish learners with Ray Train.

    Learners are divided among `at_once` parallel trainings, each of which trains its learners one after the other.
    After a restart, a learner continues from its newest checkpoint, and published ones are skipped.

    Raises:
        RunFailed: workers failed more often than `sed.max_retries` without a new checkpoint in between.
    """
    lanes = [learners[start::at_once] for start in range(min(at_once, len(learners)))]
    title = f"distil {'+'.join(dict.fromkeys(learner.name.split('/')[0] for learner in learners))}"
    log.info("%s: %d at a time, workers per learner: %d", title, len(lanes), bench.share.workers)
    res, storage = bench.resources, bench.storage
    storage.remove(_STATE)  # our state is in the manifest; Ray Train must not resume from its own
    with watched_workers(res.silence_seconds, bench.share, stall=res.stall_seconds) as watchdog:
        bench = replace(bench, watchdog=watchdog)
        _fit(title, [partial(_trainer, lane, worker, bench) for lane in lanes], learners, storage)
    ends = ("failed", "gave_up", "error")
    said = {task.name: {what: _note(storage, task, what) for what in ends} for task in learners}
    refuse_unfinished(learners, said, storage)
    storage.remove(_NOTES)


def _trainer(learners: Sequence[Task], worker: Callable[..., None], bench: Bench, attempt: int) -> TorchTrainer:
    share, name = bench.share, learners[0].name.replace("/", "-")
    return TorchTrainer(
        partial(_work, list(learners), worker, bench),
        scaling_config=ScalingConfig(
            # Fewer than planned after nodes are lost, and all again when others join.
            num_workers=(1, share.workers) if share.workers > 1 else 1,
            elastic_resize_monitor_interval_s=30.0,  # taking in another node means a restart
            use_gpu=share.gpus > 0,
            resources_per_worker=share.resources,
        ),
        torch_config=TorchConfig(backend="nccl" if share.gpus else "gloo"),
        run_config=RunConfig(
            name=f"{name}-{attempt}" if attempt else name,  # a retry must not resume from Ray Train's state
            storage_path=bench.storage.uri(_STATE),
            failure_config=FailureConfig(max_failures=MOST_RESTARTS),
        ),
    )


def _fit(
    title: str, trainers: Sequence[Callable[[int], TorchTrainer]], learners: Sequence[Task], storage: Storage
) -> None:
    """Run the trainings, each in its own thread, and show their progress.

    In the main thread, Ray Train would take Ctrl-C for itself and end the process with exit code 0.
    """
    errors: list[BaseException] = []
    threads = [threading.Thread(target=_train, args=(title, trainer, errors), daemon=True) for trainer in trainers]
    for thread in threads:
        thread.start()
    line, missing_at = TrainingLine(title, "learners", len(learners)), time.monotonic()
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(_every(storage))
        for task in learners:
            if text := _note(storage, task, "progress"):
                line.report(task.name, json.loads(text))
        if not all(task.exists(storage) for task in learners):
            missing_at = time.monotonic()
        elif time.monotonic() - missing_at > _ENDING_S:
            log.warning("%s: all learners are finished, but Ray Train has not ended; continuing without it", title)
            break
    if errors:
        raise RunFailed(f"{title} failed: {last_line(errors[0])}") from errors[0]
    line.close(len(learners))


def _train(title: str, trainer: Callable[[int], TorchTrainer], errors: list[BaseException]) -> None:
    for attempt in range(_MOST_CONTROLLERS):
        try:
            trainer(attempt).fit()
            return
        except BaseException as error:  # handed to the main thread
            is_lost = isinstance(error, ray.train.ControllerError) and interrupts.received_signal() is None
            if not is_lost or attempt + 1 == _MOST_CONTROLLERS:
                errors.append(error)
                return
            log.warning("%s: Ray Train failed; restarting it: %s", title, last_line(error))


def _note(storage: Storage, learner: Task, what: str) -> str | None:
    return storage.read_text(f"{_NOTES}/{learner.name}/{what}")


def _every(storage: Storage) -> float:
    return _LOCAL_EVERY_S if storage.is_local else _REMOTE_EVERY_S


# -- in a worker -----------------------------------------------------------------------------------------------------


def _work(learners: Sequence[Task], worker: Callable[..., None], bench: Bench) -> None:
    """Run one Ray Train worker; all workers of a learner report equally often."""
    prepare_worker(bench.share.threads)
    context, storage = ray.train.get_context(), bench.storage
    rank, latest, noted_at = context.get_world_rank(), {}, 0.0

    def say(name: str, facts: dict[str, Any]) -> None:
        for what, value in facts.items():
            storage.write_text(f"{_NOTES}/{name}/{what}", str(value))

    def report(name: str, words: dict[str, Any]) -> None:
        nonlocal latest, noted_at
        latest, is_told = {"learner": name, **words}, words["step"] == words["total"] or words["dev"] is not None
        if rank == 0 and (is_told or time.monotonic() - noted_at > _every(storage)):
            noted_at = time.monotonic()
            say(name, {"progress": json.dumps(words)})
        if is_told:
            ray.train.report(latest)  # blocks until the report before is fetched, so not for every entry

    def published(name: str) -> None:
        """Report the learner as a checkpoint that only names its location: its files are already in place."""
        with tempfile.TemporaryDirectory() as directory:
            place = storage.uri(storage.entry(name).place) if rank == 0 else ""
            Path(directory, "learner.json").write_text(json.dumps({"learner": name, "place": place}))
            checkpoint = Checkpoint.from_directory(directory) if rank == 0 else None
            ray.train.report({**latest, "learner": name}, checkpoint)

    bench = replace(
        bench,
        report=report,
        published=published,
        warned=lambda: ray.train.get_preemption_info() is not None,
        rank=rank,
        world=context.get_world_size(),
        broadcast=broadcast_from_rank_zero,
        say=say,
        has_failed=lambda: any(_note(storage, learner, "failed") for learner in learners),
    )
    with bench.watchdog.guard(", ".join(learner.name for learner in learners)):
        worker(learners, bench)

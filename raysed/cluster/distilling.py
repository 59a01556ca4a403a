"""Ray Train + DeepSpeed: tokens and their targets -> learner; the same loop in every worker."""

import importlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer

from raysed.cluster.gauges import Gauges
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import MOST_RESTARTS
from raysed.cluster.watchdog import answer_of, beside_driver, expect_no_progress, made_progress, watched_workers
from raysed.cluster.work import Bench
from raysed.errors import RunFailed, UserError, last_line
from raysed.graph import Task
from raysed.store.progress import Progress, ProgressBoard, emit

log = logging.getLogger(__name__)

_ENDING_S = 120.0
"""For Ray Train to end after its learners."""
_LOOK_FOR_NODES_EVERY = 30.0
"""Seconds after which learners that have lost a node look for another one; to go on with it means a new start."""


def distill(learners: Sequence[Task], worker: Callable[..., None], bench: Bench, at_once: int = 1) -> None:
    """Train and publish learners with Ray Train.

    Learners are dealt out to as many trainings as run at the same time. Each start of a training's workers trains its
    learners one after the other. A learner continues from its newest checkpoint, and one that is published is not
    trained again when workers are started anew.

    Raises:
        RunFailed: workers failed more often than `sed.max_retries` without a new checkpoint in between.
    """
    lanes = [learners[start::at_once] for start in range(min(at_once, len(learners)))]
    workers = len(lanes) * bench.share.workers
    log.info("distilling %s: starting %s worker%s", _names(learners), workers, "s" * (workers > 1))
    board, res, storage = beside_driver(ProgressBoard), bench.resources, bench.storage
    with watched_workers(res.silence_seconds, bench.share, stall=res.stall_seconds) as watchdog:
        bench = replace(bench, watchdog=watchdog)
        _fit([_trainer(lane, worker, bench, board) for lane in lanes], learners, board, storage)
    storage.remove("train")  # Ray Train's own state; ours is in the manifest
    done = [entry.meta["sentences"] for task in learners if (entry := storage.finished(task.name, task.depends))]
    emit(sentences=sum(done))
    for name, said in answer_of(board.latest.remote(), "how learners ended", {}).items():
        if failure := said.get("failed"):
            raise UserError(f"{name}: {failure}")
        if said.get("gave_up"):
            error = said.get("error", "its workers were lost")
            raise RunFailed(f"{name}: {error}; gave up after {said['gave_up']} attempts")
    for task in learners:
        if not task.is_there(storage):
            raise RunFailed(f"{task.name} ended without a result; see its log at {storage.uri('train')}")


def _names(learners: Sequence[Task]) -> str:
    """How a line of progress names learners, of which there may be many."""
    counts = Counter(learner.name.split("/")[0] for learner in learners)
    return ", ".join(f"{count} learner{'s' * (count > 1)} of {recipe}" for recipe, count in counts.items())


def _trainer(learners: Sequence[Task], worker: Callable[..., None], bench: Bench, board: Any) -> TorchTrainer:
    share = bench.share
    return TorchTrainer(
        _light(_work),
        train_loop_config={"arguments": ray.put((list(learners), worker, bench, board))},
        scaling_config=ScalingConfig(
            # With fewer than planned where nodes are lost, and with all again when others come.
            num_workers=(1, share.workers) if share.workers > 1 else 1,
            elastic_resize_monitor_interval_s=_LOOK_FOR_NODES_EVERY,
            use_gpu=share.gpus > 0,
            resources_per_worker=share.resources,
        ),
        torch_config=TorchConfig(backend="nccl" if share.gpus else "gloo"),
        run_config=RunConfig(
            name=f"{learners[0].name.replace('/', '-')}-{int(time.time())}",
            storage_path=bench.storage.uri("train"),
            failure_config=FailureConfig(max_failures=MOST_RESTARTS),
        ),
    )


def _light(worker: Callable[..., None]) -> Callable[[dict[str, Any]], None]:
    """Wrap a function so that Ray Train's controller can hold it without importing what only workers need.

    A function within a function travels by value; one of a module would be imported, which takes seconds.
    """
    module, name = worker.__module__, worker.__name__

    def work(config: dict[str, Any]) -> None:
        getattr(importlib.import_module(module), name)(*ray.get(config["arguments"]))

    return work


def _fit(trainers: Sequence[TorchTrainer], learners: Sequence[Task], board: Any, storage: Any) -> None:
    """Wait for the trainings and show what their workers say.

    Each is awaited in a thread of its own: in the main one Ray Train would take Ctrl-C for itself and end the process
    with exit code 0.
    """
    errors: list[BaseException] = []

    def wait(trainer: TorchTrainer) -> None:
        try:
            trainer.fit()
        except BaseException as error:  # handed to the main thread
            errors.append(error)

    threads = [threading.Thread(target=wait, args=(trainer,), daemon=True) for trainer in trainers]
    for thread in threads:
        thread.start()
    title = f"distil {_names(learners)}"
    progress: Progress | None = None
    updated_at = time.monotonic()
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(1.0)
        latest = answer_of(board.latest.remote(), "the progress of learners", {})
        said = [words for words in latest.values() if "step" in words]
        if said:
            progress = progress or Progress(title, said[0]["total"] * len(learners))
            progress.start_from(sum(words["first"] for words in said))
            emit(trained=sum(words["step"] == words["total"] for words in said), trainings=len(learners))
            progress.update(sum(words["step"] for words in said), _note(said, len(learners)))
        if len(said) < len(learners) or any(words["step"] < words["total"] for words in said):
            updated_at = time.monotonic()
        elif time.monotonic() - updated_at > _ENDING_S and all(task.is_there(storage) for task in learners):
            log.warning("%s: Ray Train does not end although all learners are there; going on without it", title)
            break
    if errors:
        raise RunFailed(f"{title} failed: {last_line(errors[0])}") from errors[0]
    if progress:
        progress.close()


def _note(said: Sequence[dict[str, Any]], count: int) -> str:
    """What to say of the newest learner; all have the same number of updates."""
    newest = said[-1]
    parts = [f"{len(said)}/{count} learners"] if count > 1 else []
    parts.append(f"loss {newest['loss']:.5f}")
    if newest.get("dev") is not None:
        parts.append(f"dev {newest['dev']:.1f}")
    return " · ".join(parts)


def _work(learners: Sequence[Task], worker: Callable[..., None], bench: Bench, board: Any) -> None:
    """One Ray Train worker."""
    prepare_worker(bench.share.threads)
    gauges = {learner.name: Gauges("training", bench.run, learner.name) for learner in learners}
    context = ray.train.get_context()

    def report(name: str, words: dict[str, Any]) -> None:
        gauges[name](words)
        board.report.remote(name, words)

    bench = replace(
        bench,
        report=report,
        warned=lambda: ray.train.get_preemption_info() is not None,
        made_progress=made_progress,
        expect_no_progress=expect_no_progress,
        rank=context.get_world_rank(),
        world=context.get_world_size(),
        broadcast=broadcast_from_rank_zero,
        say=lambda name, words: answer_of(board.report.remote(name, words), "whether the driver heard of it"),
        has_failed=lambda: any(
            "failed" in said for said in answer_of(board.latest.remote(), "how learners ended", {}).values()
        ),
    )
    with bench.watchdog.guard(", ".join(learner.name for learner in learners)):
        worker(learners, bench)

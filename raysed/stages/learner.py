"""Ray Train + DeepSpeed: tokens and their targets -> learner; the same loop.py in every worker."""

import importlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import ray
import ray.train
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.collective import broadcast_from_rank_zero
from ray.train.torch import TorchConfig, TorchTrainer

from raysed.cluster.gauges import TrainingGauges
from raysed.cluster.heartbeat import answer_of, beating, beside_driver, watched
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import MOST_RESTARTS, Share
from raysed.config import Config
from raysed.errors import RunFailed, UserError, last_line
from raysed.model.encoder import load_start
from raysed.model.head import fold
from raysed.plan.artefacts import Learner
from raysed.stages.worker import Training, Workplace, steps_are_counted
from raysed.store.metrics import MetricsLog, metrics_log
from raysed.store.progress import Progress, ProgressBoard, tell
from raysed.store.storage import Storage
from raysed.train.deepspeed import prepare_deepspeed
from raysed.train.stages.sed import STAGE, Distillation

log = logging.getLogger(__name__)

_LOOK_FOR_NODES_EVERY = 30.0
"""Seconds after which learners that have lost a node look for another one; to go on with it means a new start."""
_HEARD = "whether the driver heard of it"


def _names(learners: Sequence[Learner]) -> str:
    """How a line of progress names learners, of which there may be many."""
    counts = Counter(learner.name.split("/")[0] for learner in learners)
    return ", ".join(f"{count} learner{'s' * (count > 1)} of {recipe}" for recipe, count in counts.items())


def distill(learners: Sequence[Learner], config: Config, storage: Storage, share: Share, at_once: int = 1) -> None:
    """Trains and publishes learners with Ray Train.

    Learners are dealt out to as many trainings as run at the same time. Each start of a training's workers trains its
    learners one after the other. A learner continues from its newest checkpoint, and one that is published is not
    trained again when workers are started anew.

    Args:
        share: workers, CPUs, GPUs and threads of one learner.
        at_once: how many learners are trained at the same time.

    Raises:
        UserError: a loss is not finite.
        RunFailed: workers failed more often than `sed.max_retries` without a new checkpoint in between.
    """
    lanes = [learners[start::at_once] for start in range(min(at_once, len(learners)))]
    workers = len(lanes) * share.workers
    log.info("distilling %s: starting %s worker%s", _names(learners), workers, "s" * (workers > 1))
    board = beside_driver(ProgressBoard)
    res = config.resources
    with watched(res.silence_seconds, share, stall=res.stall_seconds) as watch:
        place = Workplace(config, storage, share, watch)
        _fit([_trainer(lane, place, board) for lane in lanes], learners, board)
    storage.remove("train")  # Ray Train's own state; ours is in the manifest
    done = [entry.meta for learner in learners if (entry := storage.finished(learner.name, learner.depends))]
    tell(sentences=sum(meta["steps"] - meta["resumed_at"] for meta in done) * config.sed.batch_size)
    for name, said in answer_of(board.latest.remote(), "how learners ended", {}).items():
        if failure := said.get("failed"):
            raise UserError(f"{name}: {failure}")
        if said.get("gave_up"):
            error = said.get("error", "its workers were lost")
            raise RunFailed(f"{name}: {error}; gave up after {said['gave_up']} attempts")


def _trainer(learners: Sequence[Learner], place: Workplace, board: Any) -> TorchTrainer:
    share = place.share
    return TorchTrainer(
        _light(_worker),
        train_loop_config={"arguments": ray.put((list(learners), place, board))},
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
            storage_path=place.storage.uri("train"),
            failure_config=FailureConfig(max_failures=MOST_RESTARTS),
        ),
    )


def _light(worker: Callable[..., None]) -> Callable[[dict[str, Any]], None]:
    """Wraps a function so that Ray Train's controller can hold it without importing what only workers need.

    A function within a function travels by value; one of a module would be imported, which takes seconds.
    """
    module, name = worker.__module__, worker.__name__

    def work(config: dict[str, Any]) -> None:
        getattr(importlib.import_module(module), name)(*ray.get(config["arguments"]))

    return work


def _fit(trainers: Sequence[TorchTrainer], learners: Sequence[Learner], board: Any) -> None:
    """Waits for the trainings and shows what their workers say.

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
    while alive := [thread for thread in threads if thread.is_alive()]:
        alive[0].join(1.0)
        said = [
            words
            for words in answer_of(board.latest.remote(), "the progress of learners", {}).values()
            if "step" in words
        ]
        if said:
            progress = progress or Progress(title, said[0]["total"] * len(learners))
            progress.start_from(sum(words["first"] for words in said))
            tell(trained=sum(words["step"] == words["total"] for words in said), trainings=len(learners))
            progress.update(sum(words["step"] for words in said), _note(said, len(learners)))
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


# -- the worker's side -----------------------------------------------------------------------------------------------


def _worker(learners: Sequence[Learner], place: Workplace, board: Any) -> None:
    """One Ray Train worker."""
    prepare_worker(place.share.threads)
    prepare_deepspeed(gpu=place.share.gpus > 0)
    with beating(place.watch, ", ".join(learner.name for learner in learners)):
        for learner in learners:
            is_done = place.storage.finished(learner.name, learner.depends)  # by workers that have failed since
            if not is_done and not _train_or_give_up(learner, place, board):
                return


def _train_or_give_up(learner: Learner, place: Workplace, board: Any) -> bool:
    """Whether to go on; what another start would not mend is said to the board, not raised."""
    rank = ray.train.get_context().get_world_rank()
    starts = broadcast_from_rank_zero(None if rank else _begin(learner, place, board))
    if starts is None:
        return False
    if starts > place.config.sed.max_retries:
        answer_of(board.report.remote(learner.name, {"gave_up": starts}), _HEARD)
        return False
    try:
        own_log = nullcontext() if rank else metrics_log(place.storage, place.config, learner.name, learner.depends)
        with own_log as metrics:
            _train_and_publish(learner, place, metrics, board)
    except UserError as error:
        answer_of(board.report.remote(learner.name, {"failed": str(error)}), _HEARD)
        if rank:
            raise  # the first may wait for this one; started anew by Ray Train, it finds what was said
    except Exception as error:
        answer_of(board.report.remote(learner.name, {"error": last_line(error)}), _HEARD)
        raise
    return True


def _begin(learner: Learner, place: Workplace, board: Any) -> int | None:
    """How often this learner was started in vain; None after a user's mistake, which another start does not mend."""
    if any("failed" in said for said in answer_of(board.latest.remote(), "how learners ended", {}).values()):
        return None
    return place.storage.checkpoints(learner.name, learner.depends).begin(place.job)


def _train_and_publish(learner: Learner, place: Workplace, metrics: MetricsLog | None, board: Any) -> None:
    context = ray.train.get_context()
    training = Training(learner, [learner.targets], place, metrics)
    rank, world = context.get_world_rank(), context.get_world_size()
    sed = place.config.sed.model_copy(update={"keep": learner.keep})
    setup = STAGE.set_up_worker(sed, training.start, rank, world)
    gauges = TrainingGauges(place.config.run, learner.name)

    def report(words: dict[str, Any]) -> None:
        gauges(words)
        board.report.remote(learner.name, words)

    run = training.prepared(setup, report=report, warned=lambda: ray.train.get_preemption_info() is not None)
    with steps_are_counted():
        result = run.train()
    weights = setup.engine.weights()  # gathered by all workers, whatever the ZeRO stage
    setup.engine.close()
    if metrics is None:
        return
    if result.score is not None:
        metrics.conclude({"stage": "learner", "seed": learner.seed}, {"best_dev": result.score})
    encoder, _ = load_start(place.config.encoder, place.storage, learner.start)
    if place.config.sed.head:
        encoder.set_head(weights["learner.head.weight"].T.cpu().numpy())
    Distillation(encoder).load_state_dict(weights)
    if place.config.sed.head == "fold":
        encoder.set_head(fold(encoder.head_weight()))
    description = {"learner": learner.name, "seed": learner.seed, "steps": result.steps}
    meta = {"dev": result.score, "held_out": result.held_out, "steps": result.steps, "kept_step": result.kept_step}
    training.publish(encoder, result, description, meta)

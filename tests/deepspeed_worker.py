"""A worker of trainings by DeepSpeed; `test_deepspeed.py` runs several, each in a process of its own."""

import gc
import os
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learners import tiny_learner
from stopping import stop_after
from tape import Recorder

from raysed.data.targets import TargetBatches
from raysed.store.storage import Storage
from raysed.train.deepspeed import DeepSpeedEngine, prepare_deepspeed
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.selection import TrainingResult
from raysed.train.stage import TrainingPlan, warmup_schedule
from raysed.train.stages.sed import Distillation, SedConfig
from raysed.train.state import seed_everything, snapshot

RATE = 1e-3
"""High, so that a lost moment shows within a few updates."""
_ENDED: list[weakref.ref] = []
"""Engines and objectives of trainings that are over."""
WIDTH = 24
"""Of the targets: wider than the learner's states, so that it has a head."""


@dataclass(frozen=True)
class Work:
    """What all workers of a training do.

    Attributes:
        directory: of the targets and of the saved states.
        world: number of workers.
        port: at which they meet.
        stages: of ZeRO, one after the other.
        stop: update at which they stop; 0: they go on to the end.
        records: whether recorded updates are compared with launched ones instead.
    """

    directory: Path
    world: int
    port: int
    stages: Sequence[int]
    stop: int = 0
    records: bool = False


def run(work: Work, rank: int, told: Connection) -> None:
    """Does its part, and tells what was found by stage, or what went wrong."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(work.world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(work.port))
    try:
        torch.set_num_threads(1)
        prepare_deepspeed(gpu=False)
        torch.distributed.init_process_group("gloo", rank=rank, world_size=work.world)
        of_stage = _recorded if work.records else _of_stage
        told.send({stage: found for stage in work.stages if (found := of_stage(work, rank, stage))})
    except BaseException:
        told.send(traceback.format_exc())
        raise


def _of_stage(work: Work, rank: int, stage: int) -> dict[str, Any] | None:
    """A training that goes on from its state, one from the start, and one with an infinite gradient."""
    states = Storage(str(work.directory), f"states-{stage}").checkpoints("learner", {})
    result = _trained(work, rank, stage, work.stop, checkpoints=states)
    if result is None:
        return None
    following = _trained(work, rank, stage)
    return {
        "losses": [entry["loss"] for entry in result.history],
        "resumed_at": result.resumed_at,
        "following": [entry["loss"] for entry in following.history],
        "resumes_exactly": _resumes_exactly(work, rank, stage),
        "spoiled": _spoiled(work, rank, stage),
    }


def _recorded(work: Work, rank: int, stage: int) -> dict[bool, dict[str, Any]]:
    """Whether recorded updates with clipping and dropout are the launched ones, and how many were replayed, by bf16."""
    gc.disable()
    found = {}
    for bf16 in (False, True):
        plain, recorded = (_fourteen_updates(work, rank, stage, bf16, records) for records in (False, True))
        is_equal = plain[0] == recorded[0] and all(torch.equal(plain[1][name], x) for name, x in recorded[1].items())
        others = _fourteen_updates(work, rank, None, bf16, records=False)[0]
        by_torch = np.abs(np.array(plain[0]) - others).max()
        found[bf16] = {"is_equal": is_equal, "replays": (plain[2], recorded[2]), "by_torch": by_torch}
        found[bf16]["alive"] = [type(ended).__name__ for reference in _ENDED if (ended := reference())]
    return found


def _fourteen_updates(
    work: Work, rank: int, stage: int | None, bf16: bool, records: bool
) -> tuple[list[float], dict[str, torch.Tensor], int]:
    """The losses, the state afterwards, and the number of replays; without a stage, torch's engine makes them."""

    def held() -> Iterator[torch.Tensor]:
        yield from (*objective.parameters(), *objective.buffers())
        for state in engine._torch_optimizer().state.values():
            yield from state.values()

    torch.manual_seed(0)
    objective, recorder = Distillation(tiny_learner(WIDTH), dropout=True).train(), Recorder(held)
    sed = SedConfig(batch_size=8, zero_stage=stage or 0, clip=0.1)
    if stage is None:
        trained = [p for p in objective.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, weight_decay=0.0, fused=True)
        engine = TorchEngine(objective, optimizer, sed.clip, bf16)
    else:
        engine = DeepSpeedEngine(objective, sed, 1, bf16, record=recorder if records else None)
    batches, losses = _batches(work, rank), []
    batches.few_shapes = True
    for step in range(14):
        seed_everything(1, step)
        losses.append(engine.update(batches(step), 2.0**-12))  # a rate that float32 has
    state = snapshot(engine.state_dict())[1]
    engine.close()
    _ENDED.extend([weakref.ref(engine), weakref.ref(objective)])
    return losses, state, sum(recorder.replays)


def _trained(work: Work, rank: int, stage: int, stop: int = 0, **options: Any) -> TrainingResult | None:
    """A training of 12 updates; None where it is stopped after some."""
    with _engine(work, stage) as engine:
        sed = engine._sed
        rate = warmup_schedule(sed.learning_rate, 12, sed.warmup, sed.decay)
        plan = TrainingPlan(12, rate, seed=1 + rank, checkpoint_every=4, log_every=1, keep="learner")
        training = TrainingLoop(engine._objective, _batches(work, rank), plan, engine, is_writer=rank == 0, **options)
        return stop_after(training, stop) if stop else training.train()


def _resumes_exactly(work: Work, rank: int, stage: int) -> bool:
    """Whether six updates with dropout give the same weights when they are stopped after three."""
    ends = []
    for name, parts in (("whole", [0]), ("parts", [3, 0])):
        states = Storage(str(work.directory), f"exact-{stage}").checkpoints(name, {})
        for stop in parts:
            with _engine(work, stage, dropout=True) as engine:
                plan = TrainingPlan(6, lambda step: RATE, seed=1 + rank, log_every=1, keep="learner")
                training = TrainingLoop(
                    engine._objective,
                    _batches(work, rank),
                    plan,
                    engine,
                    checkpoints=states,
                    is_writer=rank == 0,
                )
                if stop:
                    stop_after(training, stop)
                else:
                    training.train()
                end = {key: weight.clone() for key, weight in engine._objective.state_dict().items()}
        ends.append(end)
    return all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def _spoiled(work: Work, rank: int, stage: int) -> dict[str, Any]:
    """Losses of three updates, at the third of which one worker's gradient is infinite; do weights stay?"""
    with _engine(work, stage) as engine:
        batches, factor = _batches(work, rank), 1.0
        engine._initialise(batches(0))
        inner = getattr(engine._engine.optimizer, "optimizer", engine._engine.optimizer)
        moments = sum(state["exp_avg"].numel() + state["exp_avg_sq"].numel() for state in inner.state.values())
        layer = engine._objective.learner.transformer.encoder.layer[1]
        layer.output.dense.weight.register_hook(lambda grad: grad * factor)
        losses = [engine.update(batches(step), RATE) for step in range(2)]
        before = {name: weight.clone() for name, weight in engine._objective.state_dict().items()}
        factor = float("inf") if rank == 0 else 1.0
        losses.append(engine.update(batches(2), RATE))
        after = engine._objective.state_dict()
        unchanged = all(torch.equal(before[name], after[name]) for name in before)
        return {"losses": [float(loss) for loss in losses], "unchanged": unchanged, "moments": moments}


@contextmanager
def _engine(work: Work, stage: int, dropout: bool = False) -> Iterator[DeepSpeedEngine]:
    objective = Distillation(tiny_learner(WIDTH), dropout)
    sed = SedConfig(batch_size=8, zero_stage=stage, learning_rate=RATE)
    engine = DeepSpeedEngine(objective, sed, work.world, bf16=False)
    try:
        yield engine
    finally:
        engine.close()


def _batches(work: Work, rank: int) -> TargetBatches:
    return TargetBatches(work.directory, 8, 5, rank, work.world)

"""Set up the training of a member or learner, or one worker's part in it."""

import numpy as np
import torch

from raysed.config import Block, MembersConfig
from raysed.model.encoding import encode
from raysed.model.precision import uses_bf16
from raysed.train.deepspeed import DeepSpeedEngine
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.stage import BEST_ON_DEV, BEST_ON_HELD_OUT, CLOSEST, Stage, Start, TrainingPlan
from raysed.train.stages.sed import SedConfig

_COMPARED = 512
"""Sentences whose cosines are compared with those of the untrained encoder."""


def _tenth(steps: int) -> int:
    """Return how often a learner is evaluated, so that the best of a short training has ten rivals."""
    return max(10, min(200, steps // 10))


def set_up(stage: Stage, settings: Block, options: MembersConfig | SedConfig, start: Start) -> TrainingLoop:
    """Prepare a training. A learner uses DeepSpeed if torch.distributed is initialised.

    Args:
        options: gives precision, `evaluate_every`, `checkpoint_every` and `recorded`.
    """
    torch.manual_seed(start.seed % 2**63)  # temporary heads start at random
    device = start.encoder.transformer.device
    objective = stage.objective(settings, start).to(device)
    batches = stage.batches(settings, start)
    batches.reads_ahead = device.type == "cuda"
    # Whether updates are recorded has no say here, because dropout masks depend on the shapes.
    can_record = objective.is_recordable and start.encoder.position_offset is not None
    batches.few_shapes = can_record and device.type == "cuda" and start.world == 1
    steps = stage.steps(settings, batches.per_epoch * stage.rows_per_update(settings))
    keep, sample, untrained = stage.keeps(settings, has_dev=False), None, None
    if keep == CLOSEST:
        table = start.read_corpus()
        sample = table.take(np.unique(np.random.default_rng([start.seed, 2]).integers(len(table), size=_COMPARED)))
        untrained = encode(start.encoder, sample)[0]
    names = {BEST_ON_DEV: "best", BEST_ON_HELD_OUT: "best", CLOSEST: CLOSEST}
    plan = TrainingPlan(
        steps=steps,
        learning_rate=stage.schedule(settings, steps),
        seed=start.seed + start.rank,  # workers see different sentences, so their dropout must differ
        evaluate_every=getattr(settings, "evaluate_every", None) or options.evaluate_every or _tenth(steps),
        checkpoint_every=options.checkpoint_every,
        log_every=max(1, min(100, steps // 50)),
        keep=names.get(keep, list(objective.candidates())[-1]),
        patience=getattr(settings, "patience", None),
        held_out=batches.held_out() if keep == BEST_ON_HELD_OUT else (),
        sample=sample,
        untrained=untrained,
    )
    bf16, records = uses_bf16(options.precision, start.encoder), options.recorded
    if isinstance(settings, SedConfig) and torch.distributed.is_initialized():
        return TrainingLoop(objective, batches, plan, DeepSpeedEngine(objective, settings, start.world, bf16, records))
    optimizer, clip = stage.optimizer(settings, objective), getattr(settings, "clip", None)
    return TrainingLoop(objective, batches, plan, TorchEngine(objective, optimizer, clip, bf16, records))

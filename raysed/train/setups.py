"""What loop.py needs for one member or learner: objective, batches, plan and optimizer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from raysed.config import BslConfig, Config, CtConfig, SedConfig, TuningConfig, TwoViewsConfig
from raysed.data.batches import EpochBatches
from raysed.data.pair_table import PairBatches, PairTable, read_pairs
from raysed.data.targets import TargetBatches, held_out_batches
from raysed.data.tokens import read_tokens
from raysed.model.encoder import Encoder
from raysed.model.head import START
from raysed.model.precision import uses_bf16
from raysed.recipe import TWO_VIEW_STAGES
from raysed.train import loop
from raysed.train.deepspeed import DeepSpeedEngine
from raysed.train.objectives.bootstrap import Bootstrap, make_predictor
from raysed.train.objectives.contrastive import Contrastive
from raysed.train.objectives.contrastive_tension import contrastive_tension, ct_optimizer, ct_schedule
from raysed.train.objectives.distillation import Distillation
from raysed.train.objectives.masked_lm import MaskedLM
from raysed.train.objectives.siamese_nli import SiameseNLI
from raysed.train.objectives.sts_regression import CosineRegression
from raysed.train.optimizers import adam_optimizer, bert_optimizer

_TABLES = {"mlm": "corpus", "ct": "corpus", "nli": "pairs/nli", "sts": "pairs/sts"}
"""The artefact that holds what a stage learns from; those of two views have their own, see `tables_of`."""


_STACKED = ("nli", "ct", "contrastive", "sts")
"""Stages whose members may train as one program, because their losses are losses of embeddings."""


@dataclass(frozen=True)
class Start:
    """Where a training starts from.

    Attributes:
        encoder: its weights, on the device that trains.
        tokenizer: of the encoder.
        data: directories of what it learns from, by artefact.
        seed: of its batches and of everything random in its updates.
        lower_bound: of a grid model.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    data: Mapping[str, Path]
    seed: int
    lower_bound: float | None = None


@dataclass(frozen=True)
class Setup:
    """What loop.py needs for one training."""

    objective: torch.nn.Module
    batch_at: Callable[[int], Any]
    plan: loop.Plan
    engine: loop.Engine


def set_up(stage: str, config: Config, start: Start) -> Setup:
    """Prepares the training of one member.

    Args:
        stage: one of `recipe.MEMBER_STAGES`.
    """
    torch.manual_seed(start.seed % 2**63)  # heads that are thrown away afterwards start at random
    return _SETUPS[stage](config, start)


def set_up_learner(config: Config, start: Start, keep: str, rank: int = 0, world: int = 1) -> Setup:
    """Prepares one worker's part of the training of a learner.

    Args:
        start: weights, the target table as its only data, and seed.
        keep: `last`, or with early stopping `best_on_dev` or `best_on_held_out`.
    """
    sed, (targets,) = config.sed, start.data.values()
    if sed.head:
        start.encoder.set_head(np.load(targets / START))
    objective = Distillation(start.encoder, sed.dropout, sed.losses, sed.widths)
    offset = np.load(targets / "mean.npy") if sed.target == "centred_mean" else None
    holds_out = keep == "best_on_held_out"
    batches = TargetBatches(targets, sed.batch_size, start.seed, rank, world, offset, held_out=holds_out)
    steps = learner_steps(sed, batches.per_epoch)
    plan = loop.Plan(
        steps=steps,
        learning_rate=loop.warmup_schedule(sed.learning_rate, steps, sed.warmup, sed.decay),
        seed=start.seed + rank,  # workers see different sentences: their dropout must differ too, so must their seeds
        evaluate_every=sed.evaluate_every,
        checkpoint_every=sed.checkpoint_every,
        log_every=_log_every(steps),
        keep="learner" if keep == "last" else "best",
        patience=None if keep == "last" else sed.patience,
        held_out=held_out_batches(targets, sed.batch_size, offset) if holds_out else (),
    )
    bf16 = uses_bf16(sed.precision, start.encoder.transformer.device)
    engine = DeepSpeedEngine(objective, sed.model_copy(update={"batch_size": batches.batch_size}), world, bf16)
    return Setup(objective, batches, plan, engine)


def tables_of(stage: str, config: Config) -> list[str]:
    """Returns the artefacts that hold what a stage learns from.

    Args:
        stage: one of `recipe.MEMBER_STAGES`.

    >>> tables_of("nli", Config()), tables_of("contrastive", Config()), tables_of("bsl", Config())
    (['pairs/nli'], ['corpus'], ['views/mlm'])
    """
    if stage in TWO_VIEW_STAGES:
        return ["corpus" if kind == "same" else f"views/{kind}" for kind in getattr(config, stage).views]
    return [_TABLES[stage]]


def steps_of(stage: str, config: Config, rows: Mapping[str, int]) -> int:
    """Returns the updates of one member.

    Args:
        stage: one of `recipe.MEMBER_STAGES`.
    """
    return _updates(getattr(config, stage), sum(rows[table] for table in tables_of(stage, config)))


def learner_steps(sed: SedConfig, per_epoch: int) -> int:
    """Returns the updates of a learner.

    Args:
        sed: the settings of `sed`.
    """
    return max(1, int(per_epoch * sed.epochs))


def members_together(stage: str, config: Config) -> int:
    """Returns how many members of a stage one worker trains at the same time, see `members.stack`.

    Args:
        stage: one of `recipe.MEMBER_STAGES`.

    >>> config = Config(members={"stack": 5})
    >>> members_together("ct", config), members_together("mlm", config)
    (5, 1)
    """
    return config.members.stack if stage in _STACKED else 1


def rows_per_update(stage: str, config: Config) -> int:
    """Returns the sentences, or pairs, of a member's batch.

    Args:
        stage: one of `recipe.MEMBER_STAGES`.

    >>> rows_per_update("ct", Config()), rows_per_update("nli", Config())
    (16, 16)
    """
    if stage == "ct" and config.ct.variant == "pairs":
        return config.ct.groups * (1 + config.ct.negatives)
    return getattr(config, stage).batch_size


def predictor_parameters(config: BslConfig, width: int) -> int:
    """Returns the size of the predictor of `bsl`, without making it.

    Args:
        config: the settings of `bsl`.
    """
    with torch.device("meta"):
        return sum(p.numel() for p in make_predictor(config, width).parameters())


def _updates(block: CtConfig | TuningConfig, count: int) -> int:
    """Of a block of settings, over a table of so many rows."""
    if getattr(block, "steps", None) is not None:
        return block.steps
    # The small term keeps a product such as 0.29 * 100 from being cut to 28.
    return max(1, int(count // min(block.batch_size, count) * block.epochs + 1e-9))


def _contrastive_tension(config: Config, start: Start) -> Setup:
    objective, batch_at = contrastive_tension(config.ct, start.encoder, read_tokens(start.data["corpus"]), start.seed)
    keep = {"second": "second", "best_on_dev": "best"}[config.ct.keep]
    plan = _plan(config, "ct", config.ct.steps, ct_schedule(config.ct), start.seed, keep)
    engine = loop.TorchEngine(objective, ct_optimizer(objective), bf16=_bf16(config, start))
    return Setup(objective, batch_at, plan, engine)


def _masked_lm(config: Config, start: Start) -> Setup:
    mlm, tokenizer = config.mlm, start.tokenizer
    objective = MaskedLM(start.encoder, tokenizer.mask_token_id, tokenizer.all_special_ids, mlm.rate, mlm.dropout)
    objective.to(start.encoder.transformer.device)
    table = read_tokens(start.data["corpus"])
    return _tuned(config, "mlm", start, objective, EpochBatches(table, mlm.batch_size, start.seed), len(table), "last")


def _bootstrap(config: Config, start: Start) -> Setup:
    bsl = config.bsl
    predictor = make_predictor(bsl, start.encoder.width).to(start.encoder.transformer.device)
    objective = Bootstrap(start.encoder, predictor, bsl.momentum, bsl.predictor == "released", bsl.dropout)
    return _on_views(config, "bsl", start, objective)


def _contrastive(config: Config, start: Start) -> Setup:
    block = config.contrastive
    both_views = block.negatives == "both_views"
    objective = Contrastive(start.encoder, block.temperature, both_views, block.dropout)
    return _on_views(config, "contrastive", start, objective)


def _siamese_nli(config: Config, start: Start) -> Setup:
    objective = SiameseNLI(start.encoder, config.nli.bias, config.nli.dropout)
    objective.to(start.encoder.transformer.device)
    return _on_pairs(config, "nli", start, objective, config.nli.keep)


def _cosine_regression(config: Config, start: Start) -> Setup:
    objective = CosineRegression(start.encoder, start.lower_bound or 0.0, config.sts.dropout)
    return _on_pairs(config, "sts", start, objective, "best_on_dev")


def _on_views(config: Config, stage: str, start: Start, objective: torch.nn.Module) -> Setup:
    block: TwoViewsConfig = getattr(config, stage)
    table = PairTable.concatenate([_views(name, start.data[name]) for name in tables_of(stage, config)])
    batches = PairBatches(table, block.batch_size, start.seed)
    return _tuned(config, stage, start, objective, batches, len(table), block.keep)


def _views(name: str, directory: Path) -> PairTable:
    if name != "corpus":
        return read_pairs(directory)
    table = read_tokens(directory)
    return PairTable(table, table)  # dropout tells the two views apart (SimCSE)


def _on_pairs(config: Config, stage: str, start: Start, objective: torch.nn.Module, keep: str) -> Setup:
    table = read_pairs(start.data[_TABLES[stage]])
    batches = PairBatches(table, getattr(config, stage).batch_size, start.seed)
    return _tuned(config, stage, start, objective, batches, len(table), keep)


def _tuned(
    config: Config,
    stage: str,
    start: Start,
    objective: torch.nn.Module,
    batches: Callable[[int], Any],
    rows: int,
    keep: str,
) -> Setup:
    block: TuningConfig = getattr(config, stage)
    steps = _updates(block, rows)
    schedule = loop.warmup_schedule(block.learning_rate, steps, block.warmup, block.decay)
    plan = _plan(config, stage, steps, schedule, start.seed, {"last": "encoder", "best_on_dev": "best"}[keep])
    make = adam_optimizer if stage in TWO_VIEW_STAGES else bert_optimizer
    optimizer = make(objective, block.weight_decay)
    return Setup(objective, batches, plan, loop.TorchEngine(objective, optimizer, block.clip, _bf16(config, start)))


def _plan(config: Config, stage: str, steps: int, schedule: Callable[[int], float], seed: int, keep: str) -> loop.Plan:
    return loop.Plan(
        steps=steps,
        learning_rate=schedule,
        seed=seed,
        evaluate_every=config.evaluate_every(stage),
        checkpoint_every=config.members.checkpoint_every,
        log_every=_log_every(steps),
        keep=keep,
    )


def _log_every(steps: int) -> int:
    return max(1, min(100, steps // 50))


def _bf16(config: Config, start: Start) -> bool:
    return uses_bf16(config.members.precision, start.encoder.transformer.device)


_SETUPS: dict[str, Callable[[Config, Start], Setup]] = {
    "mlm": _masked_lm,
    "nli": _siamese_nli,
    "ct": _contrastive_tension,
    "bsl": _bootstrap,
    "contrastive": _contrastive,
    "sts": _cosine_regression,
}

"""What training.py needs for one member: objective, batches, plan and optimizer of its stage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from raysed import training
from raysed.config import Config, TuningConfig
from raysed.encoder import Encoder
from raysed.labelled import PairBatches, read_pairs
from raysed.objectives.contrastive_tension import contrastive_tension, ct_optimizer, ct_schedule
from raysed.objectives.masked_lm import EpochBatches, MaskedLM
from raysed.objectives.siamese_nli import SiameseNLI
from raysed.objectives.sts_regression import CosineRegression
from raysed.optimizers import bert_optimizer
from raysed.tokens import read_tokens

TABLES = {"mlm": "corpus", "ct": "corpus", "nli": "pairs/nli", "sts": "pairs/sts"}
"""The artefact that holds what a stage learns from."""


@dataclass(frozen=True)
class Start:
    """Where a member starts from.

    Attributes:
        encoder: its weights, on the device that trains.
        tokenizer: of the encoder.
        data: directory of the stage's table.
        seed: of its batches and of everything random in its updates.
        lower_bound: of a grid model.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    data: Path
    seed: int
    lower_bound: float | None = None


@dataclass(frozen=True)
class Setup:
    """What training.py needs for one member."""

    objective: torch.nn.Module
    batch_at: Callable[[int], Any]
    plan: training.Plan
    engine: training.Engine


def set_up(stage: str, config: Config, start: Start) -> Setup:
    """Prepares the training of one member.

    Args:
        stage: `mlm`, `nli`, `ct` or `sts`.
        config: the run's settings.
        start: weights, data and seed.
    """
    torch.manual_seed(start.seed % 2**63)  # heads that are thrown away afterwards start at random
    return _SETUPS[stage](config, start)


def steps_of(stage: str, config: Config, rows: Mapping[str, int]) -> int:
    """Returns the updates of one member.

    Args:
        stage: `mlm`, `nli`, `ct` or `sts`.
        config: the run's settings.
        rows: sizes of the tables, by artefact.
    """
    if stage == "ct":
        return config.ct.steps
    block: TuningConfig = getattr(config, stage)
    count = rows[TABLES[stage]]
    # The small term keeps a product such as 0.29 * 100 from being cut to 28.
    return max(1, int(count // min(block.batch_size, count) * block.epochs + 1e-9))


def _contrastive_tension(config: Config, start: Start) -> Setup:
    objective, batch_at = contrastive_tension(config.ct, start.encoder, read_tokens(start.data), start.seed)
    keep = {"second": "second", "best_on_dev": "best"}[config.ct.keep]
    plan = _plan(config, "ct", config.ct.steps, ct_schedule(config.ct), start.seed, keep)
    return Setup(objective, batch_at, plan, training.TorchEngine(objective, ct_optimizer(objective), bf16=_bf16(start)))


def _masked_lm(config: Config, start: Start) -> Setup:
    mlm, tokenizer = config.mlm, start.tokenizer
    objective = MaskedLM(start.encoder, tokenizer.mask_token_id, tokenizer.all_special_ids, mlm.rate, mlm.dropout)
    objective.to(start.encoder.transformer.device)
    table = read_tokens(start.data)
    return _tuned(config, "mlm", start, objective, EpochBatches(table, mlm.batch_size, start.seed), len(table), "last")


def _siamese_nli(config: Config, start: Start) -> Setup:
    objective = SiameseNLI(start.encoder, config.nli.bias, config.nli.dropout)
    objective.to(start.encoder.transformer.device)
    return _on_pairs(config, "nli", start, objective, config.nli.keep)


def _cosine_regression(config: Config, start: Start) -> Setup:
    objective = CosineRegression(start.encoder, start.lower_bound or 0.0, config.sts.dropout)
    return _on_pairs(config, "sts", start, objective, "best_on_dev")


def _on_pairs(config: Config, stage: str, start: Start, objective: torch.nn.Module, keep: str) -> Setup:
    table = read_pairs(start.data)
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
    steps = steps_of(stage, config, {TABLES[stage]: rows})
    schedule = training.warmup_schedule(block.learning_rate, steps, block.warmup, block.decay)
    plan = _plan(config, stage, steps, schedule, start.seed, {"last": "encoder", "best_on_dev": "best"}[keep])
    optimizer = bert_optimizer(objective, block.weight_decay)
    return Setup(objective, batches, plan, training.TorchEngine(objective, optimizer, block.clip, _bf16(start)))


def _plan(
    config: Config, stage: str, steps: int, schedule: Callable[[int], float], seed: int, keep: str
) -> training.Plan:
    return training.Plan(
        steps=steps,
        learning_rate=schedule,
        seed=seed,
        evaluate_every=config.evaluate_every(stage),
        checkpoint_every=config.members.checkpoint_every,
        log_every=max(1, min(100, steps // 50)),
        keep=keep,
    )


def _bf16(start: Start) -> bool:
    return start.encoder.transformer.device.type == "cuda" and torch.cuda.is_bf16_supported()


_SETUPS: dict[str, Callable[[Config, Start], Setup]] = {
    "mlm": _masked_lm,
    "nli": _siamese_nli,
    "ct": _contrastive_tension,
    "sts": _cosine_regression,
}

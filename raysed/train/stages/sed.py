"""Distillation: the learner's embedding of a sentence approaches the teachers' combined one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator
from torch import nn
from torch.nn import functional as F

from raysed.config import MAX_MODELS, NO_EFFECT, Precision, TargetPrecision, ascending
from raysed.data.batches import Batches
from raysed.data.parquet import directory_of
from raysed.data.targets import MEAN, TargetBatch, TargetBatches
from raysed.model.head import START
from raysed.train.objective import EncoderObjective
from raysed.train.optimizers import make_moments
from raysed.train.stage import BEST_ON_HELD_OUT, Stage, Start, TuningConfig

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder


def unit_mse(x_BD: torch.Tensor, t_BD: torch.Tensor) -> torch.Tensor:
    """Return the mean over sentences of the squared distance of unit vectors."""
    return (F.normalize(x_BD, dim=1) - F.normalize(t_BD, dim=1)).square().sum(1).mean()


LOSSES = {"mse": F.mse_loss, "unit_mse": unit_mse}
"""From embeddings and targets [B, D] to a mean over sentences; see `sed.loss`."""
LossName = Literal["mse", "unit_mse"]


class SedConfig(TuningConfig):
    """Ensemble distillation (SED sections 4 and 5.1)."""

    loss: LossName = "mse"
    """`mse` (SED) or `unit_mse`, of unit vectors (docs/methods.md#losses)."""
    widths: Annotated[list[Annotated[int, Field(ge=1)]], AfterValidator(ascending)] = []
    """Smaller widths at which the first coordinates alone should work (Matryoshka), such as `[64, 128]`. For
    `teachers` (docs/distill.md#use-the-model-elsewhere)."""
    head: Literal["keep"] | None = None
    """`keep`: the learner gets a linear layer to the teachers' width, which is exported with it. `null`: targets
    have the learner's width. For `teachers` (docs/methods.md#learner-heads)."""
    target: Literal["mean", "centred_mean"] | None = None
    """`mean` of the members' embeddings (paper), or `centred_mean`, less its corpus average. `null`: `centred_mean`
    for members that end with `ct`, else `mean`."""
    sentences: int | None = Field(None, ge=1)
    """Corpus sentences for learners and calibrations. `null`: `corpus.sentences`, as for members."""
    target_precision: TargetPrecision = "fp32"
    """`fp32` targets, or `fp16` for half the storage, rounded by at most 1/2048."""
    learners: Annotated[int, NO_EFFECT] = Field(1, ge=1, le=MAX_MODELS)
    """Learners, with different seeds and the same targets."""
    start: Literal["encoder", "mlm"] = "encoder"
    """Where learners start: the original `encoder` (paper), or `mlm`, the first member after that stage."""
    checkpoint: Literal["last", "best_on_dev", "best_on_held_out"] = "last"
    """`last`: the final weights. `best_on_dev`: those of the best evaluation. `best_on_held_out`: those with the lowest
    loss on a held-out 5 % of the corpus (at most 2,000 sentences). The last two stop early."""
    patience: int = Field(5, ge=1)
    """Early stopping: evaluations without a better score."""
    batch_size: int = Field(32, ge=1)
    """Sentences per step over all workers, each with its translations."""
    learning_rate: float = Field(2e-5, gt=0)
    """Peak rate of AdamW."""
    decay: Literal["constant", "linear"] = "constant"
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of AdamW."""
    clip: float | None = Field(None, gt=0)
    dropout: bool = False
    """Use the learner's dropout in training. Open in the paper; off in CT's code."""
    workers: Annotated[int | None, NO_EFFECT] = Field(None, ge=1)
    """Workers per learner, which exchange gradients at each step. `null`: one."""
    zero_stage: Annotated[Literal[0, 1, 2], NO_EFFECT] = 0
    """DeepSpeed ZeRO stage. Workers share: 0 nothing, 1 optimizer state, 2 also gradients."""
    recorded: Annotated[bool, NO_EFFECT] = True
    """As `members.recorded`."""
    precision: Precision = "auto"
    """As `members.precision`."""
    checkpoint_every: Annotated[int, NO_EFFECT] = Field(500, ge=1)
    """As `members.checkpoint_every`."""
    evaluate_every: int | None = Field(500, ge=1)
    """Steps between evaluations. `null`: a tenth of all, from 10 to 200. With `sed.checkpoint: last`, they are only
    reported."""
    max_retries: Annotated[int, NO_EFFECT] = Field(2, ge=0)
    """As `members.max_retries`."""

    def identity(self) -> dict[str, Any]:
        """Leave out settings that have no effect with this `checkpoint`."""
        unused = {"evaluate_every", "patience"} if self.checkpoint == "last" else set()
        return {name: value for name, value in super().identity().items() if name not in unused}

    @model_validator(mode="after")
    def _workers_have_work(self) -> SedConfig:
        if (self.workers or 1) > self.batch_size:
            most = f"sed.batch_size ({self.batch_size}); set it to at most {self.batch_size}"
            raise ValueError(f"sed.workers is {self.workers}, which is more than {most}")
        return self


class Distillation(EncoderObjective):
    """The distance between the learner's last-layer embedding and the target; by default SED's (section 4).

    With `widths` it is the mean distance over the first coordinates at each width and the full one, equally weighted.
    Source: Kusupati et al., "Matryoshka Representation Learning", 2022.
    """

    is_recordable = True

    def __init__(self, learner: Encoder, dropout: bool = False, loss: LossName = "mse", widths: Sequence[int] = ()):
        super().__init__(dropout)
        self.learner, self._distance, self._widths = learner, LOSSES[loss], tuple(widths)

    def loss(self, batch: TargetBatch) -> torch.Tensor:
        """Return the mean loss over sentences; its mean over workers is the loss of the batch."""
        device = self.learner.transformer.device
        emb_BD = self.learner(batch.tokens.to(device)).float()
        with torch.autocast(device.type, enabled=False):
            t_BD, widths = batch.targets.to(device), (*self._widths, emb_BD.shape[1])
            return batch.weight * sum(self._distance(emb_BD[:, :d], t_BD[:, :d]) for d in widths) / len(widths)

    forward = loss  # DeepSpeed calls forward

    def candidates(self) -> dict[str, nn.Module]:
        return {"learner": self.learner}


class _Sed(Stage):
    name, Settings = "sed", SedConfig
    words = "distillation (reproducing the ensemble's embeddings)"
    sentences_per_row = 1

    def objective(self, settings: SedConfig, start: Start) -> Distillation:
        """Return the objective; the learner's head starts at the best fit to the targets."""
        if settings.head:
            start.encoder.set_head(np.load(directory_of(start.data["targets"]) / START))
        return Distillation(start.encoder, settings.dropout, settings.loss, settings.widths)

    def batches(self, settings: SedConfig, start: Start) -> Batches:
        data, offset = start.data, 0.0
        if settings.target == "centred_mean":
            offset = np.load(directory_of(data["targets"]) / MEAN)
        options = settings.batch_size, start.seed, start.rank, start.world, offset
        holds_out = settings.checkpoint == BEST_ON_HELD_OUT
        return TargetBatches(data["targets"], *options, held_out=holds_out)

    def optimizer(self, settings: SedConfig, objective: nn.Module) -> torch.optim.Optimizer:
        trained = [p for p in objective.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=settings.weight_decay, fused=True)
        make_moments(optimizer)
        return optimizer


STAGE = _Sed()

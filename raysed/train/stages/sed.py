"""Distillation: the learner's embedding of a sentence comes close to what the teachers together say of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field, model_validator
from torch import nn
from torch.nn import functional as F

from raysed.config import MOST, NO_EFFECT, Precision, TargetPrecision, ascending
from raysed.train.objective import EncoderObjective
from raysed.train.optimizers import make_moments
from raysed.train.stage import Plan, Stage, Start, TuningConfig, log_every

if TYPE_CHECKING:
    from raysed.data.targets import TargetBatch
    from raysed.model.encoder import Encoder
    from raysed.train.loop import Run


LOSSES = {
    "mse": F.mse_loss,
    "unit_mse": lambda x_BD, t_BD: (F.normalize(x_BD, dim=1) - F.normalize(t_BD, dim=1)).square().sum(1).mean(),
}
"""From embeddings and targets [B, D] to a mean over the sentences, see `sed.loss`."""


class SedConfig(TuningConfig):
    """Ensemble distillation (SED sections 4 and 5.1)."""

    loss: Literal["mse", "unit_mse"] = "mse"
    """What makes the learner's embedding x like its target t. `mse`: the mean squared difference of x and t over
    sentences and dimensions (SED). `unit_mse`: the squared length of the difference of the unit vectors."""
    widths: Annotated[list[Annotated[int, Field(ge=1)]], AfterValidator(ascending)] = []
    """Widths below the learner's at which the first coordinates are to be good embeddings, too, such as `[64, 128]`
    (Matryoshka, Kusupati et al. 2022): the loss is the mean of those at these widths and the full one. For recipes of
    `teachers`. See docs/distill.md#shorter-embeddings."""
    head: Literal["fold", "keep"] | None = None
    """`null`: targets have the learner's width. `keep`, `fold`: they keep that of the `combination`, to which a linear
    map without offset leads, trained and exported with the learner: `keep` as it is, `fold` with the learner's width at
    most and the same dot products. For recipes of `teachers`. See docs/distill.md#teachers-of-another-width."""
    target: Literal["mean", "centred_mean"] = "mean"
    """`mean`: the plain mean of the members' embeddings (the paper). `centred_mean`: the same less its average over the
    corpus, which takes out the common offset that CT gives to its members."""
    target_precision: TargetPrecision = "fp32"
    """In which targets are kept and moved: `fp32`, or `fp16` for half of the storage and network, which rounds each
    number by at most 1/2048 of itself."""
    learners: Annotated[int, NO_EFFECT] = Field(1, ge=1, le=MOST)
    """Number of learners, with different seeds, on the same targets."""
    start: Literal["encoder", "mlm"] = "encoder"
    """What learners start from: the pre-trained `encoder` (the paper), or `mlm`, the first member after that stage, for
    recipes that begin with it."""
    keep: Literal["last", "best_on_dev", "best_on_held_out"] = "last"
    """`last`: the learner as trained to the end. `best_on_dev`: at its best evaluation, with early stopping; recipes
    with `sts` always do this, because they use labels anyway (SED section 5.5). `best_on_held_out`: the same without
    labels, by the loss on a twentieth of the corpus, 2,000 sentences at most, from which nothing is learnt."""
    patience: int = Field(5, ge=1)
    """Evaluations without a better score after which early stopping ends the training."""
    batch_size: int = Field(32, ge=1)
    """Sentences per update over all workers."""
    learning_rate: float = Field(2e-5, gt=0)
    """Peak rate of AdamW."""
    decay: Literal["constant", "linear"] = "constant"
    weight_decay: float = Field(0.0, ge=0)
    """Weight decay of AdamW, decoupled from the gradient."""
    clip: float | None = Field(None, gt=0)
    dropout: bool = False
    """Whether the learner's dropout is on while it trains. The paper does not say; CT's released code has it off."""
    workers: Annotated[int | None, NO_EFFECT] = Field(None, ge=1)
    """Training workers of each learner, which exchange gradients at every update; fewer while nodes are missing.
    `null`: one, and as many learners at a time as there are GPUs, or nodes without a GPU."""
    zero_stage: Annotated[Literal[0, 1, 2], NO_EFFECT] = 0
    """DeepSpeed's ZeRO stage: what is spread over the workers (0: nothing, 1: optimizer state, 2: gradients, too)."""
    precision: Precision = "auto"
    """As `members.precision`, for the learner."""
    checkpoint_every: Annotated[int, NO_EFFECT] = Field(500, ge=1)
    """Updates between two checkpoints."""
    evaluate_every: int = Field(500, ge=1)
    """Updates between two evaluations. Under `sed.keep: last` they are shown and choose nothing."""
    max_retries: Annotated[int, NO_EFFECT] = Field(2, ge=0)
    """Restarts of a failed learner without a new checkpoint in between, each from the newest one."""

    def identity(self) -> dict[str, Any]:
        """Leave out what counts only where evaluations choose the weights."""
        unused = {"evaluate_every", "patience"} if self.keep == "last" else set()
        return {name: value for name, value in super().identity().items() if name not in unused}

    @model_validator(mode="after")
    def _workers_have_work(self) -> SedConfig:
        if (self.workers or 1) > self.batch_size:
            most = f"sed.batch_size ({self.batch_size}); set it to at most {self.batch_size}"
            raise ValueError(f"sed.workers is {self.workers}, which is more than {most}")
        return self


class Distillation(EncoderObjective):
    """The distance between the learner's last-layer embedding and the target; by default SED's (section 4).

    With `widths` it is the mean of the distances of the first coordinates, for each width and the full one (Kusupati et
    al., "Matryoshka Representation Learning", 2022, with equal weights).
    """

    def __init__(self, learner: Encoder, dropout: bool = False, loss: str = "mse", widths: Sequence[int] = ()):
        super().__init__(dropout)
        self.learner = learner
        self._distance, self._widths = LOSSES[loss], tuple(widths)

    def loss(self, batch: TargetBatch) -> torch.Tensor:
        """Return the loss, a mean over sentences, whose mean over workers is that of the batch."""
        target_BD = batch.targets.to(next(self.parameters()).device)
        emb_BD = self.learner(batch.tokens.to(target_BD.device)).float()
        widths = (*self._widths, emb_BD.shape[1])
        total = sum(self._distance(emb_BD[:, :width], target_BD[:, :width]) for width in widths)
        return batch.weight * total / len(widths)

    forward = loss  # what DeepSpeed calls

    def candidates(self) -> dict[str, nn.Module]:
        """Return the learner."""
        return {"learner": self.learner}


class _Sed(Stage):
    name, Settings = "sed", SedConfig
    words = "distillation (saying what the ensemble says)"
    sentences_per_row = 1

    def set_up_worker(self, settings: SedConfig, start: Start, rank: int = 0, world: int = 1) -> Run:
        from raysed.data.targets import TargetBatches, held_out_batches
        from raysed.model.head import START
        from raysed.model.precision import uses_bf16
        from raysed.train.engine import TorchEngine
        from raysed.train.loop import Run

        (targets,) = start.data.values()
        if settings.head:
            start.encoder.set_head(np.load(targets / START))
        objective = Distillation(start.encoder, settings.dropout, settings.loss, settings.widths)
        offset = np.load(targets / "mean.npy") if settings.target == "centred_mean" else None
        holds_out = settings.keep == "best_on_held_out"
        batches = TargetBatches(targets, settings.batch_size, start.seed, rank, world, offset, held_out=holds_out)
        steps = self.steps(settings, batches.rows)
        chooses = settings.keep != "last"
        plan = Plan(
            steps=steps,
            learning_rate=self.schedule(settings, steps),
            seed=start.seed + rank,  # workers see different sentences: their dropout, and so their seeds, must differ
            evaluate_every=settings.evaluate_every,
            checkpoint_every=settings.checkpoint_every,
            log_every=log_every(steps),
            keep="best" if chooses else "learner",
            patience=settings.patience if chooses else None,
            held_out=held_out_batches(targets, settings.batch_size, offset) if holds_out else (),
        )
        bf16 = uses_bf16(settings.precision, start.encoder.transformer.device)
        settings = settings.model_copy(update={"batch_size": batches.batch_size})
        if torch.distributed.is_initialized():
            from raysed.train.deepspeed import DeepSpeedEngine

            return Run(objective, batches, plan, DeepSpeedEngine(objective, settings, world, bf16))
        trained = [p for p in objective.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=0.0, weight_decay=settings.weight_decay, fused=True)
        make_moments(optimizer)
        return Run(objective, batches, plan, TorchEngine(objective, optimizer, settings.clip, bf16))


STAGE = _Sed()

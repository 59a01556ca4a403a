"""Bootstrapped sentence representations (BSL section 3): an online network predicts the output of its slow copy.

The target is a moving average of the online encoder and gets no gradient. Together with the predictor, this prevents
collapse.
"""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from raysed.data.tokens import PackedTokens
from raysed.train.objective import EncoderObjective
from raysed.train.stage import Size, Start
from raysed.train.two_views import TwoViewsConfig, TwoViewsStage

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder
    from raysed.model.shape import Shape

_EXPANSION = {"paper": 8, "released": 10, "none": 1}
_RELEASED_MLPS = 3


class BslConfig(TwoViewsConfig):
    """Bootstrapped sentence representations (BSL section 3; warm-up, decay and clipping from the released code)."""

    batch_size: int = Field(64, ge=2)
    """Pairs of views per step, over which the predictor normalises."""
    learning_rate: float = Field(5e-4, gt=0)
    """Peak rate of AdamW with bias correction (docs/methods.md#bootstrapping-bsl)."""
    momentum: float = Field(0.999, ge=0, le=1)
    """Momentum of the target network: 0 copies the online network at each step, 1 freezes the target."""
    predictor: Literal["paper", "released", "none"] = "paper"
    """`paper`, `released` (docs/methods.md#bootstrapping-bsl), or `none`, an ablation that collapses."""
    expansion: int | None = Field(None, ge=1)
    """Hidden width of the predictor in encoder widths. `null`: 8 for `paper`, 10 for `released`."""


class Bootstrap(EncoderObjective):
    """Negative cosine between the prediction from one view and the target's embedding of the other, both ways.

    It trains the given encoder; the target is an fp32 copy. With `squared`, the loss is the released code's sum of both
    squared distances: four times the paper's loss plus a constant.
    """

    is_recordable = True

    def __init__(self, encoder: Encoder, predictor: nn.Module, momentum: float, squared: bool, dropout: bool):
        super().__init__(dropout)
        self.online, self.predictor = encoder, predictor
        self.target = deepcopy(encoder).float().requires_grad_(False)
        self.momentum, self.squared = momentum, squared

    def loss(self, batch: PackedTokens) -> torch.Tensor:
        """Return the mean over B pairs of -(cosine + cosine) / 2 (BSL equations 1 and 2); first views come first.

        The predictor gets each view separately, so batch normalisation uses the statistics of one view.
        """
        batch = batch.to(self.online.transformer.device)
        first_BD, second_BD = self.online(batch).chunk(2)
        with torch.no_grad():
            target_first_BD, target_second_BD = self.target(batch).chunk(2)
        self.watched = first_BD.detach()
        with torch.autocast(first_BD.device.type, enabled=False):
            forth = F.cosine_similarity(self.predictor(first_BD), target_second_BD, dim=-1).mean()
            back = F.cosine_similarity(self.predictor(second_BD), target_first_BD, dim=-1).mean()
        return 4 - 2 * (forth + back) if self.squared else -(forth + back) / 2

    @torch.no_grad()
    def after_update(self) -> None:
        """Move the target towards the online encoder: target = momentum * target + (1 - momentum) * online."""
        for target, online in zip(self.target.parameters(), self.online.parameters()):
            target.lerp_(online.to(target.dtype), 1 - self.momentum)

    def candidates(self) -> dict[str, nn.Module]:
        return {"encoder": self.online}

    def encoders(self) -> list[nn.Module]:
        return [self.online, self.target]


def make_predictor(config: BslConfig, width: int) -> nn.Module:
    """Return the predictor, with random weights from torch's generator (BSL section 3.2).

    `paper`: one MLP of three linear layers, with batch normalisation and ReLU after the first two. `released`: three
    MLPs in sequence, each normalised after its first layer only.
    """
    hidden = width * (config.expansion or _EXPANSION[config.predictor])
    if config.predictor == "none":
        return nn.Identity()
    if config.predictor == "paper":
        return _mlp(width, hidden, normalised=2)
    return nn.Sequential(*(_mlp(width, hidden, normalised=1) for _ in range(_RELEASED_MLPS)))


def _mlp(width: int, hidden: int, normalised: int) -> nn.Sequential:
    norms = [[nn.BatchNorm1d(hidden)] if place < normalised else [] for place in range(2)]
    first = [nn.Linear(width, hidden), *norms[0], nn.ReLU()]
    second = [nn.Linear(hidden, hidden), *norms[1], nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Linear(hidden, width))


class _Bsl(TwoViewsStage):
    name, Settings = "bsl", BslConfig
    words = "bootstrapping (predicting how a slow copy of the model embeds another wording of a sentence)"

    def objective(self, settings: BslConfig, start: Start) -> Bootstrap:
        predictor = make_predictor(settings, start.encoder.width).to(start.encoder.transformer.device)
        is_released = settings.predictor == "released"
        return Bootstrap(start.encoder, predictor, settings.momentum, is_released, settings.dropout)

    def size(self, settings: BslConfig, shape: Shape) -> Size:
        """Count the target network, which encodes every sentence without a gradient."""
        with torch.device("meta"):
            predictor = make_predictor(settings, shape.width)
        return Size(kept=1, parameters=sum(p.numel() for p in predictor.parameters()))


STAGE = _Bsl()

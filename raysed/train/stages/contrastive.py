"""In-batch contrastive learning: each sentence finds its other view among those of the batch.

With views that differ in dropout only, it is SimCSE (Gao et al. 2021). With views of both sides as negatives, it has
SimCLR's loss, the baseline of BSL table 7.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import AfterValidator, Field, model_validator
from torch.nn import functional as F

from raysed.config import ViewKind, distinct
from raysed.data.tokens import PackedTokens
from raysed.train.objective import EncoderObjective
from raysed.train.stage import Start
from raysed.train.two_views import TwoViewsConfig, TwoViewsStage

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder


class ContrastiveConfig(TwoViewsConfig):
    """In-batch contrastive learning on two views (BSL table 7); with `views: [same]` it is SimCSE."""

    views: Annotated[list[ViewKind], AfterValidator(distinct)] = ["same"]
    """As `bsl.views`. `same` is SimCSE: each sentence twice, with different dropout."""
    batch_size: int = Field(64, ge=2)
    """Pairs of views per step; the other pairs are the negatives."""
    learning_rate: float = Field(3e-5, gt=0)
    """Peak rate of AdamW with bias correction (SimCSE)."""
    temperature: float = Field(0.05, gt=0)
    """Divisor of the cosines."""
    negatives: Literal["other_view", "both_views"] = "other_view"
    """`other_view`: second views of the other pairs (SimCSE). `both_views`: both (SimCLR, BSL)."""

    @model_validator(mode="after")
    def _views_differ(self) -> ContrastiveConfig:
        if "same" in self.views and not self.dropout:
            raise ValueError(
                "contrastive.views has same, whose two views differ only by dropout; set contrastive.dropout: true"
            )
        return self


class Contrastive(EncoderObjective):
    """Mean cross entropy of finding the other view, by cosine over temperature.

    By default each first view searches the B second views. With `both_views`, second views also search, and each view
    has 2 (B - 1) negatives: both views of the other sentences.
    """

    is_recordable = True

    def __init__(self, encoder: Encoder, temperature: float = 0.05, both_views: bool = False, dropout: bool = True):
        super().__init__(dropout)
        self.encoder, self.temperature, self.both_views = encoder, temperature, both_views

    def loss(self, batch: PackedTokens) -> torch.Tensor:
        """Return the mean over the searching views; the batch has 2 B sentences, first views first."""
        emb_SD = self.encoder(batch.to(self.encoder.transformer.device))
        self.watched = emb_SD[: len(emb_SD) // 2].detach()
        with torch.autocast(emb_SD.device.type, enabled=False):
            unit_SD = F.normalize(emb_SD.float(), dim=-1)
            others_S = torch.arange(len(unit_SD), device=unit_SD.device).roll(len(unit_SD) // 2)
            if not self.both_views:
                first_BD, second_BD = unit_SD.chunk(2)
                return F.cross_entropy(first_BD @ second_BD.T / self.temperature, others_S.chunk(2)[1])
            itself_SS = torch.eye(len(unit_SD), dtype=torch.bool, device=unit_SD.device)
            logits_SS = (unit_SD @ unit_SD.T / self.temperature).masked_fill(itself_SS, -torch.inf)
            return F.cross_entropy(logits_SS, others_S)


class _Contrastive(TwoViewsStage):
    name, Settings = "contrastive", ContrastiveConfig
    words = "contrastive learning (finding a sentence's other wording among those of other sentences)"

    def objective(self, settings: ContrastiveConfig, start: Start) -> Contrastive:
        both_views = settings.negatives == "both_views"
        return Contrastive(start.encoder, settings.temperature, both_views, settings.dropout)


STAGE = _Contrastive()

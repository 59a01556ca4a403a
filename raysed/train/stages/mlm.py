"""Masked language modelling (BERT): 15 % of tokens are predicted; of these 80 % are masked, 10 % random."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F

from raysed.data.tokens import PackedTokens
from raysed.train.objective import EncoderObjective
from raysed.train.stage import Size, Stage, Start, TuningConfig

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder
    from raysed.model.shape import Shape


class MlmConfig(TuningConfig):
    """Masked language modelling on the corpus (BERT), with the encoder's own head if it has one."""

    batch_size: int = Field(32, ge=1)
    """Sentences per step."""
    learning_rate: float = Field(5e-5, gt=0)
    rate: float = Field(0.15, gt=0, lt=1)
    """Share of tokens to predict: 80 % of them masked, 10 % replaced, 10 % unchanged."""


class MaskedLM(EncoderObjective):
    """Predicts a share `rate` of the tokens through BERT's head, whose output matrix is the input embedding.

    `head` comes from a checkpoint (`load_lm_head`); without it the head starts at random.
    """

    def __init__(
        self,
        encoder: Encoder,
        mask_id: int,
        special_ids: list[int],
        rate: float = 0.15,
        dropout: bool = True,
        head: tuple[nn.Linear, nn.LayerNorm, torch.Tensor] | None = None,
    ):
        super().__init__(dropout)
        self.encoder, self.mask_id, self.rate = encoder, mask_id, rate
        config, inner = encoder.transformer.config, encoder.transformer.get_input_embeddings().embedding_dim
        width, size = config.hidden_size, config.vocab_size
        dense, norm, bias_V = head or (nn.Linear(width, inner), nn.LayerNorm(inner), torch.zeros(size))
        self.transform, self.bias = nn.Sequential(dense, nn.GELU(), norm), nn.Parameter(bias_V.clone())
        self.special_ids = torch.tensor(special_ids, dtype=torch.long)

    def loss(self, batch: PackedTokens) -> torch.Tensor:
        """Return the mean cross entropy of the predicted tokens, 0 if a small batch has none.

        Masks are drawn on the CPU: the process would have to wait for a GPU to count them.
        """
        device, ids, chosen = self.bias.device, batch.input_ids, self._choose(batch)
        masked = replace(batch, input_ids=self._corrupt(ids, chosen))
        places_P = torch.from_numpy(np.flatnonzero(chosen.numpy()))
        wanted_P = ids.flatten().index_select(0, places_P).to(device)
        # Only predicted places go through the head: the output matrix dominates the cost of a small model.
        states_TD = self.encoder.token_states(masked.to(device)).flatten(0, 1)
        states_PD = self.transform(states_TD.index_select(0, places_P.to(device)))
        embeddings_VD = self.encoder.transformer.get_input_embeddings().weight
        logits_PV = F.linear(states_PD, embeddings_VD, self.bias).float()
        return F.cross_entropy(logits_PV, wanted_P, reduction="sum") / max(len(places_P), 1)

    def _choose(self, batch: PackedTokens) -> torch.Tensor:
        maskable = (batch.segments < len(batch)) & ~torch.isin(batch.input_ids, self.special_ids)
        return maskable & (torch.rand(maskable.shape, device=maskable.device) < self.rate)

    def _corrupt(self, input_ids: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        fate = torch.rand(input_ids.shape, device=input_ids.device)
        random_ids = torch.randint_like(input_ids, len(self.bias))
        corrupted = torch.where(chosen & (fate < 0.8), self.mask_id, input_ids)
        return torch.where(chosen & (fate >= 0.8) & (fate < 0.9), random_ids, corrupted)


class _Mlm(Stage):
    name, Settings = "mlm", MlmConfig
    words = "masked language modelling (predicting hidden words of the corpus, without labels)"
    sentences_per_row = 1
    masks = True

    def objective(self, settings: MlmConfig, start: Start) -> MaskedLM:
        from raysed.model.pretrained import load_lm_head

        mask, special = start.tokenizer.mask_token_id, start.tokenizer.all_special_ids
        head = start.config and load_lm_head(start.config)
        return MaskedLM(start.encoder, mask, special, settings.rate, settings.dropout, head)

    def size(self, settings: MlmConfig, shape: Shape) -> Size:
        return Size(outputs_per_token=settings.rate * shape.vocabulary)


STAGE = _Mlm()

"""Masked language modelling (BERT): 15 % of the tokens are predicted; of these 80 % are masked, 10 % random."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from raysed.data.tokens import PackedTokens
from raysed.model.encoder import Encoder
from raysed.model.linear import linear
from raysed.train.objectives.base import EncoderObjective


class MaskedLM(EncoderObjective):
    """Predicts the masked tokens through BERT's head, whose output matrix is the input embedding.

    Args:
        mask_id: id of the mask token.
        special_ids: tokens that are never masked.
        rate: share of the other tokens that is predicted.
        dropout: whether the encoder's dropout is on while it trains.
    """

    def __init__(
        self, encoder: Encoder, mask_id: int, special_ids: list[int], rate: float = 0.15, dropout: bool = True
    ):
        super().__init__(dropout)
        self.encoder, self.mask_id, self.rate = encoder, mask_id, rate
        config = encoder.transformer.config
        self.transform = nn.Sequential(
            nn.Linear(config.hidden_size, config.hidden_size), nn.GELU(), nn.LayerNorm(config.hidden_size)
        )
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.special_ids = torch.tensor(special_ids, dtype=torch.long)

    def loss(self, batch: PackedTokens) -> torch.Tensor:
        """Returns the mean cross entropy of the predicted tokens, 0 where a small batch happens to have none.

        What is masked comes from torch's generator of the CPU, where the batch is: a GPU would have to be asked how
        many tokens that are.
        """
        device, chosen = self.bias.device, self._choose(batch)
        masked = replace(batch, input_ids=self._corrupt(batch.input_ids, chosen))
        places_P = torch.from_numpy(np.flatnonzero(chosen.numpy()))
        wanted_P = batch.input_ids.flatten().index_select(0, places_P).to(device)
        # Only the predicted places go through the head: the output matrix is the dearest of a small model.
        states_TD = self.encoder.token_states(masked.to(device)).flatten(0, 1)
        states_PD = self.transform(states_TD.index_select(0, places_P.to(device)))
        embeddings_VD = self.encoder.transformer.get_input_embeddings().weight
        logits_PV = linear(states_PD, embeddings_VD, self.bias).float()
        return F.cross_entropy(logits_PV, wanted_P, reduction="sum") / max(len(places_P), 1)

    def candidates(self) -> dict[str, nn.Module]:
        """The encoder; the head is thrown away."""
        return {"encoder": self.encoder}

    def _choose(self, batch: PackedTokens) -> torch.Tensor:
        maskable = (batch.segments < len(batch)) & ~torch.isin(batch.input_ids, self.special_ids)
        return maskable & (torch.rand(maskable.shape, device=maskable.device) < self.rate)

    def _corrupt(self, input_ids: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        fate = torch.rand(input_ids.shape, device=input_ids.device)
        random_ids = torch.randint_like(input_ids, len(self.bias))
        corrupted = torch.where(chosen & (fate < 0.8), self.mask_id, input_ids)
        return torch.where(chosen & (fate >= 0.8) & (fate < 0.9), random_ids, corrupted)

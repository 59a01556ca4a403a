"""Siamese networks, and the classification of labelled pairs with one (SBERT; SED appendix B.1)."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from raysed.data.pair_table import LabelledBatch
from raysed.data.pairs import CLASSES
from raysed.data.tokens import PackedTokens
from raysed.model.encoder import Encoder
from raysed.train.objectives.base import EmbeddingObjective


class Siamese(EmbeddingObjective):
    """Both sentences of a pair go through the same encoder: mean of the last layer.

    Args:
        dropout: whether its dropout is on while it trains.
    """

    def __init__(self, encoder: Encoder, dropout: bool = True):
        super().__init__(dropout)
        self.encoder = encoder

    def passes(self, batch: LabelledBatch) -> list[tuple[nn.Module, PackedTokens]]:
        """One pass for the first and the second sentences of B pairs."""
        return [(self.encoder, batch.tokens)]

    def candidates(self) -> dict[str, nn.Module]:
        """The encoder; everything else is thrown away."""
        return {"encoder": self.encoder}


class SiameseNLI(Siamese):
    """Softmax classifier on (u, v, |u - v|), mean cross entropy.

    The classifier's first weights come from torch's generator: torch's usual uniform ones with a bias, as in
    sentence-transformers; without, a normal distribution of deviation 0.02 cut at two deviations (BERT-flow's code).

    Args:
        dropout: whether the encoder's dropout is on while it trains.
    """

    def __init__(self, encoder: Encoder, bias: bool = True, dropout: bool = True):
        super().__init__(encoder, dropout)
        classifier = nn.Linear(3 * encoder.width, len(CLASSES), bias)
        if not bias:
            nn.init.trunc_normal_(classifier.weight, std=0.02, a=-0.04, b=0.04)
        self.classifier = classifier.to(encoder.transformer.device)

    def loss_of(self, batch: LabelledBatch, embeddings: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns the mean cross entropy of B pairs; the classifier works in full precision, autocast or not."""
        u_BD, v_BD = embeddings[0].chunk(2)
        with torch.autocast(u_BD.device.type, enabled=False):
            logits_BC = self.classifier(torch.cat([u_BD, v_BD, (u_BD - v_BD).abs()], dim=-1))
        return F.cross_entropy(logits_BC, batch.labels.to(logits_BC.device))

"""Siamese classification of labelled pairs (SBERT; SED appendix B.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import BeforeValidator
from torch import nn
from torch.nn import functional as F

from raysed.config import PairSource, Source, as_blocks
from raysed.data.pairs import CLASSES, LabelledBatch, PairRows, load_nli
from raysed.train.objective import Siamese
from raysed.train.stage import Stage, Start, TuningConfig

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder


class NliSource(PairSource):
    """A source of sentence pairs with a class label."""

    source: Source
    """A file ([formats](#file-formats)) or hub dataset with `premise`/`hypothesis`, `sentence1`/`sentence2` or
    `text1`/`text2`, and `label` or `gold_label`: a name, or an id (0 entailment, 1 neutral, 2 contradiction).
    raysed skips rows without a label (`-`, -1, blank)."""
    config_name: str | None = None
    """Configuration of a hub dataset, such as `mnli`."""


class NliConfig(TuningConfig):
    """Siamese softmax classification of sentence pairs (SBERT; SED appendix B.1, BERT-flow appendix B)."""

    train: Annotated[list[NliSource], BeforeValidator(as_blocks)] = []
    """A path, hub id, the settings below, or a list."""
    bias: bool = True
    """Classifier bias. BERT-flow's code has none."""
    checkpoint: Literal["last", "best_on_dev"] = "last"
    """`last`: the final weights. `best_on_dev`: those that score best on the dev task (sentence-transformers)."""


class SiameseNLI(Siamese):
    """Softmax classifier on (u, v, |u - v|), mean cross entropy.

    With a bias its weights start as in sentence-transformers (torch's uniform default); without, from a normal
    distribution with deviation 0.02, truncated at two deviations (BERT-flow's code).
    """

    def __init__(self, encoder: Encoder, bias: bool = True, dropout: bool = True):
        super().__init__(encoder, dropout)
        self.classifier = nn.Linear(3 * encoder.width, len(CLASSES), bias)
        if not bias:
            nn.init.trunc_normal_(self.classifier.weight, std=0.02, a=-0.04, b=0.04)

    def loss(self, batch: LabelledBatch) -> torch.Tensor:
        """Return the mean cross entropy of B pairs; the classifier runs in fp32 even under autocast."""
        u_BD, v_BD = self.embed(batch)
        with torch.autocast(u_BD.device.type, enabled=False):
            logits_BC = self.classifier(torch.cat([u_BD, v_BD, (u_BD - v_BD).abs()], dim=-1))
        return F.cross_entropy(logits_BC, batch.labels.to(logits_BC.device))


class _Nli(Stage):
    name, Settings = "nli", NliConfig
    words = "natural language inference (deciding whether one sentence follows from another, with labels)"
    labels = "NLI"

    def load_pairs(self, settings: NliConfig) -> PairRows:
        return load_nli(settings.train)

    def objective(self, settings: NliConfig, start: Start) -> SiameseNLI:
        return SiameseNLI(start.encoder, settings.bias, settings.dropout)


STAGE = _Nli()

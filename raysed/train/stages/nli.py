"""Classification of labelled pairs by a siamese network (SBERT; SED appendix B.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import BeforeValidator
from torch import nn
from torch.nn import functional as F

from raysed.config import PairSource, Source, as_blocks
from raysed.train.objective import Siamese
from raysed.train.stage import Stage, Start, TuningConfig

if TYPE_CHECKING:
    from raysed.data.pairs import LabelledBatch, PairRows
    from raysed.model.encoder import Encoder


class NliSource(PairSource):
    """One source of sentence pairs with a class label."""

    source: Source
    """A file in one of the [file formats](#file-formats), or a hub dataset. It has the columns `premise` and
    `hypothesis` (or `sentence1` and `sentence2`, `text1` and `text2`), and `label` or `gold_label`: a name, or the
    hub's id (0 entailment, 1 neutral, 2 contradiction, which is not the order of sentence-transformers). Rows without a
    label (`-`, -1, blank) are left out and counted."""
    name: str | None = None
    """Configuration of a hub dataset, such as `mnli` of `nyu-mll/glue`."""


class NliConfig(TuningConfig):
    """Siamese softmax classification of sentence pairs (SBERT; SED appendix B.1, BERT-flow appendix B)."""

    train: Annotated[list[NliSource], BeforeValidator(as_blocks)] = []
    """One source or a list of them, put together: a path, a hub id, or a block of the settings below."""
    bias: bool = True
    """Whether the classifier has a bias. That of sentence-transformers has one, that of BERT-flow's code has none."""
    keep: Literal["last", "best_on_dev"] = "last"
    """`last`: the member as trained to the end. `best_on_dev`: at its best evaluation (sentence-transformers), which
    needs `evaluation.dev` and uses its labels."""


class SiameseNLI(Siamese):
    """Softmax classifier on (u, v, |u - v|), mean cross entropy.

    Its first weights: torch's usual uniform ones with a bias, as in sentence-transformers; without, a normal
    distribution of deviation 0.02 cut at two deviations (BERT-flow's code).
    """

    def __init__(self, encoder: Encoder, bias: bool = True, dropout: bool = True):
        from raysed.data.pairs import CLASSES

        super().__init__(encoder, dropout)
        self.classifier = nn.Linear(3 * encoder.width, len(CLASSES), bias)
        if not bias:
            nn.init.trunc_normal_(self.classifier.weight, std=0.02, a=-0.04, b=0.04)

    def loss(self, batch: LabelledBatch) -> torch.Tensor:
        """Return the mean cross entropy of B pairs; the classifier works in full precision, autocast or not."""
        u_BD, v_BD = self.embed(batch)
        with torch.autocast(u_BD.device.type, enabled=False):
            logits_BC = self.classifier(torch.cat([u_BD, v_BD, (u_BD - v_BD).abs()], dim=-1))
        return F.cross_entropy(logits_BC, batch.labels.to(logits_BC.device))


class _Nli(Stage):
    name, Settings = "nli", NliConfig
    words = "natural language inference (whether one sentence follows from another, with labels)"
    labels = "NLI"

    def load_pairs(self, settings: NliConfig) -> PairRows:
        from raysed.data.pairs import load_nli

        return load_nli(settings.train)

    def objective(self, settings: NliConfig, start: Start) -> SiameseNLI:
        return SiameseNLI(start.encoder, settings.bias, settings.dropout)


STAGE = _Nli()

"""Stages that learn from two views of the same meaning."""

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field

from raysed.config import ViewKind, distinct
from raysed.data.pairs import PairBatches, PairTable, read_pairs
from raysed.data.tokens import PartOfTable
from raysed.train.objective import EncoderObjective
from raysed.train.optimizers import adam_optimizer
from raysed.train.stage import Stage, Start, TuningConfig


class TwoViewsConfig(TuningConfig):
    """Settings that `bsl` and `contrastive` share."""

    views: Annotated[list[ViewKind], AfterValidator(distinct)] = ["same"]
    """Kinds of views: `same`, `files`, `entailment`."""
    checkpoint: Literal["last", "best_on_dev"] = "last"
    """`last`: the final weights. `best_on_dev`: those that score best on the dev task (BSL's code)."""
    steps: int | None = Field(None, ge=1)
    """Number of steps, instead of `epochs`."""


class TwoViewsStage(Stage):
    """A stage that learns from pairs of views, with bias-corrected Adam (BSL table 8)."""

    def optimizer(self, settings: TwoViewsConfig, objective: EncoderObjective) -> torch.optim.Optimizer:
        return adam_optimizer(objective, settings.weight_decay)

    def tables(self, settings: TwoViewsConfig) -> list[str]:
        """Return one table per kind of views; `same` needs the corpus only."""
        return ["corpus" if kind == "same" else f"views/{kind}" for kind in settings.views]

    def needs(self, settings: TwoViewsConfig) -> list[tuple[str, str]]:
        sources = {"files": "views.files", "entailment": "nli.train"}
        return [
            (source, f"{self.name}.views has {kind}, whose pairs come from {source}; name them there")
            for kind, source in sources.items()
            if kind in settings.views
        ]

    def batches(self, settings: TwoViewsConfig, start: Start) -> PairBatches:
        """Return batches of all kinds together; the two views of `same` differ by dropout (SimCSE)."""
        names, tables = self.tables(settings), []
        for name in names:
            if name == "corpus":
                table = start.read_corpus()
                if isinstance(table, PartOfTable) and len(names) > 1:
                    table = table.take(np.arange(len(table)))
                tables.append(PairTable(table, table))
            else:
                tables.append(read_pairs(start.data[name]))
        pairs = tables[0] if len(tables) == 1 else PairTable.concatenate(tables)  # copies them
        return PairBatches(pairs, settings.batch_size, start.seed)

"""Contrastive Tension: two copies of an encoder agree on the same sentence and disagree on different ones."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn import functional as F

from raysed.config import Block, Rate
from raysed.data.batches import Batches
from raysed.data.tokens import PackedTokens, PartOfTable, TokenTable, pack
from raysed.train.objective import EncoderObjective
from raysed.train.optimizers import RMSprop
from raysed.train.stage import BEST_ON_DEV, CLOSEST, Size, Stage, Start

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder
    from raysed.model.shape import Shape


warnings.filterwarnings("ignore", 'Field name "copy" in "CtConfig" shadows', UserWarning)  # pydantic's old method


class CtConfig(Block):
    """Contrastive Tension (defaults of SED appendix B.2; those missing there are from the released code)."""

    dropout: bool = False
    """Use the encoder's dropout in training. Off in the released code."""
    steps: int = Field(50_000, ge=1)
    """Number of steps."""
    negatives: int = Field(7, ge=1)
    """Negative pairs for each positive pair."""
    groups: int = Field(2, ge=1)
    """Positive pairs per step. A batch has `groups * (1 + negatives)` pairs."""
    schedule: Literal["paper", "scaled"] = "paper"
    """`paper`: rates change at `ct.boundaries`. `scaled`: each rate holds for an equal part of the run."""
    boundaries: list[Annotated[int, Field(ge=0)]] = [500, 1000, 1500, 2000]
    """Steps at which the rate changes."""
    learning_rates: list[Rate] = [1e-5, 8e-6, 6e-6, 4e-6, 2e-6]
    """Rates, one more than boundaries."""
    copy: Literal["closest", "best_on_dev"] | None = None
    """Copy to keep. `closest`: the one whose sentence similarities changed least in training. `best_on_dev`: the
    better one at its best evaluation (released code). `null`: `best_on_dev` with a dev task, else `closest`."""

    @model_validator(mode="after")
    def _one_rate_more_than_boundaries(self) -> CtConfig:
        if len(self.learning_rates) != len(self.boundaries) + 1 or sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError(
                "ct.boundaries must increase, and ct.learning_rates must have exactly one more value than ct.boundaries"
            )
        return self


class PairBatch(NamedTuple):
    """P pairs, `first` for the first model, `second` for the second; labels [P] are 1.0 for identical sentences."""

    first: PackedTokens
    second: PackedTokens
    labels: torch.Tensor
    ids: np.ndarray


class ContrastiveTension(EncoderObjective):
    """Binary cross entropy of dot products (not cosines, no temperature), mean over pairs.

    Trains two copies of an encoder, with sparse gradients; the given one becomes the second.
    """

    is_recordable = True

    def __init__(self, encoder: Encoder, dropout: bool = False):
        super().__init__(dropout)
        encoder.use_sparse_gradients()
        self.first = deepcopy(encoder)
        self.second = encoder
        self.eval()

    def candidates(self) -> dict[str, nn.Module]:
        """Return both copies; `ct.copy` chooses one."""
        return {"first": self.first, "second": self.second}

    def loss(self, batch: PairBatch) -> torch.Tensor:
        device = self.second.transformer.device
        emb1_PD, emb2_PD = self.first(batch.first.to(device)), self.second(batch.second.to(device))
        logits_P = (emb1_PD * emb2_PD).sum(-1)
        return F.binary_cross_entropy_with_logits(logits_P, batch.labels.to(logits_P))


class PairSampler(Batches):
    """Batches of CT: in each group one sentence with itself, then pairs of other sentences.

    All draws are uniform, independent and with replacement. With `few_shapes`, both sides have equally many rows.
    """

    def __init__(self, table: TokenTable | PartOfTable, config: CtConfig, seed: int):
        super().__init__(len(table), config.groups * (1 + config.negatives), seed)
        self.table, self.groups, self.negatives = table, config.groups, config.negatives

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the table rows of both sides, [P] each; in a group, negatives follow the positive pair."""
        size = (self.groups, 1 + 2 * self.negatives)
        draws = np.random.default_rng([self.seed, step]).integers(self.count, size=size)
        first = draws[:, : 1 + self.negatives]
        second = np.concatenate([draws[:, :1], draws[:, 1 + self.negatives :]], axis=1)
        return first.reshape(-1), second.reshape(-1)

    def __call__(self, step: int) -> PairBatch:
        tables = [self.table.take(rows) for rows in self.rows(step)]
        first, second = (pack(table, few_shapes=self.few_shapes) for table in tables)
        if self.few_shapes:
            count = max(len(first.input_ids), len(second.input_ids))
            first, second = first.with_rows(count), second.with_rows(count)
        labels = torch.zeros(self.groups, 1 + self.negatives)
        labels[:, 0] = 1.0
        return PairBatch(first, second, labels.reshape(-1), np.concatenate([first.ids, second.ids]))


class _Ct(Stage):
    name, Settings = "ct", CtConfig
    words = "Contrastive Tension (telling a sentence apart from others, without labels)"
    target = "centred_mean"  # CT gives all embeddings a common offset

    def rows_per_update(self, settings: CtConfig) -> int:
        return settings.groups * (1 + settings.negatives)

    def size(self, settings: CtConfig, shape: Shape) -> Size:
        return Size(trained=2)

    def keeps(self, settings: CtConfig, has_dev: bool) -> str:
        return settings.copy or (BEST_ON_DEV if has_dev else CLOSEST)

    def objective(self, settings: CtConfig, start: Start) -> ContrastiveTension:
        return ContrastiveTension(start.encoder, settings.dropout)

    def batches(self, settings: CtConfig, start: Start) -> PairSampler:
        return PairSampler(start.read_corpus(), settings, start.seed)

    def schedule(self, settings: CtConfig, steps: int) -> Callable[[int], float]:
        """Hold rate i while step <= boundary i, with steps counted from 0.

        >>> rate = STAGE.schedule(CtConfig(), 50_000)
        >>> rate(500), rate(501), rate(49_999)
        (1e-05, 8e-06, 2e-06)
        >>> rate = STAGE.schedule(CtConfig(schedule="scaled"), 100)
        >>> rate(20), rate(21), rate(99)
        (1e-05, 8e-06, 2e-06)
        """
        rates, boundaries = settings.learning_rates, settings.boundaries
        if settings.schedule == "scaled":
            boundaries = [steps * (i + 1) // len(rates) for i in range(len(rates) - 1)]
        return lambda step: rates[bisect_left(boundaries, step)]

    def optimizer(self, settings: CtConfig, objective: nn.Module) -> torch.optim.Optimizer:
        """Return RMSprop with TensorFlow 2's constants: alpha 0.9 and eps 1e-7, not torch's 0.99 and 1e-8."""
        sparse = [m.weight for m in objective.modules() if isinstance(m, nn.Embedding) and m.sparse]
        return RMSprop((p for p in objective.parameters() if p.requires_grad), alpha=0.9, eps=1e-7, sparse=sparse)


STAGE = _Ct()

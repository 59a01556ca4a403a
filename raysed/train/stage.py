"""What a stage and a training are. Settings are made of these files, so nothing here loads transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from raysed.config import Block, EncoderConfig, MembersConfig
from raysed.train.objective import EncoderObjective
from raysed.train.optimizers import bert_optimizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raysed.data.pairs import PairRows
    from raysed.data.tokens import PartOfTable, TokenTable
    from raysed.model.encoder import Encoder
    from raysed.model.shape import Shape
    from raysed.train.loop import Run


BEST_ON_DEV, ISOTROPIC = "best_on_dev", "isotropic"
"""What `keep` may be set to, beside the last weights of the usual candidate."""
_COMPARED = 512
"""Sentences whose cosines say how isotropic embeddings are."""


@dataclass(frozen=True)
class Start:
    """Where a training starts from: weights on the device that trains, and directories by table (`Stage.tables`).

    `share` is that of the corpus which a member reads; `config` names the pre-trained encoder.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    data: Mapping[str, Path]
    seed: int
    lower_bound: float | None = None
    share: float = 1.0
    config: EncoderConfig | None = None

    def read_corpus(self) -> TokenTable | PartOfTable:
        """Map the corpus, of which each seed has a share of its own."""
        from raysed.data.tokens import PartOfTable, read_tokens

        table = read_tokens(self.data["corpus"])
        if self.share == 1:
            return table
        drawn = np.random.default_rng([self.seed, 1]).permutation(len(table))[: rows_of(self.share, len(table))]
        return PartOfTable(table, np.sort(drawn))


def rows_of(share: float, rows: int) -> int:
    """Return how many rows a share of them is, one at least."""
    return max(1, int(share * rows))


@dataclass(frozen=True)
class Plan:
    """What one training does.

    Attributes:
        learning_rate: rate of an update, by step (0-based).
        evaluate_every: updates between evaluations; the last update is always evaluated.
        log_every: updates between entries of the loss in the history.
        keep: name of the candidate that is the result; `best`: the best one at its best evaluation; `isotropic`: in the
            end the one whose embeddings of `sample` have the lowest mean cosine.
        patience: with `best`, the training ends after so many evaluations without a better score; None: never.
        held_out: batches that nothing is learnt from; the loss on them, not the dev score, then says what is best.
    """

    steps: int
    learning_rate: Callable[[int], float]
    seed: int = 0
    evaluate_every: int = 500
    checkpoint_every: int = 500
    log_every: int = 10
    keep: str = "best"
    patience: int | None = None
    held_out: Sequence[Any] = ()
    sample: TokenTable | None = None


@dataclass(frozen=True)
class Size:
    """What a training holds: encoders that are trained, those that only compute, and trained numbers beside them.

    `outputs_per_token` are numbers that a token is turned into beside its states, such as logits over a vocabulary.
    """

    trained: int = 1
    kept: int = 0
    parameters: int = 0
    outputs_per_token: float = 0.0


class Stage:
    """A stage of a recipe: everything that the package knows about it, but for the loop that trains it.

    By default it makes epochs of shuffled batches, with a warm-up and BERT's own optimizer.

    Attributes:
        name: in recipes, and of its block of settings.
        words: what it trains for, completing "the members were trained by ...".
        labels: what the labels of the pairs that it learns from are called in reports; None: it learns from the corpus.
        is_grid: whether it trains models for each of several bounds, of which one is chosen.
        masks: whether it needs a tokenizer with a mask token.
        target: what a learner of its members has as its target unless `sed.target` says so.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[Block]]
    words: ClassVar[str]
    labels: ClassVar[str | None] = None
    sentences_per_row: ClassVar[int] = 2
    is_grid: ClassVar[bool] = False
    masks: ClassVar[bool] = False
    target: ClassVar[Literal["mean", "centred_mean"]] = "mean"

    def tables(self, settings: Any) -> list[str]:
        """Return the artefacts that it learns from: `corpus`, `pairs/NAME`, `views/KIND`."""
        return [f"pairs/{self.name}"] if self.labels else ["corpus"]

    def needs(self, settings: Any) -> list[tuple[str, str]]:
        """Return settings that must not be empty, each with the sentence to say if it is."""
        source = f"{self.name}.train"
        return [(source, f"{self.name} needs labelled sentence pairs; name them in {source}")] if self.labels else []

    def load_pairs(self, settings: Any) -> PairRows | None:
        """Read the labelled pairs that it learns from, if any."""
        return None

    def criterion(self, settings: Any) -> str:
        """Return the correlation that its dev scores are."""
        return getattr(settings, "criterion", "spearman")

    def keeps(self, settings: Any, has_dev: bool) -> str:
        """Return which weights become the member, see `keep` of the stage's settings."""
        return BEST_ON_DEV if self.is_grid else getattr(settings, "keep", "last")

    def rows_per_update(self, settings: Any) -> int:
        """Return the rows of a batch: sentences or pairs."""
        return settings.batch_size

    def steps(self, settings: Any, rows: int) -> int:
        """Return the updates of one member, with so many rows in its tables: `settings.steps`, or whole epochs."""
        if getattr(settings, "steps", None) is not None:
            return settings.steps
        # The small term keeps a product such as 0.29 * 100 from being cut to 28.
        return max(1, int(rows // min(settings.batch_size, rows) * settings.epochs + 1e-9))

    def rows_read(self, settings: Any, share: float, rows: Mapping[str, int]) -> int:
        """Return how many rows a member learns from, by the sizes of all tables: all but of the corpus, a share."""
        return sum(rows_of(share, rows[name]) if name == "corpus" else rows[name] for name in self.tables(settings))

    def size(self, settings: Any, shape: Shape) -> Size:
        """Return what a member holds and computes; of an encoder of this shape."""
        return Size()

    def objective(self, settings: Any, start: Start) -> EncoderObjective:
        """Return the objective; whatever it has beside the encoder starts at random, by torch's generator."""
        raise NotImplementedError

    def batches(self, settings: Any, start: Start) -> Any:
        """Return a function from the step to its batch, which has the `table` that the rows come from."""
        from raysed.data.pairs import PairBatches, read_pairs
        from raysed.data.tokens import EpochBatches

        (name,) = self.tables(settings)
        if name == "corpus":
            return EpochBatches(start.read_corpus(), settings.batch_size, start.seed)
        return PairBatches(read_pairs(start.data[name]), settings.batch_size, start.seed)

    def schedule(self, settings: Any, steps: int) -> Callable[[int], float]:
        """Return the learning rate by step, with a warm-up."""
        return warmup_schedule(settings.learning_rate, steps, settings.warmup, settings.decay)

    def optimizer(self, settings: Any, objective: EncoderObjective) -> torch.optim.Optimizer:
        """Return the optimizer of the objective's weights."""
        return bert_optimizer(objective, settings.weight_decay)

    def set_up(self, settings: Any, members: MembersConfig, start: Start) -> Run:
        """Prepare the training of one member."""
        from raysed.model.precision import uses_bf16
        from raysed.train.engine import TorchEngine
        from raysed.train.loop import Run

        torch.manual_seed(start.seed % 2**63)  # heads that are thrown away afterwards start at random
        device = start.encoder.transformer.device
        objective = self.objective(settings, start).to(device)
        batches = self.batches(settings, start)
        steps = self.steps(settings, len(batches.table))
        keep, sample = self.keeps(settings, has_dev=False), None
        if keep == ISOTROPIC:
            rows = np.random.default_rng([start.seed, 2]).integers(len(batches.table), size=_COMPARED)
            sample = batches.table.take(np.unique(rows))
        plan = Plan(
            steps=steps,
            learning_rate=self.schedule(settings, steps),
            seed=start.seed,
            evaluate_every=getattr(settings, "evaluate_every", None) or members.evaluate_every,
            checkpoint_every=members.checkpoint_every,
            log_every=log_every(steps),
            keep={BEST_ON_DEV: "best", ISOTROPIC: ISOTROPIC}.get(keep, list(objective.candidates())[-1]),
            sample=sample,
        )
        optimizer, clip = self.optimizer(settings, objective), getattr(settings, "clip", None)
        engine = TorchEngine(objective, optimizer, clip, uses_bf16(members.precision, device))
        return Run(objective, batches, plan, engine)


def warmup_schedule(rate: float, steps: int, warmup: float, decay: str) -> Callable[[int], float]:
    """Rise linearly over the first share of the steps, then stay or fall linearly to zero.

    >>> [round(warmup_schedule(1.0, 10, 0.2, "linear")(step), 3) for step in (0, 1, 2, 9)]
    [0.5, 1.0, 1.0, 0.125]
    """
    rising = max(int(steps * warmup), 1) if warmup else 0

    def at(step: int) -> float:
        if step < rising:
            return rate * (step + 1) / rising
        return rate * (steps - step) / max(steps - rising, 1) if decay == "linear" else rate

    return at


def log_every(steps: int) -> int:
    """Return the updates between two entries of a history."""
    return max(1, min(100, steps // 50))


class TuningConfig(Block):
    """What most stages have in common: epochs of shuffled batches with AdamW."""

    epochs: float = Field(1.0, gt=0)
    """Passes over the corpus, or over the pairs. A fraction is allowed."""
    batch_size: int = Field(16, ge=1)
    """Pairs of sentences per update."""
    learning_rate: float = Field(2e-5, gt=0)
    """Peak rate of AdamW without bias correction (see docs/methods.md#siamese-nli-nli)."""
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the updates over which the rate rises linearly."""
    decay: Literal["constant", "linear"] = "linear"
    """What the rate does after the warm-up: `linear` falls to zero, `constant` stays."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW. Biases and layer norms have none."""
    clip: float | None = Field(1.0, gt=0)
    """Largest global gradient norm. `null`: no clipping."""
    dropout: bool = True
    """Whether the encoder's dropout is on while it trains."""

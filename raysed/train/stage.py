"""Stages and trainings. The settings are built from these files, so nothing here loads transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from raysed.config import Block, EncoderConfig
from raysed.data.batches import Batches, EpochBatches
from raysed.data.pairs import PairBatches, PairRows, read_pairs
from raysed.data.tokens import PartOfTable, TokenTable, read_tokens
from raysed.train.objective import EncoderObjective
from raysed.train.optimizers import bert_optimizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from raysed.model.encoder import Encoder
    from raysed.model.shape import Shape

BEST_ON_DEV, BEST_ON_HELD_OUT, CLOSEST = "best_on_dev", "best_on_held_out", "closest"
"""Values of `checkpoint` and `ct.copy`, besides the last weights of the default candidate."""


@dataclass(frozen=True)
class Start:
    """The inputs of a training.

    Attributes:
        encoder: on the device that trains.
        data: directories by table (`Stage.tables`).
        share: share of the corpus that a member reads.
        config: names the pre-trained encoder.
        world: number of workers that share the training.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    data: Mapping[str, Any]
    seed: int
    lower_bound: float | None = None
    share: float = 1.0
    config: EncoderConfig | None = None
    rank: int = 0
    world: int = 1

    def read_corpus(self) -> TokenTable | PartOfTable:
        """Map the corpus, or this seed's share of it."""
        table = read_tokens(self.data["corpus"])
        if self.share == 1:
            return table
        drawn = np.random.default_rng([self.seed, 1]).permutation(len(table))[: rows_of(self.share, len(table))]
        return PartOfTable(table, np.sort(drawn))


def rows_of(share: float, rows: int) -> int:
    """Return the number of rows in a share, at least one."""
    return max(1, int(share * rows))


@dataclass(frozen=True)
class TrainingPlan:
    """The settings of one training loop.

    Attributes:
        learning_rate: rate of an update, by step (0-based).
        log_every: updates between entries of the history.
        keep: name of the candidate to keep; `best`: the best one at its best evaluation; `closest`: the one whose
            final cosines between the `sample` sentences are most like those of the `untrained` embeddings.
        patience: with `best`, stop after this many evaluations without a better score; None: never.
        held_out: batches kept out of training; if given, their loss decides what is `best`, not the dev score.
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
    untrained: np.ndarray | None = None


@dataclass(frozen=True)
class Size:
    """What a training holds: encoders it trains, encoders it only runs (`kept`), and other trained parameters.

    `outputs_per_token` counts the numbers computed per token besides its states, such as logits over a vocabulary.
    """

    trained: int = 1
    kept: int = 0
    parameters: int = 0
    outputs_per_token: float = 0.0


class Stage:
    """A stage of a recipe: its settings, data, objective and optimizer.

    By default it trains for epochs of shuffled batches, with a warm-up and BERT's own optimizer.

    Attributes:
        words: completes "the members were trained by ...".
        labels: name of its pairs' labels in reports; None: it has no labelled pairs.
        is_grid: whether it trains models for several lower bounds and chooses one bound.
        masks: whether it needs a tokenizer with a mask token.
        target: default of `sed.target` for learners of its members.
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
        """Return the artefacts it learns from: `corpus`, `pairs/NAME`, `views/KIND`."""
        return [f"pairs/{self.name}"] if self.labels else ["corpus"]

    def needs(self, settings: Any) -> list[tuple[str, str]]:
        """Return the settings that must not be empty, each with the error message if it is."""
        source = f"{self.name}.train"
        return [(source, f"{self.name} needs labelled sentence pairs; name them in {source}")] if self.labels else []

    def load_pairs(self, settings: Any) -> PairRows | None:
        """Read the labelled pairs it learns from, if any."""
        return None

    def keeps(self, settings: Any, has_dev: bool) -> str:
        """Return which weights become the member; see `checkpoint` in the stage's settings."""
        return BEST_ON_DEV if self.is_grid else getattr(settings, "checkpoint", "last")

    def rows_per_update(self, settings: Any) -> int:
        """Return the rows (sentences or pairs) of a batch."""
        return settings.batch_size

    def steps(self, settings: Any, rows: int) -> int:
        """Return the updates of a member: `settings.steps`, or `settings.epochs` over the `rows` of its tables."""
        if getattr(settings, "steps", None) is not None:
            return settings.steps
        # Without the small term, 0.29 * 100 would be cut to 28.
        return max(1, int(rows // min(settings.batch_size, rows) * settings.epochs + 1e-9))

    def rows_read(self, settings: Any, share: float, rows: Mapping[str, int]) -> int:
        """Return the rows a member learns from, given the sizes of all tables; `share` applies to the corpus only."""
        return sum(rows_of(share, rows[name]) if name == "corpus" else rows[name] for name in self.tables(settings))

    def size(self, settings: Any, shape: Shape) -> Size:
        """Return what a member with an encoder of this shape holds and computes."""
        return Size()

    def objective(self, settings: Any, start: Start) -> EncoderObjective:
        """Return the objective; torch's generator initialises its parts besides the encoder."""
        raise NotImplementedError

    def batches(self, settings: Any, start: Start) -> Batches:
        (name,) = self.tables(settings)
        if name == "corpus":
            return EpochBatches(start.read_corpus(), settings.batch_size, start.seed)
        return PairBatches(read_pairs(start.data[name]), settings.batch_size, start.seed)

    def schedule(self, settings: Any, steps: int) -> Callable[[int], float]:
        """Return the learning rate by step, with a warm-up."""
        return warmup_schedule(settings.learning_rate, steps, settings.warmup, settings.decay)

    def optimizer(self, settings: Any, objective: EncoderObjective) -> torch.optim.Optimizer:
        return bert_optimizer(objective, settings.weight_decay)


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


class TuningConfig(Block):
    """Settings that most stages share: epochs of shuffled batches with AdamW."""

    epochs: float = Field(1.0, gt=0)
    """Passes over the corpus or pairs; may be a fraction."""
    batch_size: int = Field(16, ge=1)
    """Pairs of sentences per step."""
    learning_rate: float = Field(2e-5, gt=0)
    """Peak rate of AdamW without bias correction (docs/methods.md#siamese-nli-nli)."""
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of steps over which the rate rises linearly."""
    decay: Literal["constant", "linear"] = "linear"
    """Rate after the warm-up: `linear`, down to zero, or `constant`."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW, except for biases and layer norms."""
    clip: float | None = Field(1.0, gt=0)
    """Largest global gradient norm. `null`: no clipping."""
    dropout: bool = True
    """Use the encoder's dropout in training."""

"""A model that was trained, by us or elsewhere, and gives vectors of sentences."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from raysed.config import Layers
from raysed.data.tokens import tokenize
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode

OnRows = Callable[[int], None]
"""Is told how many sentences are embedded so far."""
_CHUNK = 2048


@dataclass(frozen=True)
class NativeModel:
    """A model that packed rows compute.

    Attributes:
        max_length: tokens per sentence, special ones included.
        heads: modules that follow the pooling, and map features as sentence-transformers does.
        token_budget: tokens per forward pass; None: what suits the device.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    poolings: tuple[Layers, ...]
    max_length: int
    heads: nn.Sequential = field(default_factory=nn.Sequential)
    token_budget: int | None = None
    bf16: bool = False

    @property
    def parameters(self) -> int:
        """How many numbers it was trained to."""
        return sum(tensor.numel() for module in (self.encoder, self.heads) for tensor in module.parameters())

    @property
    def description(self) -> str:
        """How its embeddings come about, in words."""
        over = "mean over tokens" if self.encoder.pooling == "mean" else "first token"
        layers = f"layers {' or '.join(map(str, self.poolings))}"
        return f"{', '.join([over, layers, *(type(head).__name__ for head in self.heads)])}; {self.max_length} tokens"

    def embed(self, sentences: Sequence[str], on_rows: OnRows | None = None) -> list[np.ndarray]:
        """Return float32 [N, D] for each of `poolings`, rows in the order of the sentences."""
        table = tokenize(self.tokenizer, sentences, self.max_length)
        found = encode(self.encoder, table, self.poolings, self.token_budget, self.bf16, on_rows)
        return [self._through_heads(x_ND) for x_ND in found]

    @torch.inference_mode()
    def _through_heads(self, x_ND: np.ndarray) -> np.ndarray:
        features = [self.heads({"sentence_embedding": x_BD}) for x_BD in torch.from_numpy(x_ND).split(_CHUNK)]
        return torch.cat([found["sentence_embedding"].float() for found in features]).numpy()


@dataclass(frozen=True)
class LibraryModel:
    """A model that the sentence-transformers library computes, and why packed rows do not."""

    model: Any
    reason: str
    poolings: tuple[Layers, ...] = ()

    @property
    def parameters(self) -> int:
        """How many numbers it was trained to."""
        return sum(tensor.numel() for tensor in self.model.parameters())

    @property
    def description(self) -> str:
        """How its embeddings come about, in words."""
        return f"by sentence-transformers ({self.reason})"

    def embed(self, sentences: Sequence[str], on_rows: OnRows | None = None) -> list[np.ndarray]:
        """Return float32 [N, D] in a list of one, rows in the order of the sentences."""
        parts = []
        for start in range(0, len(sentences), _CHUNK):
            some = list(sentences[start : start + _CHUNK])
            parts.append(self.model.encode(some, convert_to_numpy=True, show_progress_bar=False).astype(np.float32))
            if on_rows:
                on_rows(start + len(some))
        return [np.concatenate(parts)]

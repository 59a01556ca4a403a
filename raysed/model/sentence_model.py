"""A model that was trained, by us or elsewhere, and gives vectors of sentences."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
UNLIMITED = sys.maxsize
"""Tokens per sentence of a model that cuts nothing off."""
_CHUNK = 2048


@dataclass(frozen=True)
class NativeModel:
    """A model that packed rows compute.

    Attributes:
        max_length: tokens per sentence, special ones included.
        heads: the library's modules that follow the pooling.
        token_budget: tokens per forward pass; None: what suits the device.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    poolings: tuple[Layers, ...]
    max_length: int
    lower_case: bool = False
    prompt: str = ""
    heads: tuple[nn.Module, ...] = ()
    token_budget: int | None = None
    bf16: bool = False

    @property
    def parameters(self) -> int:
        """How many numbers it was trained to."""
        return sum(tensor.numel() for module in (self.encoder, *self.heads) for tensor in module.parameters())

    @property
    def description(self) -> str:
        """How its embeddings come about, in words."""
        layers = " or ".join(map(str, self.poolings))
        over = "mean over tokens" if self.encoder.pooling == "mean" else "first token"
        pooling = "mean over the vectors of tokens" if self.encoder.is_static else f"{over}, layers {layers}"
        prompt = [f"prompt {self.prompt!r}"] if self.prompt else []
        length = "" if self.max_length == UNLIMITED else f"; {self.max_length} tokens"
        return f"{', '.join([*prompt, pooling, *(type(head).__name__ for head in self.heads)])}{length}"

    def embed(self, sentences: Sequence[str], on_rows: OnRows | None = None) -> list[np.ndarray]:
        """Return float32 [N, D] for each of `poolings`, rows in the order of the sentences."""
        texts = [f"{self.prompt}{sentence}" for sentence in sentences]
        texts = [text.lower() for text in texts] if self.lower_case else texts
        table = tokenize(self.tokenizer, texts, self.max_length)
        results = [np.empty((len(table), self.encoder.width), np.float32) for _ in self.poolings]
        order = np.argsort(-table.lengths, kind="stable")
        for start in range(0, len(order), _CHUNK):
            rows = order[start : start + _CHUNK]
            parts = encode(self.encoder, table.take(rows), self.poolings, self.token_budget, self.bf16)
            for result, part in zip(results, parts):
                result[rows] = part
            if on_rows:
                on_rows(start + len(rows))
        return [self._through_heads(result) for result in results]

    @torch.inference_mode()
    def _through_heads(self, x_ND: np.ndarray) -> np.ndarray:
        if not self.heads:
            return x_ND
        parts = []
        for x_BD in torch.from_numpy(x_ND).split(_CHUNK):
            features = {"sentence_embedding": x_BD}
            for head in self.heads:
                features = head(features)
            parts.append(features["sentence_embedding"].float())
        return torch.cat(parts).numpy()


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
            x_BD = self.model.encode(some, convert_to_numpy=True, show_progress_bar=False)
            parts.append(x_BD.astype(np.float32))
            if on_rows:
                on_rows(start + len(parts[-1]))
        return [np.concatenate(parts)]

"""Any sentence encoder, for evaluation and as a teacher: an export, a sentence-transformers model, a plain transformer.

What a sentence-transformers model does up to the pooled vector is computed by packed rows where its modules allow, and
what follows by the library's own modules. Any other model is computed by the library. No code of a model directory is
ever run.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedTokenizerBase

from raysed.config import EncoderConfig, Layers
from raysed.data.tokens import tokenize
from raysed.errors import UserError, first_line
from raysed.model.encoder import Encoder, blocks_of
from raysed.model.encoding import encode
from raysed.model.head import load_head
from raysed.model.pretrained import LOAD_ERRORS, encoder_path, load_encoder
from raysed.model.static import StaticVectors, without_special_tokens

OnRows = Callable[[int], None]
"""Is told how many sentences are embedded so far."""

_CHUNK = 2048
_UNLIMITED = sys.maxsize
"""Tokens per sentence of a model that cuts nothing off."""
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
"""What is fetched of a hub model: no code, and no pickled weights."""
_READ_ERRORS = (*LOAD_ERRORS, AttributeError, IndexError, SafetensorError)


@dataclass(frozen=True)
class NativeModel:
    """A model that packed rows compute.

    Attributes:
        encoder: transformer, or table of vectors, and pooling.
        poolings: pooled layers.
        max_length: tokens per sentence, special ones included.
        prompt: put before every sentence.
        heads: the library's modules that follow the pooling.
        token_budget: tokens per forward pass; None: what suits the device.
        bf16: whether the encoder's products are in bf16.
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
        length = "" if self.max_length == _UNLIMITED else f"; {self.max_length} tokens"
        return f"{', '.join([*prompt, pooling, *(type(head).__name__ for head in self.heads)])}{length}"

    def embed(self, sentences: Sequence[str], on_rows: OnRows | None = None) -> list[np.ndarray]:
        """Return float32 [N, D] for each of `poolings`, rows in the order of the sentences."""
        texts = [f"{self.prompt}{sentence}" for sentence in sentences]
        table = tokenize(
            self.tokenizer, [text.lower() for text in texts] if self.lower_case else texts, self.max_length
        )
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
    """A model that the sentence-transformers library computes.

    Attributes:
        model: its SentenceTransformer.
        reason: why packed rows do not.
        poolings: none to choose from.
    """

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
        from raysed.model import library

        parts = []
        for start in range(0, len(sentences), _CHUNK):
            parts.append(library.embed(self.model, sentences[start : start + _CHUNK]))
            if on_rows:
                on_rows(start + len(parts[-1]))
        return [np.concatenate(parts)]


def load_model(
    name: str,
    poolings: Sequence[Layers] = (2,),
    max_length: int = 75,
    *,
    token_budget: int | None = None,
    device: str = "cpu",
    place: str | None = None,
) -> NativeModel | LibraryModel:
    """Load a model from a directory, from the hub (or its cache), or from an installed package.

    Args:
        name: a directory, a hub id, `package:NAME/DIR`, or `bundled:encoder`.
        poolings: pooled layers of a plain transformer; a sentence-transformers model brings its own.
        max_length: tokens per sentence of a plain transformer; likewise.
        token_budget: tokens per forward pass; None: what suits the device.
        place: where the user named it, for messages; None: `--model`.

    Raises:
        UserError: there is no such model, it does not load, or it has code of its own.
    """
    place = place or f"--model {name}"
    directory = model_directory(name, place)
    try:
        if (directory / "modules.json").is_file():
            return _load_modules(directory, token_budget, device)
        encoder, tokenizer = load_encoder(EncoderConfig(path=str(directory), max_length=3))
        _check_depth(poolings, encoder.transformer.config.num_hidden_layers)
        if max_length > _longest(max_length, encoder):
            raise UserError(f"max_length is {max_length}, but it takes at most {_longest(max_length, encoder)} tokens")
        encoder.set_head(load_head(directory))  # of a learner of a run
    except UserError as error:
        raise error.at(place) from None
    distinct = tuple(dict.fromkeys(poolings))
    return NativeModel(encoder.to(device), tokenizer, distinct, max_length, token_budget=token_budget)


def check_layers(name: str, poolings: Sequence[Layers], asked_for: bool) -> None:
    """Check that a model has the layers that are to be pooled, by its configuration, before anything is embedded.

    Args:
        name: as for `load_model`.
        asked_for: whether somebody chose them; a model that brings its own pooling is checked only then.

    Raises:
        UserError: there is no such model, or it has fewer layers.
    """
    directory = model_directory(name)
    if (directory / "modules.json").is_file() and not asked_for:
        return
    try:
        count = getattr(AutoConfig.from_pretrained(directory), "num_hidden_layers", None)
    except LOAD_ERRORS:  # which loading reports; or a model whose transformer is in a directory of its own
        return
    if count is not None:
        try:
            _check_depth(poolings, count)
        except UserError as error:
            raise error.at(f"--model {name}") from None


def _check_depth(poolings: Sequence[Layers], count: int) -> None:
    try:
        for layers in poolings:
            blocks_of(layers, count)
    except ValueError as error:
        settings = "--layers, encoder.layers or evaluation.transfer.layers"
        raise UserError(f"{error}; choose fewer with {settings}") from None


def model_directory(name: str, place: str | None = None) -> Path:
    """Return the local directory of a model, fetched from the hub where it is an id."""
    place = place or f"--model {name}"
    try:
        path = Path(encoder_path(EncoderConfig(path=name))).expanduser()
        if path.is_dir():
            return path
        if path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2:
            raise UserError("there is no such directory")
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except UserError as error:
        raise error.at(place) from None
    except (OSError, ValueError, RuntimeError) as error:
        problem = f"neither a directory nor a hub id that can be reached: {first_line(error)}"
        raise UserError(problem, setting=place) from None


def _load_modules(directory: Path, token_budget: int | None, device: str) -> NativeModel | LibraryModel:
    from raysed.model import library  # takes seconds

    try:
        parts = library.take_apart(directory)
    except library.NotPackable as reason:
        return _by_library(directory, str(reason), device)
    except UserError:
        raise
    except _READ_ERRORS as error:
        raise UserError(
            f"its modules cannot be read: {type(error).__name__}: {first_line(error)}; check that modules.json belongs "
            "to a sentence-transformers model"
        ) from None
    if parts.table is not None:
        longest = (parts.table.tokenizer.truncation or {}).get("max_length", _UNLIMITED)
        encoder = Encoder(StaticVectors.from_rows(parts.table.embedding.weight.detach().float()))
        tokenizer = without_special_tokens(parts.table.tokenizer)
    else:
        encoder, tokenizer = load_encoder(EncoderConfig(path=str(parts.transformer), max_length=3))
        longest = _longest(parts.max_length or tokenizer.model_max_length, encoder)
        encoder.pooling = parts.pooling
    return NativeModel(
        encoder.to(device),
        tokenizer,
        (parts.layers,),
        longest,
        parts.lower_case,
        parts.prompt,
        parts.heads,
        token_budget,
    )


def _longest(wanted: int, encoder: Encoder) -> int:
    """The length that is asked for, or fewer tokens where the transformer has no positions for so many."""
    positions = getattr(encoder.transformer.config, "max_position_embeddings", None)
    return min(wanted, positions - encoder.position_offset) if positions else wanted


def _by_library(directory: Path, reason: str, device: str) -> LibraryModel:
    from raysed.model import library

    try:
        return LibraryModel(library.load(directory, device), reason)
    except UserError:
        raise
    except Exception as error:  # a library of many architectures, which raises whatever they do
        raise UserError(f"{reason}, and sentence-transformers cannot load it: {first_line(error)}") from None

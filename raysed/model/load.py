"""Load any sentence encoder to evaluate or as a teacher: an export, a sentence-transformers model, a plain transformer.

If a sentence-transformers model's modules allow, packed rows compute the pooled vector and the library's own modules
the rest. Otherwise the library runs the whole model. Code in a model directory runs only with `trust_remote_code`.
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils import find_adapter_config_file

from raysed.config import EncoderConfig, Layers, Role
from raysed.data.tokens import Tokenizer
from raysed.errors import UserError, call_library, first_line
from raysed.model.calibration import CalibrationMap
from raysed.model.encoder import Encoder, blocks_of
from raysed.model.encoding import encode
from raysed.model.head import load_head
from raysed.model.pretrained import LOAD_ERRORS, load_encoder, load_problem, longest_input
from raysed.model.prompts import SETTINGS, Prompts, prompts_of, read_settings
from raysed.store.hub import model_directory

log = logging.getLogger(__name__)

_OLD_MARKS = {"sentence_transformers", "sbert_ce_default_activation_function"}
"""Marks of older releases in a cross-encoder's config.json."""


@dataclass(frozen=True)
class NativeModel:
    """A model that packed rows compute.

    Attributes:
        layers: number of last layers to pool, or `first_last`.
        max_length: tokens per sentence, special ones included.
        heads: sentence-transformers modules after pooling.
        calibration: a run's map after pooling.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    layers: Layers
    max_length: int
    heads: nn.Sequential = field(default_factory=nn.Sequential)
    prompts: Prompts = field(default_factory=dict)
    calibration: CalibrationMap | None = None

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for module in (self.encoder, self.heads) for tensor in module.parameters())

    @property
    def description(self) -> str:
        over = "mean over tokens" if self.encoder.pooling == "mean" else "first token"
        layers = f"layers {self.layers}"
        return f"{', '.join([over, layers, *(type(head).__name__ for head in self.heads)])}; {self.max_length} tokens"

    def embed(self, sentences: Sequence[str], role: Role = "") -> np.ndarray:
        """Return float32 [N, D], rows in sentence order."""
        table = Tokenizer(self.tokenizer, self.max_length, self.prompts)(sentences, repeat(role))
        (x_ND,) = encode(self.encoder, table, (self.layers,))
        if self.heads:
            with torch.inference_mode():
                x_ND = self.heads({"sentence_embedding": torch.from_numpy(x_ND)})["sentence_embedding"].float().numpy()
        return self.calibration.transform(x_ND) if self.calibration else x_ND


@dataclass(frozen=True)
class LibraryModel:
    """A model that sentence-transformers runs, with the reason why packed rows cannot."""

    model: Any
    reason: str
    prompts: Prompts = field(default_factory=dict)
    name: str = ""

    @property
    def parameters(self) -> int:
        return sum(tensor.numel() for tensor in self.model.parameters())

    @property
    def description(self) -> str:
        return f"by sentence-transformers ({self.reason})"

    def embed(self, sentences: Sequence[str], role: Role = "") -> np.ndarray:
        ways = {"query": self.model.encode_query, "document": self.model.encode_document}  # a Router has two
        embed = ways.get(role.removeprefix("prompted "), self.model.encode)
        # With None, the library adds the model's own prompt for this role.
        prompt = "" if role.startswith("prompted") else self.prompts.get(role)
        options = {"prompt": prompt, "convert_to_numpy": True, "show_progress_bar": False}
        x_ND = call_library(lambda texts: embed(texts, **options), list(sentences), f"the model {self.name!r}")
        return x_ND.astype(np.float32)


def load_model(
    name: str,
    layers: Layers = 2,
    max_length: int = 75,
    *,
    device: str = "cpu",
    place: str | None = None,
    trust_remote_code: bool = False,
    dtype: torch.dtype = torch.float32,
) -> NativeModel | LibraryModel:
    """Load a model by directory, hub id, `package:NAME/DIR` or `bundled:encoder`.

    `layers` and `max_length` apply to plain transformers only. `place` names the setting or option in error messages
    (None: `--models`). With `trust_remote_code`, sentence-transformers runs the whole model. `dtype` is that of a
    transformer's weights, and must be float32 or bfloat16.
    """
    place = place or f"--models {name}"
    directory = model_directory(name, place, trust_remote_code)
    try:
        _check_kind(directory, name)
        prompts = prompts_of(directory)
        if trust_remote_code:
            return replace(_load_trusted(directory, layers, max_length, device, dtype), prompts=prompts)
        if (directory / "modules.json").is_file() or find_adapter_config_file(directory):
            return replace(_load_modules(directory, device, dtype), prompts=prompts)
        encoder, tokenizer = load_encoder(EncoderConfig(path=str(directory), max_length=3))
        _check_depth(layers, encoder.transformer.config.num_hidden_layers, place)
        longest = longest_input(encoder.transformer.config)
        if max_length > longest:
            raise UserError(f"max_length is {max_length}, but it takes at most {longest} tokens")
        encoder.set_head(load_head(directory))  # present if it is a run's learner
    except UserError as error:
        raise error.at(place) from None
    return _placed(NativeModel(encoder, tokenizer, layers, max_length, prompts=prompts), device, dtype)


def _placed(model: NativeModel, device: str, dtype: torch.dtype) -> NativeModel:
    """Round before the move, so that a GPU never holds float32."""
    if dtype == torch.bfloat16 and not model.encoder.is_static:
        model.encoder.round_weights()
    model.encoder.to(device)
    return model


def _check_kind(directory: Path, name: str) -> None:
    """Refuse models marked as another kind; warn that a classifier's head or another similarity is ignored.

    Unmarked classifiers are accepted: nothing tells a reranker from an encoder that was trained as a classifier.
    """
    settings = read_settings(directory / SETTINGS)
    kind, similarity = settings.get("model_type", "SentenceTransformer"), settings.get("similarity_fn_name")
    if similarity not in (None, "cosine"):
        log.info("%s is made for the similarity %s, but raysed compares by cosine", name, similarity)
    config = read_settings(directory / "config.json")
    head = re.search(r"\w+For(Sequence|Token|Question)\w+", str(config.get("architectures")))
    if head and not (directory / "modules.json").is_file():
        kind = "CrossEncoder" if _OLD_MARKS & config.keys() else kind
        log.warning("%s is a %s: its head is ignored, only its encoder is used", name, head[0])
    if kind != "SentenceTransformer":
        raise UserError(f"it is a {kind}, which gives no sentence embeddings; name a sentence-embedding model")


def _check_depth(layers: Layers, count: int, place: str) -> None:
    try:
        blocks_of(layers, count)
    except UserError as error:
        raise UserError(f"{error}; choose fewer with --pool-layers or pool_layers", setting=place) from None


def _load_modules(directory: Path, device: str, dtype: torch.dtype) -> NativeModel | LibraryModel:
    from raysed.model import library  # takes seconds

    try:
        return _placed(NativeModel(*library.load_parts(directory)), device, dtype)
    except UserError:
        raise
    except LOAD_ERRORS as error:
        raise UserError(
            f"its modules cannot be read: {type(error).__name__}: {first_line(error)}; check modules.json, and that "
            "each module has its model.safetensors: no pickled weights are downloaded, so save such a model anew"
        ) from None
    except library.NotPackable as packable:
        reason = str(packable)
    return _by_library(lambda: library.load(directory, device, dtype=dtype), directory, reason)


def _load_trusted(directory: Path, layers: Layers, max_length: int, device: str, dtype: torch.dtype) -> LibraryModel:
    from raysed.model import library  # takes seconds

    is_plain = not (directory / "modules.json").is_file()
    if is_plain and layers != 1:
        raise UserError(f"pool_layers is {layers}, but trust_remote_code pools the last layer; set it to 1")
    limit = max_length if is_plain else None
    return _by_library(lambda: library.load_trusted(directory, device, limit, dtype), directory, "its own code may run")


def _by_library(load: Callable[[], Any], directory: Path, reason: str) -> LibraryModel:
    try:
        return LibraryModel(load(), reason, name=str(directory))
    except UserError:
        raise
    except Exception as error:  # its many architectures may raise anything
        raise UserError(f"{reason}, and sentence-transformers cannot load it: {load_problem(error)}") from None

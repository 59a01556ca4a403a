"""Any sentence encoder, for evaluation: an export of this project, a sentence-transformers model, a plain transformer.

No code of a model directory is ever run. A sentence-transformers model is read module by module: transformer or table
of token vectors, the mean over layers, the mean over tokens, linear layers, this project's flow and scaling to length 1
are computed here. What has other modules is given to the sentence-transformers library, where that is installed.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from huggingface_hub import snapshot_download
from safetensors import SafetensorError
from safetensors.numpy import load_file
from transformers import AutoConfig, PreTrainedTokenizerBase

from raysed.config import EncoderConfig, Layers
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.model import flow
from raysed.model.affine import Affine
from raysed.model.encoder import LOAD_ERRORS, Encoder, blocks_of, encoder_path, load_encoder
from raysed.model.encoding import encode
from raysed.model.head import load_head
from raysed.model.static import STATIC, read_static

Head = Callable[[np.ndarray], np.ndarray]
"""Maps embeddings [N, D] to others, of which the width may differ."""
OnRows = Callable[[int], None]
"""Is told how many sentences are embedded so far."""

_CHUNK = 2048
_ENDLESS = sys.maxsize
"""Tokens per sentence of a model that cuts nothing off."""
_OWN = "sentence_transformers."
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
"""What is fetched of a hub model: no code, and no pickled weights."""
_READ_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, SafetensorError)

# Settings under which a module does what is computed here; a module with any other goes to the library.
_ANY = object()
_TRANSFORMER = {
    "max_seq_length": _ANY,
    "do_lower_case": _ANY,
    "transformer_task": "feature-extraction",
    "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}
_WIDTH = {"word_embedding_dimension": _ANY, "embedding_dimension": _ANY}
_POOLING = {**_WIDTH, "pooling_mode_mean_tokens": True, "pooling_mode": "mean", "include_prompt": _ANY}
_WEIGHTED_LAYERS = {**_WIDTH, "layer_start": _ANY, "num_hidden_layers": _ANY}
_PLACES = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
_IDENTITY = "torch.nn.modules.linear.Identity"
_DENSE = {**_PLACES, "in_features": _ANY, "out_features": _ANY, "bias": _ANY, "activation_function": _IDENTITY}


@dataclass(frozen=True)
class NativeModel:
    """A model that is computed here.

    Attributes:
        encoder: transformer, or table of vectors, and mean pooling.
        tokenizer: its tokenizer.
        poolings: pooled layers.
        max_length: tokens per sentence, special ones included.
        lower_case: whether texts are put into lower case first.
        heads: name and map of what is applied to the pooled embeddings, in this order.
        token_budget: tokens per forward pass; None: what suits the device.
        bf16: whether the encoder's products are in bf16.
    """

    encoder: Encoder
    tokenizer: PreTrainedTokenizerBase
    poolings: tuple[Layers, ...]
    max_length: int
    lower_case: bool = False
    heads: tuple[tuple[str, Head], ...] = ()
    token_budget: int | None = None
    bf16: bool = False

    @property
    def description(self) -> str:
        """How its embeddings come about, in words."""
        layers = " or ".join(map(str, self.poolings))
        pooling = "mean over the vectors of tokens" if self.encoder.is_static else f"mean over tokens, layers {layers}"
        length = "" if self.max_length == _ENDLESS else f"; {self.max_length} tokens"
        return f"{', '.join([pooling, *(name for name, _ in self.heads)])}{length}"

    def embed(self, sentences: Sequence[str], on_rows: OnRows | None = None) -> list[np.ndarray]:
        """Returns float32 [N, D] for each of `poolings`, rows in the order of the sentences.

        Args:
            on_rows: told now and then how many are done.
        """
        texts = [sentence.lower() for sentence in sentences] if self.lower_case else sentences
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

    def _through_heads(self, x_ND: np.ndarray) -> np.ndarray:
        for _, head in self.heads:
            x_ND = head(x_ND)
        return x_ND


@dataclass(frozen=True)
class LibraryModel:
    """A model that the sentence-transformers library computes.

    Attributes:
        model: its SentenceTransformer.
        reason: why it is not computed here.
        poolings: none to choose from.
    """

    model: Any
    reason: str
    poolings: tuple[Layers, ...] = ()

    @property
    def description(self) -> str:
        """How its embeddings come about, in words."""
        return f"by sentence-transformers ({self.reason})"

    def embed(self, sentences: Sequence[str], on_rows: OnRows | None = None) -> list[np.ndarray]:
        """Returns float32 [N, D] in a list of one, rows in the order of the sentences.

        Args:
            on_rows: told now and then how many are done.
        """
        parts = []
        for start in range(0, len(sentences), _CHUNK):
            texts = list(sentences[start : start + _CHUNK])
            parts.append(self.model.encode(texts, convert_to_numpy=True, show_progress_bar=False))
            if on_rows:
                on_rows(start + len(texts))
        return [np.concatenate(parts).astype(np.float32)]


def load_model(
    name: str,
    poolings: Sequence[Layers] = (2,),
    max_length: int = 75,
    *,
    token_budget: int | None = None,
    device: str = "cpu",
) -> NativeModel | LibraryModel:
    """Loads a model from a directory, from the hub (or its cache), or from an installed package.

    Args:
        name: a directory, a hub id, `package:NAME/DIR`, or `bundled:encoder`.
        poolings: pooled layers of a plain transformer; a sentence-transformers model brings its own.
        max_length: tokens per sentence of a plain transformer; likewise.
        token_budget: tokens per forward pass; None: what suits the device.

    Raises:
        UserError: there is no such model, it does not load, it has code of its own, or it needs the
            sentence-transformers library, which is not installed.
    """
    directory = model_directory(name)
    if (directory / "modules.json").is_file():
        return _load_modules(name, directory, token_budget, device)
    encoder, tokenizer = _load_transformer(name, directory, device, max_length)
    _refuse_depth(name, poolings, encoder.transformer.config.num_hidden_layers)
    encoder.set_head(load_head(directory))  # of a learner of a run
    distinct = tuple(dict.fromkeys(poolings))
    return NativeModel(encoder, tokenizer, distinct, max_length, token_budget=token_budget)


def check_layers(name: str, poolings: Sequence[Layers], asked_for: bool) -> None:
    """Checks that a model has the layers that are to be pooled, by its configuration, before anything is embedded.

    Args:
        name: as for `load_model`.
        asked_for: whether somebody chose them; a model that brings its own pooling is checked only then.

    Raises:
        UserError: there is no such model, or it has fewer layers.
    """
    directory = model_directory(name)
    if (directory / "modules.json").is_file():
        directory = _first_module(directory) if asked_for else None
    count = _count_layers(directory) if directory else None
    if count is not None:
        _refuse_depth(name, poolings, count)


def _refuse_depth(name: str, poolings: Sequence[Layers], count: int) -> None:
    try:
        for layers in poolings:
            blocks_of(layers, count)
    except ValueError as error:
        settings = "--layers, encoder.layers or evaluation.transfer.layers"
        raise UserError(f"--model {name}: {error}; choose fewer with {settings}") from None


def _first_module(directory: Path) -> Path | None:
    """Where the transformer of a sentence-transformers model is; None where its modules cannot be read."""
    try:
        return directory / _read_json(directory / "modules.json")[0]["path"]
    except _READ_ERRORS:
        return None


def _count_layers(directory: Path) -> int | None:
    """How many layers a transformer has; None where its configuration does not say, which loading may report."""
    try:
        return getattr(AutoConfig.from_pretrained(directory), "num_hidden_layers", None)
    except LOAD_ERRORS:
        return None


def model_directory(name: str) -> Path:
    """The local directory of a model, fetched from the hub where it is an id."""
    try:
        path = Path(encoder_path(EncoderConfig(path=name))).expanduser()
        if path.is_dir():
            return path
        if path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2:
            raise UserError(f"--model {name}: there is no such directory")
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except UserError as error:
        raise _about(name, error) from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"--model {name}: neither a directory nor a hub id that can be reached: {reason}") from None


def _about(name: str, error: UserError, path: Path | None = None) -> UserError:
    """The encoder's messages name a setting, which the user of this command did not write."""
    text = str(error).replace(repr(str(path)), "it").removeprefix("encoder.path: ").removeprefix("it ")
    return UserError(text if text.startswith("--model") else f"--model {name}: {text}")


def _load_transformer(
    name: str, directory: Path, device: str, max_length: int | None = None
) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Loads the plain transformer; a length that is given is checked."""
    try:
        encoder, tokenizer = load_encoder(EncoderConfig(path=str(directory), max_length=max_length or 3))
    except UserError as error:
        raise _about(name, error, directory) from None
    return encoder.to(device), tokenizer


# -- sentence-transformers' layout -----------------------------------------------------------------------------------


class _Elsewhere(Exception):
    """Why a model has to be left to the sentence-transformers library."""


class _Module(NamedTuple):
    """One line of modules.json: the class with and without its package, and the directory."""

    kind: str
    name: str
    directory: Path


def _load_modules(name: str, directory: Path, token_budget: int | None, device: str) -> NativeModel | LibraryModel:
    try:
        modules = _modules(name, directory)
        return _native(name, directory, modules, token_budget, device)
    except _Elsewhere as reason:
        return _by_library(name, directory, str(reason), device)
    except UserError:
        raise
    except _READ_ERRORS as error:
        raise UserError(
            f"--model {name}: its modules cannot be read: {type(error).__name__}: {error}; "
            "check that modules.json belongs to a sentence-transformers model"
        ) from None


def _modules(name: str, directory: Path) -> list[_Module]:
    listed = _read_json(directory / "modules.json")
    modules = [_Module(m["type"], m["type"].rpartition(".")[2], directory / m["path"]) for m in listed]
    for module in modules:
        if not module.kind.startswith(_OWN) and not _is_flow(module):
            raise UserError(
                f"--model {name}: its module {module.kind} is custom code, which is not run here; leave this model out"
            )
    return modules


def _is_flow(module: _Module) -> bool:
    return module.name == "FlowHead" and _settings(module).get("kind") == "flow"


def _native(
    name: str, directory: Path, modules: Sequence[_Module], token_budget: int | None, device: str
) -> NativeModel:
    """A table of vectors, or a transformer, perhaps a mean over layers, mean over tokens, and then heads."""
    names = [module.name for module in modules]
    _refuse_prompt(directory)
    if names[0] == STATIC:
        return _native_static(modules, token_budget, device)
    pooling = 2 if names[1:2] == ["WeightedLayerPooling"] else 1
    if names[0] != "Transformer" or names[pooling : pooling + 1] != ["Pooling"]:
        raise _Elsewhere(f"its modules are {', '.join(names)}")
    first = modules[0]
    found = _read_json(first.directory / "sentence_bert_config.json")
    _refuse_other(first, found, _TRANSFORMER)
    _refuse_other(modules[pooling], _settings(modules[pooling]), _POOLING)
    heads = tuple((module.name, _head(module)) for module in modules[pooling + 1 :])
    encoder, tokenizer = _load_transformer(name, first.directory, device)
    layers = _layers(modules[1], encoder) if pooling == 2 else 1
    length = _longest(found.get("max_seq_length") or tokenizer.model_max_length, encoder)
    lower = bool(found.get("do_lower_case"))
    return NativeModel(encoder, tokenizer, (layers,), length, lower, heads, token_budget)


def _native_static(modules: Sequence[_Module], token_budget: int | None, device: str) -> NativeModel:
    first, *others = modules
    for file in ("model.safetensors", "tokenizer.json"):
        if not (first.directory / file).is_file():
            raise _Elsewhere(f"{first.name} has no {file}")
    heads = tuple((module.name, _head(module)) for module in others)
    vectors, tokenizer, longest = read_static(first.directory)
    return NativeModel(
        Encoder(vectors).to(device), tokenizer, (1,), longest or _ENDLESS, heads=heads, token_budget=token_budget
    )


def _refuse_prompt(directory: Path) -> None:
    path = directory / "config_sentence_transformers.json"
    if path.is_file() and _read_json(path).get("default_prompt_name"):
        raise _Elsewhere("it puts a prompt before each sentence")


def _refuse_other(module: _Module, found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Only what is off (false or null) may be unknown."""
    for key, value in found.items():
        if value not in (None, False) and not (key in known and (known[key] is _ANY or known[key] == value)):
            raise _Elsewhere(f"{module.name} has {key}: {json.dumps(value)}")


def _head(module: _Module) -> Head:
    if module.name == "Normalize":
        _refuse_other(module, _settings(module), _PLACES)
        return _unit
    if module.name == "FlowHead":
        return flow.load(module.directory).transform
    if module.name != "Dense":
        raise _Elsewhere(f"its modules have {module.name}")
    settings = _settings(module)
    _refuse_other(module, settings, _DENSE)
    if "activation_function" not in settings:  # which means the hyperbolic tangent
        raise _Elsewhere("Dense has an activation")
    tensors = _tensors(module)
    weight = tensors["linear.weight"].T.astype(np.float64)
    bias = tensors["linear.bias"] if "linear.bias" in tensors else np.zeros(weight.shape[1])
    return Affine(weight, bias.astype(np.float64)).transform


def _unit(x_ND: np.ndarray) -> np.ndarray:
    """Length 1; a zero vector stays."""
    return x_ND / np.maximum(np.linalg.norm(x_ND, axis=1, keepdims=True), 1e-12)


def _layers(module: _Module, encoder: Encoder) -> Layers:
    """The pooling that has the module's weights of layers."""
    settings, weights = _settings(module), _tensors(module)["layer_weights"].astype(np.float64)
    _refuse_other(module, settings, _WEIGHTED_LAYERS)
    count = encoder.transformer.config.num_hidden_layers
    share_L = np.zeros(count + 1)
    share_L[settings["layer_start"] :] = weights / weights.sum()
    for layers in (*range(1, count + 1), "first_last"):
        blocks = blocks_of(layers, count)
        if np.allclose(share_L, np.bincount(blocks, minlength=count + 1) / len(blocks)):
            return layers
    raise _Elsewhere("its layers have weights of their own")


def _tensors(module: _Module) -> dict[str, np.ndarray]:
    path = module.directory / "model.safetensors"
    if not path.is_file():
        raise _Elsewhere(f"{module.name} has no model.safetensors")
    return load_file(path)


def _settings(module: _Module) -> dict[str, Any]:
    """A module without settings, such as older versions of Normalize, has no file."""
    path = module.directory / "config.json"
    return _read_json(path) if path.is_file() else {}


def _longest(wanted: int, encoder: Encoder) -> int:
    """The length that is asked for, or fewer tokens where the transformer has no positions for so many."""
    positions = getattr(encoder.transformer.config, "max_position_embeddings", None)
    return min(wanted, positions - encoder.position_offset) if positions else wanted


def _by_library(name: str, directory: Path, reason: str, device: str) -> LibraryModel:
    try:
        from sentence_transformers import SentenceTransformer  # needed by few models only
    except ImportError:
        raise UserError(
            f"--model {name}: {reason}, which needs the sentence-transformers library; "
            "install it with pip install sentence-transformers"
        ) from None
    try:
        model = SentenceTransformer(str(directory), device=device, local_files_only=True)
    except Exception as error:  # a library of many architectures, which raises whatever they do
        raise UserError(f"--model {name}: {reason}, and sentence-transformers cannot load it: {error}") from None
    return LibraryModel(model, reason)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))

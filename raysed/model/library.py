"""sentence-transformers, in and out: the one module that imports it.

Importing the library takes seconds, so this module is imported where a model is read or written, not at the top of a
file.

No code of a model directory runs, unless that is asked for: modules of a class that is not the library's own are
refused, except for this project's flow, whose weights are read by raysed's own class.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Pooling,
    StaticEmbedding,
    Transformer,
    WeightedLayerPooling,
)
from sentence_transformers.util import import_module_class
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig

from raysed.config import Layers
from raysed.errors import UserError
from raysed.model.encoder import blocks_of
from raysed.model.glow import FlowHead

_OWN = "sentence_transformers."
_FLOW = "glow.FlowHead"
"""The class of an exported flow, as modules.json names it: in the file `glow.py` beside it."""
_OF_VECTORS = ("Dense", "Normalize", "LayerNorm", "Dropout", "FlowHead")
"""Modules that map the vector of a sentence, whatever its tokens were."""
_PLAIN = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_READ_ELSEWHERE = {"max_seq_length", "do_lower_case", "modality_config", "module_output_name", "transformer_task"}


class NotPackable(Exception):
    """Why a model has to be computed by the library itself."""


class _Entry(NamedTuple):
    """A line of modules.json: class and directory."""

    kind: str
    place: str

    @property
    def name(self) -> str:
        return self.kind.rpartition(".")[2]


@dataclass(frozen=True)
class Parts:
    """A model of which the packed encoder computes all up to the pooled vector.

    Attributes:
        transformer: directory of the Hugging Face model; None where `table` takes its place.
        table: vectors of tokens.
        pooling: `mean` or `cls`.
        layers: whose mean is pooled.
        max_length: tokens per sentence; None: what the model and its tokenizer take.
        prompt: put before every sentence.
        heads: the library's modules after the pooling.
    """

    heads: tuple[nn.Module, ...]
    prompt: str
    transformer: Path | None = None
    table: StaticEmbedding | None = None
    pooling: str = "mean"
    layers: Layers = 1
    max_length: int | None = None
    lower_case: bool = False


def load(directory: Path, device: str = "cpu", trust_remote_code: bool = False) -> SentenceTransformer:
    """Load a model directory as the library's own model.

    Raises:
        UserError: one of its modules is neither the library's nor a flow.
    """
    entries = _entries(directory)
    if any(entry.kind == _FLOW for entry in entries):  # which the library would load as code of the directory
        modules = [_module(directory, entry, trust_remote_code) for entry in entries]
        return SentenceTransformer(modules=modules, device=device).eval()
    return SentenceTransformer(
        str(directory),
        device=device,
        local_files_only=True,
        trust_remote_code=trust_remote_code,
        model_kwargs={"use_safetensors": True},
    ).eval()


def embed(model: SentenceTransformer, sentences: Sequence[str]) -> np.ndarray:
    """Return the model's vectors, float32 [N, D]."""
    return model.encode(list(sentences), convert_to_numpy=True, show_progress_bar=False).astype(np.float32)


def take_apart(directory: Path) -> Parts:
    """Return what of a model is not its transformer.

    Raises:
        NotPackable: its modules are others than a table or a transformer with mean or cls pooling, and maps of vectors.
        UserError: one of its modules is neither the library's nor a flow.
    """
    first, *rest = _entries(directory)
    prompt = _default_prompt(directory)
    if first.name == "StaticEmbedding":
        return Parts(_heads(directory, rest), prompt, table=_module(directory, first))
    if first.name != "Transformer":
        raise NotPackable(f"its first module is {first.name}")
    settings = Transformer.load_config(str(directory), subfolder=first.place, local_files_only=True)
    _refuse_unusual(settings)
    if getattr(AutoConfig.from_pretrained(directory / first.place), "is_encoder_decoder", False):
        raise NotPackable("its transformer is the encoder of a pair")
    layers = 1
    if rest and rest[0].name == "WeightedLayerPooling":
        layers = _layers(_module(directory, rest.pop(0)))
    if not rest or rest[0].name != "Pooling":
        raise NotPackable("it has no pooling after its transformer")
    pooling = _module(directory, rest.pop(0))
    if pooling.pooling_mode not in ("mean", "cls"):
        raise NotPackable(f"its pooling is {pooling.pooling_mode}")
    if prompt and not pooling.include_prompt:
        raise NotPackable("its pooling leaves the prompt out")
    return Parts(
        _heads(directory, rest),
        prompt,
        transformer=directory / first.place,
        pooling=pooling.pooling_mode,
        layers=layers,
        max_length=settings.get("max_seq_length"),
        lower_case=bool(settings.get("do_lower_case")),
    )


def _entries(directory: Path) -> list[_Entry]:
    found = [_Entry(entry["type"], entry["path"]) for entry in _read_json(directory / "modules.json")]
    if not found:
        raise UserError("modules.json lists no modules")
    for kind, place in found:
        if not kind.startswith(_OWN) and kind != _FLOW:
            raise UserError(f"its module {kind} is custom code, which is not run; use a model without it")
        if not (directory / place).resolve().is_relative_to(directory.resolve()):
            raise UserError(f"its module {kind} lies outside of the model's directory, in {place!r}")
    return found


def _module(directory: Path, entry: _Entry, trust_remote_code: bool = False) -> nn.Module:
    if entry.kind == _FLOW:
        return FlowHead.load(directory / entry.place)
    kind, options = import_module_class(entry.kind), {}
    if kind is Transformer:
        options = {"trust_remote_code": trust_remote_code, "model_kwargs": {"use_safetensors": True}}
    return kind.load(str(directory), subfolder=entry.place, local_files_only=True, **options).eval()


def _heads(directory: Path, entries: Sequence[_Entry]) -> tuple[nn.Module, ...]:
    heads = []
    for entry in entries:
        head = _module(directory, entry) if entry.name in _OF_VECTORS else None
        if getattr(head, "module_input_name", "sentence_embedding") != "sentence_embedding" or head is None:
            raise NotPackable(f"its module {entry.name} needs more than the vector of a sentence")
        heads.append(head)
    return tuple(heads)


def _refuse_unusual(settings: dict[str, Any]) -> None:
    """Of settings that are not looked at here, only those that are off leave the transformer as it is."""
    usual = {
        "transformer_task": "feature-extraction",
        "modality_config": _PLAIN,
        "module_output_name": "token_embeddings",
    }
    for key, value in settings.items():
        if value and (key not in _READ_ELSEWHERE or usual.get(key, value) != value):
            raise NotPackable(f"its transformer has {key}: {json.dumps(value, default=str)}")


def _layers(module: WeightedLayerPooling) -> Layers:
    """The pooling whose mean is the module's weighted mean."""
    count = module.num_hidden_layers
    weights = module.layer_weights.detach().double().numpy()
    share_L = np.zeros(count + 1)
    share_L[module.layer_start :] = weights / weights.sum()
    for layers in (*range(1, count + 1), "first_last"):
        blocks = blocks_of(layers, count)
        if np.allclose(share_L, np.bincount(blocks, minlength=count + 1) / len(blocks)):
            return layers
    raise NotPackable("its layers have weights of their own")


def _default_prompt(directory: Path) -> str:
    path = directory / "config_sentence_transformers.json"
    settings = _read_json(path) if path.is_file() else {}
    if settings.get("truncate_dim") or settings.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        raise NotPackable("it cuts its vectors short, or is of another type")
    return settings.get("prompts", {}).get(settings.get("default_prompt_name"), "")


# -- out -------------------------------------------------------------------------------------------------------------


def write(directory: Path, first: nn.Module | None, others: Sequence[nn.Module], max_length: int | None = None) -> None:
    """Write all of a model's files but its transformer's.

    Classes and settings have the names that every release of the library since 3.2 reads: the ONNX backend needs
    release 5 (see docs/distill.md).

    Args:
        first: a table of vectors; None where the transformer is already in the directory.
        others: modules after it.
        max_length: of a transformer.
    """
    entries = [] if first else [{"idx": 0, "name": "0", "path": "", "type": f"{_OWN}models.Transformer"}]
    for index, module in enumerate([first, *others] if first else others, start=len(entries)):
        name = type(module).__name__
        place = directory / f"{index}_{name}"
        place.mkdir(exist_ok=True)
        module.save(str(place))
        _name_as_before(place / "config.json", name)
        kind = _FLOW if isinstance(module, FlowHead) else f"{_OWN}models.{name}"
        entries.append({"idx": index, "name": str(index), "path": place.name, "type": kind})
    _write_json(directory / "modules.json", entries)
    if not first:
        _write_json(directory / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    versions = {"transformers": transformers.__version__, "pytorch": torch.__version__}
    settings = {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write_json(directory / "config_sentence_transformers.json", {"__version__": versions, **settings})


def table(rows_VD: torch.Tensor, tokenizer: Tokenizer, max_length: int) -> StaticEmbedding:
    """Return a table of vectors; its tokenizer cuts, because the module has no setting for that."""
    tokenizer.enable_truncation(max_length)
    return StaticEmbedding(tokenizer, embedding_weights=rows_VD)


def layer_pooling(width: int, layers: Layers, count: int) -> list[WeightedLayerPooling]:
    """Return the mean over layers of a transformer with `count` of them; nothing where only the last is pooled."""
    if layers == 1:
        return []
    blocks = torch.tensor(blocks_of(layers, count))
    start = int(blocks.min())
    weights = nn.Parameter((blocks - start).bincount().float())
    return [WeightedLayerPooling(width, num_hidden_layers=count, layer_start=start, layer_weights=weights)]


def mean_pooling(width: int) -> Pooling:
    """Return the mean over tokens."""
    return Pooling(width, "mean")


def linear(weight_DE: np.ndarray, bias_E: np.ndarray | None = None) -> Dense:
    """Return the map x W + b as a module."""
    bias = None if bias_E is None else torch.tensor(bias_E, dtype=torch.float32)
    weight_ED = torch.tensor(weight_DE.T, dtype=torch.float32).contiguous()
    return Dense(*weight_DE.shape, bias is not None, nn.Identity(), init_weight=weight_ED, init_bias=bias)


def _name_as_before(path: Path, module: str) -> None:
    """Older releases stop at settings that they do not know."""
    if module not in ("Pooling", "WeightedLayerPooling", "Dense"):
        return
    settings = _read_json(path)
    if "embedding_dimension" in settings:
        settings["word_embedding_dimension"] = settings.pop("embedding_dimension")
    if settings.pop("pooling_mode", None):
        settings["pooling_mode_mean_tokens"] = True
    for key in ("include_prompt", "module_input_name", "module_output_name"):
        settings.pop(key, None)
    _write_json(path, settings)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

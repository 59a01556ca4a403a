"""Read and write sentence-transformers models. Only this module imports the library, which takes seconds.

A model directory's code runs only with `trust_remote_code`. Custom modules are rejected, except raysed's flow, which
raysed's own class loads.
"""

import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import find_adapter_config_file

from raysed.config import EncoderConfig, Layers
from raysed.errors import UserError
from raysed.model.calibration import CalibrationMap, Flow
from raysed.model.encoder import Encoder, UnsupportedEncoder, blocks_of
from raysed.model.glow import FlowHead
from raysed.model.pretrained import configuration_of, load_encoder, longest_input, make_usable, safe_loads, save_encoder
from raysed.model.prompts import SETTINGS, read_settings
from raysed.store.files import visible
from raysed.store.hub import model_directory

_OWN = "sentence_transformers."
_FLOW = "glow.FlowHead"
"""Class of an exported flow in modules.json, in the `glow.py` beside it."""
_VECTOR_MODULES = ("Dense", "Normalize", "LayerNorm", "Dropout", "FlowHead")
"""Modules that map a sentence's vector without its tokens."""
_DEFAULT_OPTIONS = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
_HANDLED_KEYS = {"max_seq_length", *_DEFAULT_OPTIONS}


class NotPackable(Exception):
    """The reason why only sentence-transformers can run a model."""


def load(
    directory: Path, device: str = "cpu", trust_remote_code: bool = False, dtype: torch.dtype = torch.float32
) -> SentenceTransformer:
    """Load a model directory with the library; raise UserError for custom modules other than a flow."""
    entries = _entries(directory)
    if any(kind == _FLOW for kind, _ in entries):  # the library would run the directory's glow.py
        modules = [_module(directory, *entry, trust_remote_code) for entry in entries]
        return SentenceTransformer(modules=modules, device=device).eval()
    return _read(directory, device, trust_remote_code, dtype)


def load_trusted(directory: Path, device: str, max_length: int | None, dtype: torch.dtype) -> SentenceTransformer:
    """Load a model directory and run the code in it; `max_length` lowers the model's own limit of tokens."""
    model = _read(directory, device, True, dtype)
    if max_length:
        model.max_seq_length = min(model.max_seq_length, max_length)
    return model


def _read(directory: Path, device: str, trust_remote_code: bool, dtype: torch.dtype) -> SentenceTransformer:
    options = {"device": device, "local_files_only": True}
    settings = (file.read_text("utf-8") for file in visible(directory, "**/sentence_*_config.json"))
    unused = "" if "pooler_output" in "".join(settings) else "pooler"
    with safe_loads(str(directory), unused, dtype=dtype):
        model = SentenceTransformer(str(directory), trust_remote_code=trust_remote_code, **options)
    for module in model.modules():
        if isinstance(module, Transformer) and module.tokenizer is not None:
            config = module.auto_model.config
            make_usable(module.tokenizer, str(directory), getattr(config, "vocab_size", sys.maxsize))
            module.max_seq_length = min(module.max_seq_length, longest_input(config, trust_remote_code))
    return model.eval()


def load_parts(directory: Path) -> tuple[Encoder, PreTrainedTokenizerBase, Layers, int, nn.Sequential]:
    """Load what `load.NativeModel` holds: a model that packed rows can compute up to the pooled vector.

    Raise NotPackable unless it is a transformer, mean or cls pooling, and maps of the pooled vector.
    """
    place, layers, pooling, heads = _modules_of_vectors(directory)
    if pooling.pooling_mode not in ("mean", "cls"):
        raise NotPackable(f"its pooling is {pooling.pooling_mode}")
    if not pooling.include_prompt:
        raise NotPackable("its pooling leaves prompts out")
    try:
        encoder, tokenizer = load_encoder(EncoderConfig(path=str(directory / place), max_length=3))
    except UnsupportedEncoder:
        raise NotPackable("its transformer has a decoder, or sees its padding") from None
    if layers != 1 and not encoder.transformer.config.output_hidden_states:
        raise NotPackable("its transformer does not return the layers that it pools")
    encoder.pooling = pooling.pooling_mode
    longest = _longest(directory, place, tokenizer.model_max_length)
    return encoder, tokenizer, layers, longest, nn.Sequential(*heads)


def _modules_of_vectors(directory: Path) -> tuple[str, Layers, Pooling, list[nn.Module]]:
    """Return the transformer's subdirectory, the pooled layers, the pooling, and later modules."""
    (first, place), *rest = _entries(directory)
    if _name(first) != "Transformer":
        raise NotPackable(f"its first module is {_name(first)}")
    _check_settings(directory, place)
    layers = _layers(_module(directory, *rest.pop(0))) if rest and _name(rest[0][0]) == "WeightedLayerPooling" else 1
    if not rest or _name(rest[0][0]) != "Pooling":
        raise NotPackable("it has no pooling after its transformer")
    pooling, heads = _module(directory, *rest.pop(0)), []
    for kind, where in rest:
        head = _module(directory, kind, where) if _name(kind) in _VECTOR_MODULES else None
        if head is None or getattr(head, "module_input_name", "sentence_embedding") != "sentence_embedding":
            raise NotPackable(f"its module {_name(kind)} needs more than the sentence's vector")
        heads.append(head)
    return place, layers, pooling, heads


def most_tokens(name: str) -> int:
    """Return how many tokens of a text a model reads; `sys.maxsize` if its files set no limit."""
    directory = model_directory(name)
    if (directory / "modules.json").is_file():
        return _longest(directory, _entries(directory)[0][1])
    return longest_input(configuration_of(EncoderConfig(path=name)))


def _longest(directory: Path, place: str, default: int = sys.maxsize) -> int:
    wanted = _transformer_settings(directory, place).get("max_seq_length") or default
    return min(wanted, longest_input(AutoConfig.from_pretrained(directory / place, trust_remote_code=False)))


def _check_settings(directory: Path, place: str) -> None:
    if find_adapter_config_file(directory / place):
        raise NotPackable("it is a LoRA adapter")
    settings = read_settings(directory / SETTINGS)
    if settings.get("truncate_dim") or settings.get("model_type", "SentenceTransformer") != "SentenceTransformer":
        raise NotPackable("it truncates its vectors, or is not a SentenceTransformer")
    if settings.get("prompts", {}).get(settings.get("default_prompt_name")):
        raise NotPackable("it prepends a prompt to sentences")
    for key, value in _transformer_settings(directory, place).items():  # falsy settings are off
        if value and (key not in _HANDLED_KEYS or _DEFAULT_OPTIONS.get(key, value) != value):
            raise NotPackable(f"its transformer has {key}: {json.dumps(value, default=str)}")


def _transformer_settings(directory: Path, place: str) -> dict[str, Any]:
    found = Transformer.load_config(str(directory), subfolder=place, local_files_only=True)
    longest = found.get("max_seq_length")
    if longest is not None and not (isinstance(longest, int) and longest > 0):
        raise UserError(f"its transformer has max_seq_length {longest!r}; write a number of tokens, or null")
    return found


def _entries(directory: Path) -> list[tuple[str, str]]:
    """Return each module's class and subdirectory from modules.json; raise UserError for custom code."""
    if not (directory / "modules.json").is_file():
        return [(f"{_OWN}models.Transformer", "")]  # the library adds a pooling
    found = [(entry["type"], entry["path"]) for entry in _read_json(directory / "modules.json")]
    if not found:
        raise UserError("modules.json lists no modules")
    for kind, place in found:
        if not kind.startswith(_OWN) and kind != _FLOW:
            raise UserError(f"its module {kind} is custom code, which is not run; use a model without it")
        if not (directory / place).resolve().is_relative_to(directory.resolve()):
            raise UserError(f"its module {kind} lies outside of the model's directory, in {place!r}")
    return found


def _name(kind: str) -> str:
    return kind.rpartition(".")[2]


def _module(directory: Path, kind: str, place: str, trust_remote_code: bool = False) -> nn.Module:
    if kind == _FLOW:
        return FlowHead.load(directory / place)
    module = import_module_class(kind)
    options = {"trust_remote_code": trust_remote_code} if module is Transformer else {}
    try:
        with safe_loads(str(directory)):
            return module.load(str(directory), subfolder=place, local_files_only=True, **options).eval()
    except (pickle.UnpicklingError, EOFError):
        raise UserError(f"{place}/pytorch_model.bin contains more than weights; save it as model.safetensors") from None


def _layers(module: WeightedLayerPooling) -> Layers:
    """Return the pooling that equals the module's weighted mean; raise NotPackable if none does."""
    count = module.num_hidden_layers
    weights = module.layer_weights.detach().double().numpy()
    share_L = np.zeros(count + 1)
    share_L[module.layer_start :] = weights / weights.sum()
    for layers in (*range(1, count + 1), "first_last"):
        blocks = blocks_of(layers, count)
        if np.allclose(share_L, np.bincount(blocks, minlength=count + 1) / len(blocks)):
            return layers
    raise NotPackable("its layers are weighted unequally")


# -- export ----------------------------------------------------------------------------------------------------------


def export_model(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    layers: Layers,
    max_length: int,
    calibration: CalibrationMap | None,
    prompts: Mapping[str, str] = {},
) -> None:
    """Write a model directory that `SentenceTransformer(path)` loads; the same arguments give the same bytes.

    Its modules are the transformer, the mean over several layers and the mean over tokens, or `StaticEmbedding` for a
    static model. Head and calibration follow as linear layers. A flow is `FlowHead` from a copy of glow.py; such a
    model, or an encoder with custom code, needs `trust_remote_code=True`. Every release since 3.2 reads the names of
    classes and settings, because the ONNX backend needs release 5 (docs/serve.md). `encode_query` and
    `encode_document` add the `prompts` of their role; `encode` adds none.
    """
    if calibration is not None and calibration.width != encoder.width:
        raise UserError(f"a calibration of width {calibration.width} does not fit embeddings of width {encoder.width}")
    path.mkdir(parents=True, exist_ok=True)
    entries = []
    if encoder.is_static:
        rows_VD = encoder.transformer.get_input_embeddings().weight.detach().cpu().clone()
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        backend.enable_truncation(max_length)  # the module has no setting for it
        modules = [StaticEmbedding(backend, embedding_weights=rows_VD)]
    else:
        modules = _pooling(encoder.transformer.config, layers)
        _write_transformer(encoder, tokenizer, path, layers, max_length)
        entries = [{"idx": 0, "name": "0", "path": "", "type": f"{_OWN}models.Transformer"}]
    if encoder.head:
        modules.append(_linear(encoder.head_weight()))
    if isinstance(calibration, Flow):
        modules.append(FlowHead(calibration))
    elif calibration is not None:
        modules.append(_linear(calibration.weight_DD, calibration.bias_D))
    entries += [_write_module(path, index, module) for index, module in enumerate(modules, start=len(entries))]
    _write_json(path / "modules.json", entries)
    versions = {"transformers": transformers.__version__, "pytorch": torch.__version__}
    settings = {"prompts": dict(prompts), "default_prompt_name": None, "similarity_fn_name": "cosine"}
    _write_json(path / "config_sentence_transformers.json", {"__version__": versions, **settings})


def parity(path: Path, sentences: Sequence[str], expected_ND: np.ndarray, trust_remote_code: bool = False) -> float:
    """Return how far an export's vectors are from those of the model in memory, relative to the largest coordinate.

    It is 1e-6 by rounding, up to 1e-5 with whitening, and NaN if either has NaN.
    """
    model = load(path, trust_remote_code=trust_remote_code)
    found_ND = model.encode(list(sentences), show_progress_bar=False)
    return float(np.abs(found_ND - expected_ND).max() / np.abs(expected_ND).max())


def _write_module(path: Path, index: int, module: nn.Module) -> dict[str, Any]:
    """Write a module's files; return its entry in modules.json."""
    name = type(module).__name__
    place = path / f"{index}_{name}"
    place.mkdir(exist_ok=True)
    module.save(str(place))
    if name in ("Pooling", "WeightedLayerPooling", "Dense"):  # older releases fail on unknown settings
        settings = _read_json(place / "config.json")
        if "embedding_dimension" in settings:
            settings["word_embedding_dimension"] = settings.pop("embedding_dimension")
        if settings.pop("pooling_mode", None):
            settings["pooling_mode_mean_tokens"] = True
        for key in ("include_prompt", "module_input_name", "module_output_name"):
            settings.pop(key, None)
        _write_json(place / "config.json", settings)
    kind = _FLOW if isinstance(module, FlowHead) else f"{_OWN}models.{name}"
    return {"idx": index, "name": str(index), "path": place.name, "type": kind}


def _write_transformer(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase, path: Path, layers: Layers, max_length: int
) -> None:
    """Write tokenizer and transformer, which returns all layers if the pooling needs them."""
    save_encoder(encoder, tokenizer, path, max_length)
    _write_json(path / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    config = _read_json(path / "config.json")
    _write_json(path / "config.json", {**config, "output_hidden_states": layers != 1})
    tokenizer_config = _read_json(path / "tokenizer_config.json")
    if tokenizer_config["tokenizer_class"] == "TokenizersBackend":  # transformers 4, which ONNX needs, lacks it
        _write_json(path / "tokenizer_config.json", {**tokenizer_config, "tokenizer_class": "PreTrainedTokenizerFast"})


def _pooling(config: PretrainedConfig, layers: Layers) -> list[nn.Module]:
    width, count = config.hidden_size, config.num_hidden_layers
    blocks = torch.tensor(blocks_of(layers, count))
    if layers == 1:
        return [Pooling(width, "mean")]
    start = int(blocks.min())
    weights = nn.Parameter((blocks - start).bincount().float())
    over_layers = WeightedLayerPooling(width, num_hidden_layers=count, layer_start=start, layer_weights=weights)
    return [over_layers, Pooling(width, "mean")]


def _linear(weight_DE: np.ndarray, bias_E: np.ndarray | None = None) -> Dense:
    bias = None if bias_E is None else torch.tensor(bias_E, dtype=torch.float32)
    weight_ED = torch.tensor(weight_DE.T, dtype=torch.float32).contiguous()
    return Dense(*weight_DE.shape, bias is not None, nn.Identity(), init_weight=weight_ED, init_bias=bias)


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

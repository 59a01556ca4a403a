"""Load and save encoders: pre-trained models by settings, artefacts by directory."""

import copy
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import find_adapter_config_file
from transformers.utils import logging as transformers_logging

from raysed.config import EncoderConfig, Role
from raysed.data.tokens import SAMPLE_TEXTS, Tokenizer, tokenize
from raysed.errors import UserError, last_line
from raysed.model.encoder import Encoder, UnsupportedEncoder
from raysed.model.encoding import encode
from raysed.model.head import load_head, save_head
from raysed.store.hub import encoder_path, hub_problem

LOAD_ERRORS = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError, ImportError),
    *(SafetensorError, StrictDataclassError),
)
"""What transformers raises for an unusable path, file or setting."""
_PER_LAYER_SETTINGS = ("layer_types", "attention_window", "no_rope_layers")
"""Settings that are lists with one element per layer."""
_MAX_SIZES = {"num_hidden_layers": 1000, "hidden_size": 2**17, "intermediate_size": 2**20, "vocab_size": 2**25}
"""Upper limits. Ten million layers would take hours to build before their weights turn out to be missing."""
_CODE_OPTIONS = ("allow_all_kernels", "kernel_config", "use_kernels")
"""Options of `from_pretrained` by which code on a hub computes. sentence-transformers takes them from model files."""
_loads = threading.RLock()


def load_encoder(config: EncoderConfig) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Load a pre-trained encoder; UserError if it is incomplete or `max_length` too large."""
    try:
        with _warnings_off():
            found = _read_configuration(encoder_path(config), config)
            check_size(config.path, found)
            _check_input(config, found)
            transformer, info = read_weights(AutoModel, config)
    except UserError:
        raise
    except LOAD_ERRORS as error:
        raise unloadable(config, error) from None
    for name in info["missing_keys"]:  # unused poolers; zeros make equal runs save equal files
        nn.init.zeros_(transformer.get_parameter(name))
    if config.keep_layers is not None:
        _keep_layers(transformer, config)
    elif "num_hidden_layers" in config.model_kwargs:  # the first ones
        describe_layers(transformer.config, range(transformer.config.num_hidden_layers))
    try:
        encoder = Encoder(transformer)
    except UnsupportedEncoder as error:
        error.setting = "encoder.path"
        raise
    except LOAD_ERRORS as error:  # such as inputs of another kind
        raise unloadable(config, error) from None
    return encoder, load_tokenizer(config)


@contextmanager
def _warnings_off() -> Iterator[None]:
    """Silence transformers' warnings about unused and missing weights; callers check the latter."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


@contextmanager
def safe_loads(
    name: str, unused: str = "pooler", setting: str | None = None, dtype: torch.dtype = torch.float32
) -> Iterator[None]:
    """Check every transformer that is loaded in this block, whichever library asks for it.

    Weights come from safetensors, as `dtype`. If any are missing but those with `unused` in their names, raise
    UserError about the model `name` and its `setting`. No attention or other layer comes from a hub.
    """

    def from_pretrained(cls: type, *arguments: Any, output_loading_info: bool = False, **options: Any) -> Any:
        options = {key: value for key, value in options.items() if key not in _CODE_OPTIONS}
        check_size(name, options.get("config"))
        # Without a name, attention is torch's, or the architecture's own. A configuration may name code on a hub.
        options |= {"use_safetensors": True, "dtype": dtype, "attn_implementation": None}
        model, info = original.__get__(None, cls)(*arguments, **options, output_loading_info=True)
        resized = [key for key, *_ in info["mismatched_keys"]]
        missing = sorted(key for key in [*info["missing_keys"], *resized] if not unused or unused not in key)
        if missing:
            raise UserError(f"{name!r} lacks {len(missing)} weights, such as {missing[0]}", setting=setting)
        return (model, info) if output_loading_info else model

    with _loads:
        original = vars(PreTrainedModel)["from_pretrained"]
        PreTrainedModel.from_pretrained = classmethod(from_pretrained)
        try:
            yield
        finally:
            PreTrainedModel.from_pretrained = original


def read_weights(kind: Any, config: EncoderConfig) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Load a model in float32; return it and transformers' loading info."""
    options = {"output_loading_info": True, **config.model_kwargs}
    with safe_loads(config.path, setting="encoder.path"):
        return kind.from_pretrained(encoder_path(config), trust_remote_code=config.trust_remote_code, **options)


def load_lm_head(config: EncoderConfig) -> tuple[nn.Linear, nn.LayerNorm, torch.Tensor] | None:
    """Return a checkpoint's masked-language-model head: linear layer, layer norm and output bias [V].

    Return None without a head like BERT's: GELU between layer and norm, output weights tied to the input embeddings.
    """
    try:
        with _warnings_off():
            model, _ = read_weights(AutoModelForMaskedLM, config)
    except LOAD_ERRORS:  # also a head whose weights are missing
        return None
    output, base = model.get_output_embeddings(), f"{model.base_model_prefix}."
    rest = [module for name, module in model.named_modules() if not name.startswith(base) and module is not output]
    dense = [module for module in rest if isinstance(module, nn.Linear)]
    norms = [module for module in rest if isinstance(module, nn.LayerNorm)]
    is_tied = output is not None and output.weight is model.get_input_embeddings().weight and output.bias is not None
    activation = getattr(model.config, "hidden_act", None) or getattr(model.config, "activation", None)
    if not is_tied or activation != "gelu" or (len(dense), len(norms)) != (1, 1):
        return None
    return dense[0], norms[0], output.bias.detach()


def load_start(config: EncoderConfig, start: Path | None) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Load the artefact at `start` (None: the pre-trained encoder)."""
    if start is None:
        return load_encoder(config)
    return load_checkpoint(start, config.trust_remote_code), load_tokenizer(config, start)


def load_tokenizer(config: EncoderConfig, start: Path | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of an artefact or pre-trained encoder; UserError if it is missing or too large."""
    if start is not None:
        tokenizer = AutoTokenizer.from_pretrained(start, trust_remote_code=config.trust_remote_code)
        return make_usable(tokenizer, config.path)
    vocabulary = configuration_of(config).vocab_size
    try:
        tokenizer = read_tokenizer(config)
        if len(tokenizer) > vocabulary:  # Gemma's image token; its name in a text is text
            tokenizer = read_tokenizer(config, split_special_tokens=True)
    except LOAD_ERRORS as error:
        raise unloadable(config, error) from None
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # the vocabulary is missing
        problem = f"{config.path!r} has no tokenizer; add its files, such as tokenizer.json"
        raise UserError(problem, setting="encoder.path")
    return make_usable(tokenizer, config.path, vocabulary)


def text_tokenizer(config: EncoderConfig, start: Path | None = None, prompts: Mapping[Role, str] = {}) -> Tokenizer:
    """Load a tokenizer with `encoder.max_length` and prompts by role."""
    return Tokenizer(load_tokenizer(config, start), config.max_length, prompts)


def make_usable(tokenizer: PreTrainedTokenizerBase, path: str, rows: int = sys.maxsize) -> PreTrainedTokenizerBase:
    """Give a tokenizer a padding token, which sentence-transformers needs.

    Raise UserError if it fails on a text, or if the model has no row for a token. Special tokens may lack a row unless
    the tokenizer adds them to every text.
    """
    special = {index for index, token in getattr(tokenizer, "added_tokens_decoder", {}).items() if token.special}
    used = tokenize(tokenizer, SAMPLE_TEXTS, sys.maxsize).input_ids
    highest = max({*tokenizer.get_vocab().values()} - special | {*used.tolist()})
    if highest >= rows:
        problem = f"the tokenizer of {path!r} has {highest + 1} tokens, but its model has only {rows}"
        raise UserError(f"{problem}; use both from the same model", setting="encoder.path")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.sep_token or tokenizer.unk_token
    if tokenizer.pad_token is None:
        problem = f"the tokenizer of {path!r} has no token for padding; add a pad_token to its files"
        raise UserError(problem, setting="encoder.path")
    return tokenizer


def read_tokenizer(config: EncoderConfig, **options: Any) -> PreTrainedTokenizerBase:
    """Read the tokenizer of the model's commit."""
    options |= _cache_options(config)
    return AutoTokenizer.from_pretrained(encoder_path(config), trust_remote_code=config.trust_remote_code, **options)


def _cache_options(config: EncoderConfig) -> dict[str, Any]:
    return {name: value for name, value in config.model_kwargs.items() if name in ("revision", "cache_dir")}


def unloadable(config: EncoderConfig, error: Exception) -> UserError:
    """Turn a `LOAD_ERRORS` exception into a UserError."""
    return UserError(f"{config.path!r} cannot be loaded: {load_problem(error)}", setting="encoder.path")


def load_problem(error: Exception) -> str:
    """Return why a model cannot be loaded; transformers blames tiktoken if sentencepiece is missing."""
    if "tiktoken" in str(error) and find_spec("sentencepiece") is None:
        return "its vocabulary needs a package; run pip install sentencepiece (for a .tiktoken file: tiktoken)"
    return last_line(error) if isinstance(error, StrictDataclassError) else hub_problem(error)


def _keep_layers(transformer: PreTrainedModel, config: EncoderConfig) -> None:
    """Drop layers from weights and configuration."""
    found = transformer.config
    count = found.num_hidden_layers
    kept = kept_layers(config.keep_layers, count)
    if getattr(found, "num_hidden_groups", None) == 1:  # ALBERT repeats one layer
        return describe_layers(found, kept)
    stacks = [m for m in transformer.modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if len(stacks) != 1:
        raise UserError(
            f"the layers of {config.path!r} are not one stack, so encoder.keep_layers cannot be used; to keep the "
            "first ones, use encoder.model_kwargs: {num_hidden_layers: 3}",
            setting="encoder.path",
        )
    for index in reversed(range(count)):
        if index not in kept:
            del stacks[0][index]
    for index, layer in enumerate(stacks[0]):  # decoders' layers store their index
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index
    describe_layers(found, kept)


def check_start(config: EncoderConfig) -> None:
    """Load an encoder; UserError if it is unusable, or another one after its layers are cut and it is saved."""
    encoder, tokenizer = load_encoder(config)
    if not config.is_cut:
        return
    table, problem = tokenize(tokenizer, SAMPLE_TEXTS, 16), ""
    with TemporaryDirectory() as place, _warnings_off():
        try:
            save_encoder(encoder, tokenizer, Path(place))
            again = load_checkpoint(Path(place), config.trust_remote_code)
            if again.state_dict().keys() != encoder.state_dict().keys():
                problem = "it has other weights"
            elif not np.allclose(*(encode(model, table)[0] for model in (encoder, again)), atol=1e-5):
                problem = "it gives other vectors"
        except LOAD_ERRORS as error:
            problem = load_problem(error).replace(repr(place), "it")
    if problem:
        problem = f"the layers of {config.path!r} cannot be cut like this: saved and loaded again, {problem}"
        raise UserError(f"{problem}; keep its first layers, or all", setting="encoder.path")


def describe_layers(found: PretrainedConfig, keep: int | str | Sequence[int]) -> None:
    """Reduce a configuration to the layers of `kept_layers`."""
    kept = kept_layers(keep, found.num_hidden_layers)
    found.num_hidden_layers = len(kept)
    for name in _PER_LAYER_SETTINGS:
        if isinstance(kinds := vars(found).get(name), list):
            setattr(found, name, [kinds[index] for index in kept])


def kept_layers(keep: int | str | Sequence[int], count: int) -> list[int]:
    """Return the layers to keep: those listed, or a number, evenly spread (1: the last).

    >>> kept_layers([0, 1], 6), kept_layers("half", 6), kept_layers(4, 12), kept_layers(1, 6)
    ([0, 1], [0, 2, 5], [0, 3, 7, 11], [5])
    """
    if not isinstance(keep, int | str):
        return list(keep)
    wanted = max(1, count // 2) if keep == "half" else int(keep)
    return [place * (count - 1) // (wanted - 1) for place in range(wanted)] if wanted > 1 else [count - 1]


def keeps_all_layers(config: EncoderConfig) -> bool:
    """Return whether `encoder.keep_layers` is set and leaves the model whole."""
    if config.keep_layers is None:
        return False
    count = configuration_of(config).num_hidden_layers
    return kept_layers(config.keep_layers, count) == list(range(count))


def load_checkpoint(path: Path, trust_remote_code: bool = False) -> Encoder:
    """Load what `write_checkpoint` or `save_encoder` wrote."""
    with safe_loads(str(path)):
        encoder = Encoder(AutoModel.from_pretrained(path, trust_remote_code=trust_remote_code))
    encoder.set_head(load_head(path))
    return encoder


def save_encoder(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase, path: Path, max_length: int | None = None
) -> None:
    """Write transformer and tokenizer in Hugging Face layout, without the head.

    A fast tokenizer is saved without the truncation and padding of its last call, so equal models give equal files.
    Once loaded, it truncates at `max_length` (None: its present limit).
    """
    encoder.transformer.save_pretrained(path)
    unused = copy.deepcopy(tokenizer)
    unused.model_max_length = max_length or tokenizer.model_max_length
    if unused.is_fast:
        unused.backend_tokenizer.no_truncation()
        unused.backend_tokenizer.no_padding()
    unused.save_pretrained(path)


_HISTORY = "history.jsonl"


def write_checkpoint(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    description: dict[str, Any],
    history: Sequence[dict[str, Any]],
) -> None:
    """Write a trained encoder, `raysed.json` and `history.jsonl`; equal runs give equal files."""
    save_encoder(encoder, tokenizer, path)
    if encoder.head:
        save_head(encoder.head_weight(), path)
    (path / "raysed.json").write_text(json.dumps(description, indent=1, sort_keys=True))
    (path / _HISTORY).write_text("".join(json.dumps(entry) + "\n" for entry in history))


def read_history(path: Path) -> list[dict[str, Any]]:
    """Read the history that `write_checkpoint` wrote: one entry per logged step."""
    return [json.loads(line) for line in (path / _HISTORY).read_text().splitlines()]


def check_encoder(config: EncoderConfig) -> int:
    """Check settings against the model's configuration; return the number of blocks kept (static: 1)."""
    found, keep = configuration_of(config), config.keep_layers
    if config.static is None:  # static vectors have no maximum length
        _check_input(config, found)
    elif (config.static.width or 1) > found.hidden_size:
        raise UserError(
            f"encoder.static.width is {config.static.width}, but {config.path!r} has a width of {found.hidden_size}; "
            "set at most that"
        )
    count = found.num_hidden_layers
    if keep is not None:
        has = f"but {config.path!r} has {count} layers"
        if isinstance(keep, int) and keep > count:
            raise UserError(
                f"encoder.keep_layers is {keep}, {has}; keep at most {count}, "
                "or name a larger encoder.path (distill: --learner)"
            )
        kept = kept_layers(keep, count)
        if kept[-1] >= count:
            raise UserError(f"encoder.keep_layers has {kept[-1]}, {has}; use 0 to {count - 1}")
        count = len(kept)
    if config.static:
        return 1
    if isinstance(config.pool_layers, int) and not 1 <= config.pool_layers <= count:
        raise UserError(f"encoder.pool_layers is {config.pool_layers}, but {config.path!r} has {count} layers")
    return count


def _check_input(config: EncoderConfig, found: PretrainedConfig) -> None:
    if getattr(found, "is_encoder_decoder", False) or hasattr(found, "num_decoder_layers"):  # also T5's encoder alone
        raise UnsupportedEncoder(
            f"{config.path!r} has a decoder; use a model that is an encoder alone", setting="encoder.path"
        )
    longest = longest_input(found, config.trust_remote_code)
    if config.max_length > longest:
        raise UserError(
            f"encoder.max_length is {config.max_length}, but {config.path!r} takes at most {longest} tokens"
        )


def longest_input(found: PretrainedConfig, trust_remote_code: bool = False) -> int:
    """Return how many tokens a model has positions for; `sys.maxsize` without a limit.

    RoBERTa and its relatives count positions from the padding id + 1.
    """
    positions = getattr(found, "max_position_embeddings", None)
    if not positions or positions < 0:  # XLNet says -1
        return sys.maxsize
    try:
        modules = without_weights(found, trust_remote_code).modules()
    except LOAD_ERRORS:  # loading will report it
        return positions
    paddings = [getattr(getattr(module, "position_embeddings", None), "padding_idx", None) for module in modules]
    return positions - max((padding + 1 for padding in paddings if padding is not None), default=0)


def without_weights(found: PretrainedConfig, trust_remote_code: bool = False) -> PreTrainedModel:
    """Build an architecture without memory for weights."""
    with torch.device("meta"):
        return AutoModel.from_config(found, trust_remote_code=trust_remote_code, attn_implementation=None)


def width_of(config: EncoderConfig) -> int:
    """Return the width of embeddings, from the configuration alone."""
    return (config.static and config.static.width) or configuration_of(config).hidden_size


def configuration_of(config: EncoderConfig) -> PretrainedConfig:
    """Load a model's configuration; UserError if it is unreadable or its sizes are absurd."""
    path = encoder_path(config)
    found, what = None, "is a LoRA adapter: merge it with peft's merge_and_unload, save the result and name that"
    try:
        if find_adapter_config_file(path, **_cache_options(config)) is None:
            found, what = _read_configuration(path, config), "is not an encoder of text"
    except LOAD_ERRORS as error:
        what = "is neither a model directory nor a hub id that can be reached"
        if os.path.isfile(os.path.join(path, "modules.json")):  # such as a Router of sentence-transformers
            what = "does not begin with a transformer"
        what = f"{what}: {hub_problem(error)}"
    if found is None or not all(hasattr(found, name) for name in ("vocab_size", "hidden_size", "num_hidden_layers")):
        raise UserError(f"{config.path!r} {what}", setting="encoder.path")
    check_size(config.path, found)
    return found


def _read_configuration(path: str, config: EncoderConfig) -> PretrainedConfig:
    return AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code, **config.model_kwargs)


def check_size(path: str, found: PretrainedConfig) -> None:
    """Raise UserError for sizes that no encoder has."""
    for name, most in _MAX_SIZES.items():
        if isinstance(size := getattr(found, name, None), int) and size > most:
            problem = f"{path!r} has {name} {size:,} in its configuration, but at most {most:,} can be used"
            raise UserError(f"{problem}; check its config.json", setting="encoder.path")

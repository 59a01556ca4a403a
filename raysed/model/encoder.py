"""The one module of members and learner: a Hugging Face transformer, fed without padding, and pooling.

An architecture takes packed rows when its public `forward` gives the padded result for them, which is tried once on
two short random sentences; one that does not is fed padded batches instead, with the same numbers.
"""

import copy
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from raysed.bundled import ENCODER, PREFIX
from raysed.config import PACKAGE, EncoderConfig, Layers, package_folder
from raysed.data.tokens import PackedTokens, TokenTable, pack, same_sentence
from raysed.errors import UserError, first_line
from raysed.model.attention import full_precision_attention
from raysed.model.head import load_head, save_head
from raysed.model.linear import speed_up
from raysed.model.static import StaticVectors
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

LOAD_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    RuntimeError,
    ImportError,
    SafetensorError,
    StrictDataclassError,
)
"""What transformers raises for a path, a file or a setting that does not fit."""


@dataclass(frozen=True)
class _Feed:
    """How an architecture takes packed rows."""

    position_offset: int
    boolean_mask: bool


class Encoder(nn.Module):
    """Transformer + mean pooling over all real tokens, special ones included; learners may have a linear head after it.

    The head is part of the encoder, so that whatever embeds with a learner applies it: dev scores while it trains,
    frozen embeddings, calibrations, probes and the export. A linear map without offset may be applied after the mean
    over layers, whichever these are.

    Args:
        transformer: any bidirectional encoder of transformers that gives hidden states, or a table of vectors.

    Attributes:
        head: the linear map, or None.
        pooling: `mean`, or `cls`: the state of each sentence's first token, for models that were trained with that.
        parts: passes that a batch is cut into. With more than one, each is computed again for its gradient, so that
            memory holds the inner states of one part at a time; the result is the same.
    """

    def __init__(self, transformer: PreTrainedModel):
        super().__init__()
        speed_up(transformer)
        self.transformer = transformer
        self.head: nn.Linear | None = None
        self.pooling: Literal["mean", "cls"] = "mean"
        self.parts = 1
        self._feed = None if self.is_static else _probe(transformer)
        for name, parameter in transformer.named_parameters():
            if "pooler" in name:  # never used here; frozen, so that optimizers and reducers skip it
                parameter.requires_grad_(False)

    @property
    def hidden_size(self) -> int:
        """Size of the transformer's states."""
        return self.transformer.config.hidden_size

    @property
    def width(self) -> int:
        """Size D of the embeddings."""
        return self.head.out_features if self.head else self.hidden_size

    def set_head(self, weight_HD: np.ndarray | None) -> None:
        """Gives it a head.

        Args:
            weight_HD: from the transformer's size to the width of the embeddings; None: none.
        """
        self.head = None
        if weight_HD is None:
            return
        device = next(self.transformer.parameters()).device
        self.head = nn.Linear(*weight_HD.shape, bias=False, device=device)
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(weight_HD.T))

    def head_weight(self) -> np.ndarray | None:
        """Returns what `set_head` takes, float32; None without a head."""
        return self.head.weight.detach().cpu().numpy().T if self.head else None

    @property
    def is_static(self) -> bool:
        """Whether it is a table of one vector per token."""
        return isinstance(self.transformer, StaticVectors)

    @property
    def padding_free(self) -> bool:
        """Whether a transformer takes packed rows."""
        return self._feed is not None

    @property
    def position_offset(self) -> int:
        """Positions that the transformer never uses: RoBERTa counts from the padding id + 1."""
        return self._feed.position_offset if self._feed else 0

    def use_sparse_gradients(self) -> None:
        """Lets the token embeddings' gradient hold the rows of the batch only; the optimizer has to take that.

        Not on a GPU, where the number of these rows would have to be waited for, and dense gradients cost little.
        """
        embedding = self.transformer.get_input_embeddings()
        is_on_cpu = self.transformer.device.type == "cpu"
        if is_on_cpu and type(embedding) is nn.Embedding and not embedding.scale_grad_by_freq:
            embedding.sparse = True

    def forward(self, tokens: PackedTokens, layers: Layers = 1) -> torch.Tensor:
        """Embeds B sentences.

        Args:
            layers: the mean of the last `layers` blocks is pooled; `first_last` takes the first and the last one.

        Returns:
            emb_BD, in float32 or better, whatever the precision of the forward pass.
        """
        return self.embed(tokens, (layers,))[0]

    def embed(self, tokens: PackedTokens, poolings: Sequence[Layers]) -> list[torch.Tensor]:
        """Embeds B sentences under several poolings with one pass; returns one emb_BD per pooling.

        Args:
            poolings: see `forward`.

        Raises:
            ValueError: the transformer has fewer blocks than a pooling takes.
        """
        if self.is_static:
            return [self._through_head(self.transformer(tokens))] * len(poolings)
        states = self._hidden_states(tokens, all_layers=any(pooling != 1 for pooling in poolings))
        pooled: dict[int, torch.Tensor] = {}

        def mean_of(block: int) -> torch.Tensor:
            if block not in pooled:
                pool = _mean_pool if self.pooling == "mean" else _first_states
                pooled[block] = pool(states[block], tokens)
            return pooled[block]

        last = len(states) - 1
        embeddings = [
            mean_of(last) if layers == 1 else torch.stack([mean_of(b) for b in blocks_of(layers, last)]).mean(0)
            for layers in poolings
        ]
        return [self._through_head(emb_BH) for emb_BH in embeddings]

    def _through_head(self, emb_BH: torch.Tensor) -> torch.Tensor:
        if self.head is None:
            return emb_BH
        with torch.autocast(emb_BH.device.type, enabled=False):
            return self.head(emb_BH.to(self.head.weight.dtype))

    def token_states(self, tokens: PackedTokens) -> torch.Tensor:
        """Returns the last block's states in the packed layout, [R, L, D], for token-level objectives."""
        return self._hidden_states(tokens, all_layers=False)[-1]

    def _hidden_states(self, tokens: PackedTokens, all_layers: bool) -> Sequence[torch.Tensor]:
        """States of the embedding layer and every block (or of the last block only), each [R, L, D]."""
        if self._feed is None:
            return _padded_states(self.transformer, tokens, all_layers)
        tensors = tokens.input_ids, tokens.position_ids, tokens.segments
        rows = len(tokens.input_ids)
        if self.parts == 1 or rows == 1:
            return self._states_of_rows(*tensors, all_layers)
        edges = [rows * part // min(self.parts, rows) for part in range(min(self.parts, rows) + 1)]
        # Tensors, not the batch: `checkpoint` keeps the state of random numbers of those devices only whose tensors it
        # is given, and does not see the ones in a dataclass. Without it the second pass on a GPU would draw other
        # dropout masks than the first. Check: `test_parts_are_computed_again_with_the_same_dropout_of_their_device`.
        parts = [
            checkpoint(self._states_of_rows, *(x[slice(*pair)] for x in tensors), all_layers, use_reentrant=False)
            for pair in itertools.pairwise(edges)
        ]
        return [torch.cat(block) for block in zip(*parts, strict=True)]

    def _states_of_rows(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, segments: torch.Tensor, all_layers: bool
    ) -> tuple[torch.Tensor, ...]:
        with full_precision_attention(input_ids.device):
            output = self.transformer(
                input_ids=input_ids,
                attention_mask=_mask(segments, self._feed, self.transformer.dtype),
                position_ids=position_ids + self._feed.position_offset,
                output_hidden_states=all_layers,
            )
        return tuple(_states(output, all_layers))


def blocks_of(layers: Layers, count: int) -> list[int]:
    """Returns the indices of the blocks that a pooling averages, for a transformer of `count` blocks.

    Index 0 is the embedding layer. `first_last` is what the released BERT-flow code does under the name of the last
    two layers.

    Args:
        layers: how many of the last, or `first_last`.

    Raises:
        ValueError: there are not so many blocks.

    >>> blocks_of(2, 12), blocks_of("first_last", 12)
    ([11, 12], [1, 12])
    """
    if layers == "first_last":
        return [1, count]
    if not 1 <= layers <= count:
        raise ValueError(f"{layers} layers cannot be pooled: the encoder has {count}")
    return list(range(count - layers + 1, count + 1))


def load_encoder(config: EncoderConfig) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Load the pre-trained transformer and its tokenizer.

    Raises:
        UserError: `encoder.path` is not there, is no model, lacks weights or a tokenizer, or does not take
            `encoder.max_length` tokens.
    """
    try:
        with _without_report():  # missing weights are looked at below, and left-over weights do not matter
            transformer, info = AutoModel.from_pretrained(
                encoder_path(config),
                output_loading_info=True,
                use_safetensors=True,
                dtype=torch.float32,
                trust_remote_code=config.trust_remote_code,
                **config.model_kwargs,
            )
    except LOAD_ERRORS as error:
        raise _unloadable(config, error) from None
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if missing:
        problem = f"{config.path!r} lacks {len(missing)} weights of its architecture, such as {missing[0]}"
        raise UserError(problem, setting="encoder.path")
    with torch.no_grad():  # a pooler that the checkpoint lacks is unused; zeros keep equal runs' checkpoints equal
        for name, parameter in transformer.named_parameters():
            if name in info["missing_keys"]:
                parameter.zero_()
    if config.keep_layers is not None:
        _keep_layers(transformer, config)
    encoder = Encoder(transformer)
    _check_length(config, transformer.config, encoder.position_offset)
    return encoder, load_tokenizer(config, transformer.config)


def load_tokenizer(config: EncoderConfig, found: PretrainedConfig | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the pre-trained model, without its weights.

    Args:
        found: the model's own configuration, where it is known already.

    Raises:
        UserError: there is none, or it does not fit the model.
    """
    found = found or configuration_of(config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(encoder_path(config), trust_remote_code=config.trust_remote_code)
    except LOAD_ERRORS as error:
        raise _unloadable(config, error) from None
    if len(tokenizer) <= len(tokenizer.all_special_ids):  # what transformers makes of a missing vocabulary
        problem = f"{config.path!r} has no tokenizer; add its files, such as tokenizer.json"
        raise UserError(problem, setting="encoder.path")
    if len(tokenizer) > found.vocab_size:
        raise UserError(
            f"the tokenizer of {config.path!r} has {len(tokenizer)} tokens, but its model has only "
            f"{found.vocab_size}; use both from the same model",
            setting="encoder.path",
        )
    return tokenizer


def _unloadable(config: EncoderConfig, error: Exception) -> UserError:
    return UserError(f"{config.path!r} cannot be loaded: {first_line(error)}", setting="encoder.path")


def _keep_layers(transformer: PreTrainedModel, config: EncoderConfig) -> None:
    """Leaves out all other layers, in the weights and in the configuration, so that the rest is saved as a model."""
    count = transformer.config.num_hidden_layers
    stacks = [
        (module, name)
        for module in transformer.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    if len(stacks) != 1:
        raise UserError(
            f"encoder.keep_layers cannot be used with {config.path!r}, whose layers are not one stack; to keep the "
            "first layers, use encoder.model_kwargs: {num_hidden_layers: 3}"
        )
    ((module, name),) = stacks
    layers, kept = getattr(module, name), kept_layers(config.keep_layers, count)
    setattr(module, name, nn.ModuleList([layers[index] for index in kept]))
    transformer.config.num_hidden_layers = len(kept)


def kept_layers(keep: int | str | Sequence[int], count: int) -> list[int]:
    """Returns the layers that `encoder.keep_layers` keeps.

    Args:
        keep: which; or how many, or `half`: evenly spread from the first to the last, or the last one alone.

    >>> kept_layers([0, 1], 6), kept_layers("half", 6), kept_layers(4, 12), kept_layers(1, 6)
    ([0, 1], [0, 2, 5], [0, 3, 7, 11], [5])
    """
    if not isinstance(keep, int | str):
        return list(keep)
    wanted = max(1, count // 2) if keep == "half" else int(keep)
    return [place * (count - 1) // (wanted - 1) for place in range(wanted)] if wanted > 1 else [count - 1]


@contextmanager
def _without_report() -> Iterator[None]:
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)


def load_start(config: EncoderConfig, storage: Storage, name: str | None) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Load what a training starts from: an artefact of the run, or the pre-trained encoder where `name` is None."""
    if name is None:
        return load_encoder(config)
    path, is_trusted = storage.fetch(name), config.trust_remote_code
    return load_checkpoint(path, is_trusted), AutoTokenizer.from_pretrained(path, trust_remote_code=is_trusted)


def load_checkpoint(path: Path, trust_remote_code: bool = False) -> Encoder:
    """Loads an encoder that `write_checkpoint` or `save_encoder` wrote.

    Args:
        path: its directory; it has a copy of the code that the encoder came with.
    """
    transformer = AutoModel.from_pretrained(
        path, use_safetensors=True, dtype=torch.float32, trust_remote_code=trust_remote_code
    )
    encoder = Encoder(transformer)
    encoder.set_head(load_head(path))
    return encoder


def save_encoder(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase, path: Path, max_length: int | None = None
) -> None:
    """Writes the Hugging Face layout: config.json, model.safetensors and the tokenizer's files.

    Args:
        tokenizer: a copy without the options of its last call is written, so that equal models give equal files.
        max_length: what the tokenizer cuts at when it is loaded again; None: as it was.
    """
    encoder.transformer.save_pretrained(path)
    unused = copy.deepcopy(tokenizer)
    unused.model_max_length = max_length or tokenizer.model_max_length
    if unused.is_fast:
        unused.backend_tokenizer.no_truncation()
        unused.backend_tokenizer.no_padding()
    unused.save_pretrained(path)


def write_checkpoint(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    description: dict[str, Any],
    history: Sequence[dict[str, Any]],
) -> None:
    """Writes a trained encoder with `raysed.json` (what it is) and `history.jsonl` (how its training went).

    Its head, where it has one, is `head.safetensors`.

    Nothing in it differs between equal runs; times are kept in the manifest.

    Args:
        description: what `raysed.json` holds.
    """
    save_encoder(encoder, tokenizer, path)
    if encoder.head:
        save_head(encoder.head_weight(), path)
    (path / "raysed.json").write_text(json.dumps(description, indent=1, sort_keys=True))
    (path / "history.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in history))


def check_encoder(config: EncoderConfig) -> int:
    """Looks at the model's configuration only, before anything is loaded or trained.

    Returns:
        The number of blocks; 1 of a table of vectors.

    Raises:
        UserError: `encoder.path` is no model, or `encoder.layers`, `encoder.max_length` or `encoder.static.width` is
            beyond it.
    """
    found = configuration_of(config)
    if config.static is None:  # whose sentences may be of any length
        _check_length(config, found)
    elif (config.static.width or 1) > found.hidden_size:
        raise UserError(
            f"encoder.static.width is {config.static.width}, but {config.path!r}, from which the vectors start, has "
            f"a width of {found.hidden_size}"
        )
    count = found.num_hidden_layers
    if config.keep_layers is not None:
        if isinstance(config.keep_layers, int) and config.keep_layers > count:
            raise UserError(f"encoder.keep_layers is {config.keep_layers}, but {config.path!r} has {count} layers")
        kept = kept_layers(config.keep_layers, count)
        if kept[-1] >= count:
            raise UserError(
                f"encoder.keep_layers has {kept[-1]}, but {config.path!r} has {count} layers, the last of which is "
                f"{count - 1}"
            )
        count = len(kept)
    if config.static:
        return 1
    if isinstance(config.layers, int) and not 1 <= config.layers <= count:
        raise UserError(f"encoder.layers is {config.layers}, but {config.path!r} has {count} layers")
    return count


def width_of(config: EncoderConfig) -> int:
    """Returns the width of an encoder's embeddings by its configuration only; raises as `check_encoder` does."""
    return (config.static and config.static.width) or configuration_of(config).hidden_size


def configuration_of(config: EncoderConfig) -> PretrainedConfig:
    """Returns the model's own configuration; raises as `check_encoder` does."""
    path = encoder_path(config)
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=config.trust_remote_code, **config.model_kwargs)
    except LOAD_ERRORS as error:
        problem = f"{config.path!r} is neither a model directory nor a hub id that can be reached: {first_line(error)}"
        raise UserError(problem, setting="encoder.path") from None


def encoder_path(config: EncoderConfig) -> str:
    """Returns the directory or hub id behind `encoder.path`."""
    if config.path.startswith(PACKAGE):
        return package_folder(config.path)
    if not config.path.startswith(PREFIX):
        return config.path
    if config.path != f"{PREFIX}encoder":
        raise UserError(f"{config.path!r} is unknown; the bundled model is {PREFIX}encoder", setting="encoder.path")
    return str(ENCODER)


def _mean_pool(states: torch.Tensor, tokens: PackedTokens) -> torch.Tensor:
    """[R, L, D] -> emb_BD; the last slot collects the empty places and is dropped."""
    count, width = len(tokens), states.shape[-1]
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    sums = _sums(states.reshape(-1, width), tokens.segments.reshape(-1), count + 1, states.device.type)
    return sums[:count] / tokens.lengths[:, None].clamp(min=1)


def _first_states(states: torch.Tensor, tokens: PackedTokens) -> torch.Tensor:
    """[R, L, D] -> the state of each sentence's first token, [B, D]."""
    first = (tokens.position_ids == 0) & (tokens.segments < len(tokens))
    order = tokens.segments[first].argsort()
    return states[first][order].to(torch.promote_types(states.dtype, torch.float32))


def _sums(states_TD: torch.Tensor, segments_T: torch.Tensor, count: int, device_type: str) -> torch.Tensor:
    """Adds up the states of each segment, [count, D].

    On CUDA `index_add` adds with atomic operations, in another order each time; `index_put` sorts first, and adds in
    the order of the tokens. On CPUs it is the other way around, but for one thread, with which both are equal.
    """
    zeros = states_TD.new_zeros(count, states_TD.shape[1])
    if device_type == "cuda":
        return zeros.index_put((segments_T,), states_TD, accumulate=True)
    return zeros.index_add(0, segments_T, states_TD)


def _mask(segments: torch.Tensor, feed: _Feed, dtype: torch.dtype) -> torch.Tensor:
    mask = same_sentence(segments)
    if feed.boolean_mask:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def _states(output: Any, all_layers: bool) -> Sequence[torch.Tensor]:
    return output.hidden_states if all_layers else (output.last_hidden_state,)


def _padded_states(transformer: PreTrainedModel, tokens: PackedTokens, all_layers: bool) -> list[torch.Tensor]:
    """The ordinary padded forward, its states put back into the packed layout."""
    count, longest = len(tokens), int(tokens.lengths.max())
    real = tokens.segments < count
    places = tokens.segments[real] * longest + tokens.position_ids[real]
    input_ids = tokens.input_ids.new_full((count, longest), transformer.config.pad_token_id or 0)
    mask = torch.zeros_like(input_ids)
    input_ids.view(-1)[places] = tokens.input_ids[real]
    mask.view(-1)[places] = 1
    with full_precision_attention(input_ids.device):
        output = transformer(input_ids=input_ids, attention_mask=mask, output_hidden_states=all_layers)
    return [_repack(states, real, places) for states in _states(output, all_layers)]


def _repack(states: torch.Tensor, real: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    packed = states.new_zeros(*real.shape, states.shape[-1])
    packed[real] = states.flatten(0, 1)[places]
    return packed


def _probe(transformer: PreTrainedModel) -> _Feed | None:
    """Finds the way of feeding packed rows that gives the padded result, or None."""
    was_training = transformer.training
    transformer.eval()
    try:
        feed = None if _has_windows(transformer) else _first_that_works(transformer)
    finally:
        transformer.train(was_training)
    if feed is None:
        name = type(transformer).__name__
        log.warning("%s does not support packed rows, so it gets padded batches (same results, slower)", name)
    return feed


def _has_windows(transformer: PreTrainedModel) -> bool:
    """Whether tokens of one sentence may be too far apart to see each other, which no short sentence shows."""
    return any(kind != "full_attention" for kind in getattr(transformer.config, "layer_types", None) or [])


@torch.no_grad()
def _first_that_works(transformer: PreTrainedModel) -> _Feed | None:
    """Tries the ways of feeding packed rows, and takes the first that gives the padded result.

    A list of known architectures would be out of date with the next release of transformers, and wrong for code that
    comes with a model. What may differ is the form of the mask and the first position; an architecture that ignores
    either gives other numbers, which three short random sentences show: two of them share a row. Check:
    `tests/model/test_encoder.py::test_packed_equals_padded_with_all_gradients`.
    """
    pad, vocabulary = transformer.config.pad_token_id or 0, transformer.config.vocab_size
    generator = np.random.default_rng(0)
    sentences = [generator.integers(min(pad + 1, vocabulary - 1), vocabulary, size) for size in (3, 5, 6)]
    tokens = pack(TokenTable.from_lists(sentences), row_tokens=8).to(transformer.device)
    expected = _mean_pool(_padded_states(transformer, tokens, False)[0], tokens)
    feeds = [_Feed(offset, boolean) for boolean in (True, False) for offset in (0, pad + 1)]
    return next((feed for feed in feeds if _gives(transformer, tokens, feed, expected)), None)


def _gives(transformer: PreTrainedModel, tokens: PackedTokens, feed: _Feed, expected: torch.Tensor) -> bool:
    try:
        output = transformer(
            input_ids=tokens.input_ids,
            attention_mask=_mask(tokens.segments, feed, transformer.dtype),
            position_ids=tokens.position_ids + feed.position_offset,
        )
        found = _mean_pool(output.last_hidden_state, tokens)
    except (TypeError, ValueError, RuntimeError, IndexError):  # the ways in which an architecture says no
        return False
    return torch.allclose(found, expected, atol=1e-4 if transformer.dtype == torch.float32 else 5e-2)


def _check_length(config: EncoderConfig, found: PretrainedConfig, unused_positions: int = 0) -> None:
    positions = getattr(found, "max_position_embeddings", None)
    if positions and config.max_length > positions - unused_positions:
        longest = positions - unused_positions
        raise UserError(
            f"encoder.max_length is {config.max_length}, but {config.path!r} takes at most {longest} tokens"
        )

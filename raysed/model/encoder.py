"""The encoder of members and learners: a Hugging Face transformer, run without padding, and pooling.

Three short random sentences show whether an architecture embeds packed rows like padded ones. If it does not, the
encoder runs padded batches: same numbers, slower. Architectures that let padding change a vector, such as ConvBERT,
are refused.
"""

import logging
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from raysed.config import Layers
from raysed.data.tokens import PackedTokens, TokenTable, pack, same_sentence
from raysed.errors import UserError
from raysed.model.precision import plain_attention
from raysed.model.static import StaticVectors

log = logging.getLogger(__name__)

_ROUNDING, _ROUNDING_OF_HALVES = 1e-3, 2e-2
"""Largest difference by rounding, in fp32 and in bf16 or fp16, as a share of the largest coordinate."""


class UnsupportedEncoder(UserError):
    """An architecture that only sentence-transformers can run, such as one with a decoder."""


class Encoder(nn.Module):
    """A transformer, pooling (the mean includes special tokens) and, in some learners, a linear head.

    The transformer is any bidirectional encoder that returns hidden states, or `StaticVectors`.

    Attributes:
        pooling: `mean`, or `cls`: the state of each sentence's first token.
        position_offset: first position in packed rows (RoBERTa: padding id + 1); None: rows must be padded.
        parts: passes per batch. Above 1 the backward pass recomputes each part (activation checkpointing), so memory
            holds the activations of one part at a time. Results do not change.
    """

    def __init__(self, transformer: PreTrainedModel):
        super().__init__()
        self.transformer = transformer
        if getattr(transformer.config, "use_cache", False):
            transformer.config.use_cache = False  # decoders would keep keys and values
        self.head: nn.Linear | None = None
        self.pooling: Literal["mean", "cls"] = "mean"
        self.parts = 1
        self.position_offset = None if self.is_static else _probe(transformer)
        for name, parameter in transformer.named_parameters():
            if "pooler" in name:  # unused; frozen to make optimizers and reducers skip it
                parameter.requires_grad_(False)

    @property
    def width(self) -> int:
        return self.head.out_features if self.head else self.transformer.config.hidden_size

    def set_head(self, weight_HD: np.ndarray | None) -> None:
        """Set the linear head, from hidden size H to embedding width D; None removes it."""
        self.head = None
        if weight_HD is None:
            return
        device = next(self.transformer.parameters()).device
        self.head = nn.Linear(*weight_HD.shape, bias=False, device=device)
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(weight_HD.T))

    def head_weight(self) -> np.ndarray | None:
        """Return what `set_head` takes, float32; None without a head."""
        return self.head.weight.detach().cpu().numpy().T if self.head else None

    @property
    def is_static(self) -> bool:
        return isinstance(self.transformer, StaticVectors)

    def use_sparse_gradients(self) -> None:
        """Make token embeddings' gradients sparse on CPUs (GPUs would synchronise). The optimizer must allow it."""
        embedding = self.transformer.get_input_embeddings()
        is_on_cpu = self.transformer.device.type == "cpu"
        if is_on_cpu and type(embedding) is nn.Embedding and not embedding.scale_grad_by_freq:
            embedding.sparse = True

    def round_weights(self) -> None:
        """Convert the transformer's weights to bf16, which embeds faster than autocast.

        Buffers stay in fp32, which rotary frequencies need. A static model would gain nothing.
        """
        if not self.is_static:
            for parameter in self.transformer.parameters():
                parameter.data = parameter.data.to(torch.bfloat16)

    @property
    def is_rounded(self) -> bool:
        return self.transformer.dtype == torch.bfloat16

    def forward(self, tokens: PackedTokens, layers: Layers = 1) -> torch.Tensor:
        """Embed B sentences, averaging `blocks_of(layers)`; return emb_BD in float32 or better."""
        return self.embed(tokens, (layers,))[0]

    def embed(self, tokens: PackedTokens, poolings: Sequence[Layers]) -> list[torch.Tensor]:
        """Embed B sentences with several poolings in one pass; return one emb_BD per pooling."""
        if self.is_static:
            return [self._through_head(self.transformer(tokens))] * len(poolings)
        states = self._hidden_states(tokens, all_layers=any(pooling != 1 for pooling in poolings))
        pool = _mean_pool if self.pooling == "mean" else _first_states
        means = []
        for layers in poolings:
            blocks = [-1] if layers == 1 else blocks_of(layers, len(states) - 1)
            pooled = [pool(states[block], tokens) for block in blocks]
            means.append(pooled[0] if len(pooled) == 1 else torch.stack(pooled).mean(0))
        return [self._through_head(emb_BH) for emb_BH in means]

    def _through_head(self, emb_BH: torch.Tensor) -> torch.Tensor:
        if self.head is None:
            return emb_BH
        with torch.autocast(emb_BH.device.type, enabled=False):
            return self.head(emb_BH.to(self.head.weight.dtype))

    def token_states(self, tokens: PackedTokens) -> torch.Tensor:
        """Return the last block's states in the packed layout, [R, L, D]."""
        return self._hidden_states(tokens, all_layers=False)[-1]

    def _hidden_states(self, tokens: PackedTokens, all_layers: bool) -> Sequence[torch.Tensor]:
        """Return the states [R, L, D] of all layers, embeddings first, or of the last one only."""
        if self.position_offset is None:
            return _padded_states(self.transformer, tokens, all_layers)
        tensors = tokens.input_ids, tokens.position_ids, tokens.segments
        states_of = partial(_packed_states, self.transformer, self.position_offset, all_layers)
        rows = len(tokens.input_ids)
        if self.parts == 1 or rows == 1:
            return states_of(*tensors)
        count = min(self.parts, rows)
        edges = [rows * part // count for part in range(count + 1)]
        # Pass tensors, not the batch: `checkpoint` saves the random state of its tensor arguments' devices only.
        # Otherwise a GPU would draw other dropout masks when it recomputes.
        parts = [
            checkpoint(states_of, *(x[slice(*pair)] for x in tensors), use_reentrant=False) for pair in pairwise(edges)
        ]
        return [torch.cat(block) for block in zip(*parts, strict=True)]


def blocks_of(layers: Layers, count: int) -> list[int]:
    """Return which of `count` blocks a pooling averages; raise UserError for too many layers.

    Index 0 is the embedding layer. `first_last` is what the released BERT-flow code does for its "last two layers".

    >>> blocks_of(2, 12), blocks_of("first_last", 12)
    ([11, 12], [1, 12])
    """
    if layers == "first_last":
        return [1, count]
    if not 1 <= layers <= count:
        raise UserError(f"{layers} layers cannot be pooled: the encoder has {count}")
    return list(range(count - layers + 1, count + 1))


def _mean_pool(states: torch.Tensor, tokens: PackedTokens) -> torch.Tensor:
    """Average each sentence's states, [R, L, D] -> emb_BD; drop segment B, the empty slots."""
    count, width = len(tokens), states.shape[-1]
    states = states.to(torch.promote_types(states.dtype, torch.float32))
    sums = _sums(states.reshape(-1, width), tokens.segments.reshape(-1), count + 1, states.device.type)
    return sums[:count] / tokens.lengths[:, None].clamp(min=1)


def _first_states(states: torch.Tensor, tokens: PackedTokens) -> torch.Tensor:
    """Return each sentence's first state, [R, L, D] -> [B, D]; 0 without tokens."""
    # Other tokens go to a last segment, which is dropped: selecting by a mask would make a GPU synchronise.
    segments = tokens.segments.where(tokens.position_ids == 0, len(tokens)).flatten()
    found = states.new_zeros(len(tokens) + 1, states.shape[-1], dtype=torch.promote_types(states.dtype, torch.float32))
    return found.index_put((segments,), states.flatten(0, 1).to(found.dtype))[:-1]


def _sums(states_TD: torch.Tensor, segments_T: torch.Tensor, count: int, device_type: str) -> torch.Tensor:
    """Sum the states of each segment, [count, D], in a reproducible order.

    On CUDA the order of `index_add` varies between calls, on CPUs that of `index_put`.
    """
    zeros = states_TD.new_zeros(count, states_TD.shape[1])
    if device_type == "cuda":
        return zeros.index_put((segments_T,), states_TD, accumulate=True)
    return zeros.index_add(0, segments_T, states_TD)


def _packed_states(
    transformer: PreTrainedModel,
    offset: int,
    all_layers: bool,
    input_ids: torch.Tensor,
    position_ids: torch.Tensor,
    segments: torch.Tensor,
) -> Sequence[torch.Tensor]:
    sees, dtype = same_sentence(segments), transformer.dtype
    mask = torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill(~sees, torch.finfo(dtype).min)
    return _states(transformer, input_ids, mask, all_layers, position_ids=position_ids + offset)


def _padded_states(transformer: PreTrainedModel, tokens: PackedTokens, all_layers: bool) -> list[torch.Tensor]:
    """Run padded rows; return states in the packed layout."""
    count, longest = len(tokens), max(1, int(tokens.lengths.max()))
    real = tokens.segments < count
    places = tokens.segments[real] * longest + tokens.position_ids[real]
    input_ids = tokens.input_ids.new_full((count, longest), transformer.config.pad_token_id or 0)
    mask = torch.zeros_like(input_ids)
    input_ids.view(-1)[places] = tokens.input_ids[real]
    mask.view(-1)[places] = 1
    found = []
    for states in _states(transformer, input_ids, mask, all_layers):
        packed = states.new_zeros(*real.shape, states.shape[-1])
        packed[real] = states.flatten(0, 1)[places]
        found.append(packed)
    return found


def _states(
    transformer: PreTrainedModel, input_ids: torch.Tensor, mask: torch.Tensor, all_layers: bool, **positions: Any
) -> Sequence[torch.Tensor]:
    options = {"output_hidden_states": all_layers, **positions}
    with plain_attention(input_ids.device):
        output = transformer(input_ids=input_ids, attention_mask=mask, **options)
    return output.hidden_states if all_layers else (output.last_hidden_state,)


@torch.no_grad()
def _probe(transformer: PreTrainedModel) -> int | None:
    """Return the first position for which packed rows give the padded result, or None."""
    was_training, found = transformer.training, None
    transformer.eval()
    pad, vocabulary = transformer.config.pad_token_id or 0, transformer.config.vocab_size
    generator = np.random.default_rng(0)
    sentences = [generator.integers(min(pad + 1, vocabulary - 1), vocabulary, size) for size in (3, 5, 6)]
    tokens = pack(TokenTable.from_lists(sentences), row_tokens=8).to(transformer.device)
    # Two sentences share a row, so an architecture that ignores the mask or the positions gives other numbers.
    expected = _mean_pool(_padded_states(transformer, tokens, False)[0], tokens)
    # Short sentences cannot reveal attention that is limited to a window.
    if all(kind == "full_attention" for kind in getattr(transformer.config, "layer_types", None) or []):
        found = next(
            (offset for offset in (0, pad + 1) if _matches_padded(transformer, tokens, offset, expected)), None
        )
    if found is None:
        name = type(transformer).__name__
        for sentence, expected_D in zip(sentences, expected):
            alone = pack(TokenTable.from_lists([sentence]), row_tokens=8).to(transformer.device)
            difference_D = _mean_pool(_padded_states(transformer, alone, False)[0], alone)[0] - expected_D
            share = _ROUNDING if transformer.dtype == torch.float32 else _ROUNDING_OF_HALVES
            if difference_D.abs().max() > share * expected_D.abs().max():
                raise UnsupportedEncoder(
                    f"{name} embeds a sentence differently if it is padded; use another architecture"
                )
        log.warning("%s does not support packed rows, so it gets padded batches (same results, slower)", name)
    transformer.train(was_training)
    return found


def _matches_padded(transformer: PreTrainedModel, tokens: PackedTokens, offset: int, expected: torch.Tensor) -> bool:
    tensors = tokens.input_ids, tokens.position_ids, tokens.segments
    try:
        found = _mean_pool(_packed_states(transformer, offset, False, *tensors)[0], tokens)
    except (TypeError, ValueError, RuntimeError, IndexError, AssertionError):  # how architectures reject such inputs
        return False
    return torch.allclose(found, expected, atol=1e-4 if transformer.dtype == torch.float32 else 5e-2)

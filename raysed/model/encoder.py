"""The one module of members and learner: a Hugging Face transformer, fed without padding, and pooling.

An architecture takes packed rows when its public `forward` gives the padded result for them, which is tried once on
short random sentences; one that does not is fed padded batches instead, with the same numbers.
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
from raysed.model.precision import full_precision_attention
from raysed.model.static import StaticVectors

log = logging.getLogger(__name__)


class Encoder(nn.Module):
    """Transformer + mean pooling over all real tokens, special ones included; learners may have a linear head after it.

    The transformer is any bidirectional encoder of transformers that gives hidden states, or a table of vectors.

    Attributes:
        pooling: `mean`, or `cls`: the state of each sentence's first token.
        position_offset: where positions begin (RoBERTa: the padding id + 1) in packed rows; None: it takes none.
        parts: passes that a batch is cut into. With more than one, each is computed again for its gradient, so that
            memory holds the inner states of one part at a time; the result is the same.
    """

    def __init__(self, transformer: PreTrainedModel):
        super().__init__()
        self.transformer = transformer
        self.head: nn.Linear | None = None
        self.pooling: Literal["mean", "cls"] = "mean"
        self.parts = 1
        self.position_offset = None if self.is_static else _probe(transformer)
        for name, parameter in transformer.named_parameters():
            if "pooler" in name:  # never used here; frozen, so that optimizers and reducers skip it
                parameter.requires_grad_(False)

    @property
    def width(self) -> int:
        """Size D of the embeddings."""
        return self.head.out_features if self.head else self.transformer.config.hidden_size

    def set_head(self, weight_HD: np.ndarray | None) -> None:
        """Set the head, from the transformer's size to the width of the embeddings; None removes it."""
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
        """Whether it is a table of one vector per token."""
        return isinstance(self.transformer, StaticVectors)

    def use_sparse_gradients(self) -> None:
        """Let the token embeddings' gradient hold the rows of the batch only; the optimizer has to take that.

        Not on a GPU, where the number of these rows would have to be waited for.
        """
        embedding = self.transformer.get_input_embeddings()
        is_on_cpu = self.transformer.device.type == "cpu"
        if is_on_cpu and type(embedding) is nn.Embedding and not embedding.scale_grad_by_freq:
            embedding.sparse = True

    def forward(self, tokens: PackedTokens, layers: Layers = 1) -> torch.Tensor:
        """Embed B sentences by the mean of `blocks_of(layers)`, emb_BD, in float32 or better."""
        return self.embed(tokens, (layers,))[0]

    def embed(self, tokens: PackedTokens, poolings: Sequence[Layers]) -> list[torch.Tensor]:
        """Embed B sentences under several poolings with one pass; return one emb_BD per pooling."""
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
        """Return the last block's states in the packed layout, [R, L, D], for token-level objectives."""
        return self._hidden_states(tokens, all_layers=False)[-1]

    def _hidden_states(self, tokens: PackedTokens, all_layers: bool) -> Sequence[torch.Tensor]:
        """States of the embedding layer and every block (or of the last block only), each [R, L, D]."""
        if self.position_offset is None:
            return _padded_states(self.transformer, tokens, all_layers)
        tensors = tokens.input_ids, tokens.position_ids, tokens.segments
        states_of = partial(_packed_states, self.transformer, self.position_offset, all_layers)
        rows = len(tokens.input_ids)
        if self.parts == 1 or rows == 1:
            return states_of(*tensors)
        count = min(self.parts, rows)
        edges = [rows * part // count for part in range(count + 1)]
        # Tensors, not the batch: `checkpoint` keeps the random state of those devices whose tensors it is given, and
        # does not look into a dataclass. Else the second pass on a GPU would draw other dropout masks.
        parts = [
            checkpoint(states_of, *(x[slice(*pair)] for x in tensors), use_reentrant=False) for pair in pairwise(edges)
        ]
        return [torch.cat(block) for block in zip(*parts, strict=True)]


def blocks_of(layers: Layers, count: int) -> list[int]:
    """Return the indices of the blocks that a pooling averages, for a transformer of `count` blocks.

    Index 0 is the embedding layer; UserError where there are too few. `first_last` is what the released BERT-flow code
    does under the name of the last two layers.

    >>> blocks_of(2, 12), blocks_of("first_last", 12)
    ([11, 12], [1, 12])
    """
    if layers == "first_last":
        return [1, count]
    if not 1 <= layers <= count:
        raise UserError(f"{layers} layers cannot be pooled: the encoder has {count}")
    return list(range(count - layers + 1, count + 1))


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
    """Add up the states of each segment, [count, D].

    On CUDA `index_add` adds in another order each time, and `index_put` in that of the tokens; on CPUs it is the other
    way around.
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
    """The ordinary padded forward, its states put back into the packed layout."""
    count, longest = len(tokens), int(tokens.lengths.max())
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
    with full_precision_attention(input_ids.device):
        output = transformer(input_ids=input_ids, attention_mask=mask, **options)
    return output.hidden_states if all_layers else (output.last_hidden_state,)


@torch.no_grad()
def _probe(transformer: PreTrainedModel) -> int | None:
    """Find the position of first tokens with which packed rows give the padded result, or None.

    An architecture that ignores the mask or the positions gives other numbers, which three short random sentences show:
    two of them share a row.
    """
    was_training, found = transformer.training, None
    transformer.eval()
    # Tokens of one sentence may be too far apart to see each other, which no short sentence shows.
    if all(kind == "full_attention" for kind in getattr(transformer.config, "layer_types", None) or []):
        pad, vocabulary = transformer.config.pad_token_id or 0, transformer.config.vocab_size
        generator = np.random.default_rng(0)
        sentences = [generator.integers(min(pad + 1, vocabulary - 1), vocabulary, size) for size in (3, 5, 6)]
        tokens = pack(TokenTable.from_lists(sentences), row_tokens=8).to(transformer.device)
        expected = _mean_pool(_padded_states(transformer, tokens, False)[0], tokens)
        found = next((offset for offset in (0, pad + 1) if _gives(transformer, tokens, offset, expected)), None)
    transformer.train(was_training)
    if found is None:
        name = type(transformer).__name__
        log.warning("%s does not support packed rows, so it gets padded batches (same results, slower)", name)
    return found


def _gives(transformer: PreTrainedModel, tokens: PackedTokens, offset: int, expected: torch.Tensor) -> bool:
    tensors = tokens.input_ids, tokens.position_ids, tokens.segments
    try:
        found = _mean_pool(_packed_states(transformer, offset, False, *tensors)[0], tokens)
    except (TypeError, ValueError, RuntimeError, IndexError):  # the ways in which an architecture says no
        return False
    return torch.allclose(found, expected, atol=1e-4 if transformer.dtype == torch.float32 else 5e-2)

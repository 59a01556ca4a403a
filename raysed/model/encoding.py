"""Embed whole tables without gradients, in passes of sentences of about equal length."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain

import numpy as np
import torch

from raysed.config import Layers
from raysed.data.tokens import PackedTokens, TokenTable, batches_by_tokens, pack
from raysed.errors import UserError
from raysed.model.encoder import Encoder

log = logging.getLogger(__name__)

_Embed = Callable[[PackedTokens], Sequence[torch.Tensor]]
_Read = Callable[[], np.ndarray]

_OOM_MESSAGES = ("allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")
"""Of torch's CPU allocator, CUDA's runtime and its libraries, such as cuBLAS; the latter in a RuntimeError."""


def encode(
    encoder: Encoder,
    table: TokenTable,
    poolings: Sequence[Layers] = (1,),
    token_budget: int | None = None,
    bf16: bool = False,
) -> list[np.ndarray]:
    """Embed a whole table; return float32 emb_ND for each pooling, rows in the order of the table.

    A pass for which memory does not suffice is cut in two, and so are all after it.

    Args:
        encoder: put in evaluation mode for the call and back afterwards.
        token_budget: tokens per forward pass; None: what suits the device.
        bf16: whether its products are in bf16; the pooling is in fp32 all the same.

    Raises:
        UserError: memory does not suffice for a single sentence.
    """
    widths = [encoder.width] * len(poolings)
    return _encode([encoder], table, lambda packed: encoder.embed(packed, poolings), token_budget, bf16, widths)


def encode_sums(
    groups: Sequence[Sequence[Encoder]], table: TokenTable, token_budget: int | None = None, bf16: bool = False
) -> list[np.ndarray]:
    """Return the sum of each group's embeddings by their last layer, float32 [N, D]; passes are packed once for all.

    Encoders are of one width in each group, and all on one device. For the rest see `encode`.
    """

    def sums(packed: PackedTokens) -> list[torch.Tensor]:
        return [sum(encoder.embed(packed, (1,))[0].float() for encoder in group) for group in groups]

    widths = [group[0].width for group in groups]
    return _encode(list(chain(*groups)), table, sums, token_budget, bf16, widths)


def default_token_budget(device: torch.device | str) -> int:
    """Return the tokens per forward pass that suit a device.

    On CPUs 8,192 take a sixth longer than 2,048, out of the caches. A GPU is done with a small pass before the next one
    has been started.

    >>> default_token_budget("cpu"), default_token_budget("cuda")
    (2048, 65536)
    """
    return 2048 if torch.device(device).type == "cpu" else 65536


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error means that memory has run out, the machine's or a GPU's."""
    has_message = any(message in str(error) for message in _OOM_MESSAGES)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or has_message


def _encode(
    encoders: Sequence[Encoder],
    table: TokenTable,
    embed: _Embed,
    token_budget: int | None,
    bf16: bool,
    widths: Sequence[int],
) -> list[np.ndarray]:
    """Return what `embed` gives for the whole table, one [N, D] for each of the widths."""
    results = [np.empty((len(table), width), np.float32) for width in widths]
    device = next(encoders[0].parameters()).device
    were_training = [encoder.training for encoder in encoders]
    for encoder in encoders:
        encoder.eval()
    try:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
            waiting: tuple[np.ndarray, list[_Read]] | None = None
            passes = _passes(table, embed, token_budget or default_token_budget(device), device)
            for started in chain(passes, [None]):  # a result is read when the next pass has been started on the GPU
                if waiting:
                    rows, reads = waiting
                    for result, read in zip(results, reads, strict=True):
                        result[rows] = read()
                waiting = started
    finally:
        for encoder, was_training in zip(encoders, were_training):
            encoder.train(was_training)
    return results


def _passes(
    table: TokenTable, embed: _Embed, token_budget: int, device: torch.device
) -> Iterator[tuple[np.ndarray, list[_Read]]]:
    """Yield rows and functions that read their embeddings, in passes that fit into memory, the longest sentences first.

    Sentences of a pass are about as long as each other: one a row leaves nothing empty.
    """
    passes = deque(batches_by_tokens(table.lengths, token_budget))
    while passes:
        rows = passes.popleft()
        reads = None
        try:
            packed = pack(table.take(rows), row_tokens=1).to(device)
            reads = [_copy_to_host(x_BD.float()) for x_BD in embed(packed)]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        if reads is not None:
            yield rows, reads
            continue
        if device.type == "cuda":  # out of the except block, whose traceback keeps what the failed pass holds
            torch.cuda.empty_cache()
        longest = int(table.lengths[rows].max())
        if len(rows) == 1:
            raise UserError(
                f"there is not enough memory to embed a sentence of {longest} tokens; lower encoder.max_length, or use "
                "a smaller encoder"
            )
        log.warning("not enough memory to embed %d sentences of up to %d tokens at once: halved", len(rows), longest)
        passes = deque(half for rows in (rows, *passes) for half in np.array_split(rows, 2) if len(half))


def _copy_to_host(x_BD: torch.Tensor) -> _Read:
    """Start a copy to the machine's memory behind the GPU's work; return a function that waits for it."""
    if not x_BD.is_cuda:
        return x_BD.numpy
    copied_BD = torch.empty(x_BD.shape, dtype=x_BD.dtype, pin_memory=True)  # a copy to other memory would be waited for
    copied_BD.copy_(x_BD, non_blocking=True)
    done = torch.cuda.current_stream(x_BD.device).record_event()

    def read() -> np.ndarray:
        done.synchronize()
        return copied_BD.numpy()

    return read

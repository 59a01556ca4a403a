"""Embed whole tables without gradients, in passes over sentences of similar length."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import numpy as np
import torch

from raysed.config import Layers
from raysed.data.tokens import PackedTokens, TokenTable, batches_by_tokens, pack
from raysed.errors import UserError, is_out_of_memory
from raysed.model.encoder import Encoder

log = logging.getLogger(__name__)


def encode(
    encoder: Encoder,
    table: TokenTable,
    poolings: Sequence[Layers] = (1,),
    token_budget: int | None = None,
    on_rows: Callable[[int], None] | None = None,
    dropout: bool = False,
) -> list[np.ndarray]:
    """Embed a whole table, by default without dropout; return float32 emb_ND for each pooling, rows in table order.

    If a pass runs out of memory, it and all later ones are halved; UserError if one sentence does not fit.
    `token_budget` is per pass (None: `default_token_budget`). `on_rows` is called after each pass with the number of
    sentences embedded so far.
    """
    results = [np.empty((len(table), encoder.width), np.float32) for _ in poolings]
    device, was_training, done = next(encoder.parameters()).device, encoder.training, 0
    passes = deque(batches_by_tokens(table.lengths, token_budget or default_token_budget(device)))
    encoder.train(dropout)
    packed = ThreadPoolExecutor(1, "pack")  # packs the next pass while a GPU computes
    ahead = None
    try:
        while passes:
            rows = passes.popleft()
            tokens = ahead.result() if ahead else _pack(table, rows)
            ahead = packed.submit(_pack, table, passes[0]) if passes and device.type == "cuda" else None
            found = _embed(encoder, tokens, poolings, device)
            if found is None:
                ahead = None
                passes = deque(half for rows in (rows, *passes) for half in np.array_split(rows, 2) if len(half))
                continue
            for result, x_BD in zip(results, found, strict=True):
                result[rows] = x_BD
            done += len(rows)
            if on_rows:
                on_rows(done)
    finally:
        encoder.train(was_training)
        packed.shutdown(cancel_futures=True)
    return results


def _pack(table: TokenTable, rows: np.ndarray) -> PackedTokens:
    """Pack rows as long as the longest sentence: lengths are similar, so few slots stay empty."""
    return pack(table.take(rows), row_tokens=1)


@torch.no_grad()
def _embed(
    encoder: Encoder, tokens: PackedTokens, poolings: Sequence[Layers], device: torch.device
) -> list[np.ndarray] | None:
    """Embed one pass; return None if memory runs out."""
    try:
        with torch.autocast(device.type, torch.bfloat16) if _needs_autocast(encoder, device) else nullcontext():
            found = encoder.embed(tokens.to(device), poolings)
        return [x_BD.float().cpu().numpy() for x_BD in found]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if device.type == "cuda":  # outside `except`, whose traceback keeps the failed pass's tensors alive
        torch.cuda.empty_cache()
    longest = int(tokens.lengths.max())
    if len(tokens) == 1:
        raise UserError(
            f"not enough memory to embed a sentence of {longest} tokens; lower encoder.max_length (of a "
            "teacher: teachers.max_length), or use a smaller model"
        )
    log.warning(
        "not enough memory to embed %d sentences of up to %d tokens at once; halving the batch", len(tokens), longest
    )
    return None


def _needs_autocast(encoder: Encoder, device: torch.device) -> bool:
    """Return whether autocast must round what an architecture with weights in bf16 computes from fp32 buffers.

    On GPUs autocast also computes normalisations in fp32: a fifth of the time, for no smaller errors.
    """
    has_buffers = any(buffer.is_floating_point() for buffer in encoder.transformer.buffers())
    return encoder.is_rounded and (has_buffers or device.type != "cuda")


def default_token_budget(device: torch.device | str) -> int:
    """Return the tokens per forward pass on a device.

    On CPUs 8,192 tokens overflow the caches and take a sixth longer than 2,048. GPUs finish small passes before the
    next one is launched.

    >>> default_token_budget("cpu"), default_token_budget("cuda")
    (2048, 65536)
    """
    return 2048 if torch.device(device).type == "cpu" else 65536

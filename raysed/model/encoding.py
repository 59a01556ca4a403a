"""Embed whole tables without gradients, in passes of sentences of about equal length."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch

from raysed.config import Layers
from raysed.data.tokens import TokenTable, batches_by_tokens, pack
from raysed.errors import UserError
from raysed.model.encoder import Encoder

log = logging.getLogger(__name__)

_OOM_MESSAGES = ("allocate memory", "out of memory", "_STATUS_ALLOC_FAILED")
"""Of torch's CPU allocator, CUDA's runtime and its libraries, such as cuBLAS; the latter in a RuntimeError."""


def encode(
    encoder: Encoder,
    table: TokenTable,
    poolings: Sequence[Layers] = (1,),
    token_budget: int | None = None,
    bf16: bool = False,
    on_rows: Callable[[int], None] | None = None,
) -> list[np.ndarray]:
    """Embed a whole table, without dropout; return float32 emb_ND for each pooling, rows in the order of the table.

    A pass for which memory does not suffice is cut in two, and so are all after it. `token_budget` is that of a pass
    (None: what suits the device). With `bf16` products are in bf16, and the pooling is in fp32 all the same. `on_rows`
    is told after each pass how many sentences are embedded so far.
    """
    results = [np.empty((len(table), encoder.width), np.float32) for _ in poolings]
    device, was_training, done = next(encoder.parameters()).device, encoder.training, 0
    passes = deque(batches_by_tokens(table.lengths, token_budget or default_token_budget(device)))
    encoder.eval()
    try:
        while passes:
            rows = passes.popleft()
            found = _embed(encoder, table.take(rows), poolings, bf16, device)
            if found is None:
                passes = deque(half for rows in (rows, *passes) for half in np.array_split(rows, 2) if len(half))
                continue
            for result, x_BD in zip(results, found, strict=True):
                result[rows] = x_BD
            done += len(rows)
            if on_rows:
                on_rows(done)
    finally:
        encoder.train(was_training)
    return results


@torch.no_grad()
def _embed(
    encoder: Encoder, table: TokenTable, poolings: Sequence[Layers], bf16: bool, device: torch.device
) -> list[np.ndarray] | None:
    """Embed one pass; return None where memory does not suffice. One sentence a row leaves hardly anything empty."""
    try:
        with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
            found = encoder.embed(pack(table, row_tokens=1).to(device), poolings)
        return [x_BD.float().cpu().numpy() for x_BD in found]
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    if device.type == "cuda":  # out of the except block, whose traceback keeps what the failed pass holds
        torch.cuda.empty_cache()
    longest = int(table.lengths.max())
    if len(table) == 1:
        raise UserError(
            f"there is not enough memory to embed a sentence of {longest} tokens; lower encoder.max_length, or use "
            "a smaller encoder"
        )
    log.warning("not enough memory to embed %d sentences of up to %d tokens at once: halved", len(table), longest)
    return None


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

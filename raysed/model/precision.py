"""Decide where bf16 is fast, and choose how attention is computed in it.

torch's fused attention does not use the bf16 products of CPUs. Its forward pass takes up to twice as long as plain
products and a softmax, its backward pass 5 times as long as in float32. On recent GPUs, torch 2.11 to 2.13 lets cuDNN
compute attention, which prepares each new shape of batch for up to a second, and whose backward pass with a mask may
return NaN at lengths of 64 modulo 128 (pytorch/pytorch#196678).
"""

import logging
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from raysed.config import Precision, stable_hash
from raysed.data.tokens import TokenTable, pack
from raysed.store import cache

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder

log = logging.getLogger(__name__)

_GAIN = 1.2  # how much faster bf16 must be
_SLOW = 3  # a bf16 product this much slower is emulated, and a whole pass would take minutes
_LENGTH = 32  # tokens per sentence of a measured pass
_MOST_TOKENS, _WORK = 2048, 3e10  # limits of a measured pass: tokens, and tokens times weights


def has_bf16(device: torch.device | str) -> bool:
    """Return whether a device is a GPU that computes in bf16; those before Ampere emulate it."""
    return torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def uses_bf16(precision: Precision, encoder: "Encoder") -> bool:
    """Return whether to run an encoder's forward passes in bf16.

    `auto` uses bf16 on GPUs that have it, and on CPUs where it is faster: a measurement of a second, once per machine
    and model.
    """
    if precision in ("fp32", "bf16"):
        return precision == "bf16"
    device = next(encoder.parameters()).device
    return has_bf16(device) if device.type != "cpu" else _measured_once(encoder)


def _measured_once(encoder: "Encoder") -> bool:
    """Measure once and remember the decision: near the limit, a second measurement could differ.

    All workers on a corpus, and a resumed training, must compute in one precision.
    """
    transformer = encoder.transformer
    shapes = [f"{name} {list(p.shape)}" for name, p in transformer.named_parameters()]
    about = [type(transformer).__name__, stable_hash(shapes), _processor(), torch.__version__, torch.get_num_threads()]
    place = cache.directory() / ".precision"
    place.mkdir(exist_ok=True)
    path = place / stable_hash(about)
    if not path.exists():
        faster = is_faster_in_bf16(encoder)
        with tempfile.NamedTemporaryFile("w", dir=place) as file, suppress(FileExistsError):
            file.write("bf16" if faster else "fp32")
            file.flush()
            os.link(file.name, path)  # the first of several processes decides
    return path.read_text() == "bf16"


def _processor() -> str:
    info = Path("/proc/cpuinfo")  # on Linux
    lines = info.read_text().splitlines() if info.exists() else []
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags"))})) or platform.machine()


@torch.no_grad()
def is_faster_in_bf16(encoder: "Encoder") -> bool:
    """Measure whether forward passes are faster here with bf16 weights."""
    layers = [module for module in encoder.transformer.modules() if isinstance(module, nn.Linear)]
    if encoder.is_static or not layers:
        return False
    weights = [layer.weight for layer in layers]
    largest = max(weights, key=torch.Tensor.numel)
    x = torch.ones(8 * _LENGTH, largest.shape[1])
    fp32, bf16 = (_seconds(partial(F.linear, x.to(dtype), largest.to(dtype))) for dtype in (x.dtype, torch.bfloat16))
    if bf16 > _SLOW * fp32:
        return False
    count = min(_WORK / sum(map(torch.Tensor.numel, weights)), _MOST_TOKENS)
    shape = max(int(count) // _LENGTH, 8), _LENGTH
    ids = np.random.default_rng(0).integers(encoder.transformer.config.vocab_size, size=shape)
    tokens = pack(TokenTable.from_lists(ids.tolist()), row_tokens=1)
    rounded = {name: p.bfloat16() for name, p in encoder.transformer.named_parameters(prefix="transformer")}
    was_training = encoder.training
    encoder.eval()
    try:
        fp32 = _seconds(partial(encoder, tokens))
        with torch.autocast("cpu", torch.bfloat16):
            bf16 = _seconds(partial(functional_call, encoder, rounded, (tokens,)))
    except (RuntimeError, IndexError, TypeError, ValueError):  # it needs shorter sentences, or rejects bf16
        return False
    finally:
        encoder.train(was_training)
    log.info("a pass in fp32 takes %.3g s, in bf16 %.3g s", fp32, bf16)
    return fp32 > _GAIN * bf16


def _seconds(action: Callable[[], Any]) -> float:
    """Time an action after a warm-up: the fastest of up to three calls, fewer if they are slow."""
    times = []
    while len(times) < 2 or (len(times) < 4 and sum(times) < 0.3):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def plain_attention(device: torch.device) -> AbstractContextManager:
    """Return a context in which bf16 attention on a CPU is two products and a softmax, all in bf16.

    On a GPU, disable cuDNN's attention in this process.

    >>> q = torch.randn(1, 2, 3, 4)
    >>> with torch.autocast("cpu", torch.bfloat16), plain_attention(q.device):
    ...     F.scaled_dot_product_attention(q, q, q).dtype
    torch.bfloat16
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)
    is_bf16 = device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return _PlainAttention() if is_bf16 else nullcontext()


class _PlainAttention(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Iterable[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            return _attention(*args, **(kwargs or {}))


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    query, key, value = (x.to(torch.bfloat16) for x in (query, key, value))
    if is_causal or enable_gqa:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    scores = torch.matmul(query * (query.shape[-1] ** -0.5 if scale is None else scale), key.mT)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill_(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores += attn_mask
    return torch.matmul(F.dropout(scores.softmax(-1), dropout_p), value)

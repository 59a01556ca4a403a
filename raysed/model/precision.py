"""Decide where bf16 is fast, and choose how attention is computed in it.

torch's fused attention does not use the bf16 products of CPUs. Its forward pass takes up to twice as long as plain
products and a softmax, its backward pass 5 times as long as in float32. On recent GPUs, torch 2.11 to 2.13 lets cuDNN
compute attention, which prepares each new shape of batch for up to a second, and whose backward pass with a mask may
return NaN at lengths of 64 modulo 128 (pytorch/pytorch#196678).
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from raysed.config import Precision

if TYPE_CHECKING:
    from raysed.model.encoder import Encoder

_BF16 = {"amx_bf16", "avx512_bf16", "bf16"}
"""Flags of CPUs with products in bf16: two of x86, and ARM's."""
_FEWEST_WEIGHTS = 2_500_000
"""Weights from which bf16 is used on these: 2.9 million gained by it (docs/performance.md#bf16-on-cpus)."""


def has_bf16(device: torch.device | str) -> bool:
    """Return whether a device is a GPU that computes in bf16; those before Ampere emulate it."""
    return torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def uses_bf16(precision: Precision, encoder: "Encoder") -> bool:
    """Return whether to run an encoder's forward passes in bf16.

    `auto` uses bf16 on GPUs that have it. On CPUs, the processor's flags and the number of weights decide; static
    models stay in fp32. So all workers on one kind of machine, and a resumed training, compute in one precision.
    """
    weights = 0 if encoder.is_static else sum(weights.numel() for weights in encoder.parameters())
    return is_bf16(precision, next(encoder.parameters()).device, weights)


def is_bf16(precision: Precision, device: torch.device | str, weights: int) -> bool:
    """Return what `uses_bf16` does for a model of so many weights, which need not be loaded."""
    if precision in ("fp32", "bf16"):
        return precision == "bf16"
    if torch.device(device).type != "cpu":
        return has_bf16(device)
    return weights >= _FEWEST_WEIGHTS and not _BF16.isdisjoint(cpu_flags())


@cache
def cpu_flags() -> frozenset[str]:
    """Return the flags that Linux lists for this machine's CPUs; empty on other systems."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    listed = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(listed, "").split())


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

"""Where bf16 is fast, and float32 attention for forward passes that are otherwise in bf16 on a CPU.

On CPUs the backward pass of torch's fused attention takes 5 times as long in bf16; the forward pass is no faster.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from raysed.config import Precision


def has_bf16(device: torch.device | str) -> bool:
    """Return whether bf16 is fast: on GPUs since Ampere (older ones emulate it) and on CPUs with AMX."""
    if torch.device(device).type == "cpu":
        return torch.cpu._is_amx_tile_supported()
    return torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def uses_bf16(precision: Precision, device: torch.device | str) -> bool:
    """Return whether to run forward passes in bf16; `auto` asks `has_bf16`."""
    return precision == "bf16" or (precision == "auto" and has_bf16(device))


def full_precision_attention(device: torch.device) -> AbstractContextManager:
    """Return a context that runs `scaled_dot_product_attention` in float32 on a CPU under bf16 autocast.

    >>> q = torch.randn(1, 2, 3, 4)
    >>> with torch.autocast("cpu", torch.bfloat16), full_precision_attention(q.device):
    ...     F.scaled_dot_product_attention(q, q, q).dtype
    torch.float32
    """
    is_bf16 = device.type == "cpu" and torch.is_autocast_enabled("cpu")
    return _FullPrecisionAttention() if is_bf16 else nullcontext()


class _FullPrecisionAttention(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable, types: Iterable[type], args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        with torch.autocast("cpu", enabled=False):
            return func(*map(_widened, args), **{name: _widened(value) for name, value in kwargs.items()})


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16 else value

"""Which precision is fast on a device."""

import torch

from raysed.config import Precision


def has_bf16(device: torch.device | str) -> bool:
    """Whether a device's hardware is so much faster in bf16 that it pays: GPUs since Ampere, and CPUs with AMX.

    CUDA emulates bf16 on older GPUs, such as V100 and T4, in several times the time that fp32 takes. A CPU that has
    bf16 without AMX gains little.
    """
    if torch.device(device).type == "cpu":
        return torch.cpu._is_amx_tile_supported()
    return torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def uses_bf16(precision: Precision, device: torch.device | str) -> bool:
    """Whether forward passes on this device are to be in bf16; `auto` is bf16 where `has_bf16` says so."""
    return precision == "bf16" or (precision == "auto" and has_bf16(device))

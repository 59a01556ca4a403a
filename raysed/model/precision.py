"""What a device computes well in."""

import torch

from raysed.config import Precision


def has_bf16(device: torch.device | str) -> bool:
    """Whether a device is a GPU whose hardware multiplies in bf16.

    CUDA emulates bf16 on older GPUs, such as V100 and T4, in several times the time that fp32 takes; that does not
    count.

    Args:
        device: of this process.

    >>> has_bf16("cpu")
    False
    """
    return torch.device(device).type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def uses_bf16(precision: Precision, device: torch.device | str) -> bool:
    """Whether a forward pass on this device is to be in bf16.

    Args:
        precision: the setting; `auto` is bf16 where the hardware has it.
        device: where it is computed.
    """
    return precision == "bf16" or (precision == "auto" and has_bf16(device))


def encodes_in_bf16(precision: Precision, device: torch.device | str) -> bool:
    """Whether teachers embed in bf16 on a device.

    Args:
        precision: the setting; `auto` is bf16 as for `uses_bf16`, and on CPUs with AMX, where a forward pass takes less
            than half of the time. A CPU that has bf16 without AMX gains little.
        device: of this process.
    """
    if precision == "auto" and torch.device(device).type == "cpu":
        return torch.cpu._is_amx_tile_supported()
    return uses_bf16(precision, device)

"""What a device computes well in."""

import torch


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

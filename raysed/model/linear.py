"""Linear layers by oneDNN, where MKL leaves AVX-512 unused: encoding takes 7 % less time on a busy AMD core.

MKL, torch's choice for float32, decides by the vendor of a processor which instructions it uses: on AMD's it does
without AVX-512. oneDNN, which torch has too and multiplies bf16 with, asks for the instructions alone. Its tensors are
copied in and out. How many of its programs it keeps is set where a process starts, in cluster/process.py.
"""

from functools import cache
from pathlib import Path

import torch
from torch import nn


def speed_up(model: nn.Module) -> None:
    """Let plain linear layers, not subclasses, multiply by oneDNN where that is faster; weights stay the same."""
    if onednn_is_faster():
        for module in model.modules():
            if type(module) is nn.Linear:
                module.__class__ = OneDnnLinear


def as_usual(model: nn.Module) -> nn.Module:
    """Take back what `speed_up` did: products of several members at once are not oneDNN's."""
    for module in model.modules():
        if type(module) is OneDnnLinear:
            module.__class__ = nn.Linear
    return model


@cache
def onednn_is_faster() -> bool:
    """Whether torch's MKL would leave AVX-512 unused; the kind of processor decides, so that runs are repeatable."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and _vendor() == "AuthenticAMD"
    )


class OneDnnLinear(nn.Linear):
    """A linear layer whose products in float32 on the CPU are oneDNN's; all else goes the usual way."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return x W^T + b for x [..., I]."""
        return by_onednn(input, self.weight, self.bias)


def linear(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return x W^T + b for x [..., I], by oneDNN where that is faster."""
    return (by_onednn if onednn_is_faster() else nn.functional.linear)(x, weight_OI, bias_O)


def by_onednn(x: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None) -> torch.Tensor:
    """Return x W^T + b for x [..., I], by oneDNN in float32 on the CPU and the usual way elsewhere."""
    is_plain = x.dtype == weight_OI.dtype == torch.float32 and x.device.type == weight_OI.device.type == "cpu"
    if not is_plain or x.numel() == 0 or torch.is_autocast_enabled("cpu"):
        return nn.functional.linear(x, weight_OI, bias_O)
    x_NI = x.reshape(-1, x.shape[-1]).to_mkldnn()
    return nn.functional.linear(x_NI, weight_OI, bias_O).to_dense().view(*x.shape[:-1], len(weight_OI))


def _vendor() -> str:
    """The processor's, as Linux names it; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")

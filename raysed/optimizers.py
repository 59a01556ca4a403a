"""Adam with decoupled decay, with bias correction and without; biases and normalisations are not decayed."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn


class UncorrectedAdamW(torch.optim.AdamW):
    """Adam without bias correction, with decoupled weight decay (BERT's own optimizer; SBERT and BERT-flow use it).

    Each update is p -= rate * (m / (sqrt(v) + 1e-6) + decay * p), betas 0.9 and 0.999. Because m and v start at
    zero and are not corrected, the first updates are about three times the rate. The bias correction of Adam
    vanishes as the step count grows, so torch's fused kernel gives exactly this when it is told that many steps
    have passed.

    The moments are made at once, so the parameters must be on their device already.

    Args:
        parameters: parameters, or groups of them, each with a `weight_decay` of its own where it differs.
        learning_rate: rate of the updates; the training loop sets its own for each.
        weight_decay: of the groups that do not have one.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter] | Iterable[Mapping[str, Any]],
        learning_rate: float,
        weight_decay: float = 0.01,
    ):
        super().__init__(
            parameters, lr=learning_rate, betas=(0.9, 0.999), eps=1e-6, weight_decay=weight_decay, fused=True
        )
        for parameter in (p for group in self.param_groups for p in group["params"]):
            self.state[parameter] = {
                "step": torch.full((), 1e9, dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def bert_optimizer(module: nn.Module, weight_decay: float) -> UncorrectedAdamW:
    """Returns BERT's optimizer of a module's trainable parameters; its rate is 1 until the training loop sets one."""
    return UncorrectedAdamW(_groups(module, weight_decay), learning_rate=1.0)


def adam_optimizer(module: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Returns Adam with bias correction, decoupled decay and epsilon 1e-6 (BSL table 8); its rate is 1, too."""
    return torch.optim.AdamW(_groups(module, weight_decay), lr=1.0, eps=1e-6, fused=True)


def _groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Biases and the weights of normalisations are not decayed.

    They are the parameters of fewer than two dimensions, whatever an architecture calls them.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]

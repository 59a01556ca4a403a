"""RMSprop, and Adam with decoupled weight decay, which spares biases and normalisations."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn

_MANY = 1e9
"""Step count at which Adam's bias correction vanishes."""


class UncorrectedAdamW(torch.optim.AdamW):
    """Adam without bias correction, with decoupled weight decay (BERT's own optimizer; SBERT and BERT-flow use it).

    Each update is p -= rate * (m / (sqrt(v) + 1e-6) + decay * p), betas 0.9 and 0.999; the first ones are about three
    times the rate. Adam's correction vanishes as the step count grows, so a large initial count makes torch's fused
    kernel compute exactly this. The moments are allocated at once, so parameters must already be on their device.
    """

    def __init__(self, parameters: Iterable[Any], learning_rate: float, weight_decay: float = 0.01):
        super().__init__(parameters, lr=learning_rate, eps=1e-6, weight_decay=weight_decay, fused=True)
        make_moments(self, steps=_MANY)


class RMSprop(torch.optim.AdamW):
    """RMSprop whose cost for an embedding depends only on the rows in the batch.

    Each update is v = alpha * v + (1 - alpha) * g^2, then p -= rate * g / (sqrt(v) + eps). A row with zero gradient
    does not move, and its v only shrinks by alpha. So with sparse gradients, rows outside the batch are left alone; the
    next batch that has them applies the missed shrinking exactly.

    Dense gradients use torch's fused Adam kernel with beta 0, whose first moment is the gradient, and no correction.
    The state is allocated at once. Parameters in `sparse` get the form for sparse gradients.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], alpha: float, eps: float, sparse: Collection[nn.Parameter] = ()
    ):
        super().__init__(parameters, lr=1.0, betas=(0.0, alpha), eps=eps, weight_decay=0.0, fused=True)
        for parameter in sparse:
            self.state[parameter] = _rows_state(parameter)
        make_moments(self, steps=_MANY)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update; sparse gradients are allowed, and are cleared afterwards."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._prepare(parameter, group["betas"][1])
                    if parameter.grad.is_sparse:
                        self._step_rows(parameter, group["lr"], group["betas"][1], group["eps"])
                        parameter.grad = None
        return super().step(closure)

    def _prepare(self, parameter: nn.Parameter, alpha: float) -> None:
        """Convert the state when gradients turn sparse or dense, as between CPU and GPU."""
        is_sparse, state = parameter.grad.is_sparse, self.state[parameter]
        if state and ("seen" in state) == is_sparse:
            return
        self.state[parameter] = made = _rows_state(parameter) if is_sparse else _moments(parameter)
        if state:
            shrunk = (alpha ** (state["step"] - state["seen"]))[:, None] if "seen" in state else 1.0
            made["exp_avg_sq"].copy_(state["exp_avg_sq"] * shrunk)

    def _step_rows(self, parameter: nn.Parameter, rate: float, alpha: float, eps: float) -> None:
        state, gradient = self.state[parameter], parameter.grad.coalesce()
        rows_U, gradient_UD = gradient.indices()[0], gradient.values()
        state["step"] += 1
        since_U = (state["step"] - state["seen"][rows_U]).to(gradient_UD.dtype)
        squares_UD = state["exp_avg_sq"][rows_U] * (alpha**since_U)[:, None]
        squares_UD.addcmul_(gradient_UD, gradient_UD, value=1 - alpha)
        state["exp_avg_sq"][rows_U] = squares_UD
        state["seen"][rows_U] = state["step"].to(state["seen"].dtype)
        parameter.index_add_(0, rows_U, gradient_UD / squares_UD.sqrt_().add_(eps), alpha=-rate)


def bert_optimizer(module: nn.Module, weight_decay: float) -> UncorrectedAdamW:
    """Return BERT's optimizer for a module's trainable parameters; the training loop sets its rate (initially 1)."""
    return UncorrectedAdamW(_groups(module, weight_decay), learning_rate=1.0)


def adam_optimizer(module: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Return Adam with bias correction, decoupled decay and epsilon 1e-6 (BSL table 8); its initial rate is 1."""
    optimizer = torch.optim.AdamW(_groups(module, weight_decay), lr=1.0, eps=1e-6, fused=True)
    make_moments(optimizer)
    return optimizer


def make_moments(optimizer: torch.optim.Optimizer, steps: float = 0) -> None:
    """Allocate a fused Adam's missing state now; its first update then cannot run out of memory."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = _moments(parameter, steps)


def _groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Exempt biases and normalisations, i.e. all parameters with fewer than two dimensions, from decay."""
    trained = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def _moments(parameter: nn.Parameter, steps: float = _MANY) -> dict[str, torch.Tensor]:
    return {
        "step": torch.full((), steps, dtype=torch.float32, device=parameter.device),
        "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
    }


def _rows_state(parameter: nn.Parameter) -> dict[str, torch.Tensor]:
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "seen": torch.zeros(len(parameter), dtype=torch.float32, device=parameter.device),
        "exp_avg_sq": torch.zeros_like(parameter),
    }

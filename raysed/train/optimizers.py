"""RMSprop, and Adam with decoupled decay; biases and normalisations are not decayed."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import nn

_MANY = 1e9
"""Steps after which Adam corrects no bias."""


class UncorrectedAdamW(torch.optim.AdamW):
    """Adam without bias correction, with decoupled weight decay (BERT's own optimizer; SBERT and BERT-flow use it).

    Each update is p -= rate * (m / (sqrt(v) + 1e-6) + decay * p), betas 0.9 and 0.999; the first are about three times
    the rate. Adam's correction vanishes as the step count grows, so torch's fused kernel gives exactly this when it is
    told that many steps have passed. The moments are made at once, so parameters must be on their device already.
    """

    def __init__(self, parameters: Iterable[Any], learning_rate: float, weight_decay: float = 0.01):
        super().__init__(parameters, lr=learning_rate, eps=1e-6, weight_decay=weight_decay, fused=True)
        make_moments(self, steps=_MANY)


class RMSprop(torch.optim.AdamW):
    """RMSprop that spends on an embedding only what the rows of the batch cost.

    Each update is v = alpha * v + (1 - alpha) * g^2, then p -= rate * g / (sqrt(v) + eps). A row whose gradient is zero
    does not move, and its v only shrinks by alpha; so where gradients are sparse, the rows of other batches are left
    alone, and the updates that a row has missed are made good when it is met again. That is exact.

    For everything else this is Adam whose first moment is the gradient (beta 0) and whose moments are not corrected, so
    torch's fused kernel does it in one pass. Its state is made at once, of those in `sparse` for sparse gradients.
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
        """Make one update; gradients may be sparse, and are gone afterwards where they were."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._prepare(parameter, group["betas"][1])
                    if parameter.grad.is_sparse:
                        self._step_rows(parameter, group["lr"], group["betas"][1], group["eps"])
                        parameter.grad = None
        return super().step(closure)

    def _prepare(self, parameter: nn.Parameter, alpha: float) -> None:
        """Make the state for the other kind of gradient where those change, as between CPU and GPU."""
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
    """Return BERT's optimizer of a module's trainable parameters; its rate is 1 until the training loop sets one."""
    return UncorrectedAdamW(_groups(module, weight_decay), learning_rate=1.0)


def adam_optimizer(module: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Return Adam with bias correction, decoupled decay and epsilon 1e-6 (BSL table 8); its rate is 1, too."""
    optimizer = torch.optim.AdamW(_groups(module, weight_decay), lr=1.0, eps=1e-6, fused=True)
    make_moments(optimizer)
    return optimizer


def make_moments(optimizer: torch.optim.Optimizer, steps: float = 0) -> None:
    """Make the state of a fused Adam that is not there, as its first update does, which so cannot lack memory."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = _moments(parameter, steps)


def _groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Do not decay biases and normalisations: the parameters of fewer than two dimensions, whatever they are called."""
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
    """Return the state for sparse gradients."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
        "seen": torch.zeros(len(parameter), dtype=torch.float32, device=parameter.device),
        "exp_avg_sq": torch.zeros_like(parameter),
    }

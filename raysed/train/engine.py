"""Engines make updates: plain torch here, DeepSpeed in deepspeed.py."""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from raysed.train.out_of_memory import oom_as_user_error, retry_in_parts
from raysed.train.recorded import Record, RecordedUpdates, launched_rate


class TorchEngine:
    """Updates by a torch optimizer in this process; a GPU replays them, see `recorded.py`.

    Args:
        records: whether a GPU records updates.
        record: see `RecordedUpdates`.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        clip: float | None = None,
        bf16: bool = False,
        records: bool = True,
        record: Record | None = None,
    ):
        self.objective, self.optimizer, self.clip, self.bf16 = objective, optimizer, clip, bf16
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._named = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        self._updates = 0
        self._after_update = getattr(objective, "after_update", lambda: None)
        self._recorded = RecordedUpdates(objective, optimizer, self._gradient, self._step, records, record)

    def update(self, batch: Any, learning_rate: float) -> float:
        """Make one update and return the loss over all workers. If it is not finite, keep the weights, return NaN."""
        loss = self._recorded.update(batch, learning_rate)
        if loss is None:
            rate = launched_rate(learning_rate, self._parameters[0].device)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            mean = retry_in_parts(self.objective, lambda: self._gradient(batch))
            with oom_as_user_error(self.objective):
                loss = step_if_finite(mean, self._parameters, self._step)
        self._updates += 1
        return loss

    def _step(self, norm: torch.Tensor) -> None:
        if self.clip is not None:
            nn.utils.clip_grads_with_norm_(self._parameters, self.clip, norm)
        self.optimizer.step()
        self._after_update()

    def _gradient(self, batch: Any) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        device = self._parameters[0].device.type
        with torch.autocast(device, torch.bfloat16) if self.bf16 else nullcontext():
            loss = self.objective.loss(batch)
        loss.backward()
        return loss.detach()

    def state_dict(self) -> dict[str, Any]:
        """Return weights, moments by parameter name, and precision; `deepspeed.DeepSpeedEngine` accepts it."""
        moments = {name: dict(self.optimizer.state.get(parameter, {})) for name, parameter in self._named.items()}
        weights = self.objective.state_dict()
        return {"objective": weights, "moments": moments, "updates": self._updates, "bf16": self.bf16}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of either engine; updates continue in the precision they began in."""
        self.objective.load_state_dict(state["objective"])
        self._updates, self.bf16 = state["updates"], state["bf16"]
        for name, kept in (state["moments"] or {}).items():
            parameter = self._named[name]
            kept = {"step": torch.tensor(float(self._updates)), **kept}  # DeepSpeed's moments lack it
            self.optimizer.state[parameter] = {key: value.to(parameter.device) for key, value in kept.items()}
        self._recorded.forget()

    def close(self) -> None:
        """Drop the recordings. They refer to this engine, so Python would not free either when the training ends."""
        self._recorded = None


def step_if_finite(
    loss: torch.Tensor, parameters: Iterable[nn.Parameter], step: Callable[[torch.Tensor], None]
) -> float:
    """Call `step` with the gradient's norm and return the loss; if not finite, change no weight and return NaN."""
    parts = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse:  # merge repeated rows
            parameter.grad = gradient = gradient.coalesce()
            gradient = gradient.values()
        if gradient is not None:
            parts.append(gradient)
    norm = nn.utils.get_total_norm(parts)
    if not torch.isfinite(loss + norm):
        return math.nan
    step(norm)
    return loss.item()

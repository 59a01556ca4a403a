"""The engine of learners: updates by DeepSpeed, whose state fits any number of workers and any ZeRO stage."""

import logging
import math
import os
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from raysed.config import SedConfig
from raysed.data.targets import TargetBatch
from raysed.train import loop
from raysed.train.objectives.distillation import Distillation
from raysed.train.optimizers import make_moments


def prepare_deepspeed(gpu: bool) -> None:
    """Readies this process for DeepSpeed, before anything else imports it.

    Without a GPU it would compile a shared-memory operation; gloo does the same without a compiler.
    """
    if not gpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not gpu:
        deepspeed.ops.__compatible_ops__[ShareMemCommBuilder.NAME] = False


class DeepSpeedEngine:
    """Updates by DeepSpeed, ZeRO stage 0 to 3; see `loop.Engine`.

    Weights and optimizer moments are gathered whole and in fp32 for saving, so a state fits any number of workers and
    any ZeRO stage. DeepSpeed takes weights over when it is initialised and has moments only after a first step; so it
    is initialised late, and moments are put back after one step with learning rate 0.

    Args:
        bf16: autocast the forward pass; weights and moments stay fp32.

    Attributes:
        asks_later: as of `loop.TorchEngine`; with ZeRO, DeepSpeed itself waits for the GPU.
    """

    def __init__(self, objective: Distillation, sed: SedConfig, world: int, bf16: bool):
        self._objective, self._sed, self._world = objective, sed, world
        self._config = _deepspeed_config(sed, world, bf16)
        self._parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        self._engine: Any = None
        self._pending: dict[str, Any] | None = None
        self._updates = 0
        self.asks_later = sed.zero_stage == 0 and next(iter(self._parameters.values())).is_cuda

    def update(self, batch: TargetBatch, learning_rate: float) -> float | torch.Tensor:
        """See `loop.Engine`."""
        if self._engine is None:
            self._initialise(batch)
        self._set_rate(learning_rate)
        loss = loop.in_memory(self._objective, lambda: self._engine(batch))
        mean = _mean_over_workers(loss.detach())
        if self.asks_later or torch.isfinite(mean):
            self._backward(batch, loss)
            with loop.shortage_said(self._objective):
                mean = self._step(mean)
            self._updates += 1
        return mean if self.asks_later else mean.item()

    def _step(self, loss: torch.Tensor) -> torch.Tensor:
        """Returns the loss, or not a number where the gradient of all workers is not finite.

        ZeRO looks at that itself, DeepSpeed without ZeRO does not.
        """
        if self._sed.zero_stage:
            self._engine.step()
            return loss if self._engine.was_step_applied() else torch.full_like(loss, math.nan)
        optimizer, parameters = self._engine.optimizer, self._parameters.values()
        return loop.step_if_finite(loss, parameters, optimizer, self.asks_later, lambda norm: self._engine.step())

    def _backward(self, batch: TargetBatch, loss: torch.Tensor) -> None:
        """With ZeRO the workers exchange gradients meanwhile, so one of them cannot start over alone."""
        if self._sed.zero_stage:
            self._engine.backward(loss)
            return
        losses = [loss]

        def backward() -> None:
            if losses:
                self._engine.backward(losses.pop())
            else:  # a second try, because memory ran out: the gradient is incomplete
                self._engine.zero_grad()
                self._engine.backward(self._engine(batch))

        loop.in_memory(self._objective, backward)

    def state_dict(self) -> dict[str, Any]:
        """See `loop.Engine`; every worker has to call it."""
        moments = {name: self._moments(parameter) for name, parameter in self._parameters.items()}
        return {"objective": self._weights(), "moments": moments, "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `loop.Engine`."""
        self._objective.load_state_dict(state["objective"])
        self._updates = state["updates"]
        self._pending = state["moments"]

    def close(self) -> None:
        """Takes DeepSpeed's hooks and buffers away, so that another engine can follow in this process."""
        if self._engine is not None:
            self._engine.destroy()

    def _initialise(self, batch: TargetBatch) -> None:
        import deepspeed

        sed = self._sed
        optimizer = torch.optim.AdamW(self._parameters.values(), lr=0.0, weight_decay=sed.weight_decay, fused=True)
        self._engine, *_ = deepspeed.initialize(
            model=self._objective,
            optimizer=optimizer,
            model_parameters=list(self._parameters.values()),
            config=self._config,
        )
        made = self._engine.optimizer
        # ZeRO hands the parts of this worker to torch's optimizer in its groups; stage 3 only while it makes an update.
        parts = made.fp32_partitioned_groups_flat if sed.zero_stage == 3 else None
        make_moments(getattr(made, "optimizer", made), parts)
        if self._world == 1 and sed.zero_stage == 0:
            self._engine.enable_backward_allreduce = False  # with one worker it would copy all gradients to no avail
        if self._pending is not None:
            self._set_rate(0.0)
            self._backward(batch, loop.in_memory(self._objective, lambda: self._engine(batch)))
            self._engine.step()
            self._put_moments(self._pending)
            self._pending = None

    def _set_rate(self, rate: float) -> None:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate

    def _weights(self) -> dict[str, torch.Tensor]:
        if self._sed.zero_stage < 3 or self._engine is None:
            return self._objective.state_dict()
        import deepspeed

        weights = {}
        for name, parameter in self._objective.named_parameters():
            with deepspeed.zero.GatheredParameters([parameter]):
                weights[name] = parameter.detach().cpu().clone()
        return weights

    def _moments(self, parameter: nn.Parameter) -> dict[str, torch.Tensor]:
        if self._sed.zero_stage == 0:
            state = self._engine.optimizer.state[parameter]
            return {key: state[key] for key in _MOMENTS}
        from deepspeed.utils import safe_get_full_optimizer_state

        return {key: safe_get_full_optimizer_state(parameter, key) for key in _MOMENTS}

    def _put_moments(self, moments: dict[str, dict[str, torch.Tensor]]) -> None:
        from deepspeed.utils import safe_set_full_optimizer_state

        optimizer = self._engine.optimizer
        for name, parameter in self._parameters.items():
            for key in _MOMENTS:
                value = moments[name][key].to(parameter.device)
                if self._sed.zero_stage == 0:
                    optimizer.state[parameter][key].copy_(value)
                elif self._sed.zero_stage == 3:
                    _put_own_part(parameter, value, key)
                else:
                    safe_set_full_optimizer_state(parameter, value, key)
        for state in getattr(optimizer, "optimizer", optimizer).state.values():
            state["step"] = torch.full_like(torch.as_tensor(state["step"]), float(self._updates))


_MOMENTS = ("exp_avg", "exp_avg_sq")


def _put_own_part(parameter: nn.Parameter, value: torch.Tensor, key: str) -> None:
    """Sets this worker's part of a moment under ZeRO stage 3.

    DeepSpeed's own function for the whole moment fails where its size is no multiple of the number of workers.
    """
    from deepspeed.utils import safe_get_local_optimizer_state, safe_set_local_optimizer_state

    size, rank = safe_get_local_optimizer_state(parameter, key).numel(), torch.distributed.get_rank()
    padded = F.pad(value.flatten(), (0, max((rank + 1) * size - value.numel(), 0)))
    safe_set_local_optimizer_state(parameter, padded[rank * size : (rank + 1) * size], key)


def _deepspeed_config(sed: SedConfig, world: int, bf16: bool) -> dict[str, Any]:
    part = math.ceil(sed.batch_size / world)  # DeepSpeed wants equal parts, and does not look at them
    config: dict[str, Any] = {
        "train_batch_size": part * world,
        "train_micro_batch_size_per_gpu": part,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": sed.zero_stage},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": sed.clip or 0.0,  # DeepSpeed clips at 1 where it is not told otherwise
        "steps_per_print": 10**9,
        "timers": {"throughput": {"enabled": False}},  # which would wait for the GPU twice in each update
    }
    if bf16:
        config["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    return config


def _mean_over_workers(loss: torch.Tensor) -> torch.Tensor:
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        loss = loss.clone()
        torch.distributed.all_reduce(loss)
        loss /= torch.distributed.get_world_size()
    return loss

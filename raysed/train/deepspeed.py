"""The engine of learners: DeepSpeed, with a state that fits any number of workers and any ZeRO stage."""

import logging
import math
import os
from typing import Any

import torch

from raysed.data.targets import TargetBatch
from raysed.train.engine import step_if_finite
from raysed.train.optimizers import make_moments
from raysed.train.out_of_memory import oom_as_user_error, random_state, retry_in_parts
from raysed.train.recorded import Record, RecordedUpdates, launched_rate
from raysed.train.stages.sed import Distillation, SedConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")


def prepare_deepspeed(gpu: bool) -> None:
    """Prepare this process for DeepSpeed, before anything else imports it.

    Without a GPU, DeepSpeed would compile a shared-memory operation; gloo does the same without a compiler.
    """
    if not gpu:
        os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.accelerator import set_accelerator
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    class PlainCpu(CPU_Accelerator):
        def create_op_builder(self, op_name: str) -> Any:
            return None if op_name == "ShareMemCommBuilder" else super().create_op_builder(op_name)

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not gpu:
        set_accelerator(PlainCpu())


class DeepSpeedEngine:
    """Updates by DeepSpeed, ZeRO stage 0 to 2; see `engine.TorchEngine`.

    Moments are gathered whole and in fp32 for saving, so a state fits any number of workers and any ZeRO stage.
    DeepSpeed takes over the weights when initialised, which happens at the first update. On a GPU, a single worker
    without ZeRO records its updates, including DeepSpeed's part.

    Args:
        records: whether a GPU records updates.
        record: see `RecordedUpdates`.
    """

    def __init__(
        self,
        objective: Distillation,
        sed: SedConfig,
        world: int,
        bf16: bool,
        records: bool = True,
        record: Record | None = None,
    ):
        self._objective, self._sed, self._world, self._bf16 = objective, sed, world, bf16
        self._records, self._record = records, record
        self._recorded: RecordedUpdates | None = None
        self._parameters = {name: p for name, p in objective.named_parameters() if p.requires_grad}
        self._engine: Any = None
        self._loaded: dict[str, Any] | None = None
        self._updates = 0

    def update(self, batch: TargetBatch, learning_rate: float) -> float:
        """See `engine.TorchEngine.update`."""
        if self._engine is None:
            self._initialise(batch)
        loss = self._recorded.update(batch, learning_rate) if self._recorded else None
        if loss is None:
            self._set_rate(learning_rate)
            loss = self._launched(batch)
        self._updates += 1
        return loss

    def _launched(self, batch: TargetBatch) -> float:
        mean = self._whole_gradient(batch)
        if self._world > 1:
            torch.distributed.all_reduce(mean)
            mean /= self._world
        with oom_as_user_error(self._objective):
            if not self._sed.zero_stage:  # DeepSpeed does not check whether gradients are finite
                return step_if_finite(mean, self._parameters.values(), self._step)
            self._engine.step()
        return mean.item() if self._engine.was_step_applied() else math.nan

    def _whole_gradient(self, batch: TargetBatch) -> torch.Tensor:
        """Compute the gradient, in parts if memory is short.

        With ZeRO, workers exchange gradients during the backward pass, so no worker can retry it alone.
        """
        if not self._sed.zero_stage:
            return retry_in_parts(self._objective, lambda: self._gradient(batch))
        loss = retry_in_parts(self._objective, lambda: self._engine(batch))
        self._engine.backward(loss)
        return loss.detach()

    def _gradient(self, batch: TargetBatch) -> torch.Tensor:
        self._engine.zero_grad()
        loss = self._engine(batch)
        self._engine.backward(loss)
        return loss.detach()

    def _step(self, norm: torch.Tensor) -> None:
        if self._sed.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self._parameters.values(), self._sed.clip, norm)
        self._engine.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state; before the first update, moments are the loaded ones. Every worker must call this."""
        moments = self._loaded
        if self._engine is not None:
            from deepspeed.utils import safe_get_full_optimizer_state

            def moment(parameter: torch.Tensor, key: str) -> torch.Tensor:
                if self._sed.zero_stage:
                    return safe_get_full_optimizer_state(parameter, key)
                return self._engine.optimizer.state[parameter][key]

            moments = {name: {key: moment(p, key) for key in _MOMENTS} for name, p in self._parameters.items()}
        weights = self._objective.state_dict()
        return {"objective": weights, "moments": moments, "updates": self._updates, "bf16": self._bf16}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state; moments are restored at the first update."""
        self._objective.load_state_dict(state["objective"])
        self._updates, self._loaded = state["updates"], state["moments"]
        self._bf16 = state["bf16"]

    def close(self) -> None:
        """Remove DeepSpeed's hooks and buffers, and the recordings; this process can then start another engine."""
        self._recorded = self._record = None
        if self._engine is not None:
            self._engine.destroy()
            vars(self._engine).clear()  # its hooks outlive it, and would keep weights and moments
            self._engine = None

    def _initialise(self, batch: TargetBatch) -> None:
        import deepspeed

        parameters, sed = list(self._parameters.values()), self._sed
        optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=sed.weight_decay, fused=True)
        part = math.ceil(sed.batch_size / self._world)  # DeepSpeed requires equal parts, but ignores their size
        config = {
            "train_batch_size": part * self._world,
            "train_micro_batch_size_per_gpu": part,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": sed.zero_stage},
            "zero_allow_untested_optimizer": True,
            "gradient_clipping": (sed.clip or 0.0) if sed.zero_stage else 0.0,  # without ZeRO, `_step` clips
            "steps_per_print": 10**9,
            "timers": {"throughput": {"enabled": False}},  # would synchronise with the GPU twice per update
            "torch_autocast": {"enabled": self._bf16, "dtype": "bfloat16"},
        }
        self._engine, *_ = deepspeed.initialize(
            model=self._objective, optimizer=optimizer, model_parameters=parameters, config=config
        )
        make_moments(self._torch_optimizer())
        if self._world == 1 and sed.zero_stage == 0:
            self._engine.enable_backward_allreduce = False  # with one worker, it only copies all gradients
            self._recorded = RecordedUpdates(
                self._objective, optimizer, self._gradient, self._step, self._records, self._record
            )
        if self._loaded is not None:
            self._restore_moments(batch, self._loaded)
            self._loaded = None

    def _torch_optimizer(self) -> torch.optim.Optimizer:
        """Return torch's optimizer, which ZeRO wraps; its groups hold this worker's parts."""
        return getattr(self._engine.optimizer, "optimizer", self._engine.optimizer)

    def _set_rate(self, rate: float) -> None:
        rate = launched_rate(rate, next(iter(self._parameters.values())).device)
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate

    def _restore_moments(self, batch: TargetBatch, moments: dict[str, dict[str, torch.Tensor]]) -> None:
        """Restore the moments. ZeRO accepts them only after a step, so this makes one with rate 0.

        Restoring the random state then gives the next update the dropout masks of an uninterrupted training.
        """
        from deepspeed.utils import safe_set_full_optimizer_state

        if self._sed.zero_stage:
            restore = random_state(next(iter(self._parameters.values())).device)
            self._set_rate(0.0)
            self._whole_gradient(batch)
            self._engine.step()
            restore()
        for name, parameter in self._parameters.items():
            for key in _MOMENTS:
                value = moments[name][key].to(parameter.device)
                if self._sed.zero_stage:
                    safe_set_full_optimizer_state(parameter, value, key)
                else:
                    self._engine.optimizer.state[parameter][key].copy_(value)
        for state in self._torch_optimizer().state.values():
            state["step"] = torch.full_like(torch.as_tensor(state["step"]), float(self._updates))

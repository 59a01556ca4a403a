"""Record a whole update as a CUDA graph, once per shape of batch, and replay it.

A small update is thousands of kernels, and Python takes longer to launch one than the GPU to run it. A replay launches
all of them at once, on the recorded update's memory, into which the batch is copied. So a recorded update must not wait
for the device, and whatever changes between updates must be a tensor.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from raysed.errors import first_line
from raysed.model.encoder import Encoder
from raysed.train.out_of_memory import random_state

log = logging.getLogger(__name__)

_MAX_SHAPES = 16
"""Shapes to record; the engine makes updates of other shapes."""

Record = Callable[[Callable[[Any], Any], Any], tuple[Callable[[], None], Any]]
"""Calls a function on a batch to record it; returns a replay function, and the result, which each replay overwrites."""


class RecordedUpdates:
    """Updates of an objective, recorded for each shape of batch.

    The engine makes the first update of a shape, and splits the batch if it does not fit into memory. The second is
    launched whole: it loads the kernels that only recordings use. The third is recorded and replayed. The engine makes
    all updates on a CPU, and after an operation that cannot be recorded, which is logged.

    Args:
        gradient: clears and computes the gradient of a batch and returns the loss, without waiting for the device.
        step: clips the gradient, given its norm, and changes the weights.
        record: replaces CUDA graphs in tests.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        gradient: Callable[[Any], torch.Tensor],
        step: Callable[[torch.Tensor], None],
        record: Record | None = None,
    ):
        self._objective, self._optimizer, self._gradient, self._step = objective, optimizer, gradient, step
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._encoders = [module for module in objective.modules() if isinstance(module, Encoder)]
        self._device = self._parameters[0].device
        self._rate = torch.zeros((), device=self._device)
        self._given, self._record = record, record
        self._recordings: dict[tuple, Callable[[Any], float] | None] = {}
        self._seen: set[tuple] = set()
        self._is_off = (record is None and self._device.type != "cuda") or not self._is_recordable()

    def update(self, batch: Any, learning_rate: float) -> float | None:
        """Make an update and return its loss, NaN if it is not finite; None if the engine must make the update."""
        if self._is_off or any(encoder.parts > 1 for encoder in self._encoders):
            self.forget()  # and leave the memory to the launched updates
            return None
        # A recording fits batches with the same shapes and types of tensors, and the same numbers.
        leaves = [leaf for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor | int | float)]
        shape = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        if shape not in self._seen:
            if len(self._seen) < _MAX_SHAPES:
                self._seen.add(shape)
            return None
        self._rate.fill_(learning_rate)
        if replayed := self._recordings.get(shape):
            return replayed(batch)
        restore = random_state(self._device)
        try:
            if shape not in self._recordings:
                self._recordings[shape] = None
                loss, self._objective.watched = self._whole_update(batch)
                return loss.item()
            replayed = self._recordings[shape] = self._recorded(batch)
            return replayed(batch)
        except Exception as error:  # an operation that waits for the device, or too little memory
            self._is_off = True
            log.warning("updates cannot be recorded, so they are slower from now on: %s", first_line(error))
        # Outside of `except`, whose traceback keeps the tensors of the broken update alive.
        restore()
        self._objective.watched = None
        self._optimizer.zero_grad(set_to_none=True)  # DeepSpeed would add to old gradients
        self.forget()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return None

    def _is_recordable(self) -> bool:
        why = "" if getattr(self._objective, "is_recordable", False) else "its loss waits for the GPU"
        if any(encoder.position_offset is None for encoder in self._encoders):
            why = "its encoder takes no packed rows"
        if not all(group.get("fused") for group in self._optimizer.param_groups):  # others ignore `found_inf`
            why = "its optimizer is not one of torch's fused ones"
        if why:
            name = type(self._objective).__name__
            log.info("%s: updates are launched kernel by kernel, because %s", name, why)
        return not why

    def forget(self) -> None:
        """Drop all recordings, for example because the tensors that they write to were replaced."""
        self._record = self._given  # memory that no graph uses any more cannot be shared by new ones
        self._recordings.clear()
        self._seen.clear()

    def _recorded(self, batch: Any) -> Callable[[Any], float]:
        """Record an update; return a function that replays it on a batch and returns the loss."""
        kept = map_tensors(lambda tensor: tensor.to(self._device, copy=True), batch)
        self._optimizer.zero_grad(set_to_none=True)  # a recording needs its own gradients
        self._record = self._record or _cuda_graphs()
        replay, result = self._record(partial(self._whole_update, capturable=True), kept)

        def update(batch: Any) -> float:
            for new, old in zip(tensors_in(batch), tensors_in(kept), strict=True):
                old.copy_(new, non_blocking=True)
            replay()
            loss, self._objective.watched = result
            return loss.item()

        return update

    def _whole_update(self, batch: Any, capturable: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Make an update without waiting for the device, which checks itself whether all values are finite.

        Torch requires optimizers to be `capturable` while it captures a graph, and warns of it at other times.
        """
        loss = self._gradient(batch)
        norm = nn.utils.get_total_norm([p.grad for p in self._parameters if p.grad is not None])
        is_broken = ~torch.isfinite(loss + norm)
        groups = self._optimizer.param_groups
        try:
            for group in groups:
                group["lr"], group["capturable"] = self._rate, capturable
            self._optimizer.found_inf = is_broken.float()  # makes torch's fused optimizers change nothing
            self._step(norm)
        finally:
            self._optimizer.found_inf = None
            for group in groups:
                group["capturable"] = False
        return torch.where(is_broken, math.nan, loss), self._objective.watched


def _cuda_graphs() -> Record:
    """Return a recorder of CUDA graphs, which share their memory because they run in turn."""
    pool = torch.cuda.graph_pool_handle()

    def record(function: Callable[[Any], Any], batch: Any) -> tuple[Callable[[], None], Any]:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        # Torch stays on another stream if a capture breaks. Threads that copy batches must not break it.
        with (
            torch.cuda.stream(stream),
            torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
        ):
            result = function(batch)
        return graph.replay, result

    return record


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], batch: Any) -> Any:
    """Apply a function to all tensors in nested tuples and dataclasses."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, tuple):
        parts = [map_tensors(function, part) for part in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
    if is_dataclass(batch):
        return replace(batch, **{f.name: map_tensors(function, getattr(batch, f.name)) for f in fields(batch)})
    return batch


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, list | dict):
        raise TypeError(f"a batch has a {type(batch).__name__}; use named tuples or dataclasses")
    if isinstance(batch, tuple) or is_dataclass(batch):
        for part in batch if isinstance(batch, tuple) else (getattr(batch, f.name) for f in fields(batch)):
            yield from _leaves(part)
    else:
        yield batch


def tensors_in(batch: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors in nested tuples and dataclasses."""
    return (leaf for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor))

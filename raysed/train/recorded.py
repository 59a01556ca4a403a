"""Record a whole update as a CUDA graph, once per shape of batch, and replay it.

A small update is thousands of kernels, and Python takes longer to launch one than the GPU to run it. A replay launches
all of them at once, on the recorded update's memory, into which the batch is copied. So a recorded update must not wait
for the device, and whatever changes between updates must be a tensor. Nothing tells whether that holds, so a recording
is compared with a launched update before it is used.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from raysed.errors import first_line
from raysed.model.encoder import Encoder
from raysed.train.out_of_memory import random_state

log = logging.getLogger(__name__)

_MAX_SHAPES = 16
"""Shapes to record; the engine makes updates of other shapes."""
OLDEST_TORCH = "2.13"
"""Before this release, a recording that fails leaves torch unable to draw random numbers or to free memory."""
_LOSS = 1e-3
"""Largest difference of a replay's loss, relative to the launched update's."""
_STATE = 0.5
"""Largest difference of a tensor after a replay, as a share of how far the launched update moved it."""
_TENSORS = 0.1
"""Share of tensors that may differ by more: rounding alone moves some, such as the biases of keys."""

Record = Callable[[Callable[[Any], Any], Any], tuple[Callable[[], None], Any]]
"""Calls a function on a batch to record it; returns a replay function, and the result, which each replay overwrites."""
Recording = Callable[[Any], tuple[torch.Tensor, torch.Tensor | None]]
"""Repeats an update with another batch; returns what `_whole_update` does, which the next replay overwrites."""


class RecordedUpdates:
    """Updates of an objective, recorded for each shape of batch.

    The engine makes the first update of a shape, and splits the batch if it does not fit into memory. The second is
    launched whole: it loads the kernels that only recordings use. The third is recorded, and the engine makes it. The
    fourth is launched and replayed, from the same state, and both are compared; from then on, updates are replayed. A
    new recording has all others checked again, because they share memory. The engine makes all updates on a CPU, and
    after an operation that cannot be recorded or a replay that differs, which is logged.

    Attributes:
        is_off: whether the engine makes all updates.
        recorded: recordings made so far.
        replayed: replays made so far.

    Args:
        gradient: clears and computes the gradient of a batch and returns the loss, without waiting for the device.
        step: clips the gradient, given its norm, and changes the weights.
        records: whether to record updates.
        record: what records an update, in any release of torch. None: `cuda_graphs()` on a GPU, if torch is new enough.
    """

    def __init__(
        self,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        gradient: Callable[[Any], torch.Tensor],
        step: Callable[[torch.Tensor], None],
        records: bool = True,
        record: Record | None = None,
    ):
        self._objective, self._optimizer, self._gradient, self._step = objective, optimizer, gradient, step
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._encoders = [module for module in objective.modules() if isinstance(module, Encoder)]
        self._device = self._parameters[0].device
        self._rate = torch.zeros((), device=self._device)
        self._given, self._record = record, record
        self._recordings: dict[tuple, Recording | None] = {}
        self._seen: set[tuple] = set()
        self._checked: set[tuple] = set()
        self.recorded = self.replayed = 0
        on_gpu = self._device.type == "cuda"
        self.is_off = not (records and (record or on_gpu) and self._is_recordable())

    def update(self, batch: Any, learning_rate: float) -> float | None:
        """Make an update and return its loss, NaN if it is not finite; None if the engine must make the update."""
        if self.is_off or any(encoder.parts > 1 for encoder in self._encoders):
            self.forget()  # and leave the memory to the launched updates
            return None
        # A recording fits batches with the same shapes and types of tensors, and the same numbers.
        leaves = [leaf for leaf in _leaves(batch) if isinstance(leaf, torch.Tensor | int | float)]
        shape = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
        if shape not in self._seen:
            if len(self._seen) == _MAX_SHAPES:
                _warn_of_shapes()
            else:
                self._seen.add(shape)
            return None
        self._rate.fill_(learning_rate)
        recording = self._recordings.get(shape)
        if recording and shape in self._checked:
            return self._replay(recording, batch)
        restore = random_state(self._device)
        try:
            if recording:
                self._checked.add(shape)
                return self._compare(recording, batch)
            if shape not in self._recordings:
                self._recordings[shape] = None
                loss, self._objective.watched = self._whole_update(batch)
                return loss.item()
            self._rate.zero_()  # no later update has this rate, so the comparison shows whether replays keep it
            self._recordings[shape] = self._recorded(batch)
            self._checked.clear()
        except Exception as error:  # an operation that waits for the device, or too little memory
            self.is_off = True
            log.warning("updates cannot be recorded, so they are slower from now on: %s", first_line(error))
        # Outside of `except`, whose traceback keeps the tensors of the broken update alive.
        restore()
        self._objective.watched = None
        self._optimizer.zero_grad(set_to_none=True)  # DeepSpeed would add to old gradients
        if self.is_off:
            self.forget()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return None

    def _is_recordable(self) -> bool:
        why, level = "", logging.INFO
        if not getattr(self._objective, "is_recordable", False):
            why = "its loss waits for the GPU"
        elif not all(group.get("fused") for group in self._optimizer.param_groups):  # others ignore `found_inf`
            why = "its optimizer is not one of torch's fused ones"
        elif padded := [encoder for encoder in self._encoders if encoder.position_offset is None]:
            why = "its encoder takes no packed rows"
            level = logging.INFO if all(encoder.is_static for encoder in padded) else logging.WARNING
        elif self._record is None and torch.__version__ < OLDEST_TORCH:
            why, level = f"that needs torch {OLDEST_TORCH} or later, and this is {torch.__version__}", logging.WARNING
        if why:
            name = type(self._objective).__name__
            log.log(level, "%s: updates are launched kernel by kernel, because %s", name, why)
        return not why

    def forget(self) -> None:
        """Drop all recordings, for example because the tensors that they write to were replaced."""
        self._record = self._given  # memory that no graph uses any more cannot be shared by new ones
        self._recordings.clear()
        self._checked.clear()
        self._seen.clear()

    def _recorded(self, batch: Any) -> Recording:
        """Record an update; return a function that repeats it with a batch."""
        kept = map_tensors(lambda tensor: tensor.to(self._device, copy=True), batch)
        self._optimizer.zero_grad(set_to_none=True)  # a recording needs its own gradients
        self._record = self._record or cuda_graphs()
        replay, result = self._record(partial(self._whole_update, capturable=True), kept)
        self.recorded += 1

        def update(batch: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
            for new, old in zip(tensors_in(batch), tensors_in(kept), strict=True):
                old.copy_(new, non_blocking=True)
            replay()
            return result

        return update

    def _replay(self, recording: Recording, batch: Any) -> float:
        self.replayed += 1
        loss, self._objective.watched = recording(batch)
        return loss.item()

    @torch.no_grad()
    def _compare(self, recording: Recording, batch: Any) -> float:
        """Launch an update and replay it from the same state. If they differ, keep the launched one and end replays.

        Batch, random numbers and rate are not those of the recording, which a replay might repeat. Equal bits cannot be
        asked for: on a GPU, the backward pass of attention adds up in no fixed order.
        """
        buffers = [buffer for buffer in self._objective.buffers() if buffer.dtype != torch.bool]
        moments = [tensor for values in self._optimizer.state.values() for tensor in values.values()]
        state = [*buffers, *self._objective.parameters(), *moments]
        place = _place_of_copy(state, self._device)
        others = [tensor.to(place, copy=True) for tensor in state]
        # Allocated before anything changes: the state must not be left half exchanged.
        spare = torch.empty(max(tensor.nbytes for tensor in state), dtype=torch.uint8, device=self._device)

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            return spare[: tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

        restore = random_state(self._device)
        with torch.enable_grad():
            result, watched = self._whole_update(batch)
        launched, moved = result.item(), []
        self._optimizer.zero_grad(set_to_none=True)  # replays have their own gradients
        for tensor, other in zip(state, others, strict=True):  # put the old state back, and keep the launched one
            after = copied(tensor)
            tensor.copy_(other)
            other.copy_(after)
            moved.append(after.sub_(tensor).float().norm())
        restore()
        replayed = self._replay(recording, batch)
        distances = [copied(other).sub_(tensor).float().norm() for tensor, other in zip(state, others, strict=True)]
        differs = (torch.stack(distances) > _STATE * torch.stack(moved)).tolist()
        share = sum(differs) / len(differs)
        found = replayed, launched, 100 * share
        same_loss = np.isclose(replayed, launched, rtol=_LOSS, atol=1e-6, equal_nan=True)
        if same_loss and share <= _TENSORS and not any(differs[: len(buffers)]):
            log.debug("a replay is right: loss %g, launched %g; %.1f %% of tensors differ", *found)
            return replayed
        for tensor, other in zip(state, others, strict=True):
            tensor.copy_(other)
        self._objective.watched, self.is_off = watched, True
        log.warning("updates are slower from now on: a replay is wrong (loss %g, not %g; %.0f %% of tensors)", *found)
        return launched

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


@cache
def _warn_of_shapes() -> None:
    """Warn once per process; members of one run have the same shapes."""
    log.warning("batches have more than %d shapes; updates of the others are launched kernel by kernel", _MAX_SHAPES)


def launched_rate(rate: float, device: torch.device) -> float:
    """Return the learning rate of a launched update: on a GPU in float32, as recorded updates have it.

    So it leaves no trace in the weights which updates were launched.
    """
    return torch.tensor(rate, dtype=torch.float32).item() if device.type == "cuda" else rate


def _place_of_copy(state: Iterable[torch.Tensor], device: torch.device) -> torch.device:
    """Return where to copy a state: to the CPU if the GPU is nearly full."""
    is_tight = device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 2 * sum(x.nbytes for x in state)
    return torch.device("cpu") if is_tight else device


def cuda_graphs() -> Record:
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

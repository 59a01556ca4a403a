"""Handle a batch that does not fit into memory: encode it in parts, or tell the user what to change."""

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import nn

from raysed.errors import UserError, is_out_of_memory
from raysed.model.encoder import Encoder
from raysed.store.text import size

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
CUDA_CONTEXT = 6e8
"""Bytes of GPU memory that a process takes before its first tensor: context, kernels, workspaces."""
_MAX_PARTS = 64
_BLAMED_BYTES = 1e9
"""Blame other processes for a full GPU if they hold more than this."""
_GPU_REMEDY = "raise resources.gpus_per_member to let fewer members share a GPU, or stop other processes on it"


def retry_in_parts(objective: nn.Module, action: Callable[[], _Result]) -> _Result:
    """Run `action` on a batch; if memory runs out, halve what encoders process at once and try again.

    Batch and loss stay the same, including in-batch negatives: encoders hold activations for one part of the batch at a
    time and compute them twice. A failed `action` is repeated, so it must leave no effects behind.
    """
    # Undo the random draws of a failed try: only dropout masks, which differ in parts, may depend on free memory.
    restore = random_state(next(objective.parameters()).device)
    while True:
        try:
            return action()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        # Outside the except block, whose traceback would keep the failed try's tensors alive.
        _halve_parts(objective)
        restore()


def random_state(device: torch.device) -> Callable[[], None]:
    """Return a function that restores the current random state of Python, numpy, the CPU and the device."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    on_gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore() -> None:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
        if on_gpu is not None:
            torch.cuda.set_rng_state(on_gpu, device)

    return restore


def _halve_parts(objective: nn.Module) -> None:
    encoders = [module for module in objective.modules() if isinstance(module, Encoder)]
    others = _other_processes_memory(next(objective.parameters()).device)
    if not encoders or any(e.position_offset is None or e.parts >= _MAX_PARTS for e in encoders):
        remedy = _GPU_REMEDY if others else "lower the stage's batch_size (ct: groups, negatives) or encoder.max_length"
        raise UserError(
            f"there is not enough memory for a batch, even when it is processed in small parts{others}; {remedy}"
        )
    for encoder in encoders:
        encoder.parts *= 2
    parts = encoders[0].parts
    log.warning("not enough memory for a whole batch%s; encoding batches in %d parts from now on", others, parts)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def oom_as_user_error(objective: nn.Module) -> Iterator[None]:
    """Turn an out-of-memory error into a `UserError` where work can be neither split nor repeated."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        others = _other_processes_memory(next(objective.parameters()).device)
        remedy = _GPU_REMEDY if others else "use a smaller encoder, or a machine or GPU with more memory"
        raise UserError(f"there is not enough memory to update the weights{others}; {remedy}") from error


def _other_processes_memory(device: torch.device) -> str:
    """Describe how much of a GPU's memory other processes hold; empty if that is little."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device) - CUDA_CONTEXT
    if others <= _BLAMED_BYTES:
        return ""
    return f", because other processes hold {size(others)} of the GPU's {size(total)}"

"""The memory that a training needs, in bytes, from the sizes of its encoder and its batches.

What an update keeps for its gradients was counted on the tensors that torch saves; a test counts them again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysed.cluster.resources import PROCESS_BYTES, Need
from raysed.config import Block, MembersConfig
from raysed.model.shape import Shape
from raysed.train.out_of_memory import CUDA_CONTEXT
from raysed.train.stage import Size, Stage

if TYPE_CHECKING:
    from raysed.train.stages.sed import SedConfig

_FP32, _BF16 = 4, 2
_ADAM = 2 * _FP32
"""Two moments; the optimizer of CT keeps as much."""
_SLACK = 1.1
"""Memory that an allocator holds and cannot use."""


def member_need(
    stage: Stage, settings: Block, members: MembersConfig, shape: Shape, tokens: float, *, gpu: bool, bf16: bool
) -> Need:
    """Return what a member needs."""
    size = stage.size(settings, shape)
    dropout = bool(getattr(settings, "dropout", False))
    states = (saved_per_token(shape, bf16=bf16, dropout=dropout) + _on_the_way(shape)) * tokens
    states += 3 * _FP32 * size.outputs_per_token * tokens  # these outputs, their gradient and their softmax
    casts = size.encoders * shape.products * _BF16 if bf16 else 0
    fixed = (2 * _FP32 + _ADAM) * _trained(size, shape) + _FP32 * size.kept * shape.parameters + casts
    return _need(f"a member of {stage.name}", fixed, states, checkpoint_bytes(size, shape), gpu)


def learner_need(sed: SedConfig, shape: Shape, tokens: float, workers: int, *, gpu: bool, bf16: bool) -> Need:
    """Return what a worker of a learner needs for its `tokens`; ZeRO shares moments, then gradients."""
    moments = _ADAM / (workers if sed.zero_stage >= 1 else 1)
    gradients = _FP32 / (workers if sed.zero_stage >= 2 else 1)
    casts = shape.products * _BF16 if bf16 else 0
    fixed = (_FP32 + moments + gradients) * shape.parameters + casts
    states = (saved_per_token(shape, bf16=bf16, dropout=sed.dropout) + _on_the_way(shape)) * tokens
    # The first worker gathers the moments for a checkpoint.
    return _need("a learner", fixed, states, checkpoint_bytes(Size(), shape), gpu)


def checkpoint_bytes(size: Size, shape: Shape) -> int:
    """Return the size of a training's checkpoint: weights and moments of what is trained, weights of the rest."""
    return (_FP32 + _ADAM) * _trained(size, shape) + _FP32 * size.kept * shape.parameters


def _trained(size: Size, shape: Shape) -> int:
    return size.trained * shape.parameters + size.parameters


def saved_per_token(shape: Shape, *, bf16: bool, dropout: bool) -> float:
    """Return the bytes that an update keeps for its gradients, for each token of a batch.

    A block keeps eight tensors as wide as the states, and the inner layer before and after its activation. With bf16,
    sums, normalisations and, on CPUs, attention stay in fp32.
    """
    block = 39 * shape.width + 5 * shape.inner if bf16 else _FP32 * (8 * shape.width + 2 * shape.inner)
    masks = 6 * shape.width if dropout else 0
    return shape.layers * (block + masks) + 2 * _FP32 * shape.width


def _on_the_way(shape: Shape) -> float:
    """Gradients of one block's states, for each token, which are gone when the next block's are there."""
    return _FP32 * (4 * shape.width + 2 * shape.inner)


def _need(what: str, fixed: float, states: float, saved: float, gpu: bool) -> Need:
    """On a GPU, a checkpoint passes through the machine's memory; the smallest parts of a batch are a sixteenth."""
    if gpu:
        least = CUDA_CONTEXT + _SLACK * (fixed + states / 16)
        return Need(what, CUDA_CONTEXT + _SLACK * (fixed + states), PROCESS_BYTES + saved, least)
    return Need(what, 0.0, PROCESS_BYTES + _SLACK * (fixed + states) + saved)

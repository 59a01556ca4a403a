"""The memory that a training needs, in bytes, from the sizes of its encoder and batches.

The bytes that an update keeps for its gradients were counted on torch's saved tensors; a test recounts them.
"""

import torch

from raysed.config import Block
from raysed.model.shape import Shape
from raysed.resources import PROCESS_BYTES, Need
from raysed.train.out_of_memory import CUDA_CONTEXT
from raysed.train.recorded import OLDEST_TORCH
from raysed.train.stage import Size, Stage

_FP32, _BF16 = 4, 2
_ADAM = 2 * _FP32
"""Two moments; CT's optimizer stores as much."""
_PASS = 2e9
"""GPU memory for a forward pass of a model that embeds; passes are halved if it is too little."""
_SLACK = 1.1
"""Memory that an allocator holds but cannot use."""


def training_need(
    stage: Stage, settings: Block, shape: Shape, tokens: float, *, gpu: bool, bf16: bool, records: bool = False
) -> Need:
    """Return what a worker needs for the `tokens` of its batch; ZeRO shares moments, then gradients.

    With `records`, recorded updates keep what an update needs besides weights and moments, while others are launched.
    """
    size, workers = stage.size(settings, shape), getattr(settings, "workers", None) or 1
    zero_stage, dropout = getattr(settings, "zero_stage", 0), bool(getattr(settings, "dropout", False))
    per_token = saved_per_token(shape, bf16=bf16, dropout=dropout)
    per_token += _FP32 * (4 * shape.width + 2 * shape.inner)  # gradients of one block, freed at the next
    per_token += 3 * _FP32 * size.outputs_per_token  # these outputs, their gradient and their softmax
    moments = _ADAM / (workers if zero_stage >= 1 else 1)
    gradients = _FP32 / (workers if zero_stage >= 2 else 1)
    trained, kept = size.trained * shape.parameters + size.parameters, _FP32 * size.kept * shape.parameters
    casts = (size.trained + size.kept) * shape.products * _BF16 if bf16 else 0
    memory = _SLACK * ((_FP32 + moments + gradients) * trained + kept + casts + per_token * tokens)
    what = "a learner" if stage.name == "sed" else f"a member of {stage.name}"
    if not gpu:
        return Need(what, 0.0, PROCESS_BYTES + memory + checkpoint_bytes(size, shape))
    # A checkpoint passes through host memory, where one worker gathers the moments. `least` is for a batch in 16 parts,
    # which is not recorded.
    least = CUDA_CONTEXT + memory - _SLACK * per_token * tokens * 15 / 16
    if records and workers == 1 and not zero_stage and not stage.masks and torch.__version__ >= OLDEST_TORCH:
        memory += _SLACK * max(gradients * trained, casts + per_token * tokens)
    return Need(what, CUDA_CONTEXT + memory, PROCESS_BYTES + checkpoint_bytes(size, shape), least)


def embedding_need(what: str, weights: float) -> Need:
    """Return what a worker needs to embed on a GPU with a model of `weights` bytes."""
    least = CUDA_CONTEXT + weights
    return Need(what, least + _PASS, PROCESS_BYTES + weights, least)


def checkpoint_bytes(size: Size, shape: Shape) -> int:
    """Return the size of a checkpoint: weights and moments of trained models, weights of the others."""
    trained = size.trained * shape.parameters + size.parameters
    return (_FP32 + _ADAM) * trained + _FP32 * size.kept * shape.parameters


def saved_per_token(shape: Shape, *, bf16: bool, dropout: bool) -> float:
    """Return the bytes that an update keeps for its gradients, per token of a batch.

    A block keeps eight tensors as wide as the states, and the inner layer before and after its activation. In bf16,
    sums and normalisations stay in fp32. There, CPUs also keep attention's weights; the estimate covers them for rows
    of up to 250 tokens.
    """
    block = 37 * shape.width + 5 * shape.inner if bf16 else _FP32 * (8 * shape.width + 2 * shape.inner)
    masks = 6 * shape.width if dropout else 0
    return shape.layers * (block + masks) + 2 * _FP32 * shape.width

"""The memory that a training needs, from the sizes of its encoder and its batches.

Numbers are bytes. What an update keeps for its gradients was counted on the tensors that torch saves; a test counts
them again.
"""

from dataclasses import replace

from raysed.cluster.need import PROCESS_BYTES, Need
from raysed.config import Config
from raysed.model.shape import Shape
from raysed.train.loop import CUDA_CONTEXT
from raysed.train.setups import members_together, predictor_parameters

_FP32, _BF16 = 4, 2
_ADAM = 2 * _FP32
"""Two moments; the optimizer of CT keeps as much."""
_SLACK = 1.1
"""Memory that an allocator holds and cannot use."""


def member_need(stage: str, config: Config, shape: Shape, tokens: float, *, gpu: bool, bf16: bool) -> Need:
    """Returns what a member needs, or a stack of them (see `members.stack`).

    Args:
        stage: one of `recipe.MEMBER_STAGES`.
        bf16: whether the forward pass is in bf16.
    """
    trained, kept = shape.parameters, 0
    if stage == "ct":
        trained = 2 * shape.parameters
    elif stage == "bsl":
        trained, kept = shape.parameters + predictor_parameters(config.bsl, shape.width), shape.parameters
    dropout = bool(getattr(getattr(config, stage), "dropout", False))
    states = saved_per_token(shape, bf16=bf16, dropout=dropout) * tokens + _on_the_way(shape) * tokens
    if stage == "mlm":  # logits over the vocabulary of the tokens that are hidden, their gradient and their softmax
        states += 3 * _FP32 * config.mlm.rate * tokens * shape.vocabulary
    casts = copies_of(stage) * shape.products * _BF16 if bf16 else 0
    fixed = (2 * _FP32 + _ADAM) * trained + _FP32 * kept + casts
    count = members_together(stage, config)
    what = f"a stack of {count} members of {stage} (members.stack)" if count > 1 else f"a member of {stage}"
    need = _need(what, count * fixed, count * states, count * checkpoint_bytes(stage, config, shape), gpu)
    # A stack that does not fit goes on as single members, whose batches can be cut into parts.
    return replace(need, least=_need(what, fixed, states, 0, gpu).least) if count > 1 else need


def copies_of(stage: str) -> int:
    """Returns how many encoders a member has while it trains.

    Args:
        stage: one of `recipe.MEMBER_STAGES`.
    """
    return 2 if stage in ("ct", "bsl") else 1


def learner_need(config: Config, shape: Shape, tokens: float, workers: int, *, gpu: bool, bf16: bool) -> Need:
    """Returns what a worker of a learner needs; ZeRO shares moments, gradients and weights among them.

    Args:
        tokens: of one worker's part of a batch.
        bf16: whether the forward pass is in bf16.
    """
    stage, size = config.sed.zero_stage, shape.parameters
    shared = {"moments": stage >= 1, "gradients": stage >= 2, "weights": stage >= 3}
    parts = {"moments": _ADAM * size, "gradients": _FP32 * size, "weights": _FP32 * size}
    own = sum(part / workers if shared[name] else part for name, part in parts.items())
    states = saved_per_token(shape, bf16=bf16, dropout=config.sed.dropout) * tokens + _on_the_way(shape) * tokens
    casts = shape.products * _BF16 if bf16 else 0
    # The first worker gathers weights and moments for a checkpoint.
    return _need("a learner", own + casts, states, checkpoint_bytes(None, config, shape), gpu)


def checkpoint_bytes(stage: str | None, config: Config, shape: Shape) -> int:
    """Returns the size of a training's checkpoint: weights and moments of what is trained, weights of the rest.

    Args:
        stage: one of `recipe.MEMBER_STAGES`; None: a learner.
    """
    whole = (_FP32 + _ADAM) * shape.parameters
    if stage == "ct":
        return 2 * whole
    if stage == "bsl":
        return whole + (_FP32 + _ADAM) * predictor_parameters(config.bsl, shape.width) + _FP32 * shape.parameters
    return whole


def saved_per_token(shape: Shape, *, bf16: bool, dropout: bool) -> float:
    """Returns the bytes that an update keeps for its gradients, for each token of a batch.

    A block keeps its input, queries, keys, values, what attention gives, both sums before a normalisation and the
    first one's result, each as wide as the states, and the inner layer before and after its activation.

    Args:
        bf16: whether the forward pass is in bf16; sums, normalisations and, on CPUs, attention stay in fp32.
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

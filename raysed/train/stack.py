"""Members that train as one program: an update of four starts 1.6 times the GPU kernels of one, not four times.

A small encoder does not fill a GPU: most of an update's time goes by while its many small kernels are started.
`torch.func.vmap` adds a dimension to every weight and every product. All else stays each member's own, so its result is
that of a training alone, up to rounding; but where dropout is on, it draws other masks.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from raysed.data.tokens import PackedTokens
from raysed.model.precision import AttentionBy
from raysed.train.engine import TorchEngine
from raysed.train.loop import Run
from raysed.train.objective import EmbeddingObjective
from raysed.train.out_of_memory import oom_as_user_error
from raysed.train.selection import Result


def can_be_stacked(engine: Any) -> bool:
    """Return whether a training can be part of a stack: one of embeddings, by encoders that take packed rows."""
    return (
        isinstance(engine, TorchEngine)
        and isinstance(engine.objective, EmbeddingObjective)
        and all(encoder.padding_free for encoder in engine.objective.encoders())
    )


def train_together(runs: Sequence[Run]) -> list[Result]:
    """Train several members to their ends, as `loop.train` does one.

    They need not be at the same update: one that was saved later, or stops earlier, leaves the others alone. If one
    fails, the others lose only what came after their newest states.
    """
    with ExitStack() as opened:
        for run in runs:
            opened.enter_context(run)
        while waiting := [run for run in runs if run.goes_on()]:
            # Those that began in another precision, maybe on another machine, go on later.
            together = [run for run in waiting if run.engine.bf16 == waiting[0].engine.bf16]
            stack = Stack([run.engine for run in together])
            try:
                while all(run.goes_on() for run in together):
                    batches = [run.next_batch() for run in together]
                    losses = stack.update(batches, [run.learning_rate() for run in together])
                    for run, batch, loss in zip(together, batches, losses):
                        run.count(batch, loss)
            finally:
                stack.part()
        return [run.end() for run in runs]


class Stack:
    """Updates of several members at once; until `part`, all encoders' weights of a name are views of one tensor."""

    def __init__(self, engines: Sequence[TorchEngine]):
        self._engines = engines
        self._encoders = [encoder for engine in engines for encoder in engine.objective.encoders()]
        self._template = deepcopy(self._encoders[0]).to("meta")
        for module in self._template.modules():
            if isinstance(module, nn.Embedding):
                module.sparse = False
        self._buffers = dict(self._encoders[0].named_buffers())
        self._weights = _joined([dict(encoder.named_parameters()) for encoder in self._encoders])

    def update(self, batches: Sequence[Any], rates: Sequence[float]) -> list[float | torch.Tensor]:
        """Make one update of every member; return their losses, see `engine.TorchEngine.update`."""
        for engine, rate in zip(self._engines, rates):
            engine.prepare(rate)
            engine.optimizer.zero_grad(set_to_none=True)
        for weight in self._weights.values():
            weight.grad = None
        with oom_as_user_error(self._engines[0].objective):
            losses = self._gradients(batches)
            return [engine.finish(loss) for engine, loss in zip(self._engines, losses)]

    def part(self) -> None:
        """Give every encoder weights of its own again."""
        for encoder in self._encoders:
            for parameter in encoder.parameters():
                parameter.data, parameter.grad = parameter.data.clone(), None

    def _gradients(self, batches: Sequence[Any]) -> list[torch.Tensor]:
        engine = self._engines[0]
        passes = [engine.objective.passes(batch) for engine, batch in zip(self._engines, batches)]
        device = next(iter(self._weights.values())).device
        with torch.autocast(device.type, torch.bfloat16) if engine.bf16 else nullcontext():
            embeddings = iter(self._embed([tokens for of_one in passes for _, tokens in of_one], device))
            losses = [
                engine.objective.loss_of(batch, [next(embeddings) for _ in of_one])
                for engine, batch, of_one in zip(self._engines, batches, passes)
            ]
        torch.autograd.backward(losses)
        for place, encoder in enumerate(self._encoders):
            for name, parameter in encoder.named_parameters():
                gradient = self._weights[name].grad
                parameter.grad = None if gradient is None else gradient[place]
        return [loss.detach() for loss in losses]

    def _embed(self, tokens: Sequence[PackedTokens], device: torch.device) -> torch.Tensor:
        """Embed the sentences of every encoder, [E, B, D]."""
        self._template.train(self._encoders[0].training)
        tensors = of_equal_shape(tokens)
        with AttentionBy(_attend):
            return vmap(self._one, randomness="different")(
                self._weights, *(tensor.to(device, non_blocking=True) for tensor in tensors)
            )

    def _one(self, weights: Mapping[str, torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
        tokens = PackedTokens(*tensors, ids=None)
        return functional_call(self._template, (weights, self._buffers), (tokens,))


def of_equal_shape(tokens: Sequence[PackedTokens]) -> tuple[torch.Tensor, ...]:
    """Return the fields of E packed batches of B sentences, [E, R, L] and [E, B], with empty places in smaller ones."""
    rows, columns = (max(of_one.input_ids.shape[axis] for of_one in tokens) for axis in (0, 1))

    def grown(tensor: torch.Tensor, fill: int) -> torch.Tensor:
        return F.pad(tensor, (0, columns - tensor.shape[1], 0, rows - tensor.shape[0]), value=fill)

    fields = [
        (grown(one.input_ids, 0), grown(one.position_ids, 0), grown(one.segments, len(one)), one.lengths)
        for one in tokens
    ]
    return tuple(map(torch.stack, zip(*fields)))


def _joined(parameters: Sequence[Mapping[str, nn.Parameter]]) -> dict[str, torch.Tensor]:
    """Return one tensor for the weights of a name of all encoders, [E, ...], which then are views of it."""
    joined = {}
    for name, first in parameters[0].items():
        stacked = torch.stack([of_one[name].detach() for of_one in parameters])
        for place, of_one in enumerate(parameters):
            of_one[name].data = stacked[place]
        joined[name] = stacked.requires_grad_(first.requires_grad)
    return joined


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None, **options: Any
) -> torch.Tensor:
    """Attention of all members as one of a larger batch: not every kernel of torch has a rule of its own for `vmap`."""
    return _Attention.apply(query, key, value, attn_mask, options)


class _Attention(torch.autograd.Function):
    """Within `vmap`, which is the only place where it is used, torch calls `vmap` below and nothing else."""

    @staticmethod
    def forward(*inputs: Any) -> torch.Tensor:
        """Never called: see the class."""
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: torch.Tensor) -> None:
        """Never called, either; torch asks for it."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[torch.Tensor, int]:
        """Put the dimension of the members, M, into that of the rows, R, and take it out again."""
        *tensors, options = inputs
        folded = [
            tensor if tensor is None or dim is None else tensor.movedim(dim, 0).flatten(0, 1)
            for tensor, dim in zip(tensors, in_dims)
        ]
        found = F.scaled_dot_product_attention(*folded, **options)
        return found.unflatten(0, (info.batch_size, -1)), 0

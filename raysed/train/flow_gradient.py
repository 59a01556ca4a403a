"""The flow's loss, by a hand-written gradient or, with 2.7 times fewer updates per second (2 cores), by autograd."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raysed.model import glow


class AutogradObjective:
    """The loss of a batch, twice its mean bits per dimension, and its gradient by autograd; for every flow."""

    def __init__(self, flow: glow.Glow):
        self.flow, self.parameters = flow, list(flow.parameters())

    def backward(self, x_BD: Tensor) -> Tensor:
        """Return the loss and set the gradient."""
        self.flow.zero_grad()
        loss = 2 * self.flow.bits_per_dim(x_BD).mean()
        loss.backward()
        return loss.detach()

    def write_back(self) -> None:
        """Do nothing: the parameters are the flow's own."""


class FlowObjective:
    """The loss of a batch and its hand-written gradient, for a flow that reverses channels (`released`).

    Memory traffic dominates, so all batches have one size, and buffers as wide as a batch are allocated once and
    overwritten. Parameters lie in one vector, gradients in another (`vector` and its `grad`). Parameters that would see
    reversed channels are reversed once, instead of the batches; every other step keeps the right half.

    An actnorm y = (x + shift) * exp(3 * log_scale) has the gradients scale * sum(dy) and 3 * sum(dy * y), summed over
    rows. Each step writes the sums; the factors are applied to all steps at once.

    Shapes: B rows, D channels of a level, H = hidden. A leading d marks the gradient of the loss by that name.
    """

    def __init__(self, flow: glow.Glow, rows: int):
        _reverse_parameters_(flow)
        self.flow = flow
        self.vector = nn.Parameter(nn.utils.parameters_to_vector(flow.parameters()).detach())
        self.vector.grad = torch.zeros_like(self.vector)
        self.parameters = [self.vector]
        self.bits = 2 / (math.log(2) * flow.width)
        """Contribution of one nat of a row to the loss, which has two rows."""
        self.shift, self.log_scale, *weights = self._parts(self.vector.detach())
        self.sums, self.dots, *gradients = self._parts(self.vector.grad)
        self.scale, self.offset = torch.empty_like(self.shift), torch.empty_like(self.shift)
        pieces = [vector.split(flow.sizes) for vector in (self.scale, self.offset, self.sums, self.dots)]
        self.steps: list[_CouplingStep] = []
        self.latents: list[tuple[Tensor, Tensor]] = []
        dy_BD, products_BD = torch.empty(2, rows, flow.width, dtype=self.vector.dtype, device=self.vector.device)
        for index in range(flow.steps):
            own = [piece[index :: flow.steps] for piece in pieces]
            layers = slice(3 * index, 3 * index + 3)
            step = _CouplingStep(index % 2 == 0, own, weights[layers], gradients[layers], dy_BD, products_BD)
            self.steps.append(step)
            if (index + 1) % flow.depth == 0:
                self.latents.append((step.moved, step.dmoved))
                step.output, dy_BD, products_BD = step.kept, step.dkept, products_BD.chunk(2, dim=1)[0]
        self.latents.append((step.kept, step.dkept))

    def _parts(self, vector: Tensor) -> list[Tensor]:
        """Return views of a vector with the shapes of the flow's parameters."""
        parameters = list(self.flow.parameters())
        parts = vector.split([parameter.numel() for parameter in parameters])
        return [part.view_as(parameter) for part, parameter in zip(parts, parameters)]

    @torch.inference_mode()
    def backward(self, x_BD: Tensor) -> Tensor:
        """Return the loss and set the gradient."""
        norms = slice(0, self.flow.norm_width)
        torch.mul(self.log_scale, glow.LOG_SCALE_FACTOR, out=self.scale)
        nats = self.flow.width / 2 * math.log(2 * math.pi) - self.scale[norms].sum()
        torch.mul(self.shift, self.scale.exp_(), out=self.offset)
        x = x_BD
        for step in self.steps:
            x = step.forward(x)
        for z, dz in self.latents:
            torch.mul(z, self.bits / len(x_BD), out=dz)
        loss = self.bits * nats + sum((z * dz).sum() for z, dz in self.latents) / 2
        for step in reversed(self.steps):
            step.backward()
        self.sums.mul_(self.scale)
        self.dots[norms].sub_(self.bits)
        self.dots.mul_(glow.LOG_SCALE_FACTOR)
        return loss

    @torch.no_grad()
    def write_back(self) -> None:
        """Copy the current parameters into the flow."""
        for parameter, part in zip(self.flow.parameters(), self._parts(self.vector)):
            parameter.copy_(part)
        _reverse_parameters_(self.flow)


@torch.no_grad()
def _reverse_parameters_(flow: glow.Glow) -> None:
    """Convert to the channel order of a flow that reverses nothing, or back."""
    for vector in (flow.shift, flow.log_scale):
        pieces = vector.split(flow.sizes)
        for index in range(flow.steps):
            piece = pieces[index if index % 2 else 3 * flow.steps + index]
            piece.copy_(piece.flip(0))
    for index in range(0, flow.steps, 2):
        first, _, last = flow.weights[3 * index : 3 * index + 3]
        first.copy_(first.flip(1))
        last.copy_(last.flip(0))


class _CouplingStep:
    """One step of the flow: views into shared buffers, and what `backward` needs from `forward`.

    The order of the lines matters: most of them overwrite an earlier line's input. Run
    `test_loss_and_gradient_are_those_of_autograd` after any change.

    Args:
        keeps_right: whether the coupling keeps the right half of the channels.
        pieces: scale, offset, sums and dots, each for the actnorm, the two inner actnorms and the last layer.
        dy_BD: the gradient of the step's output before `backward`, and of its input afterwards.
    """

    def __init__(
        self,
        keeps_right: bool,
        pieces: Sequence[Sequence[Tensor]],
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        dy_BD: Tensor,
        products_BD: Tensor,
    ):
        self.scale, self.offset, self.sums, self.dots = pieces
        self.weights, self.gradients, self.dy, self.products = weights, gradients, dy_BD, products_BD
        self.y = self.output = torch.empty_like(dy_BD, memory_format=torch.contiguous_format)
        self.scaled_last = torch.empty_like(weights[2])

        def halves(values: Tensor) -> tuple[Tensor, ...]:
            left_right = values.chunk(2, dim=-1)
            return left_right[::-1] if keeps_right else left_right

        self.kept, self.moved = halves(self.y)
        self.dkept, self.dmoved = halves(dy_BD)
        self.moved_offset, self.moved_dots = halves(self.offset[0])[1], halves(self.dots[0])[1]

    def forward(self, x_BD: Tensor) -> Tensor:
        first, second, last = self.weights
        self.moved_offset.add_(self.offset[3])
        torch.mul(last, self.scale[3][:, None], out=self.scaled_last)
        torch.addcmul(self.offset[0], x_BD, self.scale[0], out=self.y)
        self.hidden1_BH = torch.addcmul(self.offset[1], self.kept @ first.T, self.scale[1]).relu_()
        self.hidden2_BH = torch.addcmul(self.offset[2], self.hidden1_BH @ second.T, self.scale[2]).relu_()
        self.moved.addmm_(self.hidden2_BH, self.scaled_last.T)
        return self.output

    def backward(self) -> None:
        first, second, last = self.gradients
        torch.mm(self.dmoved.T, self.hidden2_BH, out=last)
        torch.sum(self.dmoved, 0, out=self.sums[3])
        torch.addcmul((last * self.scaled_last).sum(1), self.offset[3], self.sums[3], out=self.dots[3])
        last.mul_(self.scale[3][:, None])
        d_BH = self._through_actnorm(2, self.dmoved @ self.scaled_last, self.hidden2_BH)
        torch.mm(d_BH.T, self.hidden1_BH, out=second)
        d_BH = self._through_actnorm(1, d_BH @ self.weights[1], self.hidden1_BH)
        torch.mm(d_BH.T, self.kept, out=first)
        self.dkept.addmm_(d_BH, self.weights[0])
        torch.sum(self.dy, 0, out=self.sums[0])
        torch.sum(torch.mul(self.dy, self.y, out=self.products), 0, out=self.dots[0])
        # The moved half of y includes the last layer's output, whose share of the dots is not the actnorm's.
        self.moved_dots.sub_(self.dots[3])
        self.dy.mul_(self.scale[0])

    def _through_actnorm(self, place: int, d_BH: Tensor, y_BH: Tensor) -> Tensor:
        """Propagate the gradient back through ReLU, whose output is y, and an inner actnorm."""
        d_BH.mul_(y_BH.sign())
        torch.sum(d_BH, 0, out=self.sums[place])
        torch.sum(d_BH * y_BH, 0, out=self.dots[place])
        return d_BH.mul_(self.scale[place])

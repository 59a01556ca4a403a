"""The normalizing flow's network, and the sentence-transformers module that applies it.

Exported models that end in a flow carry a copy of this file, so it depends on torch and safetensors only.

Source: Li et al., "On the Sentence Embeddings from Pre-trained Language Models", EMNLP 2020, section 3.2,
table 7 and appendix A.
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

LOG_SCALE_FACTOR = 3.0
"""Scales are exp(3 * log_scale); the factor makes them learn three times faster (Glow)."""
DEVIATION_FLOOR = 1e-5
"""Channels below this share of the largest standard deviation are rounding noise (root of raysed's VARIANCE_FLOOR)."""
RELEASED, PAPER = "released", "paper"
"""Variants of a flow, see `Glow`."""
_SETTINGS = ("width", "levels", "depth", "hidden", "variant")


class Glow(nn.Module):
    """An invertible map from embeddings x to z with a tractable density: z ~ N(0, I) (BERT-flow section 3.2).

    One step, from x to z:

    1. actnorm: y = (x + shift) * exp(3 * log_scale), per channel;
    2. permutation of the channels. `released` reverses them, as the released code does; `paper` draws a random
       permutation for each step (section 3.2) and keeps it;
    3. additive coupling of the halves: [y1, y2 + g(y1)]. g has three linear layers: two without bias, each
       followed by an actnorm and ReLU, and a last one that starts at zero. In `paper`, a residual connection adds g's
       input to the last layer's output.

    Only actnorms contribute to the log-determinant: permutations and additive couplings preserve volume.

    Table 7 says "3-layer CNN with residual connection", but not what the connection spans. Here it spans all three
    layers: it needs no projection, because g's input and output have the same width. tensor2tensor's Glow, which the
    released code adapts, does the same in the network `glow_resnet`, whose name stands unused in the code's settings.

    A level is `depth` steps. After every level but the last, the second half of the channels leaves the flow. z is the
    concatenation of these halves, in order, and the last level's output.

    One parameter holds all shifts and another all log-scales, so a training step needs few kernels. Their order: the
    actnorms of all steps, g's first actnorms, g's second actnorms, the scaled biases of g's last layers. With `paper`,
    the buffer `order` holds the permutations of all steps; a step moves channel order[i] to i.

    Shapes: B rows, D = width, a multiple of 2**levels; `levels` is 2 in the paper, 3 in the released code's default.
    """

    def __init__(
        self,
        width: int,
        levels: int = 2,
        depth: int = 3,
        hidden: int = 32,
        variant: str = RELEASED,
        generator: torch.Generator | None = None,
    ):
        super().__init__()
        if variant not in (RELEASED, PAPER):
            raise ValueError(f"a flow's variant is {RELEASED} or {PAPER}, not {variant!r}")
        self.width, self.levels, self.depth, self.hidden, self.variant = width, levels, depth, hidden, variant
        widths = [width >> level for level in range(levels) for _ in range(depth)]
        self.steps = len(widths)
        self.norm_width = sum(widths)
        self.sizes = [*widths, *[hidden] * (2 * self.steps), *[size // 2 for size in widths]]
        self.shift = nn.Parameter(torch.zeros(sum(self.sizes)))
        self.log_scale = nn.Parameter(torch.zeros(sum(self.sizes)))
        shapes = [s for size in widths for s in ((hidden, size // 2), (hidden, hidden), (size // 2, hidden))]
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in shapes)
        self.register_buffer("initialized", torch.tensor(False))
        # As in the released code: actnorms are Glorot-uniform, g's weights N(0, 0.05^2), those of its last layer zero.
        generator = generator or torch.Generator().manual_seed(0)
        with torch.no_grad():
            for vector in (self.shift, self.log_scale):
                for piece in vector.split(self.sizes)[: 3 * self.steps]:
                    limit = math.sqrt(6 / (1 + len(piece)))
                    piece.uniform_(-limit, limit, generator=generator)
            for index, weight in enumerate(self.weights):
                if index % 3 != 2:
                    weight.normal_(0, 0.05, generator=generator)
        orders = [torch.randperm(size, generator=generator) for size in widths] if variant == PAPER else []
        self.register_buffer("order", torch.cat(orders) if orders else None)

    @torch.no_grad()
    def initialize_(self, x_BD: Tensor) -> None:
        """Set every actnorm, g's included, to give mean 0 and standard deviation 1 over these rows.

        Call it once, before the first step, with randomly drawn rows; a second call raises RuntimeError, also after
        loading. A channel that is constant up to rounding (a LayerNorm weight of zero) is scaled like the channel of
        largest deviation. Scaled to deviation 1 in every step, its noise would overflow.
        """
        if self.initialized:
            raise RuntimeError("this flow is initialised already")
        shifts, log_scales = self.shift.split(self.sizes), self.log_scale.split(self.sizes)

        def standardise(values: Tensor, index: int) -> Tensor:
            if index < 3 * self.steps:
                mean = values.mean(0)
                deviation = (values - mean).square().mean(0).sqrt()
                exact = values.double().std(0, correction=0)  # float64: rounding must not look like deviation
                largest = exact.max().to(deviation.dtype)
                deviation = torch.where(exact > DEVIATION_FLOOR * exact.max(), deviation, largest)
                shifts[index].copy_(-mean)
                log_scales[index].copy_(-torch.log(deviation + 1e-6) / LOG_SCALE_FACTOR)
            return (values + shifts[index]) * torch.exp(LOG_SCALE_FACTOR * log_scales[index])

        self._walk(x_BD, standardise)
        self.initialized.fill_(True)

    def forward(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return z_BD and log |det dz/dx| [B] in nats."""
        scale = torch.exp(LOG_SCALE_FACTOR * self.log_scale)
        offsets, scales = (self.shift * scale).split(self.sizes), scale.split(self.sizes)
        # (x + shift) * scale as one multiply-add: half the kernels, and half the tensors that backward keeps.
        z_BD = self._walk(x_BD, lambda values, index: torch.addcmul(offsets[index], values, scales[index]))
        log_det = LOG_SCALE_FACTOR * self.log_scale[: self.norm_width].sum()
        return z_BD, log_det.expand(len(x_BD))

    def bits_per_dim(self, x_BD: Tensor) -> Tensor:
        """Return each row's negative log-likelihood in bits per dimension, [B]; lower is better."""
        z_BD, log_det_B = self(x_BD)
        log_prior_B = -0.5 * z_BD.square().sum(1) - 0.5 * self.width * math.log(2 * math.pi)
        return -(log_prior_B + log_det_B) / (math.log(2) * self.width)

    def _walk(self, x: Tensor, affine: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Run x through all steps; `affine(values, index)` applies the actnorm with that index in `sizes`."""
        left = []
        orders = None if self.order is None else self.order.split(self.sizes[: self.steps])
        for step in range(self.steps):
            x = affine(x, step)
            x = x.index_select(1, orders[step]) if orders else x.flip(1)
            kept, moved = x.chunk(2, dim=1)
            first, second, last = (self.weights[3 * step + layer] for layer in range(3))
            hidden_BH = affine(kept @ first.T, self.steps + step).relu_()
            hidden_BH = affine(hidden_BH @ second.T, 2 * self.steps + step).relu_()
            change = affine(hidden_BH @ last.T, 3 * self.steps + step)
            x = torch.cat([kept, moved + (kept + change if orders else change)], dim=1)
            if (step + 1) % self.depth == 0 and step + 1 < self.steps:
                x, leaving = x.chunk(2, dim=1)
                left.append(leaving)
        return torch.cat([*left, x], dim=1)


class FlowHead(nn.Module):
    """A fitted flow as a sentence-transformers module: it maps the sentence embedding x to z."""

    def __init__(self, glow: Glow):
        super().__init__()
        self.glow = glow

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Replace `sentence_embedding` [B, D] by z, computed in the flow's own precision."""
        x_BD = features["sentence_embedding"].to(self.glow.shift.dtype)
        features["sentence_embedding"] = self.glow(x_BD)[0]
        return features

    def get_embedding_dimension(self) -> int:
        return self.glow.width

    get_sentence_embedding_dimension = get_embedding_dimension  # its name before sentence-transformers 6

    def save(self, directory: str | Path, **_: Any) -> None:
        """Write the flow into a directory, and this file beside it for sentence-transformers."""
        write(self.glow, Path(directory))
        shutil.copyfile(__file__, Path(directory).parent / Path(__file__).name)

    @staticmethod
    def load(directory: str | Path) -> "FlowHead":
        return FlowHead(read(Path(directory), Glow))


def write(glow: Glow, directory: Path) -> None:
    """Write `config.json` and `model.safetensors` (weights and the `initialized` flag) into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"kind": "flow", **{name: getattr(glow, name) for name in _SETTINGS}}, indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    save_file(glow.state_dict(), directory / "model.safetensors")


def read(directory: Path, kind: type[Glow]) -> Glow:
    """Load what `write` wrote, as a `kind` on the CPU in evaluation mode."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = {"variant": RELEASED, **config}  # older files do not name it
    glow = kind(*(config[name] for name in _SETTINGS))
    glow.load_state_dict(load_file(directory / "model.safetensors"))
    return glow.eval()

"""S9: fitting the flow, raysed against normflows and plain PyTorch.

    python benchmarks/s9_flow.py [--pairs 5] [--rows 20000] [--width 768]

One epoch with raysed's defaults: 32 pairs of rows per update, two levels of three steps, learning rate 1e-3, gradient
norm clipped at 1, every actnorm started from 2,048 rows. The rows are drawn here: correlated, off-centre, with a few
dominant directions, as sentence embeddings are. What they are does not change the speed; the bits per dimension of
2,000 rows that no side was fitted on show that all did the same work.

normflows is the fastest of the libraries that were tried: nflows takes about 1.4 times as long, and zuko, which cannot
split between levels, 1.8 times. Its own are the actnorm, permutation, coupling, merge and training loss; the small
network is plain PyTorch, the same as in the plain loop. Instead of reversing channels it swaps their halves, which is
faster and the same up to the order of channels. All sides have the same optimizer, torch's fused AdamW as BERT-flow
sets it. raysed takes one thread; the others take one or `--threads`, whichever is faster at a short try before. No text
is read.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import normflows as nf
import torch
from torch import Tensor, nn

from raysed.config import FlowConfig
from raysed.train.flow_fit import CLIP, INITIALISATION_ROWS, fit_flow
from raysed.train.optimizers import UncorrectedAdamW

import harness

CONFIG = FlowConfig()
LEVELS = 2
HELD_OUT = 2000
TRIED_ROWS = 3200
DOMINANT = (4.0, 3.0, 2.0, 2.0)
Bits = Callable[[Tensor], Tensor]
"""From rows [B, D] to their mean negative log-likelihood in bits per dimension."""
Fit = Callable[[Tensor, int], Bits]
"""From the rows to fit on, and a seed, to the bits of other rows."""


@dataclass
class Side:
    """Who fits.

    Attributes:
        fit: what is timed.
        threads: of torch.
        found: bits per dimension of the held-out rows, by turn.
    """

    fit: Fit
    threads: int
    found: list[float]


def main() -> None:
    """Fits by turns and prints the ratios."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="embeddings to fit on")
    parser.add_argument("--width", type=int, default=768, help="of the embeddings")
    options = parser.parse_args()
    x_ND = embeddings(options.rows + HELD_OUT, options.width).to(options.device)
    fits = {"raysed": fit_raysed, "normflows": fit_normflows, "plain loop": fit_plain}
    sides = {name: prepared(fit, x_ND[:TRIED_ROWS], options) for name, fit in fits.items()}
    turns = {name: lambda number, side=side: turn(side, x_ND, number) for name, side in sides.items()}
    figure = harness.Figure(
        "S9",
        f"one epoch of the flow over {options.rows:,} embeddings of width {options.width}",
        "updates",
        harness.alternate(turns, options.pairs),
        {("raysed", "normflows"): 1.5, ("raysed", "plain loop"): None},
        notes=[note(sides)],
    )
    harness.publish(figure, options)


def embeddings(rows: int, width: int) -> Tensor:
    """Draws rows with correlated channels, a few dominant directions and a mean other than zero."""
    generator = torch.Generator().manual_seed(0)
    rotation_DD = torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
    scales_D = torch.linspace(1, 0.1, width)
    scales_D[: len(DOMINANT)] = torch.tensor(DOMINANT)
    x_ND = torch.randn(rows, width, generator=generator) * scales_D @ rotation_DD
    return x_ND + torch.randn(width, generator=generator)


def prepared(fit: Fit, x_ND: Tensor, options: argparse.Namespace) -> Side:
    """Fits a few rows, for what happens only once in a process and for the better number of threads."""
    seconds = {}
    for threads in (options.threads, 1):
        torch.set_num_threads(threads)
        tries = []
        for seed in range(3):
            with harness.timed() as elapsed:
                fit(x_ND, seed)
            tries += elapsed
        seconds[threads] = min(tries)
    return Side(fit, min(seconds, key=seconds.__getitem__), [])


def turn(side: Side, x_ND: Tensor, number: int) -> harness.Sample:
    """Fits all but the held-out rows, and notes the bits of these."""
    torch.set_num_threads(side.threads)
    kept_ND, fitted_ND = x_ND.split([HELD_OUT, len(x_ND) - HELD_OUT])
    with harness.timed() as elapsed:
        bits = side.fit(fitted_ND, number)
    with torch.no_grad():
        side.found.append(float(bits(kept_ND)))
    return harness.Sample(elapsed[0], updates(fitted_ND))


def updates(x_ND: Tensor) -> int:
    """Returns the updates of an epoch."""
    return len(x_ND) // 2 // CONFIG.batch_size


def note(sides: dict[str, Side]) -> str:
    """Returns what every side reached, and on how many threads."""
    found = [f"{name} {fmean(side.found):.4f}" for name, side in sides.items()]
    threads = [f"{name} {side.threads}" for name, side in sides.items() if name != "raysed"]
    return f"Bits per dimension of {HELD_OUT:,} held-out rows: {', '.join(found)}. Threads: {', '.join(threads)}."


def fit_raysed(x_ND: Tensor, seed: int) -> Bits:
    """Fits as a run does."""
    flow = fit_flow(x_ND, CONFIG, seed)
    return lambda rows_ND: flow.bits_per_dim(rows_ND).mean()


def fit_normflows(x_ND: Tensor, seed: int) -> Bits:
    """Fits the model that is written with normflows."""
    torch.manual_seed(seed)
    model = normflows_model(x_ND.shape[1]).to(x_ND.device)
    return train(model, model.forward_kld, x_ND)


def fit_plain(x_ND: Tensor, seed: int) -> Bits:
    """Fits the model that is written with torch alone."""
    torch.manual_seed(seed)
    model = PlainFlow(x_ND.shape[1]).to(x_ND.device)
    return train(model, model, x_ND)


def train(model: nn.Module, nats: Callable[[Tensor], Tensor], x_ND: Tensor) -> Bits:
    """Trains for an epoch.

    Args:
        model: the flow, before its actnorms are started.
        nats: from rows to their mean negative log-likelihood under it.
        x_ND: rows to fit on; neighbours stay together.
    """
    nat = 1 / (math.log(2) * x_ND.shape[1])
    with torch.no_grad():
        nats(x_ND[torch.randperm(len(x_ND))[:INITIALISATION_ROWS].to(x_ND.device)])
    optimizer = UncorrectedAdamW(model.parameters(), CONFIG.learning_rate)
    x_P2D = x_ND.view(len(x_ND) // 2, 2, -1)
    order = torch.randperm(len(x_P2D)).to(x_ND.device)
    for pairs in order[: updates(x_ND) * CONFIG.batch_size].split(CONFIG.batch_size):
        optimizer.zero_grad()
        (2 * nat * nats(x_P2D.index_select(0, pairs).flatten(0, 1))).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
    return lambda rows_ND: nat * nats(rows_ND)


def widths(width: int) -> list[int]:
    """Returns the width of every level."""
    return [width >> level for level in range(LEVELS)]


def normflows_model(width: int) -> nf.MultiscaleFlow:
    """Builds the architecture of normflows' parts; its own order is from noise to data."""
    from_noise = widths(width)[::-1]
    return nf.MultiscaleFlow(
        [nf.distributions.DiagGaussian(size, trainable=False) for size in [from_noise[0], *from_noise[:-1]]],
        [[NormflowsStep(size) for _ in range(CONFIG.depth)] for size in from_noise],
        [nf.flows.Merge() for _ in from_noise[1:]],
        class_cond=False,
    )


class NormflowsStep(nf.flows.Flow):
    """One step, which adds up its log-determinants as the library's own Glow block does.

    Args:
        width: of its level.
    """

    def __init__(self, width: int):
        super().__init__()
        coupling = nf.flows.AffineCouplingBlock(coupling_net(width // 2), scale=False)
        self.flows = nn.ModuleList([coupling, nf.flows.Permute(width, mode="swap"), nf.flows.ActNorm(width)])

    def inverse(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """From data to noise."""
        total = torch.zeros(len(z), dtype=z.dtype, device=z.device)
        for flow in reversed(self.flows):
            z, log_det = flow.inverse(z)
            total += log_det
        return z, total


def coupling_net(half: int) -> nn.Sequential:
    """Builds the small network: two layers with an actnorm each, and a last one that starts at zero."""
    layers = [nn.Linear(*sizes, bias=False) for sizes in ((half, CONFIG.hidden), (CONFIG.hidden, CONFIG.hidden))]
    for layer in layers:
        nn.init.normal_(layer.weight, 0, 0.05)
    last = nn.Linear(CONFIG.hidden, half, bias=False)
    nn.init.zeros_(last.weight)
    inner = [part for layer in layers for part in (layer, ActNorm(CONFIG.hidden), nn.ReLU(inplace=True))]
    return nn.Sequential(*inner, last, ActNorm(half, start=False))


class ActNorm(nn.Module):
    """(x + shift) * exp(3 * log_scale), started from the first rows that it sees.

    Args:
        width: channels.
        start: whether the first rows start it; otherwise it starts as the identity.
    """

    def __init__(self, width: int, start: bool = True):
        super().__init__()
        self.shift, self.log_scale = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.waits = start

    def forward(self, x_BD: Tensor) -> Tensor:
        """Returns the rows, shifted and scaled."""
        if self.waits:
            self.shift.data = -x_BD.mean(0)
            self.log_scale.data = -torch.log(x_BD.std(0) + 1e-6) / 3
            self.waits = False
        return (x_BD + self.shift) * torch.exp(3 * self.log_scale)


class PlainFlow(nn.Module):
    """The same architecture, a module per layer; its output is the mean negative log-likelihood in nats.

    Args:
        width: of the rows.
    """

    def __init__(self, width: int):
        super().__init__()
        self.levels = nn.ModuleList(
            nn.ModuleList(PlainStep(size) for _ in range(CONFIG.depth)) for size in widths(width)
        )

    def forward(self, x_BD: Tensor) -> Tensor:
        """Returns the loss of the rows."""
        z, log_det, left = x_BD, 0.0, []
        for level in self.levels:
            for step in level:
                z = step(z)
                log_det = log_det + 3 * step.actnorm.log_scale.sum()
            z, leaving = z.chunk(2, dim=1)
            left.append(leaving)
        z_BD = torch.cat([*left, z], dim=1)
        return (0.5 * z_BD.square().sum(1) + z_BD.shape[1] / 2 * math.log(2 * math.pi) - log_det).mean()


class PlainStep(nn.Module):
    """Actnorm, reversal, additive coupling.

    Args:
        width: of its level.
    """

    def __init__(self, width: int):
        super().__init__()
        self.actnorm, self.net = ActNorm(width), coupling_net(width // 2)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Returns the rows after the step."""
        kept, moved = self.actnorm(x_BD).flip(1).chunk(2, dim=1)
        return torch.cat([kept, moved + self.net(kept)], dim=1)


if __name__ == "__main__":
    main()

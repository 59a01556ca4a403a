"""S8: the model FLOP/s of S1, S2 and S3 over the best matrix product of the same shapes on the same cores.

    python benchmarks/s8_limit.py [--pairs 5] [--updates 20] [--sentences 4000]

Counted are 2 FLOP per weight of a linear layer and real token in a forward pass, three times as many where it trains;
the products of attention are counted apart, between tokens of one sentence only. Everything else that a figure's time
goes into counts as no work: embeddings, normalisations, activations, the loss, the optimizer, empty places in packed
rows and, in S3, tokenising.

The products are those of every linear layer, for as many rows as a forward pass has tokens (the median of the figure's
passes): forward, and in training both backward ones. Of each the fastest of several repetitions counts, by the library
that torch multiplies with, so the rate is weighted by time. Both run in fp32 and in bf16.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import s1_ct_updates as s1
import s2_learner_updates as s2
import torch
from torch import nn

from raysed.data.tokens import TokenTable, batches_by_tokens, tokenize
from raysed.model.encoding import default_token_budget
from raysed.train.stages.ct import PairSampler

import harness

TARGETS = {"fp32": 0.65, "bf16": 0.35}
REPETITIONS = 5
REPETITION_SECONDS = 0.05
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Part:
    """One of S1, S2 and S3 on raysed's side.

    Attributes:
        seconds: of a turn, from bf16 or not and the number of the turn.
        passes: tokens per sentence in each forward pass of a turn, by its number.
        trains: whether the passes go backward, too.
    """

    seconds: Callable[[bool, int], float]
    passes: Callable[[int], list[np.ndarray]]
    trains: bool


@dataclass(frozen=True)
class Shape:
    """What FLOP are counted for.

    Attributes:
        linear: how many linear layers have (inputs, outputs).
        layers: blocks with attention.
        width: of the states.
    """

    linear: Mapping[tuple[int, int], int]
    layers: int
    width: int

    @property
    def weights(self) -> int:
        """Of all linear layers."""
        return sum(count * inputs * outputs for (inputs, outputs), count in self.linear.items())


def main() -> None:
    """Times every part and its products in turn."""
    options = parser().parse_args()
    harness.prepare(options)
    s2.become_the_only_worker(options.device)
    with tempfile.TemporaryDirectory() as directory:
        shape, parts = model_shape(), _parts(options, Path(directory))
        sides: dict[str, Callable[[int], harness.Sample]] = {}
        for name, part in parts.items():
            for precision, dtype in PRECISIONS.items():
                sides[f"{name} {precision}"] = partial(_model_turn, part, shape, precision == "bf16")
                sides[f"products of {name} {precision}"] = partial(_product_turn, part, shape, dtype, options.device)
        samples = harness.alternate(sides, options.pairs)
        notes = [_note(name, part, shape) for name, part in parts.items()] + [_tokenising(options, parts["S3"])]
    targets = {
        (f"{name} {kind}", f"products of {name} {kind}"): goal for name in parts for kind, goal in TARGETS.items()
    }
    title = "model FLOP/s over the best products of the same shapes"
    harness.publish(harness.Figure("S8", title, "GFLOP", samples, targets, notes=notes), options)
    torch.distributed.destroy_process_group()


def parser() -> argparse.ArgumentParser:
    """Returns the script's options."""
    found = harness.arguments(__doc__, sentences=4000, quality_updates=0, dropout=False, warm_up=2)
    found.add_argument("--updates", type=int, default=20, help="per turn of S1 and S2")
    return found


def model_shape() -> Shape:
    """Returns what is counted of M3."""
    transformer = harness.encoder()[0].transformer
    linear = Counter(
        (module.in_features, module.out_features)
        for name, module in transformer.named_modules()
        if isinstance(module, nn.Linear) and "pooler" not in name
    )
    return Shape(linear, transformer.config.num_hidden_layers, transformer.config.hidden_size)


def linear_flop(part: Part, shape: Shape, number: int) -> float:
    """Returns what the linear layers of a part's turn do for its real tokens."""
    tokens = sum(int(lengths.sum()) for lengths in part.passes(number))
    return 2 * shape.weights * tokens * _directions(part)


def attention_flop(part: Part, shape: Shape, number: int) -> float:
    """Returns what queries times keys and weights times values take within the sentences of a part's turn."""
    pairs = sum(int((lengths.astype(np.int64) ** 2).sum()) for lengths in part.passes(number))
    return 2 * 2 * shape.width * shape.layers * pairs * _directions(part)


def product_seconds(rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: str, trains: bool) -> float:
    """Returns the least time of one linear layer's products for so many rows, by torch's library."""
    x_RI = torch.randn(rows, inputs, device=device, dtype=dtype)
    y_RO = torch.randn(rows, outputs, device=device, dtype=dtype)
    weight_OI = torch.randn(outputs, inputs, device=device, dtype=dtype)
    factors = [(x_RI, weight_OI)]
    if trains:
        factors += [(y_RO, weight_OI.T), (y_RO.T, x_RI.T)]
    return sum(_least_seconds(_by_torch, *pair) for pair in factors)


def _by_torch(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b.T


def _least_seconds(product: Callable[..., torch.Tensor], *factors: torch.Tensor | None) -> float:
    product(*factors)
    with harness.timed() as once:
        product(*factors)
    count = max(1, int(REPETITION_SECONDS / max(once[0], 1e-6)))
    found = []
    for _ in range(REPETITIONS):
        with harness.timed() as seconds:
            for _ in range(count):
                product(*factors)
        found.append(seconds[0] / count)
    return min(found)


def _directions(part: Part) -> int:
    return 3 if part.trains else 1


def _model_turn(part: Part, shape: Shape, bf16: bool, number: int) -> harness.Sample:
    return harness.Sample(part.seconds(bf16, number), linear_flop(part, shape, number) / 1e9)


def _product_turn(part: Part, shape: Shape, dtype: torch.dtype, device: str, number: int) -> harness.Sample:
    rows = _median_tokens(part, number)
    seconds = sum(
        count * product_seconds(rows, *size, dtype, device, part.trains) for size, count in shape.linear.items()
    )
    return harness.Sample(seconds, 2 * shape.weights * rows * _directions(part) / 1e9)


def _median_tokens(part: Part, number: int) -> int:
    return int(statistics.median(int(lengths.sum()) for lengths in part.passes(number)))


def _parts(options: argparse.Namespace, directory: Path) -> dict[str, Part]:
    folders = [directory / name for name in ("s1", "s2")]
    for folder in folders:
        folder.mkdir()
    one, two = s1.prepare(options, folders[0]), s2.prepare(options, folders[1])
    return {
        "S1": Part(
            lambda bf16, number: s1.train_raysed(one, bf16, options.updates, number).seconds,
            lambda number: _pair_lengths(one.table, options.updates, number),
            trains=True,
        ),
        "S2": Part(
            lambda bf16, number: s2.train_raysed(two, bf16, options.updates, number).seconds,
            lambda number: [s2.batches_of(two, number)(step).tokens.lengths.numpy() for step in range(options.updates)],
            trains=True,
        ),
        "S3": _encoding(options, one.table.lengths),
    }


def _pair_lengths(table: TokenTable, updates: int, seed: int) -> list[np.ndarray]:
    sampler = PairSampler(table, s1.CT, seed)
    return [table.lengths[rows] for step in range(updates) for rows in sampler.rows(step)]


def _encoding(options: argparse.Namespace, lengths: np.ndarray) -> Part:
    sentences = harness.sentences(options)
    sides = {bf16: harness.embedder(*harness.encoder(options.device), bf16) for bf16 in (False, True)}

    def seconds(bf16: bool, number: int) -> float:
        sides[bf16](sentences[:64])
        with harness.timed() as found:
            sides[bf16](sentences)
        return found[0]

    passes = [lengths[rows] for rows in batches_by_tokens(lengths, default_token_budget(options.device))]
    return Part(seconds, lambda number: passes, trains=False)


def _note(name: str, part: Part, shape: Shape) -> str:
    share = attention_flop(part, shape, 0) / linear_flop(part, shape, 0)
    return (
        f"{name}: {_median_tokens(part, 0):,} tokens per forward pass; the products of attention would add "
        f"{100 * share:.1f} % to the FLOP."
    )


def _tokenising(options: argparse.Namespace, part: Part) -> str:
    sentences, tokenizer = harness.sentences(options), harness.encoder()[1]
    started = time.perf_counter()
    tokenize(tokenizer, sentences, harness.MAX_LENGTH)
    seconds = time.perf_counter() - started
    return f"Tokenising is {100 * seconds / part.seconds(False, 0):.1f} % of S3's time in fp32."


if __name__ == "__main__":
    main()

"""Which of Contrastive Tension's two copies is better, and which one is chosen without labels?

    python benchmarks/ct_keep.py [--encoder DIR] [--corpus FILE] [--updates 50 200] [--rate 1e-5] [--seeds 4]

For every seed and number of updates, one line: both copies' Spearman x100 on graded pairs, and what each rule loses by
its choice (0: it takes the better copy). `closest` is `ct.keep`'s: the higher correlation of the cosines between 512
sentences, centred, with those before training; `not centred` is the same without centring; `isotropic` takes the lower
mean cosine; `second` always that copy, as the peer of S5 does. The last line has each rule's mean loss, and that of a
choice by lot. Trained in bf16, embedded in fp32.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from raysed.config import Config
from raysed.data.tokens import TokenTable, tokenize
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.registry import stages
from raysed.score.metrics import unit
from raysed.train.stage import Start
from raysed.train.stages.ct import CtConfig

import harness

SAMPLE = 512


def main() -> None:
    """Trains, compares, and prints the lines."""
    parser = harness.arguments(__doc__)
    parser.add_argument("--updates", type=int, nargs="+", default=[50, 200], help="after which copies are compared")
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    harness.prepare(options)
    losses: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        place = harness.encoder_directory(Path(directory, "encoder"), options.encoder)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for updates, scores, picks in compared(options, place, Path(directory), seed):
                best = max(scores.values())
                lost = {rule: best - scores[name] for rule, name in picks.items()}
                lost["by lot"] = best - sum(scores.values()) / 2
                for rule, loss in lost.items():
                    losses.setdefault(rule, []).append(loss)
                both = ", ".join(f"{name} {score:.2f}" for name, score in scores.items())
                print(f"seed {seed}, {updates} updates: {both}; lost: {_in_words(lost)}", flush=True)
    print(f"mean of {len(losses['by lot'])}: {_in_words({rule: np.mean(lost) for rule, lost in losses.items()})}")


def compared(
    options: argparse.Namespace, place: Path, directory: Path, seed: int
) -> Iterator[tuple[int, dict[str, float], dict[str, str]]]:
    """Trains one pair of copies; yields the updates made, the score of each copy, and the copy each rule takes."""
    encoder, tokenizer = harness.encoder(path=place)
    texts = harness.sentences(options)
    corpus = directory / f"corpus-{seed}"
    corpus.mkdir()
    table = tokenize(tokenizer, texts, harness.MAX_LENGTH)
    harness.write_tokens(corpus / "part-00000.parquet", table)
    sample = table.take(np.arange(min(SAMPLE, len(table))))
    config = Config(ct=CtConfig(boundaries=[], learning_rates=[options.rate]), members={"precision": "bf16"})
    run = stages()["ct"].set_up(config.ct, config.members, Start(encoder, tokenizer, {"corpus": corpus}, seed))
    before = [_cosines(encoder, sample, is_centred) for is_centred in (True, False)]
    done = 0
    for updates in options.updates:
        run.objective.train()
        for step in range(done, updates):
            torch.manual_seed(seed * 10**6 + step)
            run.engine.update(run.batch_at(step), options.rate)
        run.objective.eval()
        done, copies = updates, run.objective.candidates()
        scores, about = {}, {}
        for name, copy in copies.items():
            scores[name] = harness.dev_score(harness.embedder(copy, tokenizer), options)
            now = [_cosines(copy, sample, is_centred) for is_centred in (True, False)]
            about[name] = [np.corrcoef(a, b)[0, 1] for a, b in zip(now, before)] + [-now[1].mean()]
        rules = ("closest", "not centred", "isotropic")
        picks = {rule: max(about, key=lambda name, i=i: about[name][i]) for i, rule in enumerate(rules)}
        yield updates, scores, picks | {"second": "second"}


def _cosines(encoder: Encoder, sample: TokenTable, is_centred: bool) -> np.ndarray:
    x_ND = encode(encoder, sample)[0]
    x_ND = unit(x_ND - x_ND.mean(0) if is_centred else x_ND)
    return (x_ND @ x_ND.T)[np.triu_indices(len(x_ND), 1)]


def _in_words(losses: dict[str, float]) -> str:
    return ", ".join(f"{rule} {loss:.2f}" for rule, loss in losses.items())


if __name__ == "__main__":
    main()

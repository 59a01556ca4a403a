"""S3: sentences a second that one model embeds, raysed against sentence-transformers' `encode` and plain PyTorch.

    python benchmarks/s3_encoding.py [--pairs 5] [--sentences 12000] [--probe 1024]

M3 in fp32, at most 75 tokens, mean of the last layer; every side starts from text, so that tokenising counts. The peer
runs with its default of 32 sentences per batch and, as another side, with the size that is fastest here on `--probe`
sentences. Plain PyTorch pads batches of 32, the longest first. The script fails where two sides disagree. On machines
where teachers embed in bf16 unasked, that is a side, too, and the notes say what it changes.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from raysed.model.precision import uses_bf16

import harness
import peers

DEFAULT_BATCH = 32
OTHER_BATCHES = (8, 16, 64, 128, 256)
TOLERANCE = 1e-3
BF16 = "raysed in bf16"
Embed = Callable[[list[str]], np.ndarray]


def main() -> None:
    """Times all sides in turn and compares what they give."""
    options = parser().parse_args()
    harness.prepare(options)
    sentences = harness.sentences(options)
    found: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as directory:
        sides = _sides(options, harness.encoder_directory(Path(directory) / "encoder", options.encoder), sentences)
        turns = {name: partial(_turn, name, embed, sentences, found) for name, embed in sides.items()}
        samples = harness.alternate(turns, options.pairs)
        devs = {name: harness.dev_score(embed, options) for name, embed in sides.items()}
    rounded = found.pop(BF16, None)
    notes = [f"Largest difference of an embedding's value between two sides in fp32: {_difference(found):.1e}."]
    notes += [] if rounded is None else [_rounding(rounded, found["raysed"])]
    targets = {("raysed", name): 1.2 for name in sides if name.startswith("sentence-transformers")}
    targets |= {("raysed", "plain PyTorch"): None}
    targets |= {(BF16, "raysed"): None} if rounded is not None else {}
    title = f"encoding: {options.encoder}, {len(sentences):,} sentences, length {harness.MAX_LENGTH}, fp32"
    harness.publish(
        harness.Figure("S3", title, "sentences", harness.scored(samples, devs), targets, notes=notes), options
    )


def parser() -> argparse.ArgumentParser:
    """Returns the script's options."""
    found = harness.arguments(__doc__)
    found.add_argument("--probe", type=int, default=1024, help="sentences that the peer's batch size is chosen on")
    return found


def _sides(options: argparse.Namespace, encoder: Path, sentences: list[str]) -> dict[str, Embed]:
    model = peers.load(encoder, options.device)
    peer = partial(model.encode, convert_to_numpy=True, show_progress_bar=False)
    plain = partial(
        peers.plain_encode, peers.plain_model(encoder, options.device), AutoTokenizer.from_pretrained(encoder)
    )
    sides = {
        "raysed": harness.embedder(*harness.encoder(options.device, encoder)),
        "sentence-transformers": peer,
        "plain PyTorch": plain,
    }
    if uses_bf16("auto", harness.encoder(options.device, encoder)[0]):
        sides[BF16] = harness.embedder(*harness.encoder(options.device, encoder), bf16=True)
    best = _best_batch(peer, _probe(sentences, options.probe))
    if best != DEFAULT_BATCH:
        sides[f"sentence-transformers, batch_size={best}"] = partial(peer, batch_size=best)
    return sides


def _probe(sentences: list[str], count: int) -> list[str]:
    """Returns about so many sentences, in which those of one batch are as equally long as in the whole corpus."""
    size, by_length = max(OTHER_BATCHES), sorted(sentences, key=len)
    blocks = [by_length[start : start + size] for start in range(0, len(by_length), size)]
    every = max(1, len(sentences) // count)
    return [sentence for block in blocks[every // 2 :: every] for sentence in block]


def _best_batch(peer: Embed, sentences: list[str]) -> int:
    """Returns the peer's fastest batch size, each timed twice and the faster time taken."""
    times = {}
    for size in (DEFAULT_BATCH, *OTHER_BATCHES):
        found = []
        for _ in range(2):
            with harness.timed() as seconds:
                peer(sentences, batch_size=size)
            found += seconds
        times[size] = min(found)
    listed = ", ".join(f"{size}: {len(sentences) / seconds:.0f}/s" for size, seconds in times.items())
    print(f"  batch sizes of sentence-transformers: {listed}", flush=True)
    return min(times, key=times.__getitem__)


def _turn(name: str, embed: Embed, sentences: list[str], found: dict[str, np.ndarray], number: int) -> harness.Sample:
    if not number:
        embed(sentences[:64])
    with harness.timed() as seconds:
        found[name] = embed(sentences)
    return harness.Sample(seconds[0], len(sentences))


def _difference(found: dict[str, np.ndarray]) -> float:
    """Returns the largest difference to raysed's embeddings; ends the script where it is too large."""
    differences = {name: float(np.abs(emb_ND - found["raysed"]).max()) for name, emb_ND in found.items()}
    worst = max(differences, key=differences.__getitem__)
    if not differences[worst] <= TOLERANCE:
        sys.exit(f"embeddings of raysed and {worst} differ by {differences[worst]:.2g}, more than {TOLERANCE:g}")
    return differences[worst]


def _rounding(rounded_ND: np.ndarray, exact_ND: np.ndarray) -> str:
    norms_N = np.linalg.norm(rounded_ND, axis=1) * np.linalg.norm(exact_ND, axis=1)
    cosines_N = (rounded_ND * exact_ND).sum(1) / norms_N
    off = np.linalg.norm(rounded_ND - exact_ND) / np.linalg.norm(exact_ND)
    return f"In bf16 embeddings are off by {off:.2%} of their norm; cosine with fp32 at least {cosines_N.min():.5f}."


if __name__ == "__main__":
    main()

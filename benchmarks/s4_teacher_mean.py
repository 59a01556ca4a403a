"""S4: the mean of ten teachers' embeddings as a run makes it, against ten calls of `encode` and an average in numpy.

    python benchmarks/s4_teacher_mean.py [--pairs 5] [--teachers 10] [--sentences N] [--engine local]

The teachers are M3 with a little noise on its weights. Both sides load their models and tokenise within their turn;
raysed tokenises once, writes the target table and re-encodes some of its rows to check them. Each of raysed's turns is
a process of its own, whose imports are not part of it, as they are not of the other's; nor is the start of Ray, which a
whole job pays once (S6). The dev score is computed beside the first turn of each side. On machines where teachers embed
in bf16 unasked, that is a side, too, and the notes say how far it moves the mean.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from raysed.config import Precision, make_config
from raysed.context import ignore
from raysed.data.parquet import BlockFiles, matrix
from raysed.data.tokens import tokenize
from raysed.made import resolve_input
from raysed.make.targets import teacher_sum
from raysed.model.precision import uses_bf16
from raysed.model.pretrained import load_encoder, save_encoder
from raysed.pipeline import ensemble_then_distill
from raysed.plan.check import check
from raysed.plan.size import rehearsed
from raysed.process import prepare_process
from raysed.runner import Run, backend_of
from raysed.store.storage import Storage

import peers
from harness import (
    ENCODER,
    MAX_LENGTH,
    Figure,
    Sample,
    alternate,
    arguments,
    dev_score,
    encoder,
    prepare,
    publish,
    timed,
)
from harness import sentences as read_sentences
from runs import ray_session, settings, write_lines, write_sentence_table

AGREEMENT = 1e-3
"""The largest difference between the two means; their values are around 1."""
BF16 = "raysed in bf16"
NOISE = 0.02
"""Of the weights, in standard deviations of their tensor."""
TARGETS = "ct-sed/targets"


def main() -> None:
    """Writes the teachers, lets both sides average them in turn, and compares what they found."""
    parser = arguments(__doc__)
    parser.add_argument("--teachers", type=int, default=10, help="how many models are averaged")
    parser.add_argument("--engine", default="local", choices=("local", "ray"), help="that makes raysed's mean")
    options = parser.parse_args()
    prepare(options)
    with tempfile.TemporaryDirectory() as directory:
        teachers = [write_teacher(seed, Path(directory, "teachers", f"{seed:02d}")) for seed in range(options.teachers)]
        both = Work(options, read_sentences(options), directory, teachers)
        sides = {"raysed": both.raysed, "sentence-transformers": both.peer}
        if uses_bf16("auto", encoder(options.device)[0]):
            sides[BF16] = both.raysed_in_bf16
        samples = alternate(sides, options.pairs)
    publish(
        Figure(
            name="S4",
            title=f"mean of {options.teachers} teachers over {len(both.texts):,} sentences, engine {options.engine}",
            unit="sentences x teachers",
            samples=samples,
            targets={(name, "sentence-transformers"): 3 for name in sides if name != "sentence-transformers"},
            notes=both.notes(),
        ),
        options,
    )


@dataclass
class Work:
    """Both sides of the figure, and what they leave behind for its notes.

    Attributes:
        options: the script's.
        texts: the corpus.
        location: directory for runs.
        teachers: their directories.
        means: what each side found last, [N, D].
        tokenising: seconds of each time that the corpus was tokenised.
    """

    options: argparse.Namespace
    texts: list[str]
    location: str
    teachers: list[Path]
    means: dict[str, np.ndarray] = field(default_factory=dict)
    tokenising: list[float] = field(default_factory=list)

    def raysed(self, number: int) -> Sample:
        """Tokenises and runs the stage in fp32, on as many CPUs as the peer has threads."""
        return self._averaged("raysed", "fp32", number)

    def raysed_in_bf16(self, number: int) -> Sample:
        """The same in bf16."""
        return self._averaged(BF16, "bf16", number)

    def _averaged(self, side: str, precision: Precision, number: int) -> Sample:
        with ProcessPoolExecutor(1, get_context("spawn"), prepare_process) as process:
            turn = self.options, self.location, self.texts, self.teachers, precision, number
            seconds, tokenising, targets = process.submit(make_targets, *turn).result()
        self.means[side] = matrix(targets.read(0, targets.rows).column("target"))
        self.tokenising.append(tokenising)
        return self._sample(seconds, number, partial(self._mean_of_raysed, precision))

    def peer(self, number: int) -> Sample:
        """Loads one model after the other, encodes and averages."""
        with timed() as seconds:
            self.means["peer"] = self._mean_of_peer(self.texts)
        return self._sample(seconds[0], number, self._mean_of_peer)

    def notes(self) -> list[str]:
        """Says how well the means agree and what was left out of raysed's time.

        Raises:
            SystemExit: they do not agree.
        """
        difference = np.abs(self.means["raysed"] - self.means["peer"]).max()
        if difference > AGREEMENT:
            sys.exit(f"the two means differ by {difference:.2g}: one side does not do the work")
        tokenising = statistics.median(self.tokenising)
        found = [
            f"The means in fp32 agree to {difference:.1e}. raysed's time has {tokenising:.1f} s for tokenising in it."
        ]
        if BF16 in self.means:
            exact_ND = self.means["raysed"]
            off = np.linalg.norm(self.means[BF16] - exact_ND) / np.linalg.norm(exact_ND)
            found.append(f"In bf16 the mean is off by {off:.2%} of its norm.")
        return found

    def _mean_of_peer(self, texts: list[str]) -> np.ndarray:
        # Its documentation advises to try: on a CPU no size is faster than its default.
        total, batch_size = 0.0, 32 if self.options.device == "cpu" else 256
        for path in self.teachers:
            model = peers.load(path, self.options.device)
            total = total + model.encode(texts, batch_size=batch_size, show_progress_bar=False)
        return total / len(self.teachers)

    def _mean_of_raysed(self, precision: Precision, texts: list[str]) -> np.ndarray:
        _, tokenizer = load_encoder(ENCODER)
        add = teacher_sum(self.teachers, self.options.device, precision=precision)
        return add(tokenize(tokenizer, texts, MAX_LENGTH)) / len(self.teachers)

    def _sample(self, seconds: float, number: int, embed: Callable[[list[str]], np.ndarray]) -> Sample:
        dev = None if number else dev_score(embed, self.options)
        return Sample(seconds, len(self.texts) * len(self.teachers), dev)


def make_targets(
    options: argparse.Namespace,
    location: str,
    texts: list[str],
    teachers: list[Path],
    precision: Precision,
    number: int,
) -> tuple[float, float, BlockFiles]:
    """Tokenises and makes the targets of a run whose members are trained; in a process that does nothing else.

    Returns:
        Seconds in all, those of tokenising, and the targets.
    """
    torch.set_num_threads(options.threads)
    is_gpu = options.device == "cuda"
    made = settings(
        location, write_lines(Path(location, "corpus.txt"), texts), options.dev, options.teachers, 1, is_gpu
    )
    made["resources"] |= {"encode_precision": precision}
    job, storage = check(make_config(made)), Storage(location, f"{precision}-{number}")
    *members, learner = rehearsed(ensemble_then_distill, job)
    corpus, targets, resources = learner.how.tables["corpus"], learner.step.inputs["targets"], job.config.resources
    with ray_session(options.threads) if options.engine == "ray" else nullcontext():
        backend = backend_of(options.engine, storage, resources, ignore)
        run = Run(storage, backend, resources, ignore, members, len(members))
        _, tokenizer = load_encoder(ENCODER)
        with timed() as tokenising:
            write = partial(write_sentence_table, texts, tokenizer)
            storage.commit(corpus.name, write, corpus.step.depends, {"rows": len(texts)})
        for member, teacher in zip(members, teachers, strict=True):
            storage.commit(member.name, partial(shutil.copytree, teacher, dirs_exist_ok=True), member.step.depends)
        with timed() as averaging:
            run.ensure(targets)
        return tokenising[0] + averaging[0], tokenising[0], resolve_input(targets, storage)


@torch.no_grad()
def write_teacher(seed: int, path: Path) -> Path:
    """Writes M3 with noise on its weights; returns the directory."""
    encoder, tokenizer = load_encoder(ENCODER)
    generator = torch.Generator().manual_seed(seed)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            parameter += NOISE * parameter.std() * torch.randn(parameter.shape, generator=generator)
    path.mkdir(parents=True)
    save_encoder(encoder, tokenizer, path)
    return path


if __name__ == "__main__":
    main()

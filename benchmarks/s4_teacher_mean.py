"""S4: the mean of ten teachers' embeddings through Ray Data, against ten calls of `encode` and an average in numpy.

    python benchmarks/s4_teacher_mean.py [--pairs 5] [--teachers 10] [--sentences N]

The teachers are M3 with a little noise on its weights. Both sides load their models and tokenise within their turn;
raysed tokenises once, writes the target table and re-encodes some of its rows to check them. Ray runs during raysed's
turn only, and its start is not part of the turn: it is paid once in a whole job, and S5 has it. The dev score is
computed beside the first turn of each side. On machines where teachers embed in bf16 unasked, that is a side, too, and
the notes say how far it moves the mean.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

from raysed.cluster import work
from raysed.cluster.blocks import blocks_of, stream_of
from raysed.cluster.resources import current_cluster, plan_teachers
from raysed.cluster.streaming import make_blocks
from raysed.config import Precision, ResourcesConfig
from raysed.data.targets import TARGET_FILE
from raysed.data.tokens import tokenize
from raysed.graph import Ref, Task
from raysed.make.targets import MeanBlocks, block_rows, mean_targets, teacher_sums
from raysed.model.precision import uses_bf16
from raysed.model.pretrained import load_encoder, save_encoder
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
from runs import ray_session, write_sentence_table

AGREEMENT = 1e-3
"""The largest difference between the two means; their values are around 1."""
BF16 = "raysed in bf16"
NOISE = 0.02
"""Of the weights, in standard deviations of their tensor."""


def main() -> None:
    """Writes the teachers, lets both sides average them in turn, and compares what they found."""
    parser = arguments(__doc__)
    parser.add_argument("--teachers", type=int, default=10, help="how many models are averaged")
    options = parser.parse_args()
    prepare(options)
    with tempfile.TemporaryDirectory() as directory:
        both = Work(options, read_sentences(options), directory, write_teachers(directory, options.teachers))
        sides = {"raysed": both.raysed, "sentence-transformers": both.peer}
        if uses_bf16("auto", encoder(options.device)[0]):
            sides[BF16] = both.raysed_in_bf16
        samples = alternate(sides, options.pairs)
    publish(
        Figure(
            name="S4",
            title=f"mean of {options.teachers} teachers over {len(both.texts):,} sentences",
            unit="sentences x teachers",
            samples=samples,
            targets={(name, "sentence-transformers"): 1.3 for name in sides if name != "sentence-transformers"},
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
        location: directory of the run that has the teachers.
        names: the teachers' artefacts.
        means: what each side found last, [N, D].
        starts: seconds of each start of Ray.
        tokenising: seconds of each time that the corpus was tokenised.
    """

    options: argparse.Namespace
    texts: list[str]
    location: str
    names: list[str]
    means: dict[str, np.ndarray] = field(default_factory=dict)
    starts: list[float] = field(default_factory=list)
    tokenising: list[float] = field(default_factory=list)

    def raysed(self, number: int) -> Sample:
        """Tokenises and runs the stage in fp32, on as many CPUs as the peer has threads."""
        return self._averaged("raysed", "fp32", number)

    def raysed_in_bf16(self, number: int) -> Sample:
        """The same in bf16."""
        return self._averaged(BF16, "bf16", number)

    def _averaged(self, side: str, precision: Precision, number: int) -> Sample:
        storage = Storage(self.location, "run")  # a new one: it checks files once, as every run does
        _, tokenizer = load_encoder(ENCODER)
        with ray_session(self.options.threads) as started:
            with timed() as tokenising:
                storage.commit("corpus", partial(write_sentence_table, self.texts, tokenizer), {"round": number})
            with timed() as averaging:
                self._write_targets(storage, precision, {"round": number, "side": side})
            column = pq.read_table(storage.fetch("targets") / TARGET_FILE).column("target").combine_chunks()
        self.means[side] = column.flatten().to_numpy().reshape(len(self.texts), -1)
        self.starts.append(started)
        self.tokenising += tokenising
        mean = partial(self._mean_of_raysed, precision)
        return self._sample(tokenising[0] + averaging[0], number, mean)

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
        tokenising, start = statistics.median(self.tokenising), statistics.median(self.starts)
        found = [
            f"The means in fp32 agree to {difference:.1e}. raysed's time has {tokenising:.1f} s for tokenising in it; "
            f"a start of Ray, {start:.1f} s, is not in it."
        ]
        if BF16 in self.means:
            exact_ND = self.means["raysed"]
            off = np.linalg.norm(self.means[BF16] - exact_ND) / np.linalg.norm(exact_ND)
            found.append(f"In bf16 the mean is off by {off:.2%} of its norm.")
        return found

    def _write_targets(self, storage: Storage, precision: Precision, depends: dict[str, Any]) -> None:
        """Streams the corpus through the teachers and joins the blocks, as a run does."""
        res = ResourcesConfig(gpu=self.options.device == "cuda")
        size = sum(path.stat().st_size for path in storage.fetch(self.names[0]).iterdir())
        share, groups = plan_teachers(current_cluster(), res, len(self.names), size)
        inputs = {"corpus": Ref("corpus"), "teachers": [Ref(name) for name in self.names], "encoder": ENCODER}
        task = Task(
            "targets", "targets", mean_targets, depends, {"precision": precision, "target_precision": "fp32"}, inputs
        )
        options = {"worker": MeanBlocks, "title": "average teachers"}
        starts = range(0, len(self.texts), block_rows(len(self.texts)))
        stream = stream_of([task], options, starts, work.Work(share.device, None, precision), groups)
        make_blocks(stream, storage, share, res.silence_seconds)
        replace(task, inputs={**inputs, "blocks": blocks_of(stream, task, storage)}).run(storage, work.Work())
        storage.remove("targets.blocks")

    def _mean_of_peer(self, texts: list[str]) -> np.ndarray:
        # Its documentation advises to try: on a CPU no size is faster than its default.
        total, batch_size = 0.0, 32 if self.options.device == "cpu" else 256
        for name in self.names:
            model = peers.load(Storage(self.location, "run").fetch(name), self.options.device)
            total = total + model.encode(texts, batch_size=batch_size, show_progress_bar=False)
        return total / len(self.names)

    def _mean_of_raysed(self, precision: Precision, texts: list[str]) -> np.ndarray:
        _, tokenizer = load_encoder(ENCODER)
        paths = [Storage(self.location, "run").fetch(name) for name in self.names]
        sums = teacher_sums([paths], None, self.options.device, precision=precision)
        return sums(tokenize(tokenizer, texts, MAX_LENGTH))[0] / len(self.names)

    def _sample(self, seconds: float, number: int, embed: Callable[[list[str]], np.ndarray]) -> Sample:
        dev = None if number else dev_score(embed, self.options)
        return Sample(seconds, len(self.texts) * len(self.names), dev)


def write_teachers(location: str, count: int) -> list[str]:
    """Writes M3 with different noise as artefacts of a run; returns their names."""
    storage = Storage(location, "run")
    names = [f"ct/members/{index:02d}" for index in range(count)]
    for seed, name in enumerate(names):
        storage.commit(name, partial(_write_teacher, seed), {"seed": seed})
    return names


@torch.no_grad()
def _write_teacher(seed: int, path: Path) -> None:
    encoder, tokenizer = load_encoder(ENCODER)
    generator = torch.Generator().manual_seed(seed)
    for parameter in encoder.parameters():
        if parameter.ndim > 1:
            parameter += NOISE * parameter.std() * torch.randn(parameter.shape, generator=generator)
    save_encoder(encoder, tokenizer, path)


if __name__ == "__main__":
    main()

"""S6: what Ray and the run directory cost: a whole job against the same functions called in this process.

    python benchmarks/s6_overhead.py [--pairs 5] [--members 4] [--updates 40] [--sentences 1000]

The job is CT members, their mean and a learner of one epoch. `raysed` is `jobs/ensemble_then_distill.py` as a process,
by the local engine and on Ray. `plain` calls, one after the other with all cores each, what its workers call: `set_up`
and `train`, `teacher_sum` over the whole corpus, and `Distillation` with a torch optimizer. `plain processes` is the
same with as many members at a time as there are cores, in processes of one thread that have imported everything before.

Beside each, the same job with one update and 20 sentences is timed. What raysed takes longer for it than plain does is
the fixed start-up: imports, Ray, actors, the report, the export. It is stated, and taken from raysed's time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from raysed.config import Config, make_config
from raysed.data.targets import TargetBatch
from raysed.data.tokens import TokenTable, pack, read_tokens
from raysed.make.targets import teacher_sum
from raysed.model.encoder import Encoder
from raysed.model.pretrained import load_encoder, write_checkpoint
from raysed.process import prepare_process
from raysed.registry import stages
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.optimizers import adam_optimizer
from raysed.train.selection import TrainingResult
from raysed.train.setup import set_up
from raysed.train.stage import Start, TrainingPlan, warmup_schedule
from raysed.train.stages.sed import Distillation

from harness import Figure, Sample, alternate, arguments, prepare, publish, timed
from harness import sentences as read_sentences
from runs import settings, time_job, write_lines, write_sentence_table, write_task

NEAR_ZERO = 20
"""Sentences of the job that measures the start-up; one update of each member."""
ENGINES = {"local": "raysed", "ray": "raysed on Ray"}
SMALL, NET = ", near-zero job", " without start-up"


def main() -> None:
    """Runs all sides in turn and takes the start-up from raysed's time."""
    parser = arguments(__doc__, sentences=1000)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--updates", type=int, default=40, help="of each member")
    options = parser.parse_args()
    prepare(options)
    texts = read_sentences(options)
    with tempfile.TemporaryDirectory() as directory, _pool(options) as pool:
        full = Work(options, Path(directory, "full"), texts, options.updates)
        small = Work(options, Path(directory, "small"), texts[:NEAR_ZERO], 1)
        sides = {"plain": full.plain, f"plain{SMALL}": small.plain, "plain processes": partial(full.plain, pool=pool)}
        for engine, name in ENGINES.items():
            sides |= {name: partial(full.raysed, engine), name + SMALL: partial(small.raysed, engine)}
        small.plain(0)  # what the first call in a process costs belongs to no side
        samples = alternate(sides, options.pairs)
    notes, plain = [], samples[f"plain{SMALL}"]
    for name in ENGINES.values():
        starts = [a.seconds - b.seconds for a, b in zip(samples[name + SMALL], plain, strict=True)]
        samples[name + NET] = [Sample(run.seconds - start, 1) for run, start in zip(samples[name], starts, strict=True)]
        notes.append(
            f"Fixed start-up of {name}: {statistics.median(starts):.1f} s ({min(starts):.1f} to {max(starts):.1f})."
        )
    medians = {name: statistics.median(sample.seconds for sample in side) for name, side in samples.items()}
    notes.append("Median seconds: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in medians.items()) + ".")
    nets = [name + NET for name in ENGINES.values()]
    publish(
        Figure(
            name="S6",
            title=f"{options.members} members x {options.updates} updates, mean, learner, {len(texts):,} sentences",
            unit="jobs",
            samples=samples,
            at_most={(net, "plain"): 1.15 for net in nets} | {(net, "plain processes"): None for net in nets},
            notes=notes,
        ),
        options,
    )


class Work:
    """One job and the ways to do it.

    Args:
        options: the script's.
        directory: for everything that is read and written.
        texts: the corpus.
        updates: of each member.
    """

    def __init__(self, options: argparse.Namespace, directory: Path, texts: Sequence[str], updates: int):
        directory.mkdir()
        corpus = write_lines(directory / "corpus.txt", texts)
        task = write_task(directory / "task.tsv", texts)
        gpu = options.device == "cuda"
        self._settings = settings(directory, corpus, task, options.members, updates, gpu)
        self._texts, self._directory, self._device = texts, directory, options.device

    def raysed(self, engine: str, number: int) -> Sample:
        """Runs the job as a user does."""
        content = {**self._settings, "run": f"{engine}-{number}"}
        return Sample(time_job(content, [f"resources.engine={engine}"]), 1)

    def plain(self, number: int, pool: ProcessPoolExecutor | None = None) -> Sample:
        """Calls the functions: members one after the other, or as tasks of a pool."""
        config = make_config(self._settings)
        with tempfile.TemporaryDirectory(dir=self._directory) as out, timed() as seconds:
            _, tokenizer = load_encoder(config.encoder)
            directory = Path(out, "corpus")
            directory.mkdir()
            write_sentence_table(self._texts, tokenizer, directory)
            train = partial(train_member, config, directory, self._device)
            members = list((pool.map if pool else map)(train, range(config.members.count)))
            corpus = read_tokens(directory)
            add = teacher_sum(members, self._device)
            train_learner(config, corpus, add(corpus) / len(members), self._device, Path(out, "learner"))
        return Sample(seconds[0], 1)


def train_member(config: Config, corpus: Path, device: str, index: int) -> Path:
    """Trains one member and writes it beside the corpus; returns its directory."""
    encoder, tokenizer = load_encoder(config.encoder)
    start = Start(encoder.to(device), tokenizer, {"corpus": corpus}, seed=index)
    setup = set_up(stages()["ct"], config.ct, config.members, start)
    result = TrainingLoop(setup.objective, setup.batch_at, setup.plan, setup.engine).train()
    return _written(setup.objective.candidates()[result.kept], tokenizer, result, corpus.parent / f"member-{index}")


def train_learner(config: Config, corpus: TokenTable, targets_ND: np.ndarray, device: str, path: Path) -> None:
    """Trains and writes the learner, on tokens and targets in memory."""
    encoder, tokenizer = load_encoder(config.encoder)
    objective, sed = Distillation(encoder.to(device)), config.sed
    size = min(sed.batch_size, len(corpus))
    order = np.random.default_rng(0).permutation(len(corpus))

    def batch_at(step: int) -> TargetBatch:
        rows = order[step * size : (step + 1) * size]
        return TargetBatch(pack(corpus.take(rows)), torch.from_numpy(targets_ND[rows]))

    steps = len(corpus) // size
    plan = TrainingPlan(steps, warmup_schedule(sed.learning_rate, steps, sed.warmup, sed.decay), keep="learner")
    bf16 = device == "cuda" and torch.cuda.is_bf16_supported()
    engine = TorchEngine(objective, adam_optimizer(objective, sed.weight_decay), sed.clip, bf16)
    _written(objective.learner, tokenizer, TrainingLoop(objective, batch_at, plan, engine).train(), path)


def _written(encoder: Encoder, tokenizer: PreTrainedTokenizerBase, result: TrainingResult, path: Path) -> Path:
    path.mkdir()
    write_checkpoint(encoder, tokenizer, path, {}, result.history)
    return path


@contextmanager
def _pool(options: argparse.Namespace) -> Iterator[ProcessPoolExecutor]:
    """Processes that have started, imported this file and set their threads before they are timed."""
    count = min(options.threads, options.members)
    with ProcessPoolExecutor(count, get_context("spawn"), _start_process) as pool:
        list(pool.map(time.sleep, [1.0] * count))
        yield pool


def _start_process() -> None:
    prepare_process()
    torch.set_num_threads(1)


if __name__ == "__main__":
    main()

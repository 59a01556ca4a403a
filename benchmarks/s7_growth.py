"""S7: how time grows with members and shrinks with workers, and what ten times the corpus costs in memory.

    python benchmarks/s7_growth.py [--pairs 5] [--members 5] [--updates 10] [--rows 12000] [--factor 10]

Time: Ray trains a number of members, twice as many, and the first number again one at a time; then a
learner on one worker and on two. Every worker has one CPU and one torch thread, so that two have twice the cores of
one. The start of processes is part of every turn; the efficiency of two workers is stated with it and without.

Memory: a whole run over random short sentences by a small encoder, once for each size of the corpus and each in a
fresh process. Sampled ten times a second: the resident size of the driver, which reads the corpus, and what Ray's
object store holds.
"""

import argparse
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import torch

from raysed.config import make_config
from raysed.context import ignore
from raysed.data.parquet import ROWS_PER_GROUP
from raysed.data.targets import TARGET_FILE
from raysed.made import Made
from raysed.model.pretrained import load_encoder
from raysed.pipeline import ensemble_then_distill, run
from raysed.plan.check import check
from raysed.plan.size import rehearsed
from raysed.process import prepare_process
from raysed.runner import Run, backend_of
from raysed.store.storage import Storage

from harness import ENCODER, Figure, Sample, alternate, arguments, prepare, publish, timed
from harness import sentences as read_sentences
from runs import ray_session, settings, write_lines, write_sentence_table, write_task

MOST_TIME, MOST_MEMORY = 2.1, 1.2
BATCH, WORKERS = 32, 2
WIDTH = 384
"""Of M3's embeddings."""
ALONE = "members one at a time"
ONE, TWO = "learner on 1 worker", f"learner on {WORKERS} workers"


def main() -> None:
    """Times members and workers in turn, then measures memory."""
    parser = arguments(__doc__)
    parser.add_argument("--members", type=int, default=5, help="and twice as many")
    parser.add_argument("--updates", type=int, default=10, help="of each member")
    parser.add_argument("--learner-updates", type=int, default=20)
    parser.add_argument("--rows", type=int, default=12_000, help="sentences of the smaller corpus for memory")
    parser.add_argument("--factor", type=int, default=10, help="how much larger the other one is")
    options = parser.parse_args()
    prepare(options)
    texts, few, many = read_sentences(options), f"{options.members} members", f"{2 * options.members} members"
    with tempfile.TemporaryDirectory() as directory:
        work = Work(options, Path(directory), texts)
        sides = {
            few: partial(work.on_ray, WORKERS, work.members, few, options.members),
            many: partial(work.on_ray, WORKERS, work.members, many, 2 * options.members),
            ALONE: partial(work.on_ray, 1, work.members, ALONE, options.members),
        }
        if not work.gpu or torch.cuda.device_count() >= WORKERS:
            cpus = max(options.threads, WORKERS)
            sides |= {
                ONE: partial(work.on_ray, cpus, work.learner, ONE, 1),
                TWO: partial(work.on_ray, cpus, work.learner, TWO, WORKERS),
            }
        samples = alternate(sides, options.pairs)
        peaks = [peak_of_run(options, texts, rows) for rows in (options.rows, options.rows * options.factor)]
    faster = {(few, ALONE): None, **({(TWO, ONE): None} if TWO in samples else {})}
    notes = [*(efficiency(work, samples, *pair) for pair in faster), memory_table(peaks)]
    title = "growth: members, workers, corpus"
    publish(Figure("S7", title, "updates", samples, faster, {(many, few): MOST_TIME}, notes), options)


# -- time ------------------------------------------------------------------------------------------------------------


@dataclass
class Work:
    """The stages that are timed; each turn has a run directory of its own.

    Attributes:
        options: the script's.
        directory: of the runs.
        texts: the corpus.
        busy: by side and turn, seconds of the workers' own work, summed over workers and without their start.
    """

    options: argparse.Namespace
    directory: Path
    texts: Sequence[str]
    busy: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.gpu = self.options.device == "cuda"
        self._corpus = write_lines(self.directory / "corpus.txt", self.texts)
        self._task = write_task(self.directory / "task.tsv", self.texts)
        _, self._tokenizer = load_encoder(ENCODER)

    def on_ray(self, cpus: int, train: Callable[..., Sample], *arguments: object) -> Sample:
        """Trains on a Ray of its own, whose CPUs limit how many members train at a time."""
        with ray_session(cpus):
            return train(*arguments)

    def members(self, side: str, count: int, number: int) -> Sample:
        """Trains so many members as one experiment."""
        storage = Storage(str(self.directory), f"{side}-{number}")
        run, trainings = self._run(storage, members={"count": count})
        members = [made for made in trainings if not made.how.is_gang]
        corpus, write = members[0].how.tables["corpus"], partial(write_sentence_table, self.texts, self._tokenizer)
        storage.commit(corpus.name, write, corpus.step.depends, {"rows": len(self.texts)})
        with timed() as seconds:
            trained = run.train(members)
        if failures := [each.failure for each in trained if each.failure]:
            sys.exit(f"members failed: {failures}")
        self.busy[side].append(sum(storage.entry(made.name).meta["seconds"] for made in members))
        return Sample(seconds[0], count * self.options.updates)

    def learner(self, side: str, workers: int, number: int) -> Sample:
        """Trains one learner on targets that mean nothing."""
        storage = Storage(str(self.directory), f"{side}-{number}")
        run, (*_, learner) = self._run(storage, sed={"workers": workers})
        corpus, targets = learner.how.tables["corpus"], learner.step.inputs["targets"]
        rows = {"rows": BATCH * self.options.learner_updates}
        storage.commit(corpus.name, lambda path: None, corpus.step.depends, rows)
        storage.commit(targets.name, self._write_targets, targets.step.depends)
        with timed() as seconds:
            run.train([learner])
        self.busy[side].append(workers * storage.entry(learner.name).meta["seconds"])
        return Sample(seconds[0], self.options.learner_updates)

    def _run(self, storage: Storage, **blocks: Any) -> tuple[Run, list[Made]]:
        """Returns a run and its trainings."""
        content = settings(self.directory, self._corpus, self._task, 1, self.options.updates, self.gpu)
        for name, block in blocks.items():
            content[name] |= block
        job = check(make_config(content))
        trainings, resources, workers = (
            rehearsed(ensemble_then_distill, job),
            job.config.resources,
            job.config.sed.workers,
        )
        backend = backend_of("ray", storage, resources, ignore)
        return Run(storage, backend, resources, ignore, trainings, job.config.members.count, workers), trainings

    def _write_targets(self, directory: Path) -> None:
        """Writes as many rows as the updates need."""
        count = BATCH * self.options.learner_updates
        texts = [self.texts[row % len(self.texts)] for row in range(count)]
        write_sentence_table(texts, self._tokenizer, directory)
        table = pq.read_table(directory / TARGET_FILE).drop_columns(["sentence"])
        targets = np.random.default_rng(0).normal(size=count * WIDTH).astype(np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(targets), WIDTH)
        pq.write_table(table.append_column("target", column), directory / TARGET_FILE, row_group_size=ROWS_PER_GROUP)


def efficiency(work: Work, samples: dict[str, list[Sample]], many: str, one: str) -> str:
    """Says what share of the ideal speed-up some workers bring, by the clock and by their own work alone."""
    ratios = zip(samples[many], samples[one], strict=True)
    by_clock = median(a.rate / b.rate for a, b in ratios) / WORKERS
    by_work = median(b / a for a, b in zip(work.busy[many], work.busy[one], strict=True))
    return (
        f"{many} ({WORKERS} at a time) against {one}: efficiency {by_clock:.2f} by the clock, "
        f"{by_work:.2f} without the start of processes."
    )


# -- memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peak:
    """Memory of one run, in bytes, and its seconds.

    Attributes:
        rows: sentences of its corpus.
        seconds: of the run.
        before: resident size of the driver when all is imported and Ray runs.
        driver: its largest resident size.
        store: the most that the object store held.
    """

    rows: int
    seconds: float
    before: float
    driver: float
    store: float


def peak_of_run(options: argparse.Namespace, texts: Sequence[str], rows: int) -> Peak:
    """Runs all stages over so many random sentences in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        corpus = write_lines(Path(directory, "corpus.txt"), _random_sentences(texts, rows))
        task = write_task(Path(directory, "task.tsv"), texts)
        content = settings(directory, corpus, task, members=2, updates=5, gpu=options.device == "cuda")
        content["encoder"] |= {"path": "bundled:encoder", "model_kwargs": {"num_hidden_layers": 1}}
        content["sed"] |= {"epochs": 10 * BATCH / rows}  # how long the learner trains changes nothing in the driver
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(_measure, content, options.threads, rows).result()


def memory_table(peaks: Sequence[Peak]) -> str:
    """Returns the sizes as a table, and whether the larger corpus stays within the target."""
    lines = [
        "| sentences | driver before | driver, peak | object store, peak | seconds |",
        "|---:|---:|---:|---:|---:|",
    ]
    for peak in peaks:
        sizes = " | ".join(f"{size / 1e6:,.0f} MB" for size in (peak.before, peak.driver, peak.store))
        lines.append(f"| {peak.rows:,} | {sizes} | {peak.seconds:.0f} |")
    small, large = ((peak.driver, peak.store, peak.driver + peak.store) for peak in peaks)
    driver, store, both = (b / max(a, 1) for a, b in zip(small, large, strict=True))
    said = (
        f"Memory peak of the larger corpus over that of the smaller one: {both:.2f}, driver {driver:.2f}, object store "
        f"{store:.2f}; target: at most {MOST_MEMORY}, {'reached' if both <= MOST_MEMORY else 'missed'}."
    )
    return "\n".join([*lines, "", said])


def _random_sentences(texts: Sequence[str], count: int) -> list[str]:
    """Six words each, of those that the corpus has."""
    words = sorted({word for text in texts[:2000] for word in text.split()})
    places = np.random.default_rng(count).integers(len(words), size=(count, 6))
    return [" ".join(words[place] for place in row) for row in places]


def _measure(content: dict[str, Any], cpus: int, rows: int) -> Peak:
    prepare_process()
    with ray_session(cpus):
        before = psutil.Process().memory_info().rss
        with _Sampler() as sampler, timed() as seconds:
            run(make_config(content), say=lambda line: None)
    return Peak(rows, seconds[0], before, sampler.driver, sampler.store)


class _Sampler:
    """Looks at this process and at the object store ten times a second."""

    def __enter__(self) -> "_Sampler":
        self.driver, self.store = 0.0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        total = ray.cluster_resources()["object_store_memory"]
        while not self._stop.wait(0.1):
            self.driver = max(self.driver, psutil.Process().memory_info().rss)
            self.store = max(self.store, total - ray.available_resources().get("object_store_memory", total))


if __name__ == "__main__":
    main()

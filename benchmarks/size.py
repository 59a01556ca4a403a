"""How a run grows with its corpus and its members: memory, bytes, files and time, and the exponent of each.

    python benchmarks/size.py [--sentences 10000 100000] [--members 2 10] [--s3] [--base | --narrow] --output FILE

Sentences are made by rule. The encoder is the first layer of the bundled one, so that a step takes seconds, or one with
random weights: of BERT-base's shape, or a narrow one for corpora so large that only their way is of interest; scores
mean nothing. Members and the learner make the same few updates whatever the size. Each run is the job as users start
it, in a fresh directory, or on a server of the S3 protocol on this host. It is looked at from outside, five times a
second: the resident memory of the driver and of the largest of the other processes, and what the driver has read and
written by then, which includes the corpus itself.

An exponent of 0 says that a figure does not grow, one of 1 that it grows as the corpus does, or the members.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import psutil
import yaml

from raysed.store.storage import Storage
from raysed.store.text import Table, number, size

from harness import ROOT
from runs import settings, write_task

BATCH, UPDATES = 32, 10
_ONE_LAYER = {"path": "bundled:encoder", "model_kwargs": {"num_hidden_layers": 1}}
_BASE: dict[str, int] = {}
_NARROW = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
"""What differs from BERT-base."""
WORDS = ("some old big red small new dark slow calm warm cat dog man girl bird horse child river house car stone tree "
         "boat road hill sleeps runs waits falls sings burns turns grows breaks moves near under behind beside above "
         "without before after").split()  # fmt: skip


@dataclass
class Found:
    """What one run took.

    Attributes:
        sentences: of its corpus.
        members: of its ensemble.
        seconds: of the whole job.
        driver: its largest resident memory, in bytes.
        worker: that of the largest other process.
        through: bytes that the driver has read and written.
        files: in the run directory.
        stages: seconds of each stage.
    """

    sentences: int
    members: int
    seconds: float = 0.0
    driver: float = 0.0
    worker: float = 0.0
    through: float = 0.0
    files: int = 0
    stages: dict[str, float] = field(default_factory=dict)


def main() -> None:
    """Runs every size and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sentences", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--members", type=int, nargs="+", default=[2, 10], help="the others with the fewest sentences")
    parser.add_argument("--s3", action="store_true", help="on a server of the S3 protocol (needs the test extra)")
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--base", action="store_true", help="with an encoder of BERT-base's shape")
    shapes.add_argument("--narrow", action="store_true", help="with an encoder of one layer of width 32")
    parser.add_argument("--output", type=Path, required=True, help="JSON file for all figures")
    options = parser.parse_args()
    shape = _BASE if options.base else _NARROW if options.narrow else None
    sizes = [(count, options.members[0]) for count in options.sentences]
    sizes += [(options.sentences[0], members) for members in options.members[1:]]
    found = []
    for sentences, members in sizes:
        with tempfile.TemporaryDirectory() as directory, _location(Path(directory), options.s3) as location:
            encoder = _ONE_LAYER if shape is None else write_encoder(Path(directory) / "encoder", shape)
            found.append(measure(Path(directory), location, sentences, members, encoder))
        options.output.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n", encoding="utf-8")
        print(f"{sentences:,} sentences, {members} members: {found[-1].seconds:.0f} s", flush=True)
    print(table(found).markdown())
    by_corpus = [one for one in found if one.members == options.members[0]]
    by_members = [one for one in found if one.sentences == options.sentences[0]]
    print("\n" + "\n".join([*exponents("sentences", by_corpus), *exponents("members", by_members)]))


@contextmanager
def _location(directory: Path, s3: bool) -> Iterator[str]:
    if not s3:
        yield str(directory / "runs")
        return
    sys.path.insert(0, str(ROOT / "tests"))
    from s3 import CREDENTIALS, below, s3_bucket

    os.environ |= CREDENTIALS
    with s3_bucket() as bucket:
        yield below(bucket, "runs")


def write_encoder(directory: Path, shape: Mapping[str, int]) -> dict[str, object]:
    """Writes an encoder of BERT's kind with random weights, and returns its settings.

    Args:
        directory: is made.
        shape: what differs from BERT-base, which has 109 million weights.
    """
    from transformers import AutoTokenizer, BertConfig, BertModel

    from raysed import bundled

    BertModel(BertConfig(**shape)).save_pretrained(directory)
    AutoTokenizer.from_pretrained(bundled.ENCODER, trust_remote_code=False).save_pretrained(directory)
    return {"path": str(directory), "model_kwargs": {}}  # all of its layers


def measure(directory: Path, location: str, sentences: int, members: int, encoder: Mapping[str, object]) -> Found:
    """Runs the job once and watches it.

    Args:
        directory: for its input and its log.
        location: of the run.
        sentences: of its corpus.
        members: of its ensemble.
        encoder: settings of it.
    """
    corpus = directory / "corpus.txt"
    write_corpus(corpus, sentences)
    texts = corpus.read_text(encoding="utf-8")[:4000].splitlines()[:20]
    content = settings(location, corpus, write_task(directory / "task.tsv", texts), members, UPDATES)
    content["encoder"] |= encoder
    content["sed"] |= {"epochs": UPDATES * BATCH / sentences}
    config = directory / "size.yaml"
    config.write_text(yaml.safe_dump(content))
    command = [sys.executable, str(ROOT / "jobs/ensemble_then_distill.py"), "--config", str(config)]
    found, began = Found(sentences, members), time.perf_counter()
    with (directory / "log").open("w") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        watch(job, found)
    if job.returncode:
        sys.exit(f"the job ended with {job.returncode}:\n{(directory / 'log').read_text()[-2000:]}")
    found.seconds = time.perf_counter() - began
    storage = Storage(location, content["run"])
    found.files = len(storage.plain.sizes_below(""))
    timings = json.loads(storage.read_text("timings.json"))
    found.stages = {stage: entry["seconds"] for stage, entry in timings.items()}
    return found


def write_corpus(path: Path, count: int) -> None:
    """Writes sentences of five to nine words by rule; each is there once, for it ends in its number.

    Args:
        path: of the file.
        count: of the sentences.
    """
    words, rng = np.array(WORDS), np.random.default_rng(0)
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, count, 100_000):
            stop = min(start + 100_000, count)
            rows = words[rng.integers(len(words), size=(stop - start, 9))]
            lengths = rng.integers(4, 9, size=stop - start)
            file.writelines(f"{' '.join(row[:n])} {start + i}\n" for i, (row, n) in enumerate(zip(rows, lengths)))


def watch(job: subprocess.Popen, found: Found) -> None:
    """Looks at a job and its processes until it ends.

    Args:
        job: the driver.
        found: gets the largest figures.
    """
    driver = psutil.Process(job.pid)
    while job.poll() is None:
        try:
            found.driver = max(found.driver, driver.memory_info().rss)
            io = driver.io_counters()
            found.through = io.read_chars + io.write_chars
            for process in driver.children(recursive=True):
                if any("ray::" in word for word in process.cmdline()[:1]):
                    found.worker = max(found.worker, process.memory_info().rss)
        except psutil.Error:  # a process that has just ended
            pass
        time.sleep(0.2)


def table(found: Sequence[Found]) -> Table:
    """Returns the runs as a table.

    Args:
        found: what each took.
    """
    stages = list(dict.fromkeys(stage for one in found for stage in one.stages))
    header = ["sentences", "members", "seconds", "driver", "largest worker", "through the driver", "files", *stages]
    lines = [
        [
            *(f"{one.sentences:,}", f"{one.members}", f"{one.seconds:.0f}"),
            *(size(one.driver), size(one.worker), size(one.through), f"{one.files}"),
            *(number(one.stages.get(stage), ".1f") for stage in stages),
        ]
        for one in found
    ]
    return Table(header, lines, text=0)


def exponents(what: str, found: Sequence[Found]) -> list[str]:
    """Returns how each figure grows from the smallest run to the largest, a line each; none of a single run.

    Args:
        what: grows: `sentences` or `members`.
        found: runs that differ in that alone.
    """
    if len(found) < 2:
        return []
    first, last = found[0], found[-1]
    growth = math.log(getattr(last, what) / getattr(first, what))
    figures: Mapping[str, tuple[float, float]] = {
        **{
            name: (getattr(first, name), getattr(last, name))
            for name in ("driver", "worker", "through", "files", "seconds")
        },
        **{stage: (first.stages[stage], last.stages[stage]) for stage in first.stages if stage in last.stages},
    }
    return [
        f"{name} by {what}: exponent {math.log(max(b, 1e-9) / max(a, 1e-9)) / growth:.2f}"
        for name, (a, b) in figures.items()
        if a and b
    ]


if __name__ == "__main__":
    main()

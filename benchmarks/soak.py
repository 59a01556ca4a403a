"""Soak: the whole job, again and again, on a cluster that loses a node every minute on average.

    python benchmarks/soak.py [--minutes 30] [--every 60] [--nodes 4] [--seed 0]

A Ray cluster on this machine: a head that works for nobody and nodes of one CPU. First the job of `tests/faults.py` (CT
members, their mean, a learner, a flow, the report) runs undisturbed, once to warm up and twice for its time. Then it
runs in one new directory after the other while a node, drawn at random, is switched off after exponentially distributed
times; a new one comes up to 20 seconds later. A job that ends with an error is continued by the same command, as a user
would do.

Printed at the end: jobs, lost nodes, whether all weights are bit by bit those of the undisturbed job, goodput (the time
that the finished jobs would have taken undisturbed, over the time they took) and the peak memory of all processes
together, undisturbed, in the first and in the second half. All nodes share this machine's cores, so those that are left
get more of them. The exit code is 1 where weights differ.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import faults  # noqa: E402
from harness import where  # noqa: E402

TRAININGS = [*(f"ct/members/{index:02d}" for index in range(3)), "ct-sed/learners/00"]
RETRIES = {"members": {"max_retries": 3}, "sed": {"max_retries": 3}}
LONGEST_ABSENCE = 20.0
PAUSE = 0.5


def main() -> None:
    """Runs the job undisturbed, then for so many minutes while nodes vanish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two losses, on average")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with ExitStack() as ending:
        nodes = ending.enter_context(faults.Nodes(options.nodes))
        directory = ending.enter_context(tempfile.TemporaryDirectory())
        soak = Soak(nodes, Path(directory), options.every, random.Random(options.seed))
        soak.run(losses=False)  # fills caches of files
        undisturbed, quiet = statistics.mean(soak.run(losses=False) for _ in range(2)), soak.memory()
        weights = soak.weights()
        soak.begin()
        while time.monotonic() - soak.began < 60 * options.minutes:
            soak.run(losses=True)
            soak.same += soak.weights() == weights
        print_result(options, soak, undisturbed, quiet)
    sys.exit(0 if soak.same == len(soak.seconds) else 1)


@dataclass
class Soak:
    """The cluster, what happens to it, and what was seen.

    Attributes:
        nodes: the cluster.
        directory: for runs.
        every: seconds between two losses, on average.
        draw: of times and victims.
        seconds: of each finished job.
        lost: nodes.
        failures: ends with an error.
        same: jobs with the undisturbed weights.
        left_behind: temporary files and checkpoints that finished jobs left.
        began: when losses began.
    """

    nodes: faults.Nodes
    directory: Path
    every: float
    draw: random.Random
    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    failures: int = 0
    same: int = 0
    left_behind: int = 0
    began: float = 0.0
    _samples: list[tuple[float, float]] = field(default_factory=list)
    _job: faults.Job | None = None
    _next_loss: float = 0.0
    _due: list[float] = field(default_factory=list)

    def begin(self) -> None:
        """Starts the clock; what was seen before does not count."""
        self.began, self.seconds, self._samples = time.monotonic(), [], []
        self._next_loss = self.began + self._interval()

    def run(self, losses: bool) -> float:
        """Runs the job to its good end; returns the seconds."""
        place = self.directory / f"{len(list(self.directory.iterdir())):03d}"
        place.mkdir()
        started = time.monotonic()
        self._job = faults.Job(place, self.nodes.address, **RETRIES)
        while (code := self._job.process.poll()) != 0:
            if code is not None:
                self.failures += 1
                print(f"the job ended with {code}:\n{self._job.output()[-2000:]}", flush=True)
                self._job.start()
            if losses:
                self._lose_and_add()
            self._samples.append((time.monotonic(), _private_bytes() / 1e9))
            time.sleep(PAUSE)
        self.seconds.append(time.monotonic() - started)
        self.left_behind += len(self._job.left_behind())
        print(f"job {len(self.seconds)}: {self.seconds[-1]:.0f} s, {self.lost} nodes lost so far", flush=True)
        return self.seconds[-1]

    def weights(self) -> list[str]:
        """Returns the checksums of the last job's models."""
        return [self._job.digest(name) for name in TRAININGS]

    def memory(self, since: float = 0.0, until: float = 1.0) -> float:
        """Returns the peak in GB in a part of the time since the beginning."""
        first, last = self._samples[0][0], self._samples[-1][0]
        inside = [size for at, size in self._samples if since <= (at - first) / max(last - first, 1e-9) <= until]
        return max(inside)

    def _lose_and_add(self) -> None:
        now = time.monotonic()
        if now >= self._next_loss and self.nodes.cluster.worker_nodes:
            self.nodes.lose(self.draw.choice(sorted(self.nodes.cluster.worker_nodes, key=lambda node: node.node_id)))
            self.lost += 1
            self._next_loss = now + self._interval()
            self._due.append(now + self.draw.uniform(0, LONGEST_ABSENCE))
        if self._due and now >= min(self._due):
            self._due.remove(min(self._due))
            self.nodes.add()

    def _interval(self) -> float:
        return self.draw.expovariate(1 / self.every)


def _private_bytes() -> int:
    """Memory that this process and all below it do not share with others."""
    total = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            memory = process.memory_info()
        except psutil.Error:
            continue
        total += max(memory.rss - memory.shared, 0)
    return total


def print_result(options: argparse.Namespace, soak: Soak, undisturbed: float, quiet: float) -> None:
    """Prints the table that benchmarks/ keeps."""
    took = sum(soak.seconds)
    rows = {
        "jobs finished": f"{len(soak.seconds)} in {took / 60:.1f} minutes",
        "nodes lost": f"{soak.lost} of {options.nodes}, one every {took / max(soak.lost, 1):.0f} s",
        "jobs that ended with an error and were continued": soak.failures,
        "jobs with the undisturbed weights, bit by bit": f"{soak.same} of {len(soak.seconds)}",
        "temporary files and checkpoints left behind": soak.left_behind,
        "seconds of a job, undisturbed": f"{undisturbed:.0f}",
        "seconds of a job, median and range": (
            f"{statistics.median(soak.seconds):.0f}, {min(soak.seconds):.0f} to {max(soak.seconds):.0f}"
        ),
        "goodput": f"{len(soak.seconds) * undisturbed / took:.2f}",
        "peak memory, undisturbed": f"{quiet:.2f} GB",
        "peak memory, first half and second half": f"{soak.memory(until=0.5):.2f} GB, {soak.memory(since=0.5):.2f} GB",
    }
    print("\n| what | measured |\n|---|---|")
    for what, measured in rows.items():
        print(f"| {what} | {measured} |")
    print(f"\n{where()}")


if __name__ == "__main__":
    main()

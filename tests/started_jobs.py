"""Whole jobs in processes of their own, with a Ray of their own: to be watched, stopped and killed."""

import atexit
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from raysed.bundled import pairs_file
from raysed.config import Config, make_config
from raysed.context import ignore
from raysed.made import Made, Step, Trained
from raysed.make.models import train
from raysed.pipeline import ensemble_then_distill
from raysed.plan.check import Job, check
from raysed.plan.size import Rehearsal
from raysed.runner import Run, backend_of
from raysed.score.tasks import Evaluation
from raysed.store.storage import Storage

ROOT = Path(__file__).resolve().parent.parent
ONE_LAYER = {"path": "bundled:raw", "keep_layers": [0], "pool_layers": 1}
"""`encoder` of a run that tests the way through the stages; with all layers it would mostly multiply matrices."""

ALONE = {"engine": "local", "encode_precision": "fp32"}
"""`resources` of a run in one process: those of Ray would import for seconds, to train for less."""


@contextmanager
def threads_of_ray() -> Iterator[None]:
    """Runs in this process train as Ray does in tests, members with one thread: sums over several round differently."""
    with pytest.MonkeyPatch.context() as patch:

        def trained(step: Step, *arguments: Any) -> Any:
            threads = torch.get_num_threads()
            torch.set_num_threads(1 if "/members/" in step.name else threads)
            try:
                return train(step, *arguments)
            finally:
                torch.set_num_threads(threads)

        patch.setattr("raysed.cluster.local.train", trained)
        yield


@functools.cache
def small_tasks(skipped: int = 0, pairs: int = 100) -> dict[str, str]:
    """The usual tasks with some of their pairs, as `evaluation.tasks`: with all, runs of tests would mostly embed."""
    directory = Path(tempfile.mkdtemp(prefix="raysed-tasks-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    for name in ("dev", "test"):
        lines = pairs_file(name).read_text(encoding="utf-8").splitlines(keepends=True)
        (directory / f"{name}.tsv").write_text("".join([lines[0], *lines[skipped + 1 :][:pairs]]), encoding="utf-8")
    return {f"generated-{name}": str(directory / f"{name}.tsv") for name in ("dev", "test")}


def tiny_settings(**changes) -> dict:
    """A run that takes seconds; rates are high so that a few updates leave their mark."""
    return {
        "run": "tiny",
        "recipes": ["ct-sed-flow"],
        "export": {"recipe": changes.get("recipes", ["ct-sed-flow"])[-1]},  # a few updates gain nothing
        "corpus": {"source": "bundled:generated-text", "sentences": 300},
        "encoder": ONE_LAYER,
        "members": {"count": 3, "evaluate_every": 4, "checkpoint_every": 4, "precision": "fp32"},
        "ct": {"steps": 12, "schedule": "scaled", "learning_rates": [1e-4] * 5},
        "sed": {
            "epochs": 2,
            "learning_rate": 1e-2,
            "dropout": True,
            "checkpoint": "best_on_dev",  # which is before the first checkpoint
            "checkpoint_every": 5,
            "evaluate_every": 4,
            "precision": "fp32",
        },
        "evaluation": {
            "tasks": small_tasks(skipped=60, pairs=150),
            "dev": "generated-dev",
            "pool_layers": [1],
        },  # on which TF-IDF is better than such runs
        # To be compared with plain definitions on every machine, and with either engine.
        "resources": {"encode_precision": "fp32", "engine": "ray"},
        **changes,
    }


def tiny_evaluation() -> Evaluation:
    return Evaluation.load(make_config(tiny_settings()).evaluation)


class Noted(Rehearsal):
    """Knows all that a script asks for, and what that needs, by name."""

    def __init__(self):
        super().__init__()
        self.found: dict[str, Made] = {}

    def ensure(self, *asked: Made | None) -> None:
        for made in filter(None, asked):
            if made.name not in self.found:
                self.ensure(*made.needs)
                self.found[made.name] = made

    def train(self, models: Sequence[Made]) -> list[Trained]:
        self.ensure(*models)
        return super().train(models)


def described(config: Config) -> dict[str, Made]:
    """Returns all that a run of these settings makes if no training fails, by name."""
    noted = Noted()
    ensemble_then_distill(noted, check(config))
    return noted.found


def run_here(job: Job, storage: Storage, say: Callable[[str], None] = ignore, kind: type[Run] = Run) -> Run:
    """Returns a run in this process."""
    resources = job.config.resources
    return kind(storage, backend_of("local", storage, resources, say), resources, say)


def start_job(config: Path, storage: str, place: Path) -> subprocess.Popen:
    """Starts the main job in a session of its own; `place` is a `short_path` for its Ray."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, "jobs/ensemble_then_distill.py", "--config", str(config), "--storage", storage],
        cwd=ROOT,
        env={**environment, "RAY_TMPDIR": str(place / "r")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], process: subprocess.Popen, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"the job ended or hung before the fault:\n{process.communicate()[0][-3000:]}")
        time.sleep(0.02)


def processes_of(place: Path) -> list[str]:
    """Command lines of processes that belong to a job's Ray, or to the job."""
    listing = subprocess.run(["ps", "-eo", "pid,stat,args"], capture_output=True, text=True).stdout
    return [line for line in listing.splitlines() if str(place) in line and " Z" not in line[:12]]


def artefact(run: Path, name: str) -> Path:
    return Storage(str(run.parent), run.name).fetch(name)


def digest(artefact: Path) -> str:
    """Returns what tells the weights in a directory from others."""
    return hashlib.sha256((artefact / "model.safetensors").read_bytes()).hexdigest()


def manifest(run_directory: Path) -> dict[str, float]:
    """When each artefact was published; those that go while this looks are left out."""
    root, found = run_directory / "manifest", {}
    for directory, _, files in os.walk(root):  # unlike `rglob`, it passes over directories that have just gone
        for path in (Path(directory, file) for file in files if file.endswith(".json")):
            with suppress(FileNotFoundError):
                found[path.relative_to(root).with_suffix("").as_posix()] = path.stat().st_mtime_ns
    return found


def remade(before: dict[str, float], after: dict[str, float]) -> set[str]:
    """Names of what was published between two looks at the manifest."""
    return {name for name in after if after[name] != before.get(name)}

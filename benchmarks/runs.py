"""Whole runs for the figures that time them: their settings, the job as a process of its own, Ray in this process."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from transformers import PreTrainedTokenizerBase

from raysed.cluster.session import VARIABLES
from raysed.data.tokens import tokenize
from raysed.store.storage import Storage

from harness import ENCODER, MAX_LENGTH, ROOT, write_tokens

NEVER = 10**9
"""Updates between two evaluations or checkpoints of trainings that have none on the way."""
JOB = "jobs/ensemble_then_distill.py"
TASK = "dev"
"""Name of the only task of these runs."""


def settings(
    storage: str | Path, corpus: Path, task: Path, members: int, updates: int, gpu: bool = False, bf16: bool = False
) -> dict[str, Any]:
    """Returns a run of CT members, their mean and a learner, with nothing beside them that can be left out.

    Args:
        storage: directory of the runs.
        corpus: one sentence a line.
        task: what the models are scored on in the end.
        members: how many.
        updates: of each member.
        gpu: whether on GPUs, which choose the precision themselves.
        bf16: whether CPUs train in bf16.
    """
    precision = "auto" if gpu else "bf16" if bf16 else "fp32"
    return {
        "run": "run",
        "storage": str(storage),
        "recipes": ["ct-sed"],
        "encoder": {**ENCODER.model_dump(mode="json"), "pool_layers": 1},
        "corpus": {"source": str(corpus)},
        "evaluation": {
            "tasks": {TASK: {"source": str(task.resolve()), "aggregation": "all"}},
            "dev": None,
            "pool_layers": [1],
        },
        "members": {"count": members, "checkpoint_every": NEVER, "precision": precision},
        "ct": {"steps": updates},
        "sed": {"checkpoint_every": NEVER, "precision": precision},
        "resources": {"gpu": gpu, "encode_precision": "auto" if gpu or bf16 else "fp32"},
    }


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    """Writes one line each; returns the path."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write_task(path: Path, texts: Sequence[str], pairs: int = 16) -> Path:
    """Writes a task so small that scoring on it takes no time; its scores mean nothing."""
    rows = [f"all\t{i % 6}\t{texts[i % len(texts)]}\t{texts[(i + 1) % len(texts)]}" for i in range(pairs)]
    return write_lines(path, ["subset\tscore\tsentence1\tsentence2", *rows])


def write_sentence_table(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Tokenises and writes the table that raysed's stages read as the artefact `corpus`."""
    table = tokenize(tokenizer, texts, MAX_LENGTH)
    write_tokens(directory / "part-00000.parquet", table, sentence=pa.array(texts, pa.string()))


def time_process(command: Sequence[str], log: Path) -> float:
    """Runs a Python script to its end; returns its wall seconds, from the first line of Python to the last.

    Args:
        command: script, below the repository, and arguments.
        log: gets what it prints; the script runs in its directory.

    Raises:
        SystemExit: it failed; its last lines are shown.
    """
    started = time.perf_counter()
    with log.open("w") as stream:
        # Without a network, libraries that ask a hub for news at every start would wait for it.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        words = [sys.executable, str(ROOT / command[0]), *command[1:]]
        done = subprocess.run(words, cwd=log.parent, env=environment, stdout=stream, stderr=stream, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n" + "".join(log.open().readlines()[-20:]))
    return time.perf_counter() - started


def time_job(content: Mapping[str, Any], overrides: Sequence[str] = ()) -> float:
    """Runs `jobs/ensemble_then_distill.py` with these settings, and more in the form `a.b=c`; returns its seconds."""
    config = Path(content["storage"]) / f"{content['run']}.yaml"
    config.write_text(yaml.safe_dump(dict(content)))
    words = [word for override in overrides for word in ("--set", override)]
    return time_process([JOB, "--config", str(config), *words], config.with_suffix(".log"))


def report_of(
    config: Path, run: str, storage: Path, overrides: Sequence[str], script: Sequence[str] = (JOB,)
) -> dict[str, Any]:
    """Runs `jobs/ensemble_then_distill.py`, which shows its progress; returns the content of its `report.json`.

    Args:
        config: YAML file; its paths are relative to the repository.
        run: name of the run.
        storage: directory of the runs.
        overrides: more settings, in the form `a.b=c`.
        script: another script, below the repository, that takes the same arguments, and words before these.
    """
    words = ["--config", str(config.resolve()), "--run", run, "--storage", str(storage.resolve())]
    words += [word for override in overrides for word in ("--set", override)]
    subprocess.run([sys.executable, str(ROOT / script[0]), *script[1:], *words], cwd=ROOT, check=True)
    return json.loads((storage / run / "report.json").read_text())


def stage_seconds(storage: str | Path, run: str) -> dict[str, float]:
    """Returns what each stage of a finished run took."""
    timings = json.loads(Storage(str(storage), run).read_text("timings.json"))
    return {stage: entry["seconds"] for stage, entry in timings.items()}


@contextmanager
def ray_session(cpus: int) -> Iterator[float]:
    """Starts Ray as a run does, and a first worker; yields the seconds that this took, and stops it in the end."""
    os.environ |= VARIABLES
    import ray

    started = time.perf_counter()
    ray.init("local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        ray.get(ray.remote(lambda: None).remote())  # what is measured comes after other stages, in a job
        yield time.perf_counter() - started
    finally:
        ray.shutdown()

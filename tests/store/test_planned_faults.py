"""A run whose storage fails once, at any of its calls, is finished by the next start, as if nothing had happened."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planned_faults import ERRORS, every_fault, wipe
from s3 import CREDENTIALS, below, s3_bucket

from raysed.cluster.execute import How, execute
from raysed.cluster.resources import Need
from raysed.config import ResourcesConfig
from raysed.graph import Artefact, Graph, Needs
from raysed.store import cache, files
from raysed.store.storage import Storage

STEPS = 2
FAULTS = ["kill", "torn", *ERRORS]


def write_corpus(out: Path, inputs, settings, work):
    table = pa.table({"id": pa.array(range(4)), "sentence": [f"{settings['text']} {row}" for row in range(4)]})
    pq.write_table(table, out / "part-00000.parquet")
    return {"rows": 4}


class Lengths:
    """A worker of blocks: the length of each sentence."""

    columns = ("id", "sentence")

    def __init__(self, inputs, settings, work):
        pass

    def __call__(self, rows):
        lengths = [len(sentence) for sentence in rows.column("sentence").to_pylist()]
        return rows.append_column("length", pa.array(lengths))

    def blocks(self, rows):
        return [(rows.select(["id", "length"]), {"rows": len(rows)})]


def join(out: Path, inputs, settings, work):
    paths = [fetch() for fetch, _ in inputs["blocks"]]
    pq.write_table(pa.concat_tables([pq.read_table(path) for path in paths]), out / "lengths.parquet")


def sum_up(out: Path, inputs, settings, work):
    total = sum(pq.read_table(inputs["lengths"] / "lengths.parquet").column("length").to_pylist())
    (out / "sum.json").write_text(json.dumps(total * settings["factor"]))


def train(tasks, bench) -> None:
    """Adds up, one step after the other, from the newest state on."""
    for task in tasks:
        if task.is_there(bench.storage):
            continue
        with bench.work(task) as work:
            work.checkpoints.begin(bench.job)
            state = work.checkpoints.newest()
            step, total = (state[0], json.loads((state[1] / "total.json").read_text())) if state else (0, 0)
            while step < STEPS:
                step, total = (
                    step + 1,
                    total + json.loads((task.received(bench.storage)["sum"] / "sum.json").read_text()),
                )
                work.checkpoints.save(step, lambda out, total=total: _written(out, total))
                work.log.write({"step": step, "total": STEPS, "loss": 1.0})
            task.publish(bench.storage, lambda out, total=total: _written(out, total))
            work.checkpoints.clear()


def _written(out: Path, total: int) -> dict:
    (out / "total.json").write_text(json.dumps(total))
    return {"sentences": STEPS}


def export(out: Path, inputs, settings, work):
    for name in ("a.json", "b.json"):
        (out / name).write_text((inputs["learner"] / "total.json").read_text())


LEARNER = {"worker": train, "memory": lambda **_: Need()}
BLOCKS = {"worker": Lengths, "rows": lambda rows: 2, "title": "lengths", "joins_here": True}
GRAPH = Graph(
    [
        Artefact("corpus", "corpus", write_corpus, Needs("corpus"), settings={"text": "a text"}),
        Artefact("lengths", "lengths", join, Needs("mean", "blocks", options=BLOCKS), {"corpus": "corpus"}),
        Artefact("sum", "sums", sum_up, Needs("calibration", "task"), {"lengths": "lengths"}, {"factor": 2}),
        Artefact("learner", "learner", export, Needs("sed", "train", options=LEARNER), {"sum": "sum"}),
        Artefact("model", "model", export, Needs("export"), {"learner": "learner"}),
    ]
)


def job(location: str) -> None:
    storage = Storage(location, "run")
    with storage.lock():
        execute(GRAPH, storage, How(ResourcesConfig(), engine="local"), say=lambda line: None)


def end(location: str) -> tuple[dict, set[str]]:
    """What the manifest knows, and which files there are."""
    storage = Storage(location, "run")
    known = {entry.name: (entry.depends, entry.files, entry.meta) for entry in storage.entries()}
    return known, {re.sub("attempt-[0-9a-f]{12}", "attempt", path) for path in storage.files("") if "logs/" not in path}


@pytest.fixture(autouse=True)
def no_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_PAUSES_S", (0.0,) * 4)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path / "tmp"))


def faults_are_mended(location: str, faults: Sequence[str], **which: int) -> int:
    """Returns how many calls a run has."""
    storage = Storage(location, "run")
    job(location)
    undisturbed = end(location)

    def check(failed: bool) -> None:
        job(location)
        assert end(location) == undisturbed

    return every_fault(faults, storage, lambda: wipe(storage), lambda: job(location), check, **which)


def test_the_next_start_ends_like_an_undisturbed_run(tmp_path):
    assert faults_are_mended(str(tmp_path), FAULTS) > 150


def test_the_next_start_ends_like_an_undisturbed_run_on_an_object_store(tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_bucket() as bucket:
        assert faults_are_mended(below(bucket, "runs"), FAULTS, first=3, step=19) > 100


def test_a_run_keeps_the_states_of_trainings_that_are_not_its_own(tmp_path):
    others = Storage(str(tmp_path), "run").checkpoints("learner-of-another-recipe", {})
    others.save(1, lambda out: _written(out, 1))
    job(str(tmp_path))
    assert others.newest()[0] == 1

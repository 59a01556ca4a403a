"""Members that a worker trains as one program: they come out as alone, also where that ends before its time."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from started_jobs import artefact, tiny_settings

from raysed.cluster.execute import make_executor
from raysed.cluster.local import LocalExecutor
from raysed.cluster.resources import Cluster
from raysed.cluster.work import Ended
from raysed.config import make_config
from raysed.data.tokens import read_tokens
from raysed.graph import Task
from raysed.make import models
from raysed.model.pretrained import load_checkpoint
from raysed.model.encoding import encode
from raysed.model.shape import Shape
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.plan.size import plan_run
from raysed.recipe import parse_recipe
from raysed.store.storage import Entry, Storage
from raysed.train import stack

pytestmark = [pytest.mark.timeout(300)]
CLUSTER = Cluster(((2, 0),), node_bytes=64e9)
NAMES = [f"ct/members/{index:02d}" for index in range(3)]


@pytest.fixture
def trained_again(finished_run, tmp_path):
    """Trains the members of the undisturbed run anew, two as one program; returns their entries."""
    plain = Storage(str(tmp_path), "tiny")
    shutil.copytree(finished_run, tmp_path / "tiny")
    for name in (*NAMES, "ct/ensemble"):
        plain.remove(name)

    def train(storage: Storage = plain, **members) -> list[Entry]:
        members = {"count": 3, "evaluate_every": 12, "checkpoint_every": 4, **members}
        plan = Plan(check(make_config({**tiny_settings(), "storage": str(tmp_path), "members": members})))
        executor = make_executor(plan.graph, storage, plan.how("local"), lambda line: None)
        executor.make([plan.graph.artefacts[name] for name in NAMES])
        assert not executor.failures
        return [plain.entry(name) for name in NAMES]

    return train


def assert_undisturbed(directory: Path, finished_run: Path) -> None:
    """The embeddings are those of the members that trained alone, but for what rounding has become in 12 updates."""
    table = read_tokens(artefact(finished_run, "corpus"))
    for name in NAMES:
        found, expected = (
            encode(load_checkpoint(artefact(root, name)), table)[0] for root in (directory, finished_run)
        )
        assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_they_are_those_that_train_alone(trained_again, finished_run, tmp_path, monkeypatch):
    workers, original = [], LocalExecutor._train_members

    def train(executor, trials, bench):
        workers.extend(len(trial.tasks) for trial in trials)
        return original(executor, trials, bench)

    monkeypatch.setattr(LocalExecutor, "_train_members", train)
    trained_again(stack=2)
    assert workers == [2, 1]
    assert_undisturbed(tmp_path / "tiny", finished_run)


def test_what_a_stack_cannot_end_single_members_do(trained_again, finished_run, tmp_path, monkeypatch):
    """Memory runs out before the seventh update: two after a checkpoint."""
    original, counts = stack.Stack.update, []

    def update(self, batches, rates):
        counts.append(len(batches))
        if len(counts) == 7:
            raise RuntimeError("CUDA error: out of memory")
        return original(self, batches, rates)

    monkeypatch.setattr(stack.Stack, "update", update)
    entries = trained_again(stack=3)
    assert counts == [3] * 7 and {entry.meta["resumed_at"] for entry in entries} == {4}
    assert_undisturbed(tmp_path / "tiny", finished_run)


def test_the_plan_has_a_worker_for_a_stack_and_its_memory():
    shape = Shape(
        layers=12, width=768, inner=3072, heads=12, parameters=110_000_000, products=85_000_000, vocabulary=30_000
    )
    alone, stacked = (
        plan_run(make_config({"members": {"stack": stack}}), [parse_recipe("ct")], shape, {"corpus": 10_000}, CLUSTER)
        for stack in (1, 4)
    )
    assert (alone.steps[0].trainings, stacked.steps[0].trainings) == (10, 10)
    assert (stacked.steps[0].share.workers, stacked.steps[0].at_once) == (2, 7)
    ratio = stacked.steps[0].need.host / alone.steps[0].need.host
    assert 3 < ratio < 4


def test_what_was_finished_before_the_worker_was_lost_is_not_trained_again(finished_run, monkeypatch):
    storage = Storage(str(finished_run.parent), "tiny")
    monkeypatch.setattr(models, "_Member", None)
    tasks = [Task(name, "", models.member, storage.entry(name).depends, {}, {}) for name in NAMES]
    assert models.train_members(tasks, 12, SimpleNamespace(storage=storage)) == [Ended()] * 3

"""Members that a worker trains as one program: they come out as alone, also where that ends before its time."""

import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.tune.search import Searcher
from started_jobs import artefact, tiny_settings

import raysed.stages.members
from raysed.cluster.resources import Cluster, Share
from raysed.config import make_config
from raysed.data.tokens import read_tokens
from raysed.model.encoder import load_checkpoint
from raysed.model.encoding import encode
from raysed.model.shape import Shape
from raysed.plan.artefacts import Member
from raysed.plan.size import plan_run
from raysed.recipe import parse_recipe
from raysed.stages.members import Outcome, _all_ended, _Ended, _Group, _Queue, train_members
from raysed.stages.worker import Workplace
from raysed.store.storage import Storage
from raysed.train import stack
from raysed.train.grid import Ladder

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
CLUSTER = Cluster(((2, 0),), node_bytes=64e9)
NAMES = [f"ct/members/{index:02d}" for index in range(3)]


@pytest.fixture
def trained_again(finished_run, tmp_path):
    """Trains the members of the undisturbed run anew, two as one program; returns how that ended."""
    original, plain = Storage(str(finished_run.parent), "tiny"), Storage(str(tmp_path), "tiny")
    shutil.copytree(finished_run, tmp_path / "tiny")
    for name in NAMES:
        plain.remove(name)

    def train(storage: Storage = plain, **members) -> Outcome:
        settings = tiny_settings()
        members = {"count": 3, "evaluate_every": 12, "checkpoint_every": 4, **members}
        config = make_config({**settings, "storage": str(tmp_path), "members": members})
        return train_members({"ct": members_of(original)}, config, storage, Share(2, 1, 0.0, 1), {"corpus": 300})

    return train


def members_of(storage: Storage) -> list[Member]:
    """The members of the undisturbed run, as they were planned."""
    depends = [storage.entry(name).depends for name in NAMES]
    return [Member(name, "ct", i, of["seed"], None, of) for i, (name, of) in enumerate(zip(NAMES, depends))]


def assert_undisturbed(directory: Path, finished_run: Path) -> None:
    """The embeddings are those of the members that trained alone, but for what rounding has become in 12 updates."""
    table = read_tokens(artefact(finished_run, "corpus"))
    for name in NAMES:
        found, expected = (
            encode(load_checkpoint(artefact(root, name)), table)[0] for root in (directory, finished_run)
        )
        assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_they_are_those_that_train_alone(trained_again, finished_run, tmp_path, monkeypatch):
    workers = []
    original = raysed.stages.members._Queue._called
    monkeypatch.setattr(
        raysed.stages.members._Queue, "_called", lambda q, some: (workers.append(len(some)), original(q, some))[1]
    )
    outcome = trained_again(stack=2)
    assert workers == [2, 1] and not outcome.failed and list(outcome.finished) == NAMES
    assert_undisturbed(tmp_path / "tiny", finished_run)


@pytest.mark.parametrize("loss", ["no memory", pytest.param("lost worker", marks=pytest.mark.nodes)])
def test_what_a_stack_cannot_end_single_members_do(trained_again, finished_run, tmp_path, loss):
    """Memory runs out, or the worker is lost, before the seventh update: two after a checkpoint."""
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    outcome = trained_again(_Planted(str(tmp_path), "tiny", loss), stack=3)
    assert not outcome.failed and (tmp_path / "planted").exists()
    assert {entry.meta["resumed_at"] for entry in outcome.finished.values()} == {4}
    assert_undisturbed(tmp_path / "tiny", finished_run)


def test_a_grid_hands_out_members_that_stop_at_the_same_update():
    """Of a bound that climbs and one that starts, each worker gets those of one; their scores reach the ladder."""
    ladder = Ladder([0.0, 0.5, 0.9], 2, [10, 30], reduction=3)
    places = {(b, i): Member(f"sts/grid/{b}/{i}", "sts", i, 0, None, {}, b) for b in (0.0, 0.5, 0.9) for i in (0, 1)}
    queue = _Queue([_Group("sts", 30, 4, ladder=ladder, by_place=places)], workers=1)
    handed: list[tuple[int, int]] = []
    while (trial := queue.suggest(str(len(handed)))) not in (None, Searcher.FINISHED):
        scores = [member["lower_bound"] + member["index"] for member in trial["members"]]
        queue.on_trial_complete(str(len(handed)), {"scores": scores})
        handed.append((len(scores), trial["until"]))
    assert handed == [(4, 10), (2, 10), (2, 30)]
    assert ladder.reached() == {0.0: (10, [0.0, 1.0]), 0.5: (10, [0.5, 1.5]), 0.9: (30, [0.9, 1.9])}


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
    place = Workplace(make_config(tiny_settings()), storage, Share(1, 1, 0.0, 1), watch=None)
    monkeypatch.setattr(raysed.stages.members, "_Work", None)
    assert _all_ended(members_of(storage), place, 12) == [_Ended()] * 3


class _Planted(Storage):
    """A storage whose workers meet a fault in a stack, once."""

    def __init__(self, location: str, run: str, loss: str):
        super().__init__(location, run)
        self._arguments = location, run, loss

    def __reduce__(self):
        return _with_fault, self._arguments


def _with_fault(location: str, run: str, loss: str) -> Storage:
    original, mark = stack.Stack.update, Path(location, "planted")
    counts: dict[int, int] = {}

    def update(self, batches, rates):
        counts[id(self)] = counts.get(id(self), 0) + 1
        if counts[id(self)] == 7 and not mark.exists():
            mark.touch()
            if loss == "lost worker":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("CUDA error: out of memory")
        return original(self, batches, rates)

    stack.Stack.update = update
    return Storage(location, run)

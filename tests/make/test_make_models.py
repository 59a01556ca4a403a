"""Members and learners are made by plain functions of their inputs and settings, in this process and without Ray."""

import errno
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
import ray
from started_jobs import tiny_settings

from raysed.cluster import process
from raysed.cluster.work import Bench, Ended, Trial, Work
from raysed.config import ResourcesConfig, make_config
from raysed.data.parquet import SentenceTable
from raysed.errors import UserError, last_line
from raysed.graph import LISTS, CandidateResult, State
from raysed.make.models import ensemble, grid_choice, train_member
from raysed.make.targets import MeanBlocks, mean_targets
from raysed.model.pretrained import load_checkpoint
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.store.storage import Storage

MEMBERS = ["ct/members/00", "ct/members/01"]


def test_a_member_and_a_learner_are_made_without_ray(tmp_path):
    was_there = ray.is_initialized()  # by other tests
    members = {**tiny_settings()["members"], "count": len(MEMBERS)}
    plan = Plan(check(make_config(tiny_settings(recipes=["ct-sed"], members=members, storage=str(tmp_path)))))
    storage = Storage(str(tmp_path), "tiny")
    state = State(plan.graph, storage)
    noted: list[float | None] = []
    for name in ("base/embeddings/00", "corpus", *MEMBERS):
        state.task(name).run(storage, Work(report=lambda words: noted.append(process.last_progress)))
    assert len(noted) == len(set(noted) - {None}) == 24, "every update tells the watchdog that there is progress"
    assert process.last_progress is None, "and what follows has none"
    state.task("ct/ensemble").run(storage, Work())
    assert storage.entry(MEMBERS[0]).meta["kept_step"] > 0
    assert len((storage.fetch(MEMBERS[0]) / "history.jsonl").read_text().splitlines()) >= 3

    task = state.task("ct-sed/targets")
    inputs = task.resolve_inputs(storage)
    part = [(0, path) for path in inputs["teachers"]]  # all belong to the first and only table
    mean = MeanBlocks({**inputs, "part": part, "counts": [len(part)]}, task.settings, Work())
    corpus = SentenceTable(inputs["corpus"])
    ((block, meta),) = mean.blocks(mean(corpus.rows(0, len(corpus), MeanBlocks.columns)))
    pq.write_table(block, tmp_path / "block.parquet")
    blocks = [(lambda: tmp_path / "block.parquet", meta)]
    task.publish(storage, lambda out: mean_targets(out, {**inputs, "blocks": blocks}, task.settings, Work()))

    learner = state.task("ct-sed/learners/00").run(storage, Work())
    assert learner.meta["steps"] > 0 and learner.meta["resumed_at"] == 0
    assert (
        load_checkpoint(storage.fetch("ct-sed/learners/00")).width == load_checkpoint(storage.fetch(MEMBERS[0])).width
    )
    assert ray.is_initialized() == was_there


def test_a_member_whose_worker_is_lost_again_and_again_is_given_up(tmp_path):
    """Unless there is a new checkpoint in between, which is one of `test_engines.py`."""
    members = {**tiny_settings()["members"], "max_retries": 1}
    plan = Plan(check(make_config(tiny_settings(recipes=["ct"], members=members, storage=str(tmp_path)))))
    storage = Storage(str(tmp_path), "tiny")
    task, bench = State(plan.graph, storage).task(MEMBERS[0]), Bench(storage, ResourcesConfig())
    for _ in range(2):
        task.checkpoints(storage).begin(bench.job)
    reason = "its worker was lost 2 times without a new checkpoint in between"
    assert train_member(task, 12, bench) == Ended(failed=(reason, False))


def test_a_full_disk_is_no_member_that_can_be_left_out(tmp_path):
    settings = {"node": "ct", "min_members": 1, "is_used": True}
    members = [
        CandidateResult("ct/members/00", "a", {"dev": 1.0}),
        CandidateResult("ct/members/01", "b", None, "no space left", True),
    ]
    for outcome, more in ((ensemble, {}), (grid_choice, {"sts": None, "models": 2})):
        with pytest.raises(UserError, match=r"^ct/members/01: no space left$"):
            outcome(tmp_path, {"members": members, "trained": {"steps": 1}}, {**settings, **more}, Work())
    ensemble(tmp_path, {"members": [members[0], replace(members[1], is_mistake=False)]}, settings, Work())


def test_members_without_one_to_go_on_from_are_not_counted(tmp_path):
    """Where a member of the stage before has collapsed."""
    found = [
        CandidateResult("a/0", "x", {"dev": 1.0}),
        CandidateResult("a/1", "", None),
        CandidateResult("b/0", "y", {"dev": 2.0}),
        CandidateResult("b/1", "", None),
    ]
    settings = {"node": "nli-ct", "min_members": None, "is_used": True, "models": 2, "task": "dev"}
    settings |= {"bounds": {"a/0": 0.0, "a/1": 0.0, "b/0": 0.5, "b/1": 0.5}, "sts": make_config({}).sts}
    assert ensemble(tmp_path, {"members": found[:2]}, settings, Work())[LISTS]["all"] == [("a/0", "x")]
    inputs = {"members": found, "trained": {"steps": 1, "stopped": []}}
    assert grid_choice(tmp_path, inputs, settings, Work())[LISTS]["all"] == [("b/0", "y")]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), UserError("no space left")])
def test_an_error_of_the_storage_is_the_users_and_not_the_members(error):
    def worker(*arguments):
        raise error

    trial = Trial("ct", "ct/members/00", ["a task"], worker, (1,), 1)
    assert trial.train(["a task"], 1, None) == [Ended(failed=(last_line(error), True))]

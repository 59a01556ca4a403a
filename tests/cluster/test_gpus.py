"""The main job's members and grid on four GPUs, which are numbers only: Ray hands them out as if they were there."""

import itertools
import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import trainings
from trainings import Scored

import raysed.make.models
from raysed.cluster.execute import ExecutionOptions, Executor
from raysed.cluster.on_ray import RayBackend
from raysed.config import find_config, load_config
from raysed.graph import Training
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.store.storage import Storage
from raysed.train.selection import TrainingResult

GPUS = 4


class Recorded(Scored):
    """Notes on which GPU it is, from when to when; waits until all are in use."""

    marks: Path

    def __init__(self, inputs, settings, context):
        self.inputs, self.settings, self.context = inputs, settings, context
        self.setup = SimpleNamespace(plan=SimpleNamespace(steps=10**6))

    def run(self) -> TrainingResult:
        (gpu,), began = ray.get_gpu_ids(), time.time()
        mark = self.marks / f"{os.getpid()}-{began}.json"
        about = {"name": self.context.task.name, "gpu": gpu, "began": began}
        mark.write_text(json.dumps(about))
        everywhere = self.marks / "everywhere"
        while not everywhere.exists() and time.time() - began < 120:
            at_work = [json.loads(path.read_text() or "{}") for path in self.marks.glob("*.json")]
            if len({each["gpu"] for each in at_work if each and "ended" not in each}) == GPUS:
                everywhere.touch()
            time.sleep(0.05)
        time.sleep(0.1)
        mark.write_text(json.dumps({**about, "ended": time.time()}))
        steps, score = 10**6, 100 * (self.settings.get("lower_bound") or 0.0)
        self.context.checkpoints.save(steps, lambda out: (out / "state").touch())
        return TrainingResult([{"step": 1, "dev": {"": score}}], "", steps, score, steps=steps)


@pytest.fixture
def four_gpus() -> Iterator[None]:
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "include_dashboard": False}
    ray.init("local", num_cpus=GPUS, num_gpus=GPUS, object_store_memory=200 * 2**20, **quiet)
    for module in (trainings, __import__(__name__)):
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in (trainings, __import__(__name__)):
        ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.cluster
@pytest.mark.more
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_members_and_grid_of_the_main_job_use_all_gpus_in_one_experiment(four_gpus, tmp_path, monkeypatch):
    Recorded.marks = tmp_path / "marks"
    Recorded.marks.mkdir()
    monkeypatch.setattr(raysed.make.models, "MemberTrainer", Recorded)
    config, storage = load_config(find_config("quickstart"), []), Storage(str(tmp_path), "run")
    graph = Plan(check(config)).graph
    options = ExecutionOptions(config.resources, members=config.members.count)
    executor = Executor(graph, storage, options, RayBackend(storage, config.resources, print), print)
    (members,) = [batch for batch in graph.batches() if isinstance(batch[0].execution, Training)]
    for needed in {source for member in members for source in member.sources()}:
        depends = executor.state.task(needed).depends
        storage.commit(needed.name, lambda out: (out / "table").touch(), depends, {"rows": 600})
    executor.make(members)

    found = [json.loads(path.read_text()) for path in Recorded.marks.glob("*.json")]
    names = [f"ct/members/{i:02d}" for i in range(10)]
    names += [f"sts/grid/{bound}/{i:02d}" for bound in ("0", "0.3", "0.6") for i in range(2)]
    assert {each["name"] for each in found} == {member.name for member in members} == set(names)
    (experiment,) = (tmp_path / "run/tune").iterdir()
    assert len([path for path in experiment.iterdir() if path.is_dir()]) == len(names)
    assert (Recorded.marks / "everywhere").exists(), "all GPUs were in use at once"
    for one, other in itertools.combinations(found, 2):  # each training has a GPU for itself
        is_apart = one["ended"] <= other["began"] or other["ended"] <= one["began"]
        assert is_apart or one["gpu"] != other["gpu"], (one, other)
    assert all(map(executor.state.entry, names))

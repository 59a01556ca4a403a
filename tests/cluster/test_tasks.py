"""Short tasks on Ray, and what is said while the cluster lacks room."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import ray

import raysed.cluster.machines
from raysed.cluster import tasks
from raysed.cluster.tasks import missing_nodes_logged, run_tasks
from raysed.errors import RunFailed
from raysed.resources import Cluster, Share

SMALL = Share(3, 0.5, 0.0, threads=1)


def test_a_wait_for_a_node_has_a_cause_that_is_said(monkeypatch, caplog):
    monkeypatch.setattr(tasks, "_PAUSE_S", 0.01)
    on_cpus, on_gpus = Share(2, 2, 0.0, 1), Share(2, 1, 0.5, 1)
    for nodes, share, least in (
        (((0, 0), (4, 0)), on_cpus, 2),
        (((0, 0), (3, 0)), on_cpus, 2),
        (((8, 0.25),), on_gpus, 1),
    ):
        looks = threading.Semaphore(0)

        def look(nodes=nodes, looks=looks) -> Cluster:
            looks.release()
            return Cluster(nodes)

        monkeypatch.setattr(raysed.cluster.machines, "current_cluster", look)
        with missing_nodes_logged(share, least):
            assert looks.acquire(timeout=20) and looks.acquire(timeout=20), "it looks again and again"
    assert list(dict.fromkeys(caplog.messages)) == [
        "waiting for nodes: workers of 2 CPUs need 2 slots, but there are only 1 (2 nodes, 3 CPUs, 0 GPUs)",
        "waiting for nodes: workers of 1 CPU and 0.5 GPU need 1 slots, but there are only 0 "
        "(1 node, 8 CPUs, 0.25 GPUs)",
    ]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("job", "said"), [(7, r"^fit: RuntimeError: job 7 cannot be done$"), (2, r"^fit: .*died")], ids=["fails", "dies"]
)
def test_a_task_that_fails_or_dies_each_time_ends_the_run_with_what_it_said(ray_cluster, job, said):
    def fails(job: int) -> None:
        if job == 2:
            os._exit(1)
        raise RuntimeError(f"job {job} cannot be done")

    with pytest.raises(RunFailed, match=said):
        list(run_tasks(fails, [job], work="fit", share=SMALL))


@pytest.mark.cluster
def test_tasks_with_a_gpu_share_few_processes_and_one_that_is_lost_is_run_again(ray_cluster, tmp_path, monkeypatch):
    """As with GPUs, which this Ray does not have."""
    monkeypatch.setattr(ray, "remote", lambda num_cpus, num_gpus, remote=ray.remote: remote(num_cpus=num_cpus))

    def work(job: int, marks: Path) -> tuple[int, int]:
        if job == 2 and not (marks / "lost").exists():
            (marks / "lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (marks / str(job)).touch()
        return job, os.getpid()

    results = list(run_tasks(work, range(8), tmp_path, work="work", share=Share(3, 1, 0.5, 1)))
    assert sorted(job for job, _ in results) == list(range(8)) and (tmp_path / "lost").exists()
    assert len({process for _, process in results}) <= 3


_TRAINING = """
import os, sys, time
from types import SimpleNamespace
import ray.train, torch
from ray import tune
from trainings import job
from raysed.cluster import distilling
from raysed.cluster.tuning import Prepared, train_member
from raysed.context import Context
from raysed.make.models import Trainer
from raysed.store.storage import Storage
from raysed.train.engine import TorchEngine
from raysed.train.loop import TrainingLoop
from raysed.train.stage import TrainingPlan

class Slow(Trainer):
    def __init__(self, inputs, settings, context):
        self.inputs, self.settings, self.context, self._untrained = inputs, settings, context, []
        objective = torch.nn.Linear(1, 1)
        objective.loss, objective.candidates = self.loss, lambda: {"only": objective}
        engine = TorchEngine(objective, torch.optim.SGD(objective.parameters()))
        self.setup = TrainingLoop(objective, lambda step: step, TrainingPlan(3, lambda step: 1.0), engine)

    def loss(self, step):
        time.sleep(100 if step and self.settings["behaves"] == "stuck" else 0.2)
        return self.setup.objective.weight.sum()

    def write(self, out, result):
        time.sleep(4)  # longer than a step may take
        (out / "model").touch()
        return {}

(place,) = sys.argv[1:]
distilling.broadcast_from_rank_zero = lambda value: value
ray.train.get_context = lambda: SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
ray.train.report = tune.report = lambda *arguments: None
workers = []
for train in (distilling.distill_loop, train_member):  # in forks: to import all this takes most of the time
    for seed, behaves in enumerate(("stuck", "")):
        slow = job(place, train.__name__, seed, worker=Slow, behaves=behaves)
        prepared = Prepared(Storage(place, "run"), Context(stall_seconds=2.0), 1, {slow.key: slow})
        workers.append(os.fork())
        if not workers[-1]:
            train(dict(slow.config), prepared)
            os._exit(0)
for worker in workers:
    print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), flush=True)
"""


def test_a_training_that_makes_no_step_is_ended_and_one_that_publishes_for_longer_is_not(tmp_path):
    """Members and learners, as a worker's process runs them, with Ray's own part left out."""
    command = [sys.executable, "-c", _TRAINING, str(tmp_path)]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(command, timeout=200, capture_output=True, text=True, env=place)
    assert done.stdout == "1\n0\n" * 2, done.stderr
    assert done.stderr.count("Timeout (0:00:02)!") == done.stderr.count("in loss") == 2, "and says where it stands"

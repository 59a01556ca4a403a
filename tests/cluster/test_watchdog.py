"""Workers that stand still are ended; those that work or have ended well are left alone."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import ray

import raysed.cluster.machines
from raysed.cluster import watchdog
from raysed.cluster.watchdog import watched_tasks, watched_workers
from raysed.errors import RunFailed
from raysed.resources import Cluster, Share

SILENCE = 2.0
SMALL = Share(3, 0.5, 0.0, threads=1)


def test_a_wait_for_a_node_has_a_cause_that_is_said(monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "_LONGEST_PAUSE_S", 0.01)
    on_cpus, on_gpus = Share(2, 2, 0.0, 1), Share(2, 1, 0.5, 1)
    for nodes, share, least in (
        (((0, 0), (4, 0)), on_cpus, 2),
        (((0, 0), (3, 0)), on_cpus, 2),
        (((0, 0),), on_cpus, 1),
        (((8, 0.25),), on_gpus, 1),
    ):
        looks = threading.Semaphore(0)

        def look(nodes=nodes, looks=looks) -> Cluster:
            looks.release()
            return Cluster(nodes)

        monkeypatch.setattr(raysed.cluster.machines, "current_cluster", look)
        with watched_workers(60, share, least):
            assert looks.acquire(timeout=20) and looks.acquire(timeout=20), "it looks again and again"
    assert list(dict.fromkeys(caplog.messages)) == [
        "waiting for nodes: workers of 2 CPUs need 2 slots, but there are only 1 (2 nodes, 3 CPUs, 0 GPUs)",
        "waiting for nodes: workers of 2 CPUs need 1 slots, but there are only 0 (1 node, 0 CPUs, 0 GPUs)",
        "waiting for nodes: workers of 1 CPU and 0.5 GPU need 1 slots, but there are only 0 "
        "(1 node, 8 CPUs, 0.25 GPUs)",
    ]


@pytest.mark.cluster
@pytest.mark.slow
def test_a_task_that_stands_still_is_ended_and_run_again_and_others_are_not(ray_cluster, tmp_path):
    """Neither one that is busy, nor the worker of one that has ended well, which waits for more work."""

    def work(job: tuple[str, float, bool], marks: Path) -> tuple[str, int]:
        """Is busy for some seconds; returns how often it had been started before."""
        name, seconds, stands_still = job
        starts = len(list(marks.glob(f"{name}-*")))
        (marks / f"{name}-{os.getpid()}").touch()
        if stands_still and starts == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        until = time.monotonic() + seconds
        while time.monotonic() < until:  # without a rest, and without giving anybody a turn of its own
            sum(range(100_000))
        return name, starts

    jobs = [("stopped", 0, True), ("busy", 2 * SILENCE, False), ("short", 0, False)]
    results = list(watched_tasks(work, jobs, tmp_path, work="work", share=SMALL, seconds=SILENCE))
    assert sorted(results) == [("busy", 0), ("short", 0), ("stopped", 1)] and results[0] == ("short", 0)


@pytest.mark.cluster
def test_a_task_that_fails_ends_the_run_with_what_it_said(ray_cluster):
    def fails(job: int) -> None:
        raise RuntimeError(f"job {job} cannot be done")

    with pytest.raises(RunFailed, match=r"^fit: RuntimeError: job 7 cannot be done$"):
        list(watched_tasks(fails, [7], work="fit", share=SMALL, seconds=60))


@pytest.mark.cluster
def test_a_task_that_ends_its_process_each_time_ends_the_run(ray_cluster):
    def crashes(job: int) -> int:
        return job if job != 2 else os._exit(1)

    with pytest.raises(RunFailed, match=r"^fit: .*died"):
        list(watched_tasks(crashes, [1, 2], work="fit", share=SMALL, seconds=60))


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

    results = list(watched_tasks(work, range(8), tmp_path, work="work", share=Share(3, 1, 0.5, 1), seconds=60))
    assert sorted(job for job, _ in results) == list(range(8)) and (tmp_path / "lost").exists()
    assert len({process for _, process in results}) <= 3


_WORKER = """
import os, signal, sys, time
from raysed.process import expect_no_progress, made_progress
from raysed.cluster.watchdog import Watchdog

(how,) = sys.argv[1:]
with Watchdog(1.0, stall=1.0).guard("work"):  # for longer, with progress and without any that is expected
    for _ in range(3):
        made_progress()
        time.sleep(0.5)
    expect_no_progress()
    time.sleep(1.5)
time.sleep(1.5)  # its work is over
print("alive", flush=True)
with Watchdog(1.0, stall=1.0).guard("work"):
    if how == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "stuck":
        made_progress()
        time.sleep(60)
"""


def test_a_process_that_stands_still_is_ended_and_others_are_not():
    """One that is stopped, and one that lives and gets nowhere, as in a collective operation that nobody else joins.

    Before, it does all that does not end a process.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    workers = {how: subprocess.Popen([sys.executable, "-c", _WORKER, how], **pipes) for how in ("stopped", "stuck")}
    for how, worker in workers.items():
        said, errors = worker.communicate(timeout=60)
        assert (worker.returncode, said) == (-signal.SIGKILL, "alive\n"), how
        assert ("work: no step for 1 s" in errors) == (how == "stuck")


_WORK = """
import os, sys, time
from types import SimpleNamespace
import ray.train
from trainings import Scored, job
from raysed.cluster import distilling
from raysed.cluster.tuning import Prepared, train_member
from raysed.cluster.watchdog import Watchdog
from raysed.context import Context
from raysed.process import made_progress
from raysed.store.storage import Storage

class Stuck(Scored):
    def run(self):
        made_progress()
        time.sleep(60)

(place,) = sys.argv[1:]
stuck = job(place, "ct", 1, worker=Stuck)
prepared = Prepared(Storage(place, "run"), Context(), Watchdog(60, stall=1), 1, {stuck.key: stuck})
distilling.broadcast_from_rank_zero = lambda value: value
ray.train.get_context = lambda: SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
for train in (distilling.distill_loop, train_member):  # in forks: to import all this takes most of the time
    if not (worker := os.fork()):
        train(dict(stuck.config), prepared)
    print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]), flush=True)
"""


def test_a_training_that_makes_no_step_is_ended(tmp_path):
    """A member and a learner, as a worker's process runs them, with Ray's own part left out."""
    command = [sys.executable, "-c", _WORK, str(tmp_path)]
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(command, timeout=60, capture_output=True, text=True, env=place)
    assert done.stdout == f"{-signal.SIGKILL}\n" * 2, done.stderr
    assert done.stderr.count("ct/01: no step for 1 s; ending this process") == 2

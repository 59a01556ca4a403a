"""Workers that stand still are ended; those that work or have ended well are left alone."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

import raysed.cluster.watchdog
from raysed.cluster import distilling
from raysed.cluster.resources import Cluster, Share
from raysed.cluster.watchdog import (
    _GUARD,
    _by_actors,
    _by_tasks,
    expect_no_progress,
    made_progress,
    watched_tasks,
    watched_workers,
)
from raysed.errors import RunFailed

SILENCE = 3.0
SMALL = Share(3, 0.5, 0.0, threads=1)


def test_a_wait_for_a_node_has_a_cause_that_is_said(monkeypatch, caplog):
    import raysed.cluster.resources

    on_cpus, on_gpus = Share(2, 2, 0.0, 1), Share(2, 1, 0.5, 1)
    for nodes, share, least in (
        (((0, 0), (4, 0)), on_cpus, 2),
        (((0, 0), (3, 0)), on_cpus, 2),
        (((0, 0),), on_cpus, 1),
        (((8, 0.25),), on_gpus, 1),
    ):
        monkeypatch.setattr(raysed.cluster.resources, "current_cluster", lambda nodes=nodes: Cluster(nodes))
        raysed.cluster.watchdog._log_what_is_missing(share, least)
    assert caplog.messages == [
        "waiting for nodes: workers of 2 CPUs need 2 places, but there are only 1 (2 nodes, 3 CPUs, 0 GPUs)",
        "waiting for nodes: workers of 2 CPUs need 1 places, but there are only 0 (1 node, 0 CPUs, 0 GPUs)",
        "waiting for nodes: workers of 1 CPU and 0.5 GPU need 1 places, but there are only 0 "
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
def test_a_task_that_lives_and_gets_nowhere_is_ended_and_run_again(ray_cluster, tmp_path, caplog):
    """As one in a collective operation that nobody else joins. One that makes no steps at all may take its time."""

    def work(job: str, marks: Path) -> str:
        (marks / job).touch()
        starts = len(list(marks.glob(f"{job}*")))
        (marks / f"{job}-{os.getpid()}").touch()
        if job == "stuck" and starts == 1:
            made_progress()
            time.sleep(60)
        if job == "without steps":
            expect_no_progress()
            time.sleep(4)
        return job

    jobs = ["stuck", "without steps"]
    results = list(watched_tasks(work, jobs, tmp_path, work="work", share=SMALL, seconds=SILENCE, stall=1.5))
    assert sorted(results) == jobs
    assert len(caplog.messages) == 1 and "made no step for 1.5 s and was ended" in caplog.text


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
def test_tasks_with_a_gpu_share_few_processes_and_one_that_is_lost_is_run_again(ray_cluster, tmp_path):
    """Also where there is room for fewer processes than planned: those that wait get their turn."""

    def work(job: int, marks: Path) -> tuple[int, int]:
        if job == 2 and not (marks / "lost").exists():
            (marks / "lost").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return job, os.getpid()

    share = Share(4, 1, 0.0, threads=1)  # as with GPUs, which this Ray does not have
    with watched_workers(60, share) as watchdog:
        calls = [(work, watchdog, "work", job, tmp_path) for job in range(8)]
        results = [ray.get(done) for done in _by_actors(calls, share, "work")]
    assert sorted(job for job, _ in results) == list(range(8)) and (tmp_path / "lost").exists()
    assert len({process for _, process in results}) <= 5


@pytest.mark.cluster
def test_a_helper_that_is_stopped_hangs_nothing(ray_cluster, monkeypatch, caplog):
    """The actor that collects what workers have to say, by SIGSTOP."""
    monkeypatch.setattr(raysed.cluster.watchdog, "_ANSWER_S", 0.5)
    with watched_workers(60, SMALL) as watchdog:
        pid = ray.get(watchdog.board.__ray_call__.remote(lambda self: os.getpid()))
        os.kill(pid, signal.SIGSTOP)
        assert watchdog.begin("some sentences") == ""
        assert list(_by_tasks([(lambda job: job, watchdog, "work", 1)], SMALL, "work"))


def test_a_controller_that_does_not_end_after_its_learners_is_not_waited_for(monkeypatch, caplog):
    """As Ray Train's, when it is stopped after the last learner is published."""
    facts = {"a": {"step": 2, "first": 0, "total": 2, "loss": 0.5}}
    monkeypatch.setattr(distilling, "answer_of", lambda *arguments: facts)
    monkeypatch.setattr(distilling, "_ENDING_S", 0.1)
    trainer = SimpleNamespace(fit=lambda: time.sleep(600))
    learner = SimpleNamespace(name="a", is_there=lambda storage: True)
    distilling._fit([trainer], [learner], SimpleNamespace(latest=SimpleNamespace(remote=lambda: None)), None)
    assert "Ray Train does not end although all learners are there" in caplog.text


_WORKER = """
import os, subprocess, sys, time
command = [sys.executable, "-ISc", sys.argv[1], str(os.getpid()), "1"]
guard = subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0)
print(guard.pid, flush=True)
while True:
    guard.stdin.write(b".")
    time.sleep(0.1)
"""


def test_a_guard_ends_what_gives_no_sign_of_life_and_ends_with_it():
    for is_stopped in (True, False):
        worker = subprocess.Popen([sys.executable, "-c", _WORKER, _GUARD], stdout=subprocess.PIPE)
        guard = int(worker.stdout.readline())
        worker.send_signal(signal.SIGSTOP if is_stopped else signal.SIGTERM)
        assert worker.wait(20) == (-signal.SIGKILL if is_stopped else -signal.SIGTERM)
        until = time.monotonic() + 20
        while Path(f"/proc/{guard}").exists() and time.monotonic() < until:
            time.sleep(0.02)
        assert not Path(f"/proc/{guard}").exists()


def test_only_tasks_with_a_gpu_are_done_by_actors(monkeypatch):
    """As Ray starts a new process for each of them; and their actors end with the consumer."""
    asked, ended = [], []

    def way(name: str):
        def results(calls, share, work):
            asked.append(name)
            try:
                yield from range(3)
            finally:
                ended.append(name)

        return results

    monkeypatch.setattr(raysed.cluster.watchdog, "watched_workers", lambda seconds, share, stall: nullcontext())
    monkeypatch.setattr(ray, "get", lambda result: result)
    for name in ("_by_actors", "_by_tasks"):
        monkeypatch.setattr(raysed.cluster.watchdog, name, way(name))
    for gpus in (0.25, 0.0):
        assert next(watched_tasks(print, [1, 2, 3], work="work", share=Share(2, 1, gpus, 1), seconds=60)) == 0
    assert asked == ended == ["_by_actors", "_by_tasks"]

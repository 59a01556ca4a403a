"""What is lost when parts of a cluster are lost: nothing but the updates since the last checkpoint.

Each test runs the whole job on nodes of its own and compares with a run that nobody disturbed. Figures are printed.
"""

import fcntl
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import faults

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]

LEARNER = "ct-sed/learners/00"
MEMBERS = [f"ct/members/{index:02d}" for index in range(3)]
FLOW = "ct-sed-flow/calibrations/00"
EVERY = faults.SETTINGS["members"]["checkpoint_every"]
NODES = 4
AVERAGING = "ray::MapWorker(MapBatches(MakeBlocks)"


@pytest.fixture(scope="module")
def nodes() -> Iterator[faults.Nodes]:
    with faults.Nodes(NODES) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(nodes, tmp_path_factory, worker_id) -> faults.Job:
    """Of several test processes one runs it, and the others wait for it."""
    own = tmp_path_factory.getbasetemp()
    place = (own if worker_id == "master" else own.parent) / "undisturbed"
    place.mkdir(exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = faults.Job(place, nodes.address)  # says that there is nothing to do where another process has run it
        job.end()
    return job


@pytest.fixture
def start(nodes, tmp_path) -> Iterator[Callable[..., faults.Job]]:
    """Starts the job with changed settings, after what another one has made before its learner; ends with the test."""
    started = []

    def start(after: faults.Job | None = None, **changes: Any) -> faults.Job:
        if after:
            shutil.copytree(after.run, tmp_path / "run")
            for made in (
                "manifest/ct-sed/learners",
                "manifest/ct-sed/embeddings",
                "manifest/ct-sed-flow",
                "logs/ct-sed",
            ):
                shutil.rmtree(tmp_path / "run" / made)
        started.append(faults.Job(tmp_path, nodes.address, **changes))
        return started[-1]

    yield start
    for job in started:
        job.process.kill()
        job.process.wait()


@pytest.fixture
def figure(record_property) -> Callable[..., None]:
    """Has what a test has measured printed at the end of all tests, for the results."""

    def say(**values: Any) -> None:
        record_property("figure", ", ".join(f"{key} {value}" for key, value in values.items()))

    return say


def assert_same_end(job: faults.Job, undisturbed: faults.Job) -> None:
    """Bitwise the undisturbed models, and nothing left behind."""
    for name, place in (*((name, "") for name in (*MEMBERS, LEARNER)), (FLOW, "layers-2")):
        assert job.digest(name, place) == undisturbed.digest(name, place), name
    assert not job.left_behind()


def lost_and_redone(job: faults.Job, training: str, victim: int) -> Callable[[], int]:
    """Ends the process of a training; returns what tells, after the run, the updates that were made twice."""
    faults.freeze(victim)  # so that it gets no further than it is known to be
    at = job.step(training)
    faults.kill(victim)
    return lambda: at - job.entry(training)["meta"]["resumed_at"]


def test_workers_are_killed(undisturbed, start, figure):
    """First that of a member, then that of the learner, which makes no finished member anew."""
    job = start()
    redone = {"member": lost_and_redone(job, MEMBERS[0], job.wait_for_step(MEMBERS[0], 17))}
    victim, before = job.wait_for_step(LEARNER, 17), {name: job.entry(name) for name in MEMBERS}
    redone["learner"] = lost_and_redone(job, LEARNER, victim)
    job.end()
    assert_same_end(job, undisturbed)
    assert {name: job.entry(name) for name in MEMBERS} == before
    updates = {name: count() for name, count in redone.items()}
    figure(updates_redone=updates)
    assert all(0 <= count <= 2 * EVERY for count in updates.values())  # what was being written is lost with its writer


def test_nodes_are_lost_and_others_come(nodes, undisturbed, start, figure):
    """While members train, while teachers are averaged and while flows are fitted."""
    job = start()
    member = job.wait_for_step(MEMBERS[1], 12)
    nodes.lose(nodes.of(member))
    lost_at = job.step(MEMBERS[1])
    nodes.add()
    teacher = job.wait_until(lambda: nodes.workers_called(AVERAGING), "an actor that averages")[0]
    assert all(map(job.entry, MEMBERS)) and not job.entry("ct-sed/targets")
    nodes.lose(nodes.of(teacher))  # the actors that are left do its work
    job.wait_until(lambda: job.entry("ct-sed/targets"), "the targets")
    nodes.add()
    fit = job.wait_until(lambda: nodes.workers_called("ray::fit calibration"), "a task that fits")[0]
    assert job.entry(LEARNER) and not job.entry(FLOW)
    nodes.lose(nodes.of(fit))
    nodes.add()
    job.end()
    assert_same_end(job, undisturbed)
    figure(updates_redone=lost_at - job.entry(MEMBERS[1])["meta"]["resumed_at"])


def test_notice_is_given_while_a_learner_trains(nodes, undisturbed, start, figure):
    """Its checkpoints are far apart, and it may not fail once."""
    job = start(undisturbed, sed={"checkpoint_every": 1000})
    node = nodes.of(job.wait_for_step(LEARNER, 12))
    noticed_at, noticed = job.step(LEARNER), time.monotonic()
    nodes.give_notice(node, seconds=15)
    saved = job.run / "manifest" / "checkpoints" / LEARNER
    job.wait_until(lambda: list(saved.glob("step-*.json")), "a state that is saved in time")
    seconds, lost_at = time.monotonic() - noticed, job.step(LEARNER)
    nodes.lose(node)
    nodes.add()
    job.end()
    assert_same_end(job, undisturbed)
    resumed_at = job.entry(LEARNER)["meta"]["resumed_at"]
    figure(saved_after_seconds=round(seconds, 1), updates_redone=lost_at - resumed_at)
    assert noticed_at <= resumed_at <= lost_at


def test_a_learner_goes_on_with_the_nodes_that_are_left(nodes, undisturbed, start, figure):
    """Of 4 nodes two are lost, then another one. The batch is shared among fewer: sums differ in their order only."""
    job, workers, waited = start(undisturbed, sed={"workers": NODES}), [NODES], []
    for step, lost in ((12, 2), (30, 1)):
        job.wait_for_step(LEARNER, step)
        stopped = time.monotonic()
        for node in list(nodes.cluster.worker_nodes)[:lost]:
            nodes.lose(node)
        job.wait_for_step_beyond(LEARNER, job.step(LEARNER))
        waited.append(round(time.monotonic() - stopped))
        workers.append(len(nodes.cluster.worker_nodes))
    job.end()
    while len(nodes.cluster.worker_nodes) < NODES:
        nodes.add()
    mine, theirs = job.weights(LEARNER), undisturbed.weights(LEARNER)
    assert mine.keys() == theirs.keys()
    largest = max(float((mine[key] - theirs[key]).abs().max()) for key in mine)
    figure(workers=workers, seconds_until_further=waited, largest_difference=f"{largest:.1e}")
    for key in mine:
        torch.testing.assert_close(mine[key], theirs[key], atol=2e-4, rtol=1e-3)


def test_a_learner_grows_back_when_a_node_returns(nodes, undisturbed, start, figure):
    """From two workers to one, and to two again, which costs the updates since the last checkpoint."""
    job = start(undisturbed, sed={"workers": 2, "epochs": 1000})
    job.wait_for_step(LEARNER, 12)
    # A node that has just come may join the learner later, as all nodes may.
    job.wait_until(lambda: len(nodes.workers_called("ray::RayTrainWorker")) == 2, "both workers")
    workers = [len(nodes.workers_called("ray::RayTrainWorker"))]
    for node in list(nodes.cluster.worker_nodes)[1:]:
        nodes.lose(node)
    job.wait_for_step_beyond(LEARNER, job.step(LEARNER))
    workers.append(len(nodes.workers_called("ray::RayTrainWorker")))
    returned = time.monotonic()
    nodes.add()
    job.wait_until(lambda: len(nodes.workers_called("ray::RayTrainWorker")) == 2, "a second worker")
    job.wait_for_step_beyond(LEARNER, job.step(LEARNER))
    seconds = round(time.monotonic() - returned)
    workers.append(len(nodes.workers_called("ray::RayTrainWorker")))
    job.stop(signal.SIGTERM)
    while len(nodes.cluster.worker_nodes) < NODES:
        nodes.add()
    figure(workers=workers, seconds_until_further=seconds)
    assert workers == [2, 1, 2]

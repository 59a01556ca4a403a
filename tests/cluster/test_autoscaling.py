"""Asking a cluster to grow, and waiting for it."""

from contextlib import contextmanager

import pytest

import raysed.cluster.autoscaling
from raysed.cluster.autoscaling import gather, places_to_ask_for
from raysed.cluster.resources import Cluster, Need
from raysed.config import ResourcesConfig, make_config
from raysed.errors import UserError

HEAD = (0.0, 0.0)


class Growing:
    """A cluster that gets a node at every look, up to a number, and a clock that moves only while somebody sleeps."""

    def __init__(self, node: tuple[float, float], nodes: int):
        self.node, self.nodes = node, nodes
        self.looks, self.now, self.asked, self.open = -1, 0.0, [], 0

    def current(self) -> Cluster:
        self.looks += 1
        return Cluster((HEAD, *[self.node] * min(self.looks, self.nodes)), autoscaling=True)

    @contextmanager
    def ask(self, places):
        """Every node has room for one place."""
        self.asked = list(places)
        self.open += 1
        try:
            yield lambda: min(self.looks, self.nodes, len(places))
        finally:
            self.open -= 1

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def growing(monkeypatch):
    def make(*arguments) -> Growing:
        cluster = Growing(*arguments)
        monkeypatch.setattr(raysed.cluster.autoscaling, "current_cluster", cluster.current)
        monkeypatch.setattr(raysed.cluster.autoscaling, "_asked_for", cluster.ask)
        monkeypatch.setattr(raysed.cluster.autoscaling.time, "monotonic", lambda: cluster.now)
        monkeypatch.setattr(raysed.cluster.autoscaling.time, "sleep", cluster.sleep)
        return cluster

    return make


def test_a_cluster_is_asked_for_what_members_can_use_and_waited_for(growing):
    cluster, said = growing((8.0, 1.0), 3), []
    found = gather(ResourcesConfig(gpu=True), Need(), 3, said.append, 10)
    assert found.gpus == 3 and cluster.now == 20
    assert cluster.asked == [{"CPU": 1, "GPU": 1}] * 3
    assert cluster.open == 0
    assert said == [
        "waiting for the cluster to grow (0 s of at most 10 min): 1 of 3 slots for members are available "
        "(2 nodes, 8 CPUs, 1 GPUs)",
        "waiting for the cluster to grow (10 s of at most 10 min): 2 of 3 slots for members are available "
        "(3 nodes, 16 CPUs, 2 GPUs)",
    ]


def test_what_has_come_has_to_do_in_the_end(growing):
    cluster, said = growing((8.0, 1.0), 1), []
    assert gather(ResourcesConfig(gpu=True, wait_minutes=0.5), Need(), 3, said.append, 10).gpus == 1
    assert cluster.now == 30 and cluster.open == 0
    assert said[-1] == "the cluster has not grown for 30 s; continuing with 1 of 3 slots"


def test_a_cluster_is_waited_for_until_nothing_comes_any_more(growing):
    cluster, said = growing((2.0, 0.0), 4), []
    assert gather(ResourcesConfig(), Need(), 3, said.append, 10).cpus == 8
    assert len(cluster.asked) == 10 and cluster.now == 30 + 120
    assert said[-1] == "the cluster has not grown for 120 s; continuing with 4 of 10 slots"


@pytest.mark.parametrize(("minutes", "waited"), [(0, 0), (0.05, 3), (0.5, 30)])
def test_without_what_is_needed_the_job_ends(growing, minutes, waited):
    cluster = growing((8.0, 0.0), 2)
    with pytest.raises(UserError, match=r"^(no node has a CPU|resources.gpu is true, but the cluster has no GPU)"):
        gather(ResourcesConfig(gpu=True, wait_minutes=minutes), Need(), 3, lambda line: None, 10)
    assert cluster.now == waited and cluster.open == 0


def test_an_interrupt_while_waiting_takes_the_wish_back(growing, monkeypatch):
    cluster = growing((8.0, 1.0), 3)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(raysed.cluster.autoscaling.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gather(ResourcesConfig(), Need(), 3, lambda line: None, 10)
    assert cluster.asked and cluster.open == 0


def test_a_cluster_that_cannot_grow_is_taken_as_it_is(growing, monkeypatch):
    cluster = growing((8.0, 1.0), 3)
    monkeypatch.setattr(raysed.cluster.autoscaling, "current_cluster", lambda: Cluster(((2, 0),)))
    assert gather(ResourcesConfig(), Need(), 3, pytest.fail, 10).cpus == 2
    with pytest.raises(UserError, match=r"^sed\.workers is 4"):
        gather(ResourcesConfig(), Need(), 3, pytest.fail, 10, 4)
    assert cluster.now == 0 and not cluster.asked


@pytest.mark.parametrize(
    ("settings", "place", "count"),
    [
        ({"resources": {"gpu": True}}, {"CPU": 1, "GPU": 1}, 3),  # ten members, four on a GPU
        ({"resources": {"gpu": True}, "sed": {"workers": 8}}, {"CPU": 1, "GPU": 1}, 8),
        ({"resources": {"gpu": True, "gpus_per_member": 0.5}}, {"CPU": 1, "GPU": 1}, 5),
        ({"resources": {"gpu": True, "gpus_per_member": 2}}, {"CPU": 1, "GPU": 2}, 10),
        ({"resources": {"cpus_per_member": 4}}, {"CPU": 4}, 10),
        ({"members": {"count": 3}}, {"CPU": 1}, 3),
    ],
)
def test_places(settings, place, count):
    config = make_config(settings)
    members, workers = config.members.count, config.sed.workers
    cluster = Cluster((HEAD,), autoscaling=True)
    assert places_to_ask_for(config.resources, cluster, members=members, learner_workers=workers) == [place] * count


def test_places_of_large_members_and_of_learners():
    cluster, on_gpus = Cluster((HEAD,), autoscaling=True, gpu_bytes=24e9), ResourcesConfig(gpu=True)
    assert len(places_to_ask_for(on_gpus, cluster, Need(device=13e9))) == 10  # one on a GPU
    assert len(places_to_ask_for(on_gpus, cluster, Need(device=2e9))) == 1  # ten on one
    assert len(places_to_ask_for(on_gpus, cluster, Need(device=2e9), learners=6)) == 6  # a GPU for each learner


@pytest.mark.cluster
def test_places_are_granted_and_given_back(ray_cluster):
    """Real placement groups: two of three fit on two CPUs, and nothing is held afterwards."""
    import time

    import ray

    with raysed.cluster.autoscaling._asked_for([{"CPU": 1}] * 3) as granted:
        until = time.monotonic() + 30
        while granted() < 2 and time.monotonic() < until:
            time.sleep(0.05)
        assert granted() == 2
    until = time.monotonic() + 30
    while ray.available_resources().get("CPU") != 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert ray.available_resources()["CPU"] == 2

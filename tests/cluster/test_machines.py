"""What a cluster has, asking it to grow, and waiting for that."""

from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
from trainings import wait_for

from raysed.cluster import machines
from raysed.cluster.machines import current_cluster, gather, places_to_ask_for
from raysed.config import ResourcesConfig, make_config
from raysed.errors import UserError
from raysed.resources import Cluster, Demand, plan_members

HEAD, ROOT = (0.0, 0.0), Path(__file__).resolve().parents[2]


class Growing:
    """A cluster that gets a node at every look, up to a number, and a clock that moves only while somebody sleeps."""

    def __init__(self, node: tuple[float, float], nodes: int):
        self.node, self.nodes = node, nodes
        self.looks, self.now, self.asked, self.open = -1, 0.0, [], 0

    def current(self, res: ResourcesConfig) -> Cluster:
        self.looks += 1
        return Cluster((HEAD, *[self.node] * min(self.looks, self.nodes)), autoscaling=True)

    @contextmanager
    def ask(self, places, res):
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
        monkeypatch.setattr(machines, "current_cluster", cluster.current)
        monkeypatch.setattr(machines, "_asked_for", cluster.ask)
        monkeypatch.setattr(machines.time, "monotonic", lambda: cluster.now)
        monkeypatch.setattr(machines.time, "sleep", cluster.sleep)
        return cluster

    return make


@pytest.mark.parametrize(
    ("nodes", "wait_minutes", "waited", "said_last"),
    [
        (3, 10, 20, "waiting for the cluster to grow (10 s of at most 10 min): 2 of 3 slots"),
        (1, 0.5, 30, "the cluster has not grown for 30 s; continuing with 1 of 3 slots"),
        (2, 10, 130, "the cluster has not grown for 120 s; continuing with 2 of 3 slots"),
    ],
)
def test_a_cluster_is_asked_for_what_members_can_use_and_waited_for(growing, nodes, wait_minutes, waited, said_last):
    """Until all has come, or nothing comes any more."""
    cluster, said = growing((8.0, 1.0), nodes), []
    found = gather(ResourcesConfig(gpu=True, wait_minutes=wait_minutes), Demand(members=3), said.append)
    assert (found.gpus, cluster.now, cluster.open) == (nodes, waited, 0)
    assert cluster.asked == [{"CPU": 1, "GPU": 1}] * 3 and said[-1].startswith(said_last)


@pytest.mark.parametrize(("minutes", "waited"), [(0, 0), (0.05, 3), (0.5, 30)])
def test_without_what_is_needed_the_job_ends(growing, minutes, waited):
    cluster = growing((8.0, 0.0), 2)
    with pytest.raises(UserError, match=r"^(no node has a CPU|resources.gpu is true, but the cluster has no GPU)"):
        gather(ResourcesConfig(gpu=True, wait_minutes=minutes), Demand(members=10), lambda line: None)
    assert cluster.now == waited and cluster.open == 0


def test_an_interrupt_while_waiting_takes_the_wish_back(growing, monkeypatch):
    cluster = growing((8.0, 1.0), 3)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(machines.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gather(ResourcesConfig(), Demand(members=10), lambda line: None)
    assert cluster.asked and cluster.open == 0


def test_a_cluster_that_cannot_grow_is_taken_as_it_is(growing, monkeypatch):
    cluster = growing((8.0, 1.0), 3)
    monkeypatch.setattr(machines, "current_cluster", lambda res: Cluster(((2, 0),)))
    assert gather(ResourcesConfig(), Demand(members=10), pytest.fail).cpus == 2
    with pytest.raises(UserError, match=r"^sed\.workers is 4"):
        gather(ResourcesConfig(), Demand(learner_workers=4), pytest.fail)
    assert cluster.now == 0 and not cluster.asked


@pytest.mark.parametrize(
    ("settings", "place", "count"),
    [
        ({"resources": {"gpu": True}}, {"CPU": 1, "GPU": 1}, 10),
        ({"resources": {"gpu": True}, "sed": {"workers": 4, "learners": 3}}, {"CPU": 1, "GPU": 1}, 12),
        ({"resources": {"gpu": True, "gpus_per_member": 0.5}}, {"CPU": 1, "GPU": 1}, 5),
        ({"resources": {"gpu": True, "gpus_per_member": 2}}, {"CPU": 1, "GPU": 2}, 10),
    ],
)
def test_places(settings, place, count):
    config, cluster = make_config(settings), Cluster((HEAD,), autoscaling=True)
    demand = Demand(members=config.members.count, learners=config.sed.learners, learner_workers=config.sed.workers)
    assert places_to_ask_for(config.resources, cluster, demand) == [place] * count


@pytest.mark.cluster
def test_places_are_granted_and_given_back(ray_cluster):
    """Real placement groups: two of three fit on two CPUs, and nothing is held afterwards."""
    with machines._asked_for([{"CPU": 1}] * 3, ResourcesConfig()) as granted:
        wait_for(lambda: granted() == 2)
    wait_for(lambda: ray.available_resources().get("CPU") == 2)


# -- what Ray says ---------------------------------------------------------------------------------------------------


def node(group: str = "", alive: bool = True, **resources: float) -> dict:
    labels = {"ray.io/node-id": "c7", **({"ray.io/node-group": group} if group else {})}
    has = {"object_store_memory": 1.0, **resources}
    return {"Alive": alive, "NodeID": f"{group}{len(resources)}", "Resources": has, "Labels": labels}


@pytest.fixture(autouse=True)
def said_of_gpus(monkeypatch):
    """What the drivers of GPUs say, by node; nothing at first."""
    said: dict[str, float] = {}
    monkeypatch.setattr(machines, "_bytes_of_gpus", {})
    monkeypatch.setattr(machines, "_times_asked", Counter())
    monkeypatch.setattr(machines, "_gpu_bytes_of", lambda nodes: {node: said.get(node) for node in nodes})
    return said


def test_a_launched_cluster_may_grow_and_a_ray_of_ones_own_may_not(monkeypatch, said_of_gpus):
    nodes = [
        node("head", memory=1e9),
        node("workers", CPU=8.0, GPU=2.0, memory=60e9, **{"accelerator_type:A100-80G": 1.0}),
        node("others", CPU=4.0, GPU=1.0, memory=30e9, **{"accelerator_type:T4": 1.0}),
        node("workers", alive=False, CPU=99.0),
    ]
    said_of_gpus |= {"workers4": 85.8e9, "others4": 16e9}
    monkeypatch.setattr(ray, "nodes", lambda: [node(CPU=2.0, memory=7e9)])
    assert current_cluster() == Cluster(((2.0, 0.0),), False, node_bytes=7e9)
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    there = ((0.0, 0.0), (8.0, 2.0), (4.0, 1.0))
    assert current_cluster() == Cluster(there, True, node_bytes=30e9, gpu_bytes=16e9, gpu="T4")


def test_every_node_is_asked_once_or_twice_and_all_new_ones_together(monkeypatch):
    asked = []

    def answers(nodes):
        asked.append(nodes)
        said = {"a2": 24e9, "b2": 0.0, "c2": None}
        return {node: said[node] for node in nodes}

    monkeypatch.setattr(machines, "_gpu_bytes_of", answers)
    monkeypatch.setattr(ray, "nodes", lambda: [node(name, CPU=8.0, GPU=2.0) for name in "abc"])
    assert [current_cluster().gpu_bytes for _ in range(3)] == [8e9, 8e9, 8e9]
    assert asked == [["a2", "b2", "c2"], ["c2"], []], "the silent one is asked once more"


def test_only_nodes_of_the_kind_that_settings_select_count(monkeypatch):
    nodes = [
        node("head"),
        node("spot", CPU=8.0, GPU=1.0),
        node("spot", CPU=4.0, GPU=2.0),
        node("reserved", CPU=16.0),
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)

    def found(**settings) -> tuple:
        return current_cluster(ResourcesConfig(**settings)).nodes

    assert found(label_selector={"ray.io/node-group": "spot"}) == ((8, 1), (4, 2))
    assert found(label_selector={"ray.io/node-group": "!in(spot, head)"}) == ((16, 0),)
    assert current_cluster(ResourcesConfig(label_selector={"no": "node"})).autoscaling, "one may come"


@pytest.mark.cluster
@pytest.mark.timeout(120)
def test_a_node_is_asked_for_the_memory_of_its_gpus(ray_cluster, monkeypatch):
    (here,) = (node["NodeID"] for node in ray.nodes())
    lost = "ab" * 28
    monkeypatch.undo()
    assert machines._gpu_bytes_of([here, lost]) == {here: machines.smallest_gpu_here(), lost: None}


def test_what_other_jobs_use_is_not_planned_for(monkeypatch):
    """Once what has just ended has given back what it had."""
    free = iter([1.0, 3.0, *[3.0] * 99])
    clock = iter(range(99))
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 4.0, "GPU": 2.0})
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": next(free), "GPU": 1.0})
    monkeypatch.setattr(machines.time, "monotonic", lambda: next(clock) / 2)
    monkeypatch.setattr(machines.time, "sleep", lambda seconds: None)
    assert machines.free_resources() == (3, 1)
    share = plan_members(Cluster(((4, 2),), free=(3, 1)), ResourcesConfig(), 10)
    assert share.workers * share.gpus <= 1 and share.workers * share.cpus <= 3

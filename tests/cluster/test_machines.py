"""What a cluster has, asking it to grow, and waiting for that."""

from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
import ray
import yaml
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


def test_a_cluster_is_asked_for_what_members_can_use_and_waited_for(growing):
    cluster, said = growing((8.0, 1.0), 3), []
    found = gather(ResourcesConfig(gpu=True), Demand(members=3), said.append)
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
    assert gather(ResourcesConfig(gpu=True, wait_minutes=0.5), Demand(members=3), said.append).gpus == 1
    assert cluster.now == 30 and cluster.open == 0
    assert said[-1] == "the cluster has not grown for 30 s; continuing with 1 of 3 slots"


def test_a_cluster_is_waited_for_until_nothing_comes_any_more(growing):
    cluster, said = growing((2.0, 0.0), 4), []
    assert gather(ResourcesConfig(), Demand(members=10), said.append).cpus == 8
    assert len(cluster.asked) == 10 and cluster.now == 30 + 120
    assert said[-1] == "the cluster has not grown for 120 s; continuing with 4 of 10 slots"


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
        ({"resources": {"gpu": True}, "sed": {"workers": 16}}, {"CPU": 1, "GPU": 1}, 16),
        ({"resources": {"gpu": True}, "sed": {"workers": 4, "learners": 3}}, {"CPU": 1, "GPU": 1}, 12),
        ({"resources": {"gpu": True, "gpus_per_member": 0.5}}, {"CPU": 1, "GPU": 1}, 5),
        ({"resources": {"gpu": True, "gpus_per_member": 2}}, {"CPU": 1, "GPU": 2}, 10),
        ({"members": {"count": 3}}, {"CPU": 1}, 3),
    ],
)
def test_places(settings, place, count):
    config, cluster = make_config(settings), Cluster((HEAD,), autoscaling=True)
    demand = Demand(members=config.members.count, learners=config.sed.learners, learner_workers=config.sed.workers)
    assert places_to_ask_for(config.resources, cluster, demand) == [place] * count


def test_all_machines_that_cluster_yaml_allows_come_and_are_used(growing):
    allowed = yaml.safe_load((ROOT / "cluster.yaml").read_text())["max_workers"]
    cluster, res = growing((8.0, 1.0), allowed), ResourcesConfig(gpu=True)  # as its machines
    found = gather(res, Demand(members=10), lambda line: None)
    share = plan_members(found, res, 10)
    assert len(cluster.asked) == 10 and found.gpus == allowed == 4
    assert share.workers > (allowed - 1) * round(1 / share.gpus), "the last GPU is used, too"


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


def test_a_ray_of_ones_own(monkeypatch):
    """Its monitor reports like an autoscaler's, but nothing more will ever come."""
    monkeypatch.setattr(ray, "nodes", lambda: [node(CPU=2.0, memory=7e9)])
    assert current_cluster() == Cluster(((2.0, 0.0),), False, node_bytes=7e9)
    assert str(current_cluster()) == "1 node, 2 CPUs, 0 GPUs"


def test_a_launched_cluster_may_grow(monkeypatch, said_of_gpus):
    nodes = [
        node("head", memory=1e9),
        node("workers", CPU=8.0, GPU=2.0, memory=60e9, **{"accelerator_type:A100-80G": 1.0}),
        node("others", CPU=4.0, GPU=1.0, memory=30e9, **{"accelerator_type:T4": 1.0}),
        node("workers", alive=False, CPU=99.0),
    ]
    said_of_gpus |= {"workers4": 85.8e9, "others4": 16e9}
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    there = ((0.0, 0.0), (8.0, 2.0), (4.0, 1.0))
    assert current_cluster() == Cluster(there, True, node_bytes=30e9, gpu_bytes=16e9, gpu="T4")


def test_a_gpu_whose_driver_says_nothing_counts_as_a_small_one(monkeypatch):
    for kind in ({}, {"accelerator_type:A100": 1.0}):
        monkeypatch.setattr(ray, "nodes", lambda kind=kind: [node(CPU=8.0, GPU=2.0, **kind)])
        assert current_cluster().gpu_bytes == 8e9


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

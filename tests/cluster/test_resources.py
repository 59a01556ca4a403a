"""Plans for many clusters: they never ask for what no node has, and always leave room for the tasks that read."""

import re

import pytest
import ray

from raysed.cluster.resources import (
    Cluster,
    Share,
    current_cluster,
    plan_learner,
    plan_members,
    plan_teachers,
    uses_gpu,
    waste_of_members,
    what_is_missing,
)
from raysed.config import Config, make_config

ONE_CPU, LAPTOP, BIG = ((1, 0),), ((2, 0),), ((16, 0),)
NODES = [
    ONE_CPU,
    LAPTOP,
    BIG,
    ((4, 1),),
    ((1, 1),),  # the only CPU is beside the GPU
    ((64, 8),),
    ((8, 8),),
    ((4, 8),),  # fewer CPUs than GPUs
    ((0, 0), (2, 0), (2, 0)),  # a head that works for nobody
    ((0, 0), (1, 0)),
    ((1, 0),) * 4,
    ((3, 0), (1, 0)),
    ((64, 0), (2, 0)),
    ((9, 0), (4, 0), (4, 0), (4, 0)),
    ((4, 4), (4, 4)),
    ((16, 0), (4, 4)),  # CPUs in one place, GPUs in another
    ((0, 0), (8, 2), (2, 1)),
    ((2.5, 0),),
]
GB = 10**9


@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("count", [1, 3, 10])
def test_members_fit(nodes, count):
    """All at once, on nodes that exist, none of them idle while members wait; threads as many as CPUs."""
    cluster = Cluster(nodes)
    assert what_is_missing(Config())(cluster) is None
    share = plan_members(cluster, Config(), count)
    assert 1 <= share.workers <= count
    assert share.workers <= cluster.fit(share.cpus, share.gpus)
    assert share.threads == share.cpus >= 1
    assert (share.gpus > 0) == (cluster.gpus > 0)
    usable = sum(int(c) for c, g in nodes if g or not cluster.gpus)
    assert share.workers == min(count, usable, 4 * cluster.gpus or usable)


@pytest.mark.parametrize(
    ("nodes", "count", "expected"),
    [
        (ONE_CPU, 10, Share(1, 1, 0.0, 1)),
        (LAPTOP, 10, Share(2, 1, 0.0, 1)),
        (LAPTOP, 1, Share(1, 2, 0.0, 2)),
        (BIG, 10, Share(10, 1, 0.0, 1)),
        (BIG, 5, Share(5, 3, 0.0, 3)),
        (((3, 0), (3, 0)), 3, Share(3, 1, 0.0, 1)),
        (((4, 1),), 10, Share(4, 1, 0.25, 1)),
        (((64, 8),), 10, Share(10, 6, 0.5, 6)),
        (((8, 8),), 10, Share(8, 1, 1.0, 1)),
    ],
)
def test_shares_of_members(nodes, count, expected):
    assert plan_members(Cluster(nodes), Config(), count) == expected


def test_members_as_the_settings_say():
    config = make_config({"resources": {"cpus_per_member": 0.5, "concurrent_members": 3}})
    assert plan_members(Cluster(LAPTOP), config, 10) == Share(3, 0.5, 0.0, 1)
    config = make_config({"resources": {"gpus_per_member": 0.1}})
    assert plan_members(Cluster(((16, 1),)), config, 10) == Share(10, 1, 0.1, 1)
    config = make_config({"resources": {"gpu": False}})
    assert plan_members(Cluster(((16, 1),)), config, 10) == Share(10, 1, 0.0, 1)


@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("size", [GB // 10, GB, 40 * GB])
def test_all_groups_of_teachers_fit_at_once(nodes, size):
    cluster = Cluster(nodes, node_bytes=8 * GB, gpu_bytes=16 * GB)
    share, groups = plan_teachers(cluster, Config(), 10, size)
    assert share.workers >= 1 and 1 <= groups <= 10
    assert share.workers * groups <= cluster.fit(share.cpus, share.gpus)
    assert share.gpus == (1.0 if cluster.gpus else 0.0)
    assert share.threads >= 1


@pytest.mark.parametrize(
    ("nodes", "size", "share", "groups"),
    [
        (ONE_CPU, GB // 10, Share(1, 1, 0.0, 1), 1),
        (LAPTOP, GB // 10, Share(2, 1, 0.0, 1), 1),
        (LAPTOP, GB // 3, Share(1, 2, 0.0, 2), 1),  # memory for one
        (BIG, GB // 100, Share(5, 3.2, 0.0, 3), 1),
        (BIG, GB // 10, Share(2, 8, 0.0, 8), 1),
        (BIG, 4 * GB, Share(1, 16, 0.0, 16), 1),  # groups on one node would share its memory all the same
        (((16, 0),) * 4, GB // 10, Share(8, 8, 0.0, 8), 1),
        (((16, 0),) * 4, GB, Share(1, 16, 0.0, 16), 3),
        (((1, 0),) * 4, GB // 10, Share(4, 1, 0.0, 1), 1),
        (((64, 0), (2, 0)), GB // 10, Share(2, 32, 0.0, 32), 1),
        (((64, 8),), GB // 10, Share(8, 1, 1.0, 1), 1),
        (((64, 8),), GB, Share(4, 1, 1.0, 1), 2),
        (((64, 8),), 100 * GB, Share(1, 1, 1.0, 1), 8),
        (((8, 8),), GB // 10, Share(8, 1, 1.0, 1), 1),
        (((4, 8),), GB // 10, Share(8, 0.5, 1.0, 1), 1),
        (((4, 4), (4, 4)), GB // 10, Share(8, 1, 1.0, 1), 1),
        (((1, 1),), GB // 10, Share(1, 1, 1.0, 1), 1),
    ],
)
def test_shares_of_teachers(nodes, size, share, groups):
    cluster = Cluster(nodes, node_bytes=8 * GB, gpu_bytes=16 * GB)
    assert plan_teachers(cluster, Config(), 10, size) == (share, groups)


def test_too_little_memory_for_the_teachers_is_said(caplog):
    plan_teachers(Cluster(BIG, node_bytes=8 * GB), Config(), 10, GB // 10)
    assert not caplog.records
    plan_teachers(Cluster(BIG, node_bytes=8 * GB), Config(), 10, GB)
    assert "the teachers' weights fill more than half of the memory of 1 nodes" in caplog.text


@pytest.mark.parametrize("nodes", NODES, ids=str)
@pytest.mark.parametrize("batch", [32, 33, 7])
def test_learners_fit_and_have_work(nodes, batch):
    cluster = Cluster(nodes)
    share = plan_learner(cluster, make_config({"sed": {"batch_size": batch}}))
    assert share.workers <= batch
    assert share.workers <= cluster.fit(share.cpus, share.gpus)
    assert share.workers == 1 or share.workers <= cluster.gpus
    assert share.threads == share.cpus >= 1


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        (LAPTOP, None, Share(1, 2, 0.0, 2)),
        (LAPTOP, 2, Share(2, 1, 0.0, 1)),
        (((3, 0), (1, 0)), 2, Share(2, 1, 0.0, 1)),
        (((64, 8),), None, Share(8, 8, 1.0, 8)),
        (((64, 8),), 4, Share(4, 16, 1.0, 16)),
        (((64, 3),), None, Share(3, 21, 1.0, 21)),
        (((64, 40),), None, Share(32, 2, 1.0, 2)),  # of 32 sentences
        (((16, 0), (4, 4)), None, Share(4, 1, 1.0, 1)),
        (((4, 8),), None, Share(4, 1, 1.0, 1)),
    ],
)
def test_shares_of_learners(nodes, workers, expected):
    assert plan_learner(Cluster(nodes), make_config({"sed": {"workers": workers}})) == expected


@pytest.mark.parametrize(
    ("nodes", "settings", "count", "sentence"),
    [
        (((16, 4),), {}, 10, None),  # all at once
        (((64, 8),), {}, 16, None),
        (((64, 8),), {}, 10, r"^10 members use 5 of 8 GPUs; more would fit$"),
        (((64, 8),), {}, 2, r"^2 members use 2 of 8 GPUs; more would fit$"),
        (
            ((64, 8),),
            {"concurrent_members": 4},
            10,
            r"^10 members use 2 of 8 GPUs; resources\.concurrent_members allows",
        ),
        (BIG, {}, 16, None),
        (BIG, {}, 17, r"^17 members, 16 at a time, leave 15 of 32 places empty; members.count: 16 or 32 would"),
        (BIG, {}, 30, None),  # two places of 32
        (LAPTOP, {}, 3, None),  # one of four
    ],
)
def test_a_plan_that_wastes_much_of_the_cluster_is_said(nodes, settings, count, sentence):
    cluster, config = Cluster(nodes), make_config({"resources": settings})
    said = waste_of_members(cluster, config, plan_members(cluster, config, count), count)
    assert said is None if sentence is None else re.search(sentence, said), said


# -- what can never be had -------------------------------------------------------------------------------------------

MISSING = [
    (((0, 0),), {}, r"^no node has a CPU for workers \(1 node, 0 CPUs, 0 GPUs\)$"),
    ((), {}, r"^no node has a CPU for workers \(0 nodes, 0 CPUs, 0 GPUs\)$"),
    (
        BIG,
        {"resources": {"gpu": True}},
        r"^resources\.gpu is true, but the cluster has no GPU \(1 node, 16 CPUs, 0 GPUs",
    ),
    (BIG, {"resources": {"gpus_per_member": 1}}, r"^resources\.gpus_per_member is 1, but the cluster has no GPU"),
    (
        ((2, 0), (4, 0)),
        {"resources": {"cpus_per_member": 5}},
        r"is 5, but the largest node has 4 CPUs; lower it",
    ),
    (
        ((4, 1),),
        {"resources": {"gpus_per_member": 2}},
        r"^a member needs 1 CPU .* and 2 GPU .*, but no node has both \(1 no",
    ),
    (((8, 0), (2, 2)), {"resources": {"cpus_per_member": 4}}, r"^a member needs 4 CPU .* and 0\.25 GPU"),
    (((8, 0), (0, 2)), {}, r"^a member needs 1 CPU"),
    (
        BIG,
        {"sed": {"workers": 32}},
        r"^sed\.workers is 32, but the cluster has 16 CPUs \(1 node, 16 CPUs, 0 GPUs\); lower it",
    ),
    (((8, 0), (8, 2)), {"sed": {"workers": 4}}, r"^sed\.workers is 4, but the cluster has 2 GPUs with a CPU each"),
    (((1.5, 0), (1.5, 0)), {"sed": {"workers": 4}}, r"^sed\.workers is 4, but the cluster has 2 CPUs"),
]


@pytest.mark.parametrize(("nodes", "settings", "sentence"), MISSING, ids=str)
def test_what_can_never_be_had_is_one_sentence(nodes, settings, sentence):
    missing = what_is_missing(make_config(settings))(Cluster(nodes))
    assert re.search(sentence, missing), missing
    assert "\n" not in missing


def test_enough_is_enough():
    config = make_config(
        {"resources": {"gpu": True, "gpus_per_member": 2, "cpus_per_member": 4}, "sed": {"workers": 2}}
    )
    assert what_is_missing(config)(Cluster(((0, 0), (4, 2)))) is None
    assert uses_gpu(config, Cluster(((4, 2),))) and uses_gpu(Config(), Cluster(((4, 2),)))
    assert not uses_gpu(Config(), Cluster(BIG))
    assert not uses_gpu(make_config({"resources": {"gpu": False}}), Cluster(((4, 2),)))


def test_gpus_that_may_come_are_used_and_missed():
    cluster = Cluster(((0, 0), (8, 0)), autoscaling=True, most=(64, 4))
    assert uses_gpu(Config(), cluster)
    assert what_is_missing(Config())(cluster).startswith("there is no node with a GPU (2 nodes, 8 CPUs, 0 GPUs); add ")
    on_cpus = make_config({"resources": {"gpu": False}})
    assert not uses_gpu(on_cpus, cluster) and what_is_missing(on_cpus)(cluster) is None


# -- what Ray says ---------------------------------------------------------------------------------------------------


def node(group: str = "", alive: bool = True, **resources: float) -> dict:
    labels = {"ray.io/node-id": "c7", **({"ray.io/node-group": group} if group else {})}
    return {"Alive": alive, "Resources": {"object_store_memory": 1.0, **resources}, "Labels": labels}


def test_a_ray_of_ones_own(monkeypatch):
    """Its monitor reports like an autoscaler's, but nothing more will ever come."""
    monkeypatch.setattr(ray, "nodes", lambda: [node(CPU=2.0, memory=7e9)])
    assert current_cluster() == Cluster(((2.0, 0.0),), False, node_bytes=7e9)
    assert str(current_cluster()) == "1 node, 2 CPUs, 0 GPUs"


def test_a_launched_cluster_may_grow(monkeypatch):
    nodes = [
        node("head", memory=1e9),
        node("workers", CPU=8.0, GPU=2.0, memory=60e9, **{"accelerator_type:A100-80G": 1.0}),
        node("workers", CPU=4.0, GPU=1.0, memory=30e9, **{"accelerator_type:T4": 1.0}),
        node("workers", alive=False, CPU=99.0),
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    assert current_cluster() == Cluster(((0.0, 0.0), (8.0, 2.0), (4.0, 1.0)), True, node_bytes=30e9, gpu_bytes=16e9)


def test_an_unknown_gpu_counts_as_a_small_one(monkeypatch):
    for kind in ({}, {"accelerator_type:X9": 1.0}):
        monkeypatch.setattr(ray, "nodes", lambda kind=kind: [node(CPU=8.0, GPU=2.0, **kind)])
        assert current_cluster().gpu_bytes == 8e9


def test_shares_as_text():
    assert str(Share(2, 1, 0.0, 1)) == "2 at a time, 1 CPU each"
    assert str(Share(2, 1, 0.25, 1)) == "2 at a time, 1 CPU and 0.25 GPU each"

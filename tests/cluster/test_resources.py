"""Plans for many clusters: they never ask for what no node has, and always leave room for the tasks that read."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from raysed import resources
from raysed.config import ResourcesConfig, make_config
from raysed.errors import UserError
from raysed.resources import (
    Cluster,
    Need,
    Share,
    plan_learners,
    plan_members,
    plan_teachers,
    this_machine,
    too_large,
    unmet_requirement,
    uses_gpu,
)

ONE_CPU, LAPTOP, BIG = ((1, 0),), ((2, 0),), ((16, 0),)
GB = 10**9
NODES = st.lists(
    st.tuples(st.sampled_from((0, 1, 2, 2.5, 4, 9, 64)), st.sampled_from((0, 0, 1, 3, 8))), min_size=1, max_size=4
)
"""CPUs and GPUs of each node: GPUs without CPUs, heads that work for nobody, more GPUs than CPUs."""


def cluster_of(nodes: list, **memory: int) -> Cluster:
    """Returns a cluster on which a run can begin."""
    cluster = Cluster(tuple(nodes), **memory)
    assume(unmet_requirement(cluster, ResourcesConfig()) is None)
    return cluster


@given(NODES, st.integers(1, 20))
def test_members_fit(nodes, count):
    """All at once, on nodes that exist, none of them idle while members wait; threads as many as CPUs."""
    cluster = cluster_of(nodes)
    share = plan_members(cluster, ResourcesConfig(), count)
    assert 1 <= share.workers <= count
    assert share.workers <= cluster.fit(share.cpus, share.gpus)
    assert share.threads == share.cpus >= 1
    assert (share.gpus > 0) == (cluster.gpus > 0)
    places = sum(min(int(c), int(g)) if cluster.gpus else int(c) for c, g in nodes)  # a GPU with a CPU each
    assert share.workers >= min(count, places)


@pytest.mark.parametrize(
    ("nodes", "count", "expected"),
    [
        (ONE_CPU, 10, Share(1, 1, 0.0, 1)),
        (BIG, 5, Share(5, 3, 0.0, 3)),
        (((3, 0), (3, 0)), 3, Share(3, 1, 0.0, 1)),
        (((4, 1),), 10, Share(4, 1, 0.25, 1)),
        (((8, 8),), 10, Share(8, 1, 1.0, 1)),
    ],
)
def test_shares_of_members(nodes, count, expected):
    assert without_memory(plan_members(Cluster(nodes), ResourcesConfig(), count)) == expected


def without_memory(share):
    return replace(share, memory=0)


@given(NODES, st.integers(GB // 10, 40 * GB))
def test_all_groups_of_teachers_fit_at_once(nodes, size):
    cluster = cluster_of(nodes, node_bytes=8 * GB, gpu_bytes=16 * GB)
    share, groups = plan_teachers(cluster, ResourcesConfig(), 10, size)
    assert share.workers >= 1 and 1 <= groups <= 10
    assert share.workers * groups <= cluster.fit(share.cpus, share.gpus, share.memory), "which are had at once"
    assert share.gpus in ((1.0, 0.5, 0.333) if cluster.gpus else (0.0,))
    assert share.threads >= 1


@pytest.mark.parametrize(
    ("nodes", "size", "share", "groups"),
    [
        (ONE_CPU, GB // 10, Share(1, 1, 0.0, 1), 1),
        (LAPTOP, GB // 3, Share(1, 2, 0.0, 2), 1),  # memory for one
        (BIG, 4 * GB, Share(1, 16, 0.0, 16), 1),  # groups on one node would share its memory all the same
        (((16, 0),) * 4, GB, Share(1, 16, 0.0, 16), 3),
        (((64, 0), (2, 0)), GB // 10, Share(2, 32, 0.0, 32), 1),
        (((16, 8),), GB // 10, Share(16, 1, 0.5, 1), 1),  # a CPU each
        (((64, 8),), GB, Share(4, 1, 1.0, 1), 2),
        (((64, 8),), 100 * GB, Share(1, 1, 1.0, 1), 8),
        (((4, 8),), GB // 10, Share(8, 0.5, 1.0, 1), 1),
    ],
)
def test_shares_of_teachers(nodes, size, share, groups):
    cluster = Cluster(nodes, node_bytes=8 * GB, gpu_bytes=16 * GB)
    found, in_groups = plan_teachers(cluster, ResourcesConfig(), 10, size)
    assert (without_memory(found), in_groups) == (share, groups)


def test_too_little_memory_for_the_teachers_is_said(caplog):
    plan_teachers(Cluster(BIG, node_bytes=8 * GB), ResourcesConfig(), 10, GB // 10)
    assert not caplog.records
    plan_teachers(Cluster(BIG, node_bytes=8 * GB), ResourcesConfig(), 10, GB)
    assert "the teachers' weights fill more than half of the memory of 1 nodes" in caplog.text


@given(NODES, st.integers(1, 20), st.integers(GB // 10, 9 * GB), st.sampled_from((None, 1, 2, 4)))
def test_learners_fit_beside_each_other(nodes, count, size, asked):
    cluster = cluster_of(nodes, node_bytes=10 * GB, gpu_bytes=16 * GB)
    assume(unmet_requirement(cluster, ResourcesConfig(), asked) is None)
    need = Need("a learner", size, size, size)
    share = plan_learners(cluster, ResourcesConfig(), count, need, asked)
    assert share.gang == (asked or 1) and share.workers == share.gang * share.at_once and 1 <= share.at_once <= count
    if share.workers <= cluster.fit(1, share.gpus, size):  # else one learner has fewer workers than asked for
        assert share.workers <= cluster.fit(share.cpus, share.gpus, share.memory)
    assert share.at_once == 1 or share.workers <= cluster.gpus or not cluster.gpus
    assert share.threads == share.cpus >= 1


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        (((3, 0), (1, 0)), 2, Share(4, 1, 0.0, 1, gang=2)),
        (((16, 0), (16, 0)), None, Share(10, 3, 0.0, 3)),
        (((64, 8),), None, Share(8, 8, 1.0, 8)),
        (((64, 8),), 4, Share(8, 8, 1.0, 8, gang=4)),
        (((16, 0), (4, 4)), None, Share(4, 1, 1.0, 1)),
    ],
)
def test_shares_of_learners(nodes, workers, expected):
    assert without_memory(plan_learners(Cluster(nodes), ResourcesConfig(), 10, asked=workers)) == expected


@given(NODES, st.integers(1, 20), st.sampled_from((None, 2)))
def test_a_worker_with_a_gpu_leaves_the_cpus_of_other_gpus_alone(nodes, count, asked):
    cluster = cluster_of(nodes, gpu_bytes=80 * GB)
    assume(cluster.gpus)
    beside = max(c / g for c, g in nodes if g)
    assert plan_members(cluster, ResourcesConfig(), count).cpus <= max(beside, 1)
    assert plan_learners(cluster, ResourcesConfig(), count, asked=asked).cpus <= max(beside, 1)


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "gpu_bytes", "gpus", "workers"),
    [
        (13e9, 24e9, 1.0, 4),
        (1e9, 24e9, 0.333, 10),
    ],
)
def test_as_many_members_share_a_gpu_as_fit(device, gpu_bytes, gpus, workers):
    cluster = Cluster(((48, 4),), gpu_bytes=gpu_bytes)
    share = plan_members(cluster, ResourcesConfig(), 10, Need("a member of ct", device, 2e9))
    assert (share.gpus, share.workers) == (gpus, workers)
    assert share.resources == {"CPU": share.cpus, "GPU": gpus, "memory": 2e9}


@given(st.integers(1, 40), st.floats(1e8, 3e10), st.floats(8e9, 1.4e11), st.integers(1, 64))
def test_members_on_a_gpu_never_need_more_than_is_planned_for(count, device, gpu_bytes, cpus):
    cluster = Cluster(((cpus, 2), (cpus, 1)), gpu_bytes=gpu_bytes)
    need = Need("a member", device, 1e9, least=device)
    if too_large(cluster, ResourcesConfig(), need):
        assert device > 0.85 * gpu_bytes
        return
    share = plan_members(cluster, ResourcesConfig(), count, need)
    assert round(1 / share.gpus) * device <= 0.85 * gpu_bytes


def test_memory_of_the_machine_limits_the_members():
    config, need = ResourcesConfig(), Need("a member of ct", 0.0, 3e9)
    share = plan_members(Cluster(((16, 0), (16, 0)), node_bytes=10e9), config, 10, need)
    assert (share.workers, share.cpus) == (6, 5), "no CPU is idle"


def test_what_fits_nowhere_is_one_sentence():
    need = Need("a member of ct", 13e9, 9e9, least=12e9)
    with pytest.raises(
        UserError, match=r"^a member of ct needs about 12\.0 GB of GPU memory, but the smallest GPU has 8"
    ):
        plan_members(Cluster(((8, 1),), gpu_bytes=8e9), ResourcesConfig(), 10, need)
    with pytest.raises(
        UserError, match=r"^a member of ct needs about 9\.0 GB of memory, but only 8\.0 GB can be used on "
    ):
        plan_members(Cluster(((8, 0),), node_bytes=8e9), ResourcesConfig(), 10, need)
    with pytest.raises(UserError, match=r"encoder, or share it among GPUs with sed\.workers and sed\.zero_stage: 2$"):
        plan_learners(Cluster(((8, 1),), gpu_bytes=8e9), ResourcesConfig(), 1, need)


# -- what can never be had -------------------------------------------------------------------------------------------

MISSING = [
    (((0, 0),), {}, r"^no node has a CPU for workers \(1 node, 0 CPUs, 0 GPUs\)$"),
    ((), {"resources": {"label_selector": {"a": "b"}}}, r"^no node has resources\.label_selector \{'a': 'b'\}"),
    (BIG, {"resources": {"gpus_per_member": 1}}, r"^resources\.gpus_per_member is 1, but the cluster has no GPU"),
    (
        ((4, 1),),
        {"resources": {"gpus_per_member": 2}},
        r"^a member needs a CPU and 2 GPU .*, but no node has both \(1 no",
    ),
    (((8, 0), (0, 2)), {}, r"^a member needs a CPU and 1 GPU"),
    (
        BIG,
        {"sed": {"workers": 32}},
        r"^sed\.workers is 32, but the cluster has 16 CPUs \(1 node, 16 CPUs, 0 GPUs\); lower it",
    ),
    (((8, 0), (8, 2)), {"sed": {"workers": 4}}, r"^sed\.workers is 4, but the cluster has 2 GPUs with a CPU each"),
]


@pytest.mark.parametrize(("nodes", "settings", "sentence"), MISSING, ids=str)
def test_what_can_never_be_had_is_one_sentence(nodes, settings, sentence):
    config = make_config(settings)
    missing = unmet_requirement(Cluster(nodes), config.resources, config.sed.workers)
    assert re.search(sentence, missing), missing
    assert "\n" not in missing


def test_enough_is_enough():
    config = ResourcesConfig(gpu=True, gpus_per_member=2)
    assert unmet_requirement(Cluster(((0, 0), (4, 2))), config, 2) is None
    assert uses_gpu(config, Cluster(((4, 2),))) and uses_gpu(ResourcesConfig(), Cluster(((4, 2),)))
    assert not uses_gpu(ResourcesConfig(), Cluster(BIG))
    assert not uses_gpu(ResourcesConfig(gpu=False), Cluster(((4, 2),)))


# -- what this machine says -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prints", "expected"), [("81559\n40536", 40536 * 2**20), ("[N/A]", 0), ("", 0), ("exit 9", 0)]
)
def test_the_driver_is_asked_by_its_own_tool(tmp_path, monkeypatch, prints, expected):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{prints if 'exit' in prints else f'printf {prints!r}'}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert resources.smallest_gpu_here() == expected


def test_a_container_has_what_its_limits_say(tmp_path, monkeypatch):
    said = {"cpu.max": "150000 100000\n", "memory.max": "1000000000\n"}
    for file, text in said.items():
        (tmp_path / file).write_text(text)
    whole, limits = this_machine(gpu=False), resources._limits
    monkeypatch.setattr(resources, "_limits", lambda file: limits(file, tmp_path))
    assert (this_machine(gpu=False).cpus, this_machine(gpu=False).node_bytes) == (1, 1e9)
    for file, text in {"cpu.max": "max 100000", "memory.max": "max"}.items():
        (tmp_path / file).write_text(text)
    assert this_machine(gpu=False).cpus == whole.cpus and limits("none") == [math.inf]

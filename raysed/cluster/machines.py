"""The machines of a Ray cluster: what they have, and the wait for those that an autoscaler brings."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysed.config import ResourcesConfig
from raysed.errors import UserError
from raysed.resources import Cluster, Demand, smallest_gpu_here, unmet_requirement, uses_gpu

_PAUSE = 10.0
_FREED, _MOST_FREEING = 1.5, 10.0  # seconds without a change, after which what is taken belongs to other jobs
_SETTLED = 120.0  # after this many seconds without a new node, a cluster counts as complete


def current_cluster(res: ResourcesConfig | None = None) -> Cluster:
    """Return what the connected Ray cluster has, of the kind that settings select.

    GPUs of unknown memory count as 8 GB each.
    """
    every = [node for node in ray.nodes() if node["Alive"]]
    alive = [node for node in every if res is None or _is_selected(node, res)]
    has = [node["Resources"] for node in alive]
    memory = [node.get("memory", Cluster.node_bytes) for node in has if node.get("CPU")]
    with_gpu = {node["NodeID"]: node["Resources"] for node in alive if node["Resources"].get("GPU")}
    silent = [name for name in with_gpu if name not in _bytes_of_gpus and _times_asked[name] < _MOST_QUESTIONS]
    _times_asked.update(silent)
    _bytes_of_gpus.update({name: size for name, size in _gpu_bytes_of(silent).items() if size is not None})
    gpus = []
    for name, node in with_gpu.items():
        kinds = (key.partition(":")[2] for key in node if key.startswith("accelerator_type:"))
        gpus.append((_bytes_of_gpus.get(name) or Cluster.gpu_bytes, next(kinds, "")))
    gpu_bytes, kind = min(gpus, default=(Cluster.gpu_bytes, ""))
    return Cluster(
        nodes=tuple((node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in has),
        # Cluster launchers and Kubernetes label every node with its group; nodes started by hand have no such label.
        autoscaling=any(node.get("Labels", {}).get("ray.io/node-group") for node in every),
        node_bytes=min(memory, default=Cluster.node_bytes),
        gpu_bytes=gpu_bytes,
        gpu=kind,
    )


def free_resources() -> tuple[float, float]:
    """Return the CPUs and GPUs that are free, once workers that have just ended have given theirs back."""
    free, since, until = (-1.0, -1.0), time.monotonic(), time.monotonic() + _MOST_FREEING
    while True:
        total, now = ray.cluster_resources(), ray.available_resources()
        found = now.get("CPU", 0.0), now.get("GPU", 0.0)
        since = since if found == free else time.monotonic()
        free = found
        is_all = free == (total.get("CPU", 0.0), total.get("GPU", 0.0))
        if is_all or time.monotonic() - since > _FREED or time.monotonic() > until:
            return free
        time.sleep(0.1)


def _gpu_bytes_of(nodes: Sequence[str]) -> dict[str, float | None]:
    """Ask nodes for the memory of their smallest GPU: 0 if unknown, None from one that is lost or silent."""
    ask = ray.remote(num_cpus=0, max_retries=0)(smallest_gpu_here)
    asked = {n: ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(n, soft=False)).remote() for n in nodes}
    answers, until = dict[str, float | None](), time.monotonic() + _ANSWER_S
    for node, reference in asked.items():
        try:
            answers[node] = ray.get(reference, timeout=max(until - time.monotonic(), 0))
        except ray.exceptions.RayTaskError:
            answers[node] = 0.0
        except ray.exceptions.RayError:  # the node is gone or silent
            answers[node] = None
    return answers


def _is_selected(node: Mapping[str, Any], res: ResourcesConfig) -> bool:
    """Return whether workers may use a node; an autoscaler's head, which has no CPU, counts as one."""
    labels = node.get("Labels", {})
    return all(_matches(labels.get(name, ""), asked) for name, asked in res.label_selector.items())


def _matches(value: str, asked: str) -> bool:
    """Return whether a label meets a condition of Ray's.

    >>> [_matches("spot", asked) for asked in ("spot", "!spot", "in(spot, reserved)", "!in(spot)")]
    [True, False, True, False]
    """
    wanted = asked.removeprefix("!")
    if wanted.startswith("in(") and wanted.endswith(")"):
        is_met = value in [each.strip() for each in wanted[3:-1].split(",")]
    else:
        is_met = value == wanted
    return is_met != asked.startswith("!")


_ANSWER_S = 60.0
"""Seconds for all nodes to answer: a node without work so far first unpacks the job and starts a process."""
_MOST_QUESTIONS = 2  # to a node that does not answer, which may be busy with starting
_bytes_of_gpus: dict[str, float] = {}  # the smallest GPU's by node ID, cached because the cluster is polled
_times_asked: Counter[str] = Counter()


def gather(res: ResourcesConfig, demand: Demand, say: Callable[[str], None]) -> Cluster:
    """Return the cluster to plan for; refuse one that lacks what a setting asks for.

    Without an autoscaler, that is the present one. Otherwise request as many places as the run can use, wait until they
    are there, no node has come for two minutes, or `resources.wait_minutes` are over, and use what there is.
    """
    cluster = current_cluster(res)
    if not cluster.autoscaling:
        if missing := unmet_requirement(cluster, res, demand.learner_workers):
            raise UserError(missing)
        return cluster
    places = places_to_ask_for(res, cluster, demand)
    started = grown = time.monotonic()
    nodes = 0
    with _asked_for(places, res) as granted:
        while True:
            cluster, there, now = current_cluster(res), granted(), time.monotonic()
            missing = unmet_requirement(cluster, res, demand.learner_workers)
            if not missing and there >= len(places):
                return cluster
            grown, nodes = (now if len(cluster.nodes) > nodes else grown), len(cluster.nodes)
            left = 60 * res.wait_minutes - (now - started)
            if left <= 0 or (not missing and now - grown >= _SETTLED):
                if missing:
                    raise UserError(missing)
                there = f"{there} of {len(places)} slots"
                say(f"the cluster has not grown for {now - grown:.0f} s; continuing with {there}")
                return cluster
            why = missing or f"{there} of {len(places)} slots for members are available ({cluster})"
            say(f"waiting for the cluster to grow ({now - started:.0f} s of at most {res.wait_minutes:g} min): {why}")
            time.sleep(min(_PAUSE, left))


def places_to_ask_for(res: ResourcesConfig, cluster: Cluster, demand: Demand) -> list[dict[str, float]]:
    """Return the places, at least one, that members and learners can use at once, as Ray resources.

    A member that has a GPU for itself is faster than one that shares it, so each asks for one unless
    `resources.gpus_per_member` says otherwise; several share what has come.

    >>> places_to_ask_for(ResourcesConfig(gpu=True), Cluster(((0, 0),), autoscaling=True), Demand(members=2))
    [{'CPU': 1, 'GPU': 1}, {'CPU': 1, 'GPU': 1}]
    """
    place: dict[str, float] = {"CPU": 1}
    members, learners = demand.members, max(demand.learners, 1) * (demand.learner_workers or 1)
    if uses_gpu(res, cluster):
        of_member = res.gpus_per_member or 1
        place["GPU"] = max(of_member, 1)
        members = math.ceil(members * min(of_member, 1))
    return [place] * max(members, learners)


@contextmanager
def _asked_for(places: Sequence[dict[str, float]], res: ResourcesConfig) -> Iterator[Callable[[], int]]:
    """Request places; yield a function that counts those granted.

    Each is a placement group, which the autoscaler sees as pending work. It ends with this process, however that ends:
    a request that outlived its job would keep machines running.
    """
    labels = {"bundle_label_selector": [res.label_selector]} if res.label_selector else {}
    groups = [placement_group([place], **labels) for place in places]
    try:
        yield lambda: sum(placement_group_table(group)["state"] == "CREATED" for group in groups)
    finally:
        for group in groups:
            remove_placement_group(group)

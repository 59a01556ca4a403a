"""Autoscaling clusters: request what the members can use at once, and show the wait for it."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from raysed.cluster.resources import Cluster, Need, current_cluster, members_per_gpu, unmet_requirement, uses_gpu
from raysed.config import ResourcesConfig
from raysed.errors import UserError

_PAUSE = 10.0
_SETTLED = 120.0  # after this many seconds without a new node, a cluster counts as complete


def gather(
    res: ResourcesConfig,
    need: Need,
    learners: int,
    say: Callable[[str], None],
    members: int,
    learner_workers: int | None = None,
) -> Cluster:
    """Return the cluster to plan for; refuse one that lacks what a setting asks for.

    Without an autoscaler, that is the present one. Otherwise request as many places as the members can use, wait until
    they are there, no node has come for two minutes, or `resources.wait_minutes` are over, and use what there is.
    """
    cluster = current_cluster()
    if not cluster.autoscaling:
        if missing := unmet_requirement(cluster, res, learner_workers):
            raise UserError(missing)
        return cluster
    places = places_to_ask_for(res, cluster, need, learners, members, learner_workers)
    started = grown = time.monotonic()
    nodes = 0
    with _asked_for(places) as granted:
        while True:
            cluster, there, now = current_cluster(), granted(), time.monotonic()
            missing = unmet_requirement(cluster, res, learner_workers)
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


def places_to_ask_for(
    res: ResourcesConfig,
    cluster: Cluster,
    need: Need | None = None,
    learners: int = 0,
    members: int = 10,
    learner_workers: int | None = None,
) -> list[dict[str, float]]:
    """Return the places, at least one, that members and learners can use at once, as Ray resources.

    >>> places_to_ask_for(ResourcesConfig(gpu=True), Cluster(((0, 0),), autoscaling=True), members=8)
    [{'CPU': 1, 'GPU': 1}, {'CPU': 1, 'GPU': 1}]
    """
    place: dict[str, float] = {"CPU": res.cpus_per_member or 1}
    count = max(members, learner_workers or 1)
    if uses_gpu(res, cluster):
        of_member = res.gpus_per_member or 1 / members_per_gpu(cluster.gpu_bytes, need or Need())
        place["GPU"] = max(of_member, 1)
        of_learners = max(learners, 1) * (learner_workers or 1)
        count = max(math.ceil(members * min(of_member, 1)), of_learners)
    return [place] * max(count, 1)


@contextmanager
def _asked_for(places: Sequence[dict[str, float]]) -> Iterator[Callable[[], int]]:
    """Request places; yield a function that counts those granted.

    Each is a placement group, which the autoscaler sees as pending work. It ends with this process, however that ends:
    a request that outlived its job would keep machines running.
    """
    groups = [placement_group([place]) for place in places]
    try:
        yield lambda: sum(placement_group_table(group)["state"] == "CREATED" for group in groups)
    finally:
        for group in groups:
            remove_placement_group(group)

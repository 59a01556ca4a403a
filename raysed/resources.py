"""From what the cluster has to workers, actors and fractions; refuses what can never be scheduled.

Everything is planned before it is started, because a chain of actors that takes every CPU leaves none for the tasks
that feed it, and such a job hangs without an error.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import ray

from raysed.config import Config
from raysed.errors import UserError


@dataclass(frozen=True)
class Cluster:
    """What the cluster has at the moment.

    Attributes:
        nodes: (CPUs, GPUs) of every living node.
        autoscaling: whether more may come.
    """

    nodes: tuple[tuple[float, float], ...]
    autoscaling: bool = False

    @property
    def cpus(self) -> float:
        """CPUs over all nodes."""
        return sum(cpus for cpus, _ in self.nodes)

    @property
    def gpus(self) -> float:
        """GPUs over all nodes."""
        return sum(gpus for _, gpus in self.nodes)

    @property
    def largest_cpus(self) -> float:
        """CPUs of the largest node: no actor can have more."""
        return max((cpus for cpus, _ in self.nodes), default=0.0)

    def __str__(self) -> str:
        return f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)}, {self.cpus:g} CPUs, {self.gpus:g} GPUs"


@dataclass(frozen=True)
class Share:
    """What one worker gets.

    Attributes:
        workers: how many run at the same time.
        cpus: CPUs of each.
        gpus: GPUs of each, a fraction where several share one.
        threads: torch threads of each.
    """

    workers: int
    cpus: float
    gpus: float
    threads: int

    def __str__(self) -> str:
        gpu = f" and {self.gpus:g} GPU" if self.gpus else ""
        return f"{self.workers} at a time, {self.cpus:g} CPU{gpu} each"


def current_cluster() -> Cluster:
    """Asks the connected Ray cluster."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return Cluster(tuple((n.get("CPU", 0.0), n.get("GPU", 0.0)) for n in nodes), _autoscales())


def wait_for(needs: Callable[[Cluster], str | None], minutes: float, say: Callable[[str], None]) -> Cluster:
    """Waits while an autoscaling cluster may still bring what is missing; fails at once where it cannot.

    Args:
        needs: returns what is missing, as a sentence, or None.
        minutes: the longest wait.
        say: shows a message.

    Raises:
        UserError: with the sentence.
    """
    started = time.monotonic()
    while missing := needs(cluster := current_cluster()):
        waited = time.monotonic() - started
        if not cluster.autoscaling or waited > 60 * minutes:
            raise UserError(missing)
        say(f"waiting for the cluster to grow ({waited:.0f} s of at most {minutes:g} min): {missing}")
        time.sleep(10)
    return cluster


def what_is_missing(config: Config) -> Callable[[Cluster], str | None]:
    """Returns the check of all fixed resource settings against a cluster."""
    res, sed = config.resources, config.sed

    def missing(cluster: Cluster) -> str | None:
        if cluster.largest_cpus < 1:
            return f"no node has a CPU for workers ({cluster})"
        if res.gpu and not cluster.gpus:
            return f"resources.gpu is true, but the cluster has no GPU ({cluster}); set it to false, or add a GPU node"
        if (res.gpus_per_member or 0) > 0 and not cluster.gpus:
            return f"resources.gpus_per_member is {res.gpus_per_member:g}, but the cluster has no GPU ({cluster}); leave it out"
        if (res.cpus_per_member or 0) > cluster.largest_cpus:
            return (
                f"resources.cpus_per_member is {res.cpus_per_member:g}, but the largest node has "
                f"{cluster.largest_cpus:g} CPUs; ask for at most that"
            )
        slots = cluster.gpus if uses_gpu(config, cluster) else cluster.cpus
        if (sed.workers or 1) > slots:
            kind = "GPUs" if uses_gpu(config, cluster) else "CPUs"
            return f"sed.workers is {sed.workers}, but the cluster has {slots:g} {kind}; ask for at most that"
        return None

    return missing


def uses_gpu(config: Config, cluster: Cluster) -> bool:
    """Whether this run trains and encodes on GPUs."""
    return cluster.gpus > 0 if config.resources.gpu is None else config.resources.gpu


def plan_members(cluster: Cluster, config: Config, count: int) -> Share:
    """Shares the cluster among members: on CPUs one core each and more where there are fewer members than cores; on
    GPUs up to four members on one, because a small encoder does not fill it alone.

    >>> plan_members(Cluster(((2, 0),)), Config(), 10)
    Share(workers=2, cpus=1, gpus=0.0, threads=1)
    >>> plan_members(Cluster(((16, 4),)), Config(), 10)
    Share(workers=10, cpus=1, gpus=0.333, threads=1)
    """
    res = config.resources
    gpus = 0.0
    if uses_gpu(config, cluster):
        per_gpu = min(math.ceil(count / cluster.gpus), 4)
        gpus = math.floor(1000 / per_gpu) / 1000 if res.gpus_per_member is None else res.gpus_per_member
    share = min(cluster.cpus // max(count, 1), cluster.largest_cpus)
    cpus = res.cpus_per_member or int(max(share, 1))
    fit = sum(min(c // cpus, math.floor(g / gpus + 1e-9) if gpus else math.inf) for c, g in cluster.nodes)
    workers = max(1, int(min(fit, count, res.concurrent_members or count)))
    return Share(workers, cpus, gpus, threads=max(1, int(cpus)))


def plan_teachers(cluster: Cluster, config: Config, count: int, teacher_bytes: int) -> tuple[Share, int]:
    """Plans the actors that average the teachers.

    One stage holds all teachers where their weights fit into half of an actor's memory; otherwise they are cut into
    groups, and the running sum goes from group to group. Of the CPUs one is left for the tasks that read.

    Returns:
        The share of one group's actors, and the number of groups.
    """
    memory = _gpu_memory() if uses_gpu(config, cluster) else _node_memory(cluster)
    groups = max(1, math.ceil(count * teacher_bytes / (memory / 2)))
    if uses_gpu(config, cluster):
        groups = min(groups, max(1, int(cluster.gpus)))
        return Share(max(1, int(cluster.gpus) // groups), 1, 1.0, threads=1), groups
    spare = max(cluster.cpus - 1, 1)
    # Actors are pinned to fractions of a CPU if there are more groups than cores, so that all of them exist at once.
    cpus = max(min(spare / groups, cluster.largest_cpus - 1), 0.01 if groups > 1 else 1)
    return Share(1, round(cpus, 2), 0.0, threads=max(1, int(cluster.largest_cpus))), groups


def plan_learner(cluster: Cluster, config: Config) -> Share:
    """Plans the training workers: one per GPU, or one with all CPUs of a node.

    Raises:
        UserError: the batch cannot be divided among them.
    """
    gpu = uses_gpu(config, cluster)
    workers = config.sed.workers or (_divisor(config.sed.batch_size, int(cluster.gpus)) if gpu else 1)
    if config.sed.batch_size % workers:
        raise UserError(
            f"sed.batch_size is {config.sed.batch_size}, which {workers} workers (sed.workers) cannot share evenly; "
            "make it a multiple"
        )
    cpus = max(1, int(min(cluster.largest_cpus, cluster.cpus // workers)))
    return Share(workers, cpus, 1.0 if gpu else 0.0, threads=cpus)


def _divisor(batch: int, most: int) -> int:
    return max(n for n in range(1, max(most, 1) + 1) if batch % n == 0)


def _autoscales() -> bool:
    """Whether a cluster autoscaler reports to this Ray."""
    from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
    from ray.experimental.internal_kv import _internal_kv_get

    try:
        return bool(_internal_kv_get(DEBUG_AUTOSCALING_STATUS))
    except Exception:  # a private interface: where it is gone, nothing is known of an autoscaler
        return False


def _gpu_memory() -> float:
    return 16e9


def _node_memory(cluster: Cluster) -> float:
    return ray.cluster_resources().get("memory", 4e9) / max(len(cluster.nodes), 1)

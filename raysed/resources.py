"""Divide CPUs, GPUs and memory among workers and actors.

raysed refuses requests that can never be scheduled: Ray would let them wait forever without an error.
"""

import logging
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from raysed.config import Precision, ResourcesConfig
from raysed.errors import UserError

log = logging.getLogger(__name__)

PROCESS_BYTES = 7e8
"""Memory of a process with torch and transformers that works on a batch, without its weights."""
_GPU_PART = 0.85  # share of a GPU's memory that plans may use
_SMALL_MEMBER = 1.5e9  # bytes of GPU memory of a member, if unknown
_PASS_BYTES = 2.6e9  # GPU memory of an actor that embeds, besides weights
_MAX_ACTORS = 3  # actors that share a GPU: while one embeds, others tokenise or write
_NO_BF16 = ("K80", "P4", "P100", "T4", "V100")  # GPUs without bf16 hardware


@dataclass(frozen=True)
class Need:
    """Peak memory of one training worker, in bytes.

    Attributes:
        what: name of the model, for messages.
        device: GPU memory; 0 on CPUs.
        host: memory of the machine.
        least: GPU memory if batches are split into the smallest parts.
    """

    what: str = ""
    device: float = 0.0
    host: float = PROCESS_BYTES
    least: float = 0.0


@dataclass(frozen=True)
class Demand:
    """How many trainings a run can do at once, for which an autoscaling cluster grows."""

    members: int = 1
    learners: int = 0
    learner_workers: int | None = None


@dataclass(frozen=True)
class Cluster:
    """Resources of the machines at the moment.

    Attributes:
        nodes: (CPUs, GPUs) of every live node.
        node_bytes: memory that a run may use on the smallest node.
        gpu_bytes: memory of the smallest GPU.
        gpu: Ray's accelerator type of the smallest GPU; empty if unknown.
        free: CPUs and GPUs that no other job uses; None: all.
    """

    nodes: tuple[tuple[float, float], ...]
    autoscaling: bool = False
    node_bytes: float = 64e9
    gpu_bytes: float = 8e9
    gpu: str = ""
    free: tuple[float, float] | None = None

    @property
    def cpus(self) -> float:
        return sum(cpus for cpus, _ in self.nodes)

    @property
    def gpus(self) -> float:
        return sum(gpus for _, gpus in self.nodes)

    @property
    def largest_cpus(self) -> float:
        """CPUs of the largest node, the most an actor can have."""
        return max((cpus for cpus, _ in self.nodes), default=0.0)

    def fit(self, cpus: float, gpus: float = 0.0, memory: float = 0.0) -> int:
        """Return how many workers of this size can run at once, assuming every node has the smallest one's memory.

        >>> Cluster(((4, 0), (3, 1))).fit(2), Cluster(((4, 0), (3, 1))).fit(1, 0.5)
        (3, 2)
        """
        room = _times(self.node_bytes, memory) if memory else math.inf
        fit = sum(min(_times(c, cpus), _times(g, gpus) if gpus else math.inf, room) for c, g in self.nodes)
        if self.free and fit:  # at least one, which waits for other jobs
            free_cpus, free_gpus = self.free
            fit = max(1, min(fit, _times(free_cpus, cpus), _times(free_gpus, gpus)))
        return fit

    def __str__(self) -> str:
        return f"{len(self.nodes)} node{'s' * (len(self.nodes) != 1)}, {self.cpus:g} CPUs, {self.gpus:g} GPUs"


@dataclass(frozen=True)
class Share:
    """Resources of each worker, and the number of `workers` at a time.

    Attributes:
        gpus: a fraction if several workers share a GPU.
        memory: bytes of host memory to request from Ray; 0: no request.
        gang: workers that train one model together.
    """

    workers: int
    cpus: float
    gpus: float
    threads: int
    memory: int = field(default=0, repr=False)
    gang: int = field(default=1, repr=False)
    label_selector: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def at_once(self) -> int:
        """Models that train at a time."""
        return self.workers // self.gang

    @property
    def resources(self) -> dict[str, float]:
        """Each worker's request to Ray, by resource."""
        request = {"CPU": self.cpus, "GPU": self.gpus, "memory": self.memory}
        return {name: amount for name, amount in request.items() if amount}

    @property
    def remote_options(self) -> dict[str, Any]:
        """The same request as options of a task or an actor."""
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "memory": self.memory}
        options |= {"label_selector": dict(self.label_selector)}
        return {name: value for name, value in options.items() if value}

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"

    def __str__(self) -> str:
        gpu = f" and {self.gpus:g} GPU" if self.gpus else ""
        return f"{self.workers} at a time, {self.cpus:g} CPU{gpu} each"


def unmet_requirement(cluster: Cluster, res: ResourcesConfig, learner_workers: int | None = None) -> str | None:
    """Return a sentence about the first setting that the cluster cannot meet; None if it meets all."""
    gpu = uses_gpu(res, cluster)
    gpus, workers = res.gpus_per_member or float(gpu), learner_workers or 1
    if not cluster.nodes and res.label_selector:
        return f"no node has resources.label_selector {res.label_selector}; change it"
    if cluster.largest_cpus < 1:
        return f"no node has a CPU for workers ({cluster})"
    if res.gpu and not cluster.gpus:
        return f"resources.gpu is true, but the cluster has no GPU ({cluster}); set it to false, or add a GPU node"
    if res.gpus_per_member and not gpu:
        return f"resources.gpus_per_member is {gpus:g}, but the cluster has no GPU ({cluster}); leave it out"
    if not cluster.fit(1, gpus):
        need = f"a CPU and {gpus:g} GPU (resources.gpus_per_member)"
        return f"a member needs {need} on one node, but no node has both ({cluster}); lower it"
    if workers > (room := cluster.fit(1, float(gpu))):
        kind = "GPUs with a CPU each" if gpu else "CPUs"
        return f"sed.workers is {workers}, but the cluster has {room} {kind} ({cluster}); lower it"
    return None


def uses_gpu(res: ResourcesConfig, cluster: Cluster) -> bool:
    """Return whether this run uses GPUs: by default, if the cluster has any."""
    return cluster.gpus > 0 if res.gpu is None else res.gpu


def plan_members(cluster: Cluster, res: ResourcesConfig, count: int, need: Need = Need()) -> Share:
    """Divide the cluster among members; raise UserError if it has too little memory for one.

    On CPUs, each member gets one core, or more with fewer members than cores. As many members share a GPU as its memory
    and its node's CPUs allow, because a small encoder alone does not fill it.

    >>> plan_members(Cluster(((16, 4),)), ResourcesConfig(), 10)
    Share(workers=10, cpus=1, gpus=0.333, threads=1)
    """
    if problem := too_large(cluster, res, need):
        raise UserError(problem)
    gpus = 0.0
    if uses_gpu(res, cluster):
        cpus_per_gpu = max((math.ceil(c / g) for c, g in cluster.nodes if g), default=1)
        in_memory = int(_GPU_PART * cluster.gpu_bytes // (need.device or _SMALL_MEMBER))
        per_gpu = max(1, min(math.ceil(count / cluster.gpus), in_memory, cpus_per_gpu))
        gpus = res.gpus_per_member or math.floor(1000 / per_gpu) / 1000
    cpus = _whole_cpus(cluster, count, gpus, need.host)
    workers = min(cluster.fit(cpus, gpus, need.host), count)
    return Share(max(workers, 1), cpus, gpus, cpus, int(need.host))


def plans_bf16(precision: Precision, gpu: bool, kind: str) -> bool:
    """Return whether machines will compute in bf16, as far as a plan knows: with `auto`, on all GPUs but old ones."""
    return precision == "bf16" or (gpu and precision == "auto" and kind not in _NO_BF16)


def too_large(cluster: Cluster, res: ResourcesConfig, need: Need) -> str | None:
    """Return a sentence about why a training does not fit on a cluster; None if it does."""
    if uses_gpu(res, cluster) and need.least > _GPU_PART * cluster.gpu_bytes:
        size, usable = cluster.gpu_bytes / 1e9, _GPU_PART * cluster.gpu_bytes / 1e9
        return (
            f"{need.what} needs about {need.least / 1e9:.1f} GB of GPU memory, but the smallest GPU has {size:.1f} GB, "
            f"of which raysed may use {usable:.1f} GB; use a larger GPU or a smaller encoder"
        )
    if need.what and need.host > cluster.node_bytes:
        return (
            f"{need.what} needs about {need.host / 1e9:.1f} GB of memory, but only {cluster.node_bytes / 1e9:.1f} GB "
            "can be used on the smallest machine; use a larger one or a smaller encoder"
        )
    return None


def plan_teachers(cluster: Cluster, res: ResourcesConfig, count: int, teacher_bytes: int) -> tuple[Share, int]:
    """Plan the actors that average the teachers; return the share of one group's actors, and the number of groups.

    One actor holds all teachers if their weights fit into half of the memory. Otherwise teachers are split into groups,
    which run at the same time on different GPUs or nodes and pass on the running sum. A GPU gets up to three actors, as
    its memory and CPUs allow. A node without GPU gets as many as half of its memory holds, at most one per core,
    because threads that share a batch wait for each other.
    """
    gpu = uses_gpu(res, cluster)
    memory = cluster.gpu_bytes if gpu else cluster.node_bytes
    if gpu:
        places, cpus = int(cluster.gpus), min((c / g for c, g in cluster.nodes if g), default=0.0)
    else:  # the n largest nodes that maximise n times the CPUs of the smallest of them
        rooms = sorted((c for c, _ in cluster.nodes if c >= 1), reverse=True)
        places, cpus = max(enumerate(rooms, start=1), key=lambda option: option[0] * option[1], default=(1, 1))
    cpus = math.floor(1000 * cpus) / 1000  # rounded up, it would not fit
    needed = math.ceil(count * teacher_bytes / (memory / 2))
    if needed > places:
        log.warning(
            "the teachers' weights fill more than half of the memory of %d %s, so averaging may run out of "
            "memory; use fewer members or more memory",
            places, "GPUs" if gpu else "nodes",
        )  # fmt: skip
    groups = max(1, min(needed, count, places))
    if gpu:
        weights = math.ceil(count / groups) * teacher_bytes
        per_gpu = max(1, min(_MAX_ACTORS, int(cpus), int(_GPU_PART * memory // (weights + _PASS_BYTES))))
        part = math.floor(1000 / per_gpu) / 1000
        on_node = max(1, int(max((g for _, g in cluster.nodes), default=1)) * per_gpu)
        held = int(min(PROCESS_BYTES + weights, cluster.node_bytes / on_node))
        return Share(places // groups * per_gpu, min(cpus, 1.0), part, threads=1, memory=held), groups
    threads = max(1, int(cpus))
    held = PROCESS_BYTES + math.ceil(count / groups) * teacher_bytes
    actors = max(1, min(int(memory / 2 // held), threads))
    share, held = math.floor(1000 * cpus / actors) / 1000, int(min(held, memory / actors))
    return Share(places // groups * actors, share, 0.0, threads // actors, held), groups


def plan_learners(
    cluster: Cluster, res: ResourcesConfig, count: int, need: Need = Need(), asked: int | None = None
) -> Share:
    """Plan the training workers of learners.

    Each worker gets its own GPU or a part of the CPUs. On CPUs, as many learners run in parallel as divide their number
    evenly, because threads that share a small batch wait for each other. Several workers per learner exchange gradients
    at every update. That pays only for large batches, so it happens only with `sed.workers` (`asked`). `count` includes
    finished learners: a learner that is trained again gets as many threads as before.
    """
    if problem := too_large(cluster, res, need):
        raise UserError(f"{problem}, or share it among GPUs with sed.workers and sed.zero_stage: 2")
    gpus, gang = (1.0 if uses_gpu(res, cluster) else 0.0), asked or 1
    if gpus:
        at_once = min(count, max(1, cluster.fit(1, gpus, need.host) // gang))
        cpus = _whole_cpus(cluster, at_once * gang, gpus, need.host)
    else:
        room = max(1, cluster.fit(1, gpus, need.host))
        parallel = 1 if asked else next(n for n in range(min(count, room), 0, -1) if count % n == 0)
        cpus = _whole_cpus(cluster, parallel * gang, gpus, need.host)
        at_once = min(count, max(1, cluster.fit(cpus, gpus, need.host) // gang))
    return Share(at_once * gang, cpus, gpus, cpus, int(need.host), gang)


def _limits(file: str, below: Path = Path("/sys/fs/cgroup")) -> list[float]:
    """Return the numbers of a container's limit (cgroup v2); infinity for no limit."""
    try:
        return [math.inf if word == "max" else float(word) for word in (below / file).read_text().split()]
    except (OSError, ValueError):
        return [math.inf]


def this_machine(gpu: bool | None = None) -> Cluster:
    """Return this machine's resources, without its GPUs if `gpu` is False."""
    import torch

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    gpus = 0 if gpu is False else torch.cuda.device_count()
    memory = psutil.virtual_memory().available
    quota, period, *_ = [*_limits("cpu.max"), 1]
    cpus, memory = max(1, int(min(cpus, quota / period))), min(memory, *_limits("memory.max"))
    gpu_bytes = (gpus and smallest_gpu_here()) or Cluster.gpu_bytes
    return Cluster(((float(cpus), float(gpus)),), node_bytes=memory, gpu_bytes=gpu_bytes)


def device_here(gpu: bool | None = None) -> str:
    """Return the torch device of this process: `cuda` with a GPU, unless `gpu` is False; else `cpu`."""
    import torch

    return "cuda" if gpu is not False and torch.cuda.is_available() else "cpu"


def smallest_gpu_here() -> float:
    """Return the memory in bytes of this machine's smallest GPU, as its driver reports it; 0 if unknown."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        return min(float(line) for line in output.split()) * 2**20
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0.0


def _times(whole: float, part: float) -> int:
    """Return how many times `part` fits into `whole`, allowing for rounding errors."""
    return math.floor(whole / part + 1e-9) if part else sys.maxsize


def _whole_cpus(cluster: Cluster, workers: int, gpus: float, memory: float = 0.0) -> int:
    """Return the most CPUs per worker, at least 1, if `workers` run at once, or as many as memory allows.

    With `gpus`, it is at most their share of the node's CPUs: the rest belongs to the node's other GPUs.
    """
    most = cluster.largest_cpus
    if gpus:
        most = max((c / g * gpus for c, g in cluster.nodes if g), default=1.0)
    most, workers = range(int(most), 1, -1), min(workers, cluster.fit(1, gpus, memory))
    return next((cpus for cpus in most if cluster.fit(cpus, gpus, memory) >= workers), 1)

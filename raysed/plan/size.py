"""What a run needs, from its settings alone: trainings, updates, memory, storage, network and time.

Sizes are arithmetic. Times are the products of the trainings at a stated rate, and so a guess: scoring, calibrations
and the start of workers are not counted.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils.benchmark import Timer

from raysed.cluster.need import Need
from raysed.cluster.resources import GPU_GB, Cluster, Share, plan_learners, plan_members, uses_gpu
from raysed.config import Config, Precision
from raysed.data.targets import TARGET_TYPES
from raysed.errors import UserError
from raysed.model.shape import Shape
from raysed.plan.artefacts import trainings_of
from raysed.plan.check import Job
from raysed.recipe import SED, TEACHERS, Recipe, member_nodes
from raysed.registry import stages
from raysed.store.text import Table, duration, size
from raysed.train.memory import checkpoint_bytes, learner_need, member_need
from raysed.train.stage import Stage

TOKENS = 24
"""Of a sentence, where that is not known."""
_LONG_BATCH = 1.5
"""By how much the largest of many batches exceeds the mean."""
_REACHED = 0.2
"""The part of a device's products that small batches reach."""
_LAYER_SECONDS = {"cuda": 2e-3, "cpu": 1e-3}
"""What a layer costs in every update, however small: starting its operations, forward, backward and optimizer."""
_TFLOPS = {
    **{"K80": (4, 0), "P4": (5, 0), "P100": (9, 0), "T4": (8, 0), "V100": (15, 0), "L4": (30, 120)},
    **{"A10G": (35, 70), "L40S": (91, 360), "A100": (19, 312), "A100-40G": (19, 312), "A100-80G": (19, 312)},
    **{"H20": (44, 148), "H100": (67, 990), "H200": (67, 990), "B200": (80, 2250)},
}
"""Products of a GPU by Ray's accelerator type, in 10^12 operations per second: in fp32 (not in TF32, which is off), and
in bf16 where its hardware has that, else 0; the makers' figures without sparsity."""
_CPUS_PER_GPU, _GB_PER_GPU, _GB_PER_CPU = 8, 32, 4
"""What a described cluster has beside each GPU, and beside each CPU where it has none."""
_FORWARD, _TRAINED = 2, 6
"""Operations per weight and token, without and with gradients."""


@dataclass(frozen=True)
class Step:
    """Trainings that are alike: `what` is `member`, `grid model` or `learner`.

    Attributes:
        node: what they make, e.g. `ct` or `ct-sed`.
        updates: of each training.
        workers: of each training; `share` and `need` are of one worker.
        seconds: of all of them.
    """

    node: str
    what: str
    trainings: int
    updates: int
    at_once: int
    workers: int
    share: Share
    need: Need
    seconds: float


@dataclass(frozen=True)
class Plan:
    """What a run needs.

    Attributes:
        steps: in the order of the run.
        storage: bytes of the run directory at its fullest, by what they are.
        rate: operations per second of one training, and where the number is from.
        shared: which recipes use an ensemble, if several do.
    """

    config: Config
    cluster: Cluster
    shape: Shape
    steps: Sequence[Step]
    storage: Mapping[str, float]
    rate: tuple[float, str]
    shared: Sequence[str]

    @property
    def network(self) -> float:
        """Bytes that each worker of a learner sends at every update."""
        workers = next((step.workers for step in self.steps if step.what == "learner"), 1)
        return 2 * (workers - 1) / workers * 4 * self.shape.parameters

    def words(self) -> str:
        """Return all of it as people read it."""
        shape, on_gpu = self.shape, uses_gpu(self.config.resources, self.cluster)
        gpu = f", {self.cluster.gpu or 'GPUs'} of {size(self.cluster.gpu_bytes)}" if on_gpu else ""
        header = ["trains", "", "updates", "at a time", "CPUs", "GPUs", "GPU memory", "memory", "time"]
        cells = [
            [
                step.node,
                f"{step.trainings} {step.what}{'s' * (step.trainings > 1)}",
                f"{step.updates:,}",
                f"{step.at_once}",
                f"{step.workers * step.share.cpus:g}",
                f"{step.workers * step.share.gpus:g}",
                size(step.need.device) if step.need.device else "-",
                size(step.need.host),
                duration(step.seconds),
            ]
            for step in self.steps
        ]
        lines = [
            f"plan of {self.config.run} for {self.cluster}{gpu}",
            f"encoder: {shape.parameters:,} parameters, {shape.layers} layers, width {shape.width:,}; "
            f"{size(4 * shape.parameters)}",
            "",
            Table(header, cells, text=2).plain() if cells else "nothing is trained",
            "",
            *self.shared,
            f"storage: about {size(sum(self.storage.values()))}: "
            + ", ".join(f"{size(count)} of {what}" for what, count in self.storage.items() if count),
        ]
        if self.network:
            lines.append(f"network: every worker of a learner sends {size(self.network)} per update")
        seconds, per_layer = sum(step.seconds for step in self.steps), _LAYER_SECONDS["cuda" if on_gpu else "cpu"]
        lines += [
            f"time: {duration(seconds)} for the trainings, at {self.rate[1]} and {1000 * per_layer:g} ms per layer and "
            "update",
            f"not counted: reading, teachers, scoring, calibrations; a sentence counts as "
            f"{tokens_of_sentence(self.config)} tokens",
        ]
        return "\n".join(lines)


def plan_run(
    config: Config,
    recipes: Sequence[Recipe],
    shape: Shape,
    rows: Mapping[str, int],
    cluster: Cluster,
    rate: tuple[float, str] = (math.inf, ""),
    widths: Sequence[int] = (),
) -> Plan:
    """Plan a run.

    Args:
        rows: sizes of the tables that are learnt from, by artefact: `corpus`, `pairs/nli`, `views/mlm`, ….
        rate: see `rate_of`; by default nothing takes time.
        widths: of the teachers.

    Raises:
        UserError: a training fits on no node.
    """
    steps = []
    for depth in member_nodes(list(recipes)):
        counts = {node: trainings_of(node, config) for node in depth}
        need = largest_need(depth, config, shape, gpu=uses_gpu(config.resources, cluster), kind=cluster.gpu)
        workers = {n: math.ceil(count / _stage_of(n).members_together(config.members)) for n, count in counts.items()}
        share = plan_members(cluster, config.resources, sum(workers.values()), need)
        for node, count in counts.items():
            stage = _stage_of(node)
            settings = getattr(config, stage.name)
            updates = stage.steps(settings, sum(rows[table] for table in stage.tables(settings)))
            # Nodes of a depth share the places.
            stacks = max(1, round(share.workers * workers[node] / sum(workers.values())))
            together = count / workers[node]
            what = "grid model" if stage.is_grid and len(settings.lower_bounds) > 1 else "member"
            encoders = stage.size(settings, shape)
            # Encoders that are only kept see every sentence, too, without a gradient.
            operations = together * (_TRAINED + _FORWARD * encoders.kept) * _tokens(stage, config)
            operations *= shape.products + encoders.outputs_per_token * shape.width
            copies = 1 if together > 1 else encoders.encoders
            seconds = updates * _update_seconds(operations, copies, shape, share, rate[0])
            seconds *= math.ceil(workers[node] / stacks)
            at_once = min(count, round(stacks * together))
            steps.append(Step(node, what, count, updates, at_once, 1, share, need, seconds))
    steps += _learner_steps(recipes, config, shape, rows, cluster, rate[0])
    return Plan(
        config, cluster, shape, steps, _storage(config, recipes, shape, rows, steps, widths), rate, _shared(recipes)
    )


def _learner_steps(
    recipes: Sequence[Recipe], config: Config, shape: Shape, rows: Mapping[str, int], cluster: Cluster, rate: float
) -> list[Step]:
    names = list(dict.fromkeys(recipe.uncalibrated for recipe in recipes if recipe.distils))
    if not names:
        return []
    sed, total = config.sed, len(names) * config.sed.learners
    need = need_of_learner(config, shape, gpu=uses_gpu(config.resources, cluster), kind=cluster.gpu)
    share, at_once = plan_learners(cluster, config.resources, total, need, sed.workers)
    updates = stages()[SED].steps(sed, rows["corpus"])
    batch = min(sed.batch_size, rows["corpus"])
    operations = _TRAINED * shape.products * batch * tokens_of_sentence(config) / share.workers
    seconds = updates * _update_seconds(operations, 1, shape, share, rate) * math.ceil(total / at_once) / len(names)
    return [
        Step(name, "learner", sed.learners, updates, at_once, share.workers, share, need, seconds) for name in names
    ]


def _update_seconds(operations: float, copies: int, shape: Shape, share: Share, rate: float) -> float:
    """Of one worker; those that share a GPU share its rate, and several CPUs have the rate of each."""
    if math.isinf(rate):
        return 0.0
    device = min(share.gpus, 1.0) if share.gpus else share.cpus
    return operations / (rate * device) + _LAYER_SECONDS[share.device] * shape.layers * copies


def _storage(
    config: Config,
    recipes: Sequence[Recipe],
    shape: Shape,
    rows: Mapping[str, int],
    steps: Sequence[Step],
    widths: Sequence[int],
) -> dict[str, float]:
    """What lies in the run directory when it is fullest."""
    states = []
    for step in steps:
        stage = _stage_of(step.node)
        states.append(step.at_once * checkpoint_bytes(stage.size(getattr(config, stage.name), shape), shape))
    corpus, ensembles = rows.get("corpus", 0), {recipe.ensemble for recipe in recipes if recipe.distils}
    of_teachers = max([shape.width, *widths]) - shape.width if TEACHERS in ensembles else 0
    bytes_ = TARGET_TYPES[config.sed.target_precision].itemsize
    return {
        "models": 4 * shape.parameters * (sum(step.trainings for step in steps) + 1),
        "checkpoints": 2.0 * max(states, default=0),  # the two newest of each training
        "sentences and tokens": 4.0 * sum(rows.values()) * (2 * tokens_of_sentence(config)),
        "targets": bytes_ * corpus * (len(ensembles) * shape.width + of_teachers),
        "teachers' embeddings": 4.0 * corpus * sum(widths),
    }


def _shared(recipes: Sequence[Recipe]) -> list[str]:
    """Ensembles that several recipes use, a sentence each."""
    found = {}
    for recipe in recipes:
        found.setdefault(recipe.ensemble, []).append(recipe)
    return [
        f"{node} is trained once for {', '.join(recipe.text for recipe in users)}"
        for node, users in found.items()
        if len(users) > 1 and any(recipe.members for recipe in users)
    ]


def known_rows(job: Job) -> dict[str, int]:
    """Return the sizes of the tables that are learnt from, as far as they are known before anything is read.

    They are by artefact; a corpus of which all is kept counts as one sentence.
    """
    corpus = job.config.corpus.sentences or 1
    rows = {f"pairs/{kind}": len(pairs) for kind, pairs in job.pairs.items()}
    rows |= {f"views/{kind}": corpus if views is None else len(views) for kind, views in job.views.items()}
    return rows | ({"corpus": corpus} if job.needs_corpus else {})


def plans_bf16(precision: Precision, kind: str, *, gpu: bool = True) -> bool:
    """Whether forward passes are planned in bf16.

    Args:
        kind: Ray's accelerator type; one that is not known counts as having bf16.

    >>> plans_bf16("auto", "A100"), plans_bf16("auto", "V100"), plans_bf16("fp32", "A100")
    (True, False, False)
    """
    return precision == "bf16" or (gpu and precision == "auto" and _TFLOPS.get(kind, (1, 1))[1] > 0)


def largest_need(nodes: Sequence[str], config: Config, shape: Shape, *, gpu: bool, kind: str = "") -> Need:
    """Return what the largest member of these nodes needs; they are trained in one experiment, with equal shares.

    Args:
        nodes: e.g. `ct` and `nli-ct`.
        kind: see `plans_bf16`.
    """
    members, bf16 = config.members, plans_bf16(config.members.precision, kind, gpu=gpu)
    needs = []
    for stage in map(_stage_of, nodes):
        tokens = _LONG_BATCH * _tokens(stage, config)
        needs.append(member_need(stage, getattr(config, stage.name), members, shape, tokens, gpu=gpu, bf16=bf16))
    return max(needs, key=lambda need: (need.device, need.host), default=Need())


def need_of_learner(config: Config, shape: Shape, *, gpu: bool, kind: str = "") -> Need:
    """Return what a worker of a learner needs; for `kind` see `plans_bf16`."""
    bf16, workers = plans_bf16(config.sed.precision, kind, gpu=gpu), config.sed.workers or 1
    tokens = _LONG_BATCH * config.sed.batch_size / workers * tokens_of_sentence(config)
    return learner_need(config.sed, shape, tokens, workers, gpu=gpu, bf16=bf16)


def tokens_of_sentence(config: Config) -> int:
    """Return how many tokens a sentence is taken to have."""
    return min(TOKENS, config.encoder.max_length)


def _stage_of(node: str) -> Stage:
    """What trains a node: the last of its stages."""
    return stages()[node.rpartition("-")[2]]


def _tokens(stage: Stage, config: Config) -> float:
    """Of a batch; each sentence counts once, also where two encoders take one half of the batch each."""
    rows = stage.rows_per_update(getattr(config, stage.name))
    return rows * stage.sentences_per_row * tokens_of_sentence(config)


def described(text: str) -> Cluster:
    """Return the cluster of so many nodes x GPUs of each x Ray's accelerator type, or nodes x CPUs of each x `CPU`.

    >>> str(described("2x8xH100")), str(described("1x16xCPU"))
    ('2 nodes, 128 CPUs, 16 GPUs', '1 node, 16 CPUs, 0 GPUs')
    """
    match = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,2})x([\w-]+)", text.strip())
    kinds = ["CPU", *GPU_GB]
    if not match or match[3] not in kinds:
        raise UserError(
            f"--cluster {text!r} is not NODES x GPUS x TYPE, such as 2x8xH100, or NODES x CPUS x CPU, such as 1x16xCPU;"
            f" the types are {', '.join(kinds)}, and there are at most 9999 nodes with 999 of them"
        )
    nodes, count, kind = int(match[1]), int(match[2]), match[3]
    if kind == "CPU":
        return Cluster(((float(count), 0.0),) * nodes, node_bytes=1e9 * _GB_PER_CPU * count)
    node = (float(_CPUS_PER_GPU * count), float(count))
    return Cluster((node,) * nodes, node_bytes=1e9 * _GB_PER_GPU * count, gpu_bytes=1e9 * GPU_GB[kind], gpu=kind)


def rate_of(cluster: Cluster, config: Config) -> tuple[float, str]:
    """Return the operations per second of a training that has a device alone, and where the number is from."""
    if not uses_gpu(config.resources, cluster):
        rate = _measured_here()
        return _REACHED * 2 * rate, f"{_REACHED * 2:.0%} of {rate / 1e9:.0f} GFLOP/s per CPU, measured on this machine"
    kind = cluster.gpu if cluster.gpu in _TFLOPS else "T4"
    is_bf16 = plans_bf16(config.members.precision, kind)
    peak = _TFLOPS[kind][is_bf16] or _TFLOPS[kind][0]
    return _REACHED * peak * 1e12, f"{_REACHED:.0%} of {peak} TFLOP/s per GPU ({kind}, {'bf16' if is_bf16 else 'fp32'})"


def _measured_here() -> float:
    """Operations per second of one thread, by products of the size of a small encoder's."""
    timer = Timer("a @ b", globals={"a": torch.randn(1024, 384), "b": torch.randn(384, 1536)})
    return 2 * 1024 * 384 * 1536 / min(timer.timeit(1).mean for _ in range(20))  # others may use this machine now

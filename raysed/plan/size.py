"""What a run needs, from its settings alone: trainings, updates, memory, storage and time, here or on other machines.

Sizes are arithmetic. Times are the products of the trainings at a stated rate, and so a guess: scoring, calibrations
and the start of workers are not counted.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils.benchmark import Timer

from raysed.cluster.local import this_machine
from raysed.cluster.resources import (
    GPUS,
    Cluster,
    Need,
    Share,
    current_cluster,
    plan_learners,
    plan_members,
    uses_gpu,
    what_is_missing,
)
from raysed.cluster.session import is_ray_given, session
from raysed.config import Config, Precision
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.targets import TARGET_TYPES
from raysed.errors import UserError
from raysed.model.shape import Shape, shape_of
from raysed.plan.check import Job, check
from raysed.recipe import SED, TEACHERS, Recipe, last_stage, member_nodes, trainings_of
from raysed.store.text import Table, duration, size
from raysed.train.memory import checkpoint_bytes, learner_need, member_need
from raysed.train.stage import Size, Stage

_TOKENS = 24
"""Of a sentence, where that is not known."""
_LONG_BATCH = 1.5
"""By how much the largest of many batches exceeds the mean."""
_REACHED = 0.2
"""The part of a device's products that small batches reach."""
_LAYER_SECONDS = {"cuda": 2e-3, "cpu": 1e-3}
"""What a layer costs in every update, however small: starting its operations, forward, backward and optimizer."""
_CPUS_PER_GPU, _GB_PER_GPU, _GB_PER_CPU = 8, 32, 4
"""What a described cluster has beside each GPU, and beside each CPU where it has none."""
_FORWARD, _TRAINED = 2, 6
"""Operations per weight and token, without and with gradients."""


@dataclass(frozen=True)
class Step:
    """Trainings that are alike, of members, grid models or learners: `what`. `updates` and `workers` are of each."""

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
class RunSize:
    """What a run needs: its trainings in order, and the bytes of its directory at its fullest, by what they are."""

    steps: Sequence[Step]
    storage: Mapping[str, float]

    @property
    def seconds(self) -> float:
        """Of all trainings."""
        return sum(step.seconds for step in self.steps)


def show_plan(config: Config, cluster: str | None = None, sentences: int | None = None) -> str:
    """Check a configuration as a run does, and return what it needs in words; nothing is trained or written.

    Args:
        cluster: what to plan for, see `described`; None: the machines at hand.
        sentences: of the corpus; None: they are counted, which means reading all of it.

    Raises:
        UserError: a wrong setting or input, or a training that fits on no node.
    """
    if sentences is not None and sentences < 1:
        raise UserError(f"--sentences is {sentences}; it must be at least 1")
    there = described(cluster) if cluster else _here()
    if missing := what_is_missing(there, config.resources, config.sed.workers):  # such as GPUs that have not come yet
        raise UserError(missing)
    job = check(config)
    count = sentences or job.config.corpus.sentences or (_count(job) if job.needs_corpus else 1)
    return in_words(job.config, job.recipes, shape_of(config.encoder), known_rows(job, count), there, job.widths)


def _here() -> Cluster:
    if not is_ray_given():
        return this_machine()
    with session("ray", lambda: None):
        return current_cluster()


def _count(job: Job) -> int:
    report = CorpusReport()
    for _ in sentence_chunks(job.config.corpus, job.config.seed, report):
        pass
    return report.kept


def in_words(
    config: Config,
    recipes: Sequence[Recipe],
    shape: Shape,
    rows: Mapping[str, int],
    cluster: Cluster,
    widths: Sequence[int] = (),
) -> str:
    """Return what a run needs as people read it, see `plan_run`."""
    rate, where = rate_of(cluster, config)
    plan, on_gpu = plan_run(config, recipes, shape, rows, cluster, rate, widths), uses_gpu(config.resources, cluster)
    gpu = f", {cluster.gpu or 'GPUs'} of {size(cluster.gpu_bytes)}" if on_gpu else ""
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
        for step in plan.steps
    ]
    parts = ", ".join(f"{size(count)} of {what}" for what, count in plan.storage.items() if count)
    per_layer = 1000 * _LAYER_SECONDS["cuda" if on_gpu else "cpu"]
    return f"""plan of {config.run} for {cluster}{gpu}
encoder: {shape.parameters:,} parameters, {shape.layers} layers, width {shape.width:,}; {size(4 * shape.parameters)}

{Table(header, cells, text=2).plain() if cells else "nothing is trained"}

storage: about {size(sum(plan.storage.values()))}: {parts}
time: {duration(plan.seconds)} for the trainings, at {where} and {per_layer:g} ms per layer and update
not counted: reading, teachers, scoring, calibrations; a sentence counts as {tokens_of_sentence(config)} tokens"""


def plan_run(
    config: Config,
    recipes: Sequence[Recipe],
    shape: Shape,
    rows: Mapping[str, int],
    cluster: Cluster,
    rate: float = math.inf,
    widths: Sequence[int] = (),
) -> RunSize:
    """Plan a run.

    Args:
        rows: sizes of the tables that are learnt from, by artefact: `corpus`, `pairs/nli`, `views/mlm`, ….
        rate: operations per second of one training, see `rate_of`; by default only starting operations takes time.
        widths: of the teachers.

    Raises:
        UserError: a training fits on no node.
    """
    nodes = [{node: trainings_of(node, config) for node in depth} for depth in member_nodes(list(recipes))]
    nodes.append({recipe.uncalibrated: config.sed.learners for recipe in recipes if recipe.distils})
    steps = [step for counts in nodes if counts for step in _steps(counts, config, shape, rows, cluster, rate)]
    states = [step.at_once * checkpoint_bytes(_size_of(step.node, config, shape), shape) for step in steps]
    corpus, ensembles = rows.get("corpus", 0), {recipe.ensemble for recipe in recipes if recipe.distils}
    of_teachers = max([shape.width, *widths]) - shape.width if TEACHERS in ensembles else 0
    bytes_ = TARGET_TYPES[config.sed.target_precision].itemsize
    storage = {
        "models": 4 * shape.parameters * (sum(step.trainings for step in steps) + 1),
        "checkpoints": 2.0 * max(states, default=0),  # the two newest of each training
        "sentences and tokens": 4.0 * sum(rows.values()) * (2 * tokens_of_sentence(config)),
        "targets": bytes_ * corpus * (len(ensembles) * shape.width + of_teachers),
        "teachers' embeddings": 4.0 * corpus * sum(widths),
    }
    return RunSize(steps, storage)


def _steps(
    counts: Mapping[str, int], config: Config, shape: Shape, rows: Mapping[str, int], cluster: Cluster, rate: float
) -> Iterator[Step]:
    """Yield the trainings of nodes that share the places: those of one depth, or all learners."""
    res, about = config.resources, {"gpu": uses_gpu(config.resources, cluster), "kind": cluster.gpu}
    together = {node: last_stage(node).members_together(config.members) for node in counts}
    workers = {node: math.ceil(count / together[node]) for node, count in counts.items()}
    total, ranks = sum(workers.values()), 1
    if SED in next(iter(counts)).split("-"):
        need = need_of_learner(config, shape, **about)
        share, at_once = plan_learners(cluster, res, total, need, config.sed.workers)
        ranks = share.workers
    else:
        need = largest_need(list(counts), config, shape, **about)
        share = plan_members(cluster, res, total, need)
        at_once = share.workers
    for node, count in counts.items():
        stage, part, each = last_stage(node), workers[node] / total, count / workers[node]
        settings, encoders = getattr(config, stage.name), _size_of(node, config, shape)
        updates = stage.steps(settings, sum(rows[table] for table in stage.tables(settings)))
        # Encoders that are only kept see every sentence, too, without a gradient.
        operations = each * (_TRAINED + _FORWARD * encoders.kept) * _tokens(stage, config) / ranks
        operations *= shape.products + encoders.outputs_per_token * shape.width
        # Those that share a GPU share its rate, and several CPUs have the rate of each.
        device = min(share.gpus, 1.0) if share.gpus else share.cpus
        seconds = operations / (rate * device) + _LAYER_SECONDS[share.device] * shape.layers * encoders.encoders
        seconds *= updates * math.ceil(total / at_once) * part
        what = "grid model" if stage.is_grid and len(settings.lower_bounds) > 1 else "member"
        what = "learner" if stage.name == SED else what
        shown = min(count, max(1, round(at_once * part)) * each)
        yield Step(node, what, count, updates, round(shown), ranks, share, need, seconds)


def known_rows(job: Job, corpus: int | None = None) -> dict[str, int]:
    """Return the sizes of the tables that are learnt from, by artefact.

    Without a number of sentences, a corpus of which all is kept counts as one.
    """
    corpus = corpus or job.config.corpus.sentences or 1
    rows = {f"pairs/{kind}": len(pairs) for kind, pairs in job.pairs.items()}
    rows |= {f"views/{kind}": corpus if views is None else len(views) for kind, views in job.views.items()}
    return rows | ({"corpus": corpus} if job.needs_corpus else {})


def plans_bf16(precision: Precision, kind: str, *, gpu: bool = True) -> bool:
    """Whether forward passes are planned in bf16; a `kind` of GPU (Ray's accelerator type) that is unknown has it.

    >>> plans_bf16("auto", "A100"), plans_bf16("auto", "V100"), plans_bf16("fp32", "A100")
    (True, False, False)
    """
    return precision == "bf16" or (gpu and precision == "auto" and (kind not in GPUS or GPUS[kind][2] > 0))


def largest_need(nodes: Sequence[str], config: Config, shape: Shape, *, gpu: bool, kind: str = "") -> Need:
    """Return what the largest member of nodes such as `ct` and `nli-ct` needs: in one experiment, shares are equal.

    `kind` is that of `plans_bf16`.
    """
    members, bf16, needs = config.members, plans_bf16(config.members.precision, kind, gpu=gpu), []
    for stage in map(last_stage, nodes):
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
    return min(_TOKENS, config.encoder.max_length)


def _size_of(node: str, config: Config, shape: Shape) -> Size:
    stage = last_stage(node)
    return stage.size(getattr(config, stage.name), shape)


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
    kinds = ["CPU", *GPUS]
    if not match or match[3] not in kinds:
        raise UserError(
            f"--cluster {text!r} is not NODES x GPUS x TYPE, such as 2x8xH100, or NODES x CPUS x CPU, such as 1x16xCPU;"
            f" the types are {', '.join(kinds)}, and there are at most 9999 nodes with 999 of them"
        )
    nodes, count, kind = int(match[1]), int(match[2]), match[3]
    if kind == "CPU":
        return Cluster(((float(count), 0.0),) * nodes, node_bytes=1e9 * _GB_PER_CPU * count)
    node = (float(_CPUS_PER_GPU * count), float(count))
    return Cluster((node,) * nodes, node_bytes=1e9 * _GB_PER_GPU * count, gpu_bytes=1e9 * GPUS[kind][0], gpu=kind)


def rate_of(cluster: Cluster, config: Config) -> tuple[float, str]:
    """Return the operations per second of a training that has a device alone, and where the number is from."""
    if not uses_gpu(config.resources, cluster):
        timer = Timer("a @ b", globals={"a": torch.randn(1024, 384), "b": torch.randn(384, 1536)})
        seconds = min(timer.timeit(1).mean for _ in range(20))  # others may use this machine now
        rate = 2 * 1024 * 384 * 1536 / seconds
        return _REACHED * 2 * rate, f"{_REACHED * 2:.0%} of {rate / 1e9:.0f} GFLOP/s per CPU, measured on this machine"
    kind = cluster.gpu if cluster.gpu in GPUS else "T4"
    is_bf16 = plans_bf16(config.members.precision, kind)
    _, fp32, bf16 = GPUS[kind]
    peak = (is_bf16 and bf16) or fp32
    return _REACHED * peak * 1e12, f"{_REACHED:.0%} of {peak} TFLOP/s per GPU ({kind}, {'bf16' if is_bf16 else 'fp32'})"

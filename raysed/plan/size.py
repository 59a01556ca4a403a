"""Compute from its settings what a run needs: trainings, the memory of their workers, and storage.

The script of a run is run for that without machines: it counts what would be trained.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from raysed.config import Config
from raysed.data.corpus import CorpusReport, query_chunks, sentence_chunks
from raysed.data.targets import TARGET_TYPES
from raysed.errors import UserError
from raysed.made import Made, Trained
from raysed.model.shape import Shape
from raysed.plan.check import Job, check
from raysed.plan.minutes import show_minutes
from raysed.plan.tables import CORPUS, known_rows
from raysed.recipe import SED, TEACHERS
from raysed.registry import stages
from raysed.resources import Cluster, Need, Share, plan_learners, plan_members, plans_bf16, unmet_requirement, uses_gpu
from raysed.store.storage import Storage
from raysed.store.text import Table, size
from raysed.train.memory import training_need

_TOKENS = 24  # assumed for a sentence
_LONG_BATCH = 1.5  # tokens of the largest of many batches, relative to the mean


class Rehearsal:
    """Stands in for `raysed.runner.Run`: it makes nothing, and each training succeeds.

    The first bound of a grid wins, and no member collapses.

    Attributes:
        trainings: in order.
    """

    cluster, failures = "", dict[str, str]()

    def __init__(self):
        self.trainings: list[Made] = []

    def ensure(self, *asked: Made | None) -> None:
        """Make nothing."""

    def train(self, models: Sequence[Made]) -> list[Trained]:
        self.trainings += models
        return [Trained(each, dev=0.0) for each in models]

    def decide(self, trained: Sequence[Trained], lines: Iterator[str]) -> None:
        """Say nothing."""

    def meta(self, made: Made | None) -> Mapping[str, Any] | None:
        return None

    def rows(self, table: Made) -> int:
        return 1

    def check_room(self, tables: Mapping[str, Made]) -> None:
        """Check nothing."""


Script = Callable[[Any, Job], Any]
"""`raysed.pipeline.ensemble_then_distill`, on a `Rehearsal`."""


def rehearsed(script: Script, job: Job) -> list[Made]:
    """Return all trainings of a run in which none fails."""
    rehearsal = Rehearsal()
    script(rehearsal, job)
    return rehearsal.trainings


@dataclass(frozen=True)
class TrainingEstimate:
    """Similar trainings, of members, grid models or learners (`what`); `updates` and `workers` are per training.

    `sentences`: that pass through the encoder, of all trainings. `storage`: bytes of their models, and of two
    checkpoints of each that trains at the same time.
    """

    node: str
    what: str
    trainings: int
    updates: int
    sentences: int
    at_once: int
    workers: int
    share: Share
    need: Need
    storage: float


def totals(trainings: Sequence[Made]) -> dict[str, int]:
    """Return the number of trainings by directory; all bounds of a grid are in one."""
    kinds = {True: "learners", False: "members"}
    places = [(made.how.node, kinds[made.how.is_gang] if made.how.bound is None else "grid") for made in trainings]
    return {"/".join(place): count for place, count in Counter(places).items()}


def show_plan(script: Script, config: Config, cluster: Cluster) -> str:
    """Check a configuration as a run does, and describe what it needs of a cluster; train and write nothing.

    Reads the whole corpus to count sentences and queries, unless `corpus.sentences` is set.
    """
    if missing := unmet_requirement(cluster, config.resources, config.sed.workers):  # such as GPUs yet to join
        raise UserError(missing)
    job, report = check(config), CorpusReport()
    config, shape, texts = job.config, job.shape, list[str]()
    if job.needs_corpus and not config.corpus.sentences:
        for _, chunk in sentence_chunks(config.corpus, config.seed, report):
            texts = max(texts, chunk, key=len)
    rows = known_rows(job, report.kept)
    if config.corpus.queries:
        rows[CORPUS] += sum(map(len, query_chunks(config.corpus, CorpusReport())))
    steps, storage = plan_run(job, rehearsed(script, job), rows, cluster)
    columns: dict[str, Callable[[TrainingEstimate], str]] = {
        "trains": lambda step: step.node,
        "": lambda step: f"{step.trainings} {step.what}{'s' * (step.trainings > 1)}",
        "updates": lambda step: f"{step.updates:,}",
        "at a time": lambda step: f"{step.at_once}",
        "CPUs": lambda step: f"{step.workers * step.share.cpus:g}",
        "GPUs": lambda step: f"{step.workers * step.share.gpus:g}",
        "GPU memory": lambda step: size(step.need.device) if step.need.device else "-",
        "memory": lambda step: size(step.need.host),
        "storage": lambda step: size(step.storage),
    }
    trained = Table.of(steps, columns, text=2).plain() if steps else "nothing is trained"
    gpu = f", {cluster.gpu or 'GPUs'} of {size(cluster.gpu_bytes)}" if uses_gpu(config.resources, cluster) else ""
    parts = ", ".join(f"{size(count)} of {what}" for what, count in storage.items() if count)
    return f"""plan of {config.run} for {cluster}{gpu}
encoder: {shape.parameters:,} parameters, {shape.layers} layers, width {shape.width:,}; {size(4 * shape.parameters)}

{trained}

time: {show_minutes(job, steps, rows.get(CORPUS, 0), texts or job.evaluation.sentences, cluster)}
storage: about {size(sum(storage.values()))}: {parts}
assuming {tokens_of_sentence(config)} tokens per sentence; memory is per worker, storage for all trainings of a row"""


def check_room(
    job: Job, storage: Storage, trainings: Sequence[Made], cluster: Cluster, rows: Mapping[str, int] | None
) -> None:
    """Raise UserError if the disk is too small, or a training fits on no node; `rows`: of the tables, if known."""
    free = storage.free_bytes()
    _, bytes_ = plan_run(job, trainings, rows or known_rows(job), cluster)
    needed = sum(bytes_.values())
    if free is not None and free < needed:
        most = max(bytes_, key=bytes_.__getitem__)
        raise UserError(
            f"storage: {storage} has {free / 1e9:.1f} GB free, but this run needs about {needed / 1e9:.1f} GB, "
            f"{bytes_[most] / 1e9:.1f} GB of it for {most}; free some space, or choose another --storage"
        )


def plan_run(
    job: Job, trainings: Sequence[Made], rows: Mapping[str, int], cluster: Cluster
) -> tuple[list[TrainingEstimate], dict[str, float]]:
    """Return a run's trainings in order, and the bytes of its directory at its fullest, by kind.

    `rows` has the sizes of the tables by name: `corpus`, `pairs/nli`, `views/files`, ….
    """
    config, width = job.config, job.shape.width
    steps = [
        step
        for _, models in groupby(trainings, lambda made: made.stage)
        for step in _steps(list(models), config, job.shape, rows, cluster)
    ]
    models = {step.node: 4.0 * job.shape.parameters * step.trainings for step in steps}
    corpus, ensembles = rows.get(CORPUS, 0), {recipe.ensemble for recipe in job.distilling}
    of_teachers = sum(job.widths) - width if TEACHERS in ensembles and config.sed.head else 0
    of_old = job.old.width if job.old and config.old not in config.teachers else 0
    bytes_ = TARGET_TYPES[config.sed.target_precision].itemsize
    storage = {
        "models": sum(models.values()) + 4 * job.shape.parameters,
        "checkpoints": max((step.storage - models[step.node] for step in steps), default=0),
        "sentences and tokens": 4.0 * sum(rows.values()) * (2 * tokens_of_sentence(config)),
        "targets": bytes_ * corpus * (len(ensembles) * width + of_teachers),
        "teachers' embeddings": 4.0 * corpus * (sum(job.widths) + of_old),
    }
    return steps, storage


def _steps(
    models: Sequence[Made], config: Config, shape: Shape, rows: Mapping[str, int], cluster: Cluster
) -> Iterator[TrainingEstimate]:
    """Yield the trainings of one stage by node; they share resources."""
    res, ranks = config.resources, 1
    need = largest_need(models, gpu=uses_gpu(res, cluster), kind=cluster.gpu)
    if models[0].how.is_gang:
        share = plan_learners(cluster, res, len(models), need, config.sed.workers)
        ranks, at_once = share.gang, share.at_once
    else:
        share = plan_members(cluster, res, len(models), need)
        at_once = share.workers
    for node, same in groupby(models, lambda made: made.how.node):
        trainings = [made.how for made in same]
        first, count = trainings[0], len(trainings)
        what = "grid model" if len({each.bound for each in trainings}) > 1 else "member"
        what = "learner" if first.is_gang else what
        concurrent = min(count, max(1, round(at_once * count / len(models))))
        storage = 4 * shape.parameters * count + 2.0 * concurrent * first.checkpoint_bytes
        updates = first.updates({name: rows[table.name] for name, table in first.tables.items()})
        passes = updates * first.rows_per_update * _texts_of_row(node.rpartition("-")[2], config)
        yield TrainingEstimate(node, what, count, updates, count * passes, concurrent, ranks, share, need, storage)


def largest_need(models: Sequence[Made], *, gpu: bool, kind: str) -> Need:
    """Return the largest need among models that have equal shares."""
    memories = {made.how.node: made.how.memory for made in models}
    found = [memory(gpu=gpu, kind=kind) for memory in memories.values()]
    return max(found, key=lambda need: (need.device, need.host), default=Need())


def need_of(name: str, config: Config, shape: Shape, *, gpu: bool, kind: str = "") -> Need:
    """Return the memory of a member that a stage such as `ct` trains, or of a learner's worker (`sed`).

    `kind` is Ray's accelerator type; an unknown one counts as having bf16.
    """
    stage, settings = stages()[name], getattr(config, name)
    precision = getattr(settings, "precision", config.members.precision)
    bf16 = plans_bf16(precision, gpu, kind)
    # Each sentence counts once, even if two encoders take one half of the batch each.
    sentences = stage.rows_per_update(settings) * _texts_of_row(name, config)
    workers = getattr(settings, "workers", 1)
    tokens = _LONG_BATCH * sentences / (workers or 1) * tokens_of_sentence(config)
    records = getattr(settings, "recorded", config.members.recorded)
    return training_need(stage, settings, shape, tokens, gpu=gpu, bf16=bf16, records=records)


def _texts_of_row(name: str, config: Config) -> int:
    """Return the texts in a row of a stage's batches; a learner's rows have translations, too."""
    return stages()[name].sentences_per_row + (name == SED) * len(config.corpus.translations)


def tokens_of_sentence(config: Config) -> int:
    """Return the assumed number of tokens per sentence."""
    return min(_TOKENS, config.encoder.max_length)

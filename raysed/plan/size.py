"""Compute from its settings what a run needs: trainings, the memory of their workers, and storage."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raysed.config import Config
from raysed.data.corpus import CorpusReport, query_chunks, sentence_chunks
from raysed.data.targets import TARGET_TYPES, rows_to_learn
from raysed.errors import UserError
from raysed.model.shape import Shape, shape_of
from raysed.plan.check import Job, check
from raysed.plan.requirements import CORPUS, MEMBERS_CORPUS, corpora, trainings_of
from raysed.recipe import SED, TEACHERS, Recipe, last_stage, member_nodes
from raysed.resources import NO_BF16, Cluster, Need, Share, plan_learners, plan_members, unmet_requirement, uses_gpu
from raysed.store.storage import Storage
from raysed.store.text import Table, size
from raysed.train.memory import checkpoint_bytes, training_need
from raysed.train.stage import BEST_ON_HELD_OUT

_TOKENS = 24  # assumed for a sentence
_LONG_BATCH = 1.5  # tokens of the largest of many batches, relative to the mean


@dataclass(frozen=True)
class TrainingEstimate:
    """Similar trainings, of members, grid models or learners (`what`); `updates` and `workers` are per training.

    `storage`: bytes of their models, and of two checkpoints of each that trains at the same time.
    """

    node: str
    what: str
    trainings: int
    updates: int
    at_once: int
    workers: int
    share: Share
    need: Need
    storage: float


def show_plan(config: Config, cluster: Cluster) -> str:
    """Check a configuration as a run does, and describe what it needs of a cluster; train and write nothing.

    Reads the whole corpus to count sentences and queries, unless `corpus.sentences` is set.
    """
    if missing := unmet_requirement(cluster, config.resources, config.sed.workers):  # such as GPUs yet to join
        raise UserError(missing)
    job, report = check(config), CorpusReport()
    config, shape = job.config, shape_of(config.encoder)
    if job.needs_corpus and not config.corpus.sentences:
        for _ in sentence_chunks(config.corpus, config.seed, report):
            pass
    rows = known_rows(job, report.kept)
    if config.corpus.queries:
        rows[CORPUS] += sum(map(len, query_chunks(config.corpus, CorpusReport())))
    steps, storage = plan_run(config, job.recipes, shape, rows, cluster, job.widths)
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

storage: about {size(sum(storage.values()))}: {parts}
assuming {tokens_of_sentence(config)} tokens per sentence; memory is per worker, storage for all trainings of a row"""


def check_room(job: Job, storage: Storage, cluster: Cluster, corpus: int | None) -> None:
    """Raise UserError if the disk is too small, or a training fits on no node; `corpus`: its sentences, if known."""
    shape, rows, free = shape_of(job.config.encoder), known_rows(job, corpus), storage.free_bytes()
    _, bytes_ = plan_run(job.config, job.recipes, shape, rows, cluster, job.widths)
    needed = sum(bytes_.values())
    if free is not None and free < needed:
        most = max(bytes_, key=bytes_.__getitem__)
        raise UserError(
            f"storage: {storage} has {free / 1e9:.1f} GB free, but this run needs about {needed / 1e9:.1f} GB, "
            f"{bytes_[most] / 1e9:.1f} GB of it for {most}; free some space, or choose another --storage"
        )


def plan_run(
    config: Config,
    recipes: Sequence[Recipe],
    shape: Shape,
    rows: Mapping[str, int],
    cluster: Cluster,
    widths: Sequence[int] = (),
) -> tuple[list[TrainingEstimate], dict[str, float]]:
    """Return a run's trainings in order, and the bytes of its directory at its fullest, by kind.

    `rows` has the sizes of the training tables by artefact: `corpus`, `pairs/nli`, `views/files`, ….
    """
    nodes = [{node: trainings_of(node, config) for node in depth} for depth in member_nodes(list(recipes))]
    nodes.append({recipe.uncalibrated: config.sed.learners for recipe in recipes if recipe.distils})
    steps = [step for counts in nodes if counts for step in _steps(counts, config, shape, rows, cluster)]
    models = {step.node: 4.0 * shape.parameters * step.trainings for step in steps}
    corpus, ensembles = rows.get("corpus", 0), {recipe.ensemble for recipe in recipes if recipe.distils}
    of_teachers = sum(widths) - shape.width if TEACHERS in ensembles and config.sed.head else 0
    bytes_ = TARGET_TYPES[config.sed.target_precision].itemsize
    storage = {
        "models": sum(models.values()) + 4 * shape.parameters,
        "checkpoints": max((step.storage - models[step.node] for step in steps), default=0),
        "sentences and tokens": 4.0 * sum(rows.values()) * (2 * tokens_of_sentence(config)),
        "targets": bytes_ * corpus * (len(ensembles) * shape.width + of_teachers),
        "teachers' embeddings": 4.0 * corpus * sum(widths),
    }
    return steps, storage


def _steps(
    counts: Mapping[str, int], config: Config, shape: Shape, rows: Mapping[str, int], cluster: Cluster
) -> Iterator[TrainingEstimate]:
    """Yield the trainings of nodes that share resources: those of one depth, or all learners."""
    res, about = config.resources, {"gpu": uses_gpu(config.resources, cluster), "kind": cluster.gpu}
    total, ranks = sum(counts.values()), 1
    if SED in next(iter(counts)).split("-"):
        need = largest_need([SED], config, shape, **about)
        share = plan_learners(cluster, res, total, need, config.sed.workers)
        ranks, at_once = share.gang, share.at_once
    else:
        need = largest_need(list(counts), config, shape, **about)
        share = plan_members(cluster, res, total, need)
        at_once = share.workers
    for node, count in counts.items():
        stage = last_stage(node)
        settings = getattr(config, stage.name)
        part, sizes = 1.0, rows
        if stage.name != SED:
            part, sizes = config.members.share, {**rows, CORPUS: rows.get(MEMBERS_CORPUS, rows.get(CORPUS, 0))}
        read = stage.rows_read(settings, part, sizes)
        holds_out = getattr(settings, "checkpoint", "") == BEST_ON_HELD_OUT
        if holds_out:
            read = max(rows_to_learn(read), 1)  # an unknown corpus counts as one sentence
        updates = stage.steps(settings, read)
        what = "grid model" if stage.is_grid and len(settings.lower_bounds) > 1 else "member"
        what = "learner" if stage.name == SED else what
        concurrent = min(count, max(1, round(at_once * count / total)))
        storage = 4 * shape.parameters * count + 2.0 * concurrent * checkpoint_bytes(stage.size(settings, shape), shape)
        yield TrainingEstimate(node, what, count, updates, concurrent, ranks, share, need, storage)


def known_rows(job: Job, corpus: int | None = None) -> dict[str, int]:
    """Return the sizes of the training tables by artefact; a corpus of unknown size counts as one sentence."""
    config = job.config
    whole = corpus or config.corpus.sentences or 1
    names = corpora(config, job.recipes)
    corpus = min(whole, names[CORPUS].sentences or whole)
    rows = {f"pairs/{kind}": len(pairs) for kind, pairs in job.pairs.items()}
    rows |= {f"views/{kind}": len(views) for kind, views in job.views.items()}
    sizes = {CORPUS: corpus, MEMBERS_CORPUS: max(whole, config.corpus.sentences or 0)}
    return rows | ({name: sizes[name] for name in names} if job.needs_corpus else {})


def largest_need(nodes: Sequence[str], config: Config, shape: Shape, *, gpu: bool, kind: str = "") -> Need:
    """Return the memory of the largest member of nodes such as `ct` and `nli-ct`, or of a learner's worker (`sed`).

    Members of one experiment have equal shares. `kind` is Ray's accelerator type; an unknown one counts as having bf16.
    """
    needs = []
    for stage in map(last_stage, nodes):
        settings = getattr(config, stage.name)
        precision = getattr(settings, "precision", config.members.precision)
        bf16 = precision == "bf16" or (gpu and precision == "auto" and kind not in NO_BF16)
        # Each sentence counts once, even if two encoders take one half of the batch each.
        sentences, workers = stage.rows_per_update(settings) * stage.sentences_per_row, getattr(settings, "workers", 1)
        tokens = _LONG_BATCH * sentences / (workers or 1) * tokens_of_sentence(config)
        records = getattr(settings, "recorded", config.members.recorded)
        needs.append(training_need(stage, settings, shape, tokens, gpu=gpu, bf16=bf16, records=records))
    return max(needs, key=lambda need: (need.device, need.host), default=Need())


def tokens_of_sentence(config: Config) -> int:
    """Return the assumed number of tokens per sentence."""
    return min(_TOKENS, config.encoder.max_length)

"""External teachers: their embeddings, scores and speeds, and the targets that they give together."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from raysed.data.parquet import ROWS_PER_GROUP
from raysed.made import Blocks, ExternalInput, Made, made
from raysed.make.scores import teacher_embeddings
from raysed.make.speeds import speeds
from raysed.make.targets import (
    CombinedBlocks,
    MeanBlocks,
    TeacherBlocks,
    choice_of_teachers,
    combination,
    combined_embeddings,
    combined_targets,
    mean_of_members,
    mean_targets,
    teacher_products,
    teacher_rows,
    worth_of_teachers,
)
from raysed.model.combination import needs_products
from raysed.model.teacher import Teacher
from raysed.plan.check import Job
from raysed.plan.results import EvaluatedModel
from raysed.recipe import SED, TEACHERS, node_of
from raysed.score.ensemble import by_title, summary_lines
from raysed.store.storage import Entry

log = logging.getLogger(__name__)

ROWS_PER_PART = 64 * ROWS_PER_GROUP
"""Sentences whose products are one sum: few enough for many workers, and so many that sums need little storage."""
SPEEDS = "speeds"
"""The teachers' speeds, relative to the run's own models."""


def nodes_of_teachers(job: Job) -> dict[int, str]:
    """Return the ensembles of this run that are teachers, by index."""
    return {i: node_of(t.config, job.recipes) for i, t in enumerate(job.teachers) if t.is_made_by_run}


def nodes_of_means(job: Job) -> list[str]:
    """Return the ensembles whose mean is a target or a part of one."""
    means = [recipe.ensemble for recipe in job.distilling if recipe.members]
    return list(dict.fromkeys([*means, *(nodes_of_teachers(job).values() if job.is_combined else [])]))


# -- on the evaluation's sentences -----------------------------------------------------------------------------------


def outside_teachers(job: Job) -> dict[int, EvaluatedModel]:
    """Describe the embeddings by teachers from elsewhere, by index, but of those that have none for some sentence."""
    found = {}
    for index, teacher in enumerate(job.teachers):
        if index in job.unscored:
            log.info("not scored: %s has no embeddings for the evaluation's sentences", teacher.title)
        elif not teacher.is_made_by_run:
            source, about = _source(teacher), {"how": "worker", "weights": teacher.weights_bytes}
            if not teacher.is_model:  # an object of this process, or a file that has been read
                source, about = replace(source, value=teacher), {}
            inputs = {"teacher": source, "sentences": job.sentences}
            found[index] = _evaluated(job, index, teacher_embeddings, inputs, **about)
    return found


def teachers_of_run(job: Job, scored: Mapping[str, list[EvaluatedModel]]) -> dict[int, EvaluatedModel]:
    """Describe the embeddings by teachers that this run makes, by index: the mean of an ensemble's healthy members."""
    found = {}
    for index, node in nodes_of_teachers(job).items():
        members = [model.embeddings for model in scored[node] if not model.left_out]
        found[index] = _evaluated(job, index, mean_of_members, {"embeddings": members})
    return found


def _source(teacher: Teacher) -> ExternalInput:
    return ExternalInput(teacher.identity, teacher.config, [teacher.watched])


def _evaluated(job: Job, index: int, make: Any, inputs: Mapping[str, Any], **about: Any) -> EvaluatedModel:
    layers, name = job.config.encoder.pool_layers, f"{TEACHERS}/embeddings/{index:02d}"
    title = f"embeddings by {job.teachers[index].title}"
    found = made(name, title, "teachers", make, inputs, {"layers": layers, **_precision(job)}, **about)
    return EvaluatedModel(TEACHERS, "member", index, found, [layers])


def speeds_of_teachers(job: Job, start: Made | None) -> Made | None:
    """Describe the speeds of teachers that are models, relative to the run's own; `start` has the shape of these."""
    models = {f"teacher {i}": t for i, t in enumerate(job.teachers) if t.is_model and not t.is_made_by_run}
    if not models:
        return None
    sources = {name: _source(teacher) for name, teacher in models.items()}
    inputs = {"encoder": job.encoder, "model": start, "sentences": job.sentences, **sources}
    about = {"how": "worker", "weights": lambda: max(teacher.weights_bytes() for teacher in models.values())}
    return made(SPEEDS, "speeds of the teachers", "evaluation", speeds, inputs, _precision(job), **about)


def _precision(job: Job) -> dict[str, str]:
    """Return the precision of teachers on the evaluation's sentences, unless it is the usual one."""
    return {"precision": "bf16"} if job.config.resources.encode_precision == "bf16" else {}


def scores_of_teachers(job: Job, known: list[EvaluatedModel]) -> Made | None:
    """Describe the scores of several teachers, alone and together, and which of them are best on the dev task."""
    if len(job.teachers) < 2 or job.unscored:
        return None
    embedded = [model.embeddings for model in known]
    settings: dict[str, Any] = {"combination": job.config.combination.only("how", "weights")}  # they change cosines
    about, name, choice = {"how": "cpu", "group": f"{TEACHERS}/worth"}, f"{TEACHERS}/worth", None
    if job.dev:
        inputs, of_choice = {"embeddings": embedded, "dev": job.dev}, f"{TEACHERS}/choice"
        choice = made(of_choice, "choice of teachers", "teachers", choice_of_teachers, inputs, settings, **about)
    inputs, tasks = {"embeddings": embedded, "sentences": job.sentences, "choice": choice}, job.evaluation.tasks
    ways = {task: getattr(tasks[task], "aggregation", None) for task in job.config.evaluation.report_tasks()}
    settings |= {"tasks": ways, "layers": job.config.encoder.pool_layers}
    title, lines = "scores of the teachers, alone and together", partial(_lines, job)
    return made(name, title, "teachers", worth_of_teachers, inputs, settings, lines=lines, **about)


def _lines(job: Job, entry: Entry) -> Iterator[str]:
    yield from summary_lines(by_title(entry.meta, [teacher.title for teacher in job.teachers]))
    if 0 < len(entry.meta.get("chosen", [])) < len(job.teachers):
        yield "All teachers are distilled; to distil only the best on the dev task, name no others."


# -- targets ---------------------------------------------------------------------------------------------------------


def mean_target(job: Job, node: str, members: list[Made], stage: str, corpus: Made) -> Made:
    """Describe the target table of an ensemble: the mean embedding of its members, by sentence."""
    inputs = {"corpus": corpus, "encoder": job.encoder, "teachers": members}
    settings = {"precision": job.config.resources.encode_precision}
    settings["target_precision"] = job.config.sed.target_precision
    how = Blocks(corpus, MeanBlocks, "average teachers", group="mean")
    name, title = f"{node}-{SED}/targets", f"targets of {node}-{SED}"
    return made(name, title, stage, mean_targets, inputs, settings, how=how)


def fitted_combination(
    job: Job, means: Mapping[str, Made], corpus: Made, rows: int, start: Made | None
) -> tuple[Made, Made]:
    """Describe the map from the teachers' embeddings to targets, and the target table of all teachers together.

    What the map needs from all sentences is summed in parts of the same sentences for any number of workers.

    Args:
        means: the targets of ensembles by node, for teachers that this run makes.
        rows: of the corpus.
        start: the untrained learner.
    """
    config, nodes, sed = job.config, nodes_of_teachers(job), job.config.sed
    vectors: dict[str, Any] = {
        f"teacher {i}": means[nodes[i]] if i in nodes else _teacher_rows(job, teacher, corpus)
        for i, teacher in enumerate(job.teachers)
    }
    # Vectors, not a path, identify the model to turn to.
    how = config.combination.model_copy(update={"turn": True}) if job.old else config.combination
    about, products = {"combination": how, "widths": list(job.widths)}, []
    width = None if sed.head else job.shape.width
    if needs_products(config.combination.how, job.widths, width, bool(sed.widths)):
        for first in range(0, rows, ROWS_PER_PART):
            settings = {**about, "start": first, "stop": first + ROWS_PER_PART}
            name, title = f"{TEACHERS}/products/{first // ROWS_PER_PART:05d}", "products of the teachers' embeddings"
            products.append(made(name, title, "combination", teacher_products, vectors, settings, how="cpu"))
    inputs = {**vectors, "products": products, "corpus": corpus, "encoder": job.encoder, "start": start}
    inputs |= old_vectors(job, corpus)
    settings = {**about, "sed": sed.only("widths", "head")}
    name, title = f"{TEACHERS}/combination", "combination of the teachers"
    found = made(name, title, "combination", combination, inputs, settings, how="cpu")
    how = Blocks(corpus, CombinedBlocks, "combine teachers", lambda: 0, "combined")
    name, title, inputs = f"{TEACHERS}-{SED}/targets", "targets of the teachers", {**vectors, "combination": found}
    settings = {"widths": list(job.widths), "target_precision": sed.target_precision}
    targets = made(name, title, "combination", combined_targets, inputs, settings, how=how)
    return found, targets


def old_vectors(job: Job, corpus: Made) -> dict[str, Made]:
    """Describe the corpus as embedded by the model of `combination.turn`, as a maker's input `old`, if it is set."""
    return {"old": _teacher_rows(job, job.old, corpus)} if job.old else {}


def _teacher_rows(job: Job, teacher: Teacher, corpus: Made) -> Made:
    """Describe the corpus as embedded by an external teacher.

    Teacher and text identify a block, so another combination or a larger corpus computes only new blocks.
    """
    name, title = f"{TEACHERS}/rows/{teacher.identity}", f"embeddings of the corpus by {teacher.title}"
    settings, about = {"precision": job.config.resources.encode_precision}, (teacher.weights_bytes, name)
    inputs = {"corpus": corpus, "teacher": _source(teacher)}
    how = Blocks(corpus, TeacherBlocks, f"the teacher {teacher.title}", *about, is_keyed=True)
    return made(name, title, "teachers", teacher_rows, inputs, settings, how=how)


def embedded_together(job: Job, found: Made, known: list[EvaluatedModel]) -> Made | None:
    """Describe the combined teachers' embeddings of the evaluation's sentences, if all teachers have some."""
    if job.unscored:
        return None
    inputs = {"combination": found, "embeddings": [model.embeddings for model in known]}
    name, title = f"{TEACHERS}/together", "embeddings by all teachers together"
    settings = {"layers": job.config.encoder.pool_layers}
    return made(name, title, "combination", combined_embeddings, inputs, settings)

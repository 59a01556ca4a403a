"""The graph's part for external teachers: their embeddings, scores and combined targets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from raysed.graph import Artefact, ExternalInput, Short
from raysed.make.scores import teacher_embeddings
from raysed.make.speeds import speeds
from raysed.make.targets import (
    TeacherRows,
    choice_of_teachers,
    combined_embeddings,
    combined_targets,
    worth_of_teachers,
)
from raysed.model.teacher import Teacher
from raysed.plan.artefacts import (
    COMBINED_EMBEDDINGS,
    SPEEDS,
    TEACHER_SCORES,
    TEACHER_SELECTION,
    ScoredModel,
)
from raysed.plan.requirements import CORPUS
from raysed.recipe import SED, TEACHERS
from raysed.score.ensemble import by_title, summary_lines
from raysed.store.storage import Entry

if TYPE_CHECKING:
    from raysed.plan.graph import Plan

log = logging.getLogger(__name__)


def add_teachers(plan: Plan) -> dict[int, Artefact]:
    """Add the teachers' embeddings of the evaluation; `Plan` adds those of ensembles of this run."""
    found = {}
    for index, teacher in enumerate(plan.job.teachers):
        if index in plan.job.unscored:
            log.info("not scored: %s has no embeddings for the evaluation's sentences", teacher.title)
        elif not teacher.is_made_by_run:
            source = ExternalInput(teacher.identity, teacher, [teacher.watched])
            inputs = {"teacher": source, "sentences": plan.sentences}
            found[index] = add_teacher(plan, index, teacher_embeddings, inputs)
    return found


def add_speeds(plan: Plan, start: Any) -> None:
    """Add the speeds of teachers that are models, relative to the run's own; `start` has the shape of all of these."""
    models = {f"teacher {i}": t for i, t in enumerate(plan.job.teachers) if t.is_model and not t.is_made_by_run}
    if models:
        sources = {name: ExternalInput(t.identity, t.config, [t.watched]) for name, t in models.items()}
        inputs = {"encoder": plan.encoder, "model": start, "sentences": plan.sentences, **sources}
        plan.graph.add(Artefact(SPEEDS, "speeds of the teachers", "evaluation", speeds, inputs, execution=Short()))


def add_teacher(plan: Plan, index: int, make: Any, inputs: Mapping[str, Any]) -> Artefact:
    """Add one teacher's embeddings of the evaluation."""
    layers, name = plan.config.encoder.pool_layers, f"{TEACHERS}/embeddings/{index:02d}"
    title, label = f"embeddings by {plan.job.teachers[index].title}", f"{TEACHERS}/members/{index:02d}"
    model = ExternalInput(label, label)
    plan.scored[TEACHERS].append(ScoredModel(TEACHERS, "member", index, name, (layers,), model=model))
    return plan.graph.add(Artefact(name, title, "teachers", make, inputs, {"layers": layers}))


def combine_teachers(plan: Plan, embedded: tuple[Artefact, ...], means: Mapping[int, Artefact], start: Any) -> Artefact:
    """Add the teachers' scores, their combined target, and its embeddings of the evaluation's sentences."""
    config, job, sed, add, stage = plan.config, plan.job, plan.config.sed, plan.graph.add, "combination"
    if len(job.teachers) > 1 and not job.unscored:
        _score_teachers(plan, embedded)
    inputs = {f"teacher {i}": means.get(i) or _rows(plan, teacher) for i, teacher in enumerate(job.teachers)}
    own = sed.only("widths", "head", "target_precision")
    settings = {"combination": config.combination, "widths": list(job.widths), "sed": own}
    inputs |= {"corpus": plan.table[CORPUS], "encoder": plan.encoder, "start": start}
    about = {"execution": Short(on_cpus=True), "is_intermediate": True}
    name, title = f"{TEACHERS}-{SED}/targets", "targets of the teachers"
    targets = add(Artefact(name, title, stage, combined_targets, inputs, settings, **about))
    if not job.unscored:
        inputs, settings = {"targets": targets, "embeddings": embedded}, {"layers": config.encoder.pool_layers}
        title = "embeddings by all teachers together"
        add(Artefact(COMBINED_EMBEDDINGS, title, stage, combined_embeddings, inputs, settings))
    return targets


def _score_teachers(plan: Plan, embedded: tuple[Artefact, ...]) -> None:
    """Add the teachers' scores, alone and together, and which of them are best on the dev task."""
    evaluation, choice = plan.config.evaluation, None
    settings = {"combination": plan.config.combination.only("how", "weights")}  # they change cosines
    execution = Short(TEACHER_SCORES, on_cpus=True)
    if plan.dev:
        inputs, title = {"embeddings": embedded, "dev": plan.dev}, "choice of teachers"
        made = TEACHER_SELECTION, title, "teachers", choice_of_teachers, inputs, settings
        choice = plan.graph.add(Artefact(*made, execution=execution))
    inputs = {"embeddings": embedded, "sentences": plan.sentences, "choice": choice}
    tasks = plan.job.evaluation.tasks
    ways = {name: getattr(tasks[name], "aggregation", None) for name in evaluation.report_tasks()}
    settings |= {"tasks": ways, "layers": plan.config.encoder.pool_layers}
    made = TEACHER_SCORES, "scores of the teachers, alone and together", "teachers", worth_of_teachers
    plan.graph.add(Artefact(*made, inputs, settings, execution=execution, lines=partial(_teacher_lines, plan)))


def _rows(plan: Plan, teacher: Teacher) -> Artefact:
    """Add the corpus as embedded by an external teacher."""
    source = ExternalInput(teacher.identity, teacher.config, [teacher.watched])
    return plan.graph.add(TeacherRows(teacher, source, plan.table[CORPUS], plan.config.resources.encode_precision))


def _teacher_lines(plan: Plan, entry: Entry) -> Iterator[str]:
    yield from summary_lines(by_title(entry.meta, [teacher.title for teacher in plan.job.teachers]))
    if 0 < len(entry.meta.get("chosen", [])) < len(plan.job.teachers):
        yield "All teachers are distilled; to distil only the best on the dev task, name no others."

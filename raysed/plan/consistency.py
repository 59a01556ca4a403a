"""Check from settings alone that different blocks fit together; `plan.check` does the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

from raysed.config import PROMPTS, PYTHON
from raysed.errors import UserError, need
from raysed.recipe import SED, TEACHERS, Recipe, node_of, parse_recipe, parse_recipes
from raysed.registry import stages, stages_of_pairs

if TYPE_CHECKING:
    from raysed.config import Config


def check_settings(config: Config) -> list[Recipe]:
    """Parse the recipes, and refuse settings that contradict each other or lack what a stage needs."""
    recipes = parse_recipes(config.recipes)
    for rules in (_of_export, _of_dev, _of_teachers, _of_stages, _of_learners, _of_corpus, _of_fit, _of_engine):
        for problem in rules(config, recipes):
            raise UserError(problem)
    return recipes


def check_depths(config: Config, layers: int) -> None:
    """Refuse to pool more layers than the encoder has; `encoder.pool_layers` is checked with the encoder."""
    encoder = "encoder.static" if config.encoder.static else repr(config.encoder.path)
    for depth in config.evaluation.pool_layers:
        if isinstance(depth, int) and not 1 <= depth <= layers:
            raise UserError(
                f"evaluation.pool_layers has {depth}, but {encoder} has {layers} layer{'s' * (layers != 1)}"
            )


def check_width(config: Config, width: int) -> None:
    """Refuse `sed.widths` that are not below the learner's width."""
    if config.sed.widths and config.sed.widths[-1] >= width:
        raise UserError(
            f"sed.widths has {config.sed.widths[-1]}, but the learner's embeddings have {width} dimensions; name "
            "smaller widths, because the full width is always trained"
        )


# Each rule yields problems as sentences; the first one is raised.


def _of_export(config: Config, recipes: list[Recipe]) -> Iterator[str]:
    export, listed = config.export, ", ".join(config.recipes)
    if export.recipe and export.recipe not in config.recipes:
        yield f"export.recipe is {export.recipe!r}, which is not in recipes ({listed})"
    if export.recipe == TEACHERS:
        yield f"export.recipe is {TEACHERS}, which are not trained here; name {TEACHERS}-{SED}"


def _of_dev(config: Config, recipes: list[Recipe]) -> Iterator[str]:
    if config.evaluation.dev is not None:
        return
    for stage, name in product(stages(), ("checkpoint", "copy")):
        if getattr(getattr(config, stage), name, None) == "best_on_dev":
            yield f"{stage}.{name}: best_on_dev needs evaluation.dev; set it, or leave {stage}.{name} out"
    if config.calibration.natsv_k == "dev":
        yield "calibration.natsv_k: dev needs evaluation.dev; set it, or give a number"


def _of_teachers(config: Config, recipes: list[Recipe]) -> Iterator[str]:
    teachers = config.teachers
    distilling = [recipe.text for recipe in recipes if recipe.ensemble == TEACHERS]
    if distilling and not teachers:
        yield f"recipe {distilling[0]!r}: {TEACHERS} names no model; list at least one there"
    if teachers and not distilling:
        yield f"{TEACHERS} is set, but no recipe uses it; add {TEACHERS}-sed to recipes"
    for teacher in teachers:
        if teacher.is_members:
            node_of(teacher, recipes)
        if teacher.path.startswith(PYTHON) and config.resources.engine != "local":
            yield (
                f"teachers: {teacher.title} is an object of this Python process, which a cluster (RAY_ADDRESS) cannot "
                "use; set resources.engine to local, or name a model's directory or a file of embeddings"
            )
    yield from combination_problems(config)
    trained = [recipe.text for recipe in recipes if recipe.members]
    if trained and config.encoder.static:
        static = f"use {TEACHERS}-sed, or remove encoder.static"
        yield f"recipe {trained[0]!r} trains members, which cannot be static; {static}"


def combination_problems(config: Config) -> Iterator[str]:
    """Yield problems of the settings that combine teachers."""
    how, count = config.combination, len(config.teachers)
    if how.weights and len(how.weights) != count:
        yield f"combination.weights has {len(how.weights)} weights for {count} teachers; give one for each"
    if config.old and (config.old.is_members or not count):
        yield f"combination.turn is {how.turn!r}; name a model from elsewhere, and {TEACHERS} to learn from"


def combination_warnings(config: Config) -> Iterator[str]:
    """Yield what in the combination of teachers is allowed, but rarely wanted."""
    if not config.teachers or config.combination.how != "concatenated":
        return
    if config.sed.loss == "mse" and not config.sed.head:
        yield "sed.loss: mse also learns that the teachers' vectors have length 1; set sed.loss: unit_mse"


def _of_stages(config: Config, recipes: list[Recipe]) -> Iterator[str]:
    for recipe in recipes:
        for stage in recipe.members:
            for setting, problem in stages()[stage].needs(getattr(config, stage)):
                block, _, name = setting.partition(".")
                if not getattr(getattr(config, block), name):
                    yield f"recipe {recipe.text!r}: {problem}"
        continues = any(stages()[stage].is_grid for stage in recipe.members[1:])
        if continues and config.sts.models > config.members.count:
            yield (
                f"sts.models is {config.sts.models}, but in recipe {recipe.text!r} each lower bound continues the "
                f"{config.members.count} members before it (members.count); set it to at most {config.members.count}"
            )


def _of_learners(config: Config, recipes: list[Recipe]) -> Iterator[str]:
    drawn, whole = config.sed.sentences, config.corpus.sentences
    for recipe in (recipe for recipe in recipes if recipe.distils):
        if drawn and whole and drawn > whole:
            yield f"sed.sentences is {drawn:,}, but corpus.sentences draws only {whole:,}; lower one or raise the other"
        if config.sed.start == "mlm" and recipe.members[:1] != ("mlm",):
            yield f"sed.start is mlm, but recipe {recipe.text!r} does not begin with mlm; use sed.start: encoder"
        if config.sed.widths:
            yield from _of_widths(config, recipe)
        if config.sed.head:
            yield from _of_head(config, recipe)
        if config.old and recipe.ensemble == TEACHERS and (recipe.calibration or config.sed.target == "centred_mean"):
            leaves = f"a calibration or sed.target: centred_mean leaves; use {recipe.uncalibrated} and sed.target: mean"
            yield f"recipe {recipe.text!r}: combination.turn leads into a model's space, which {leaves}"


def _of_corpus(config: Config, recipes: list[Recipe]) -> Iterator[str]:
    for name in PROMPTS:
        if getattr(config.encoder, name) is not None and config.corpus.queries is None:
            yield f"encoder.{name} is set, but there are no queries; name a file in corpus.queries, or remove it"
    for recipe in recipes if config.corpus.queries else ():
        if recipe.ensemble != TEACHERS or not recipe.distils:
            problem = f"which recipe {recipe.text!r} cannot use"
            yield f"corpus.queries has queries for {TEACHERS}-sed, {problem}; remove one of them"
    if config.corpus.translations and config.corpus.passage_characters:
        yield "corpus.passage_characters cuts sentences, but not their corpus.translations; remove one of them"
    if config.corpus.translations and not any(recipe.distils for recipe in recipes):
        yield f"corpus.translations has text for learners, but recipes has none; add one such as {TEACHERS}-sed"


def _of_widths(config: Config, recipe: Recipe) -> Iterator[str]:
    """Shorter embeddings need targets whose dimensions are ordered by importance."""
    text = f"recipe {recipe.text!r}: sed.widths"
    if recipe.ensemble != TEACHERS:
        yield f"{text} orders the targets of {TEACHERS}, which this recipe does not distil; use {TEACHERS}-sed"
    if recipe.calibration:
        without = f"use {recipe.uncalibrated}, or leave sed.widths out"
        yield f"{text} makes the first coordinates count most, but a calibration mixes them; {without}"
    if config.combination.turn:
        yield "sed.widths already rotates targets to their principal directions; remove combination.turn"
    if config.sed.target == "centred_mean":
        yield "sed.widths needs target dimensions ordered by importance; set sed.target: mean"
    if config.sed.head:
        yield "sed.widths needs target dimensions ordered by importance, which sed.head does not give; remove one"


def _of_head(config: Config, recipe: Recipe) -> Iterator[str]:
    """With a head, targets may differ in width from the learner."""
    text = f"recipe {recipe.text!r}: sed.head"
    if recipe.ensemble != TEACHERS:
        yield f"{text} is only for {TEACHERS}, because members have the learner's width; remove it"
    if config.combination.turn:
        yield "sed.head learns its own rotation to the targets; remove combination.turn"
    if recipe.calibration:
        without = f"use {recipe.uncalibrated}, or remove sed.head"
        yield f"{text}: keep gives vectors in the teachers' space, but a calibration leaves that space; {without}"


def _of_engine(config: Config, recipes: list[Recipe]) -> Iterator[str]:
    engine = config.resources.engine
    has_workers = (config.sed.workers or 1) > 1 and any(recipe.distils for recipe in recipes)
    if has_workers and engine == "local":
        yield "sed.workers needs Ray, but resources.engine is local; leave one of them out"
    needs_ray = [("sed.workers", has_workers), ("resources.engine: ray", engine == "ray")]
    needs_ray += [("RAY_ADDRESS", engine == "auto" and bool(os.environ.get("RAY_ADDRESS")))]
    for setting in (setting for setting, is_asked in needs_ray if is_asked):
        need("ray", setting, "ray")
        need("deepspeed", setting, "ray")


def _of_fit(config: Config, recipes: list[Recipe]) -> Iterator[str]:
    tasks, fit, exported = config.evaluation.tasks, config.flow, config.export.recipe
    for name in fit.fit_tasks or []:
        if name not in tasks:
            yield f"flow.fit_tasks names {name!r}, which is not in evaluation.tasks; the tasks are {', '.join(tasks)}"
    if not any(recipe.calibration for recipe in recipes):
        return
    if fit.fit_on in stages_of_pairs() and not getattr(config, fit.fit_on).train:
        yield f"flow.fit_on is {fit.fit_on}, but {fit.fit_on}.train names no sentence pairs; name some there"
    if fit.fit_tasks == []:
        yield "flow.fit_tasks is empty; name at least one task, or leave it out to use all"
    if fit.fit_tasks and fit.fit_on != "tasks":
        yield f"flow.fit_tasks needs flow.fit_on: tasks, but that is {fit.fit_on}; change one of them"
    if fit.per_task and (fit.fit_on != "tasks" or fit.fit_tasks):
        yield "flow.per_task fits on each task's own sentences, so it needs flow.fit_on: tasks, without flow.fit_tasks"
    if fit.per_task and exported and parse_recipe(exported).calibration:
        other = parse_recipe(exported).uncalibrated
        yield f"export.recipe is {exported}, but flow.per_task fits one for each task; export {other}"

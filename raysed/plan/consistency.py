"""Whether settings of different blocks go together, as far as they alone can tell; `plan.check` does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from raysed.errors import UserError
from raysed.recipe import TEACHERS, Recipe, node_of, parse_recipe, parse_recipes
from raysed.registry import stages

if TYPE_CHECKING:
    from raysed.config import Config


def check_settings(config: Config) -> list[Recipe]:
    """Parse the recipes, and refuse settings that contradict each other or lack what a stage needs."""
    recipes = parse_recipes(config.recipes)
    if config.export.recipe and config.export.recipe not in config.recipes:
        raise UserError(
            f"export.recipe is {config.export.recipe!r}, which is not in recipes ({', '.join(config.recipes)})"
        )
    if config.export.formats and config.encoder.static is not None:
        raise UserError(
            f"export.formats has {config.export.formats[0]}, which is for transformers, but encoder.static makes a "
            "table of vectors; leave export.formats out"
        )
    if config.export.formats and config.encoder.layers != 1:
        raise UserError(
            f"export.formats has {config.export.formats[0]}, which gives the last layer only, but encoder.layers is "
            f"{config.encoder.layers}; set encoder.layers: 1, or leave export.formats out"
        )
    _check_dev(config)
    _check_teachers(config, recipes)
    _check_stages(config, recipes)
    _check_fit(config, recipes)
    return recipes


def check_present(config: Config) -> None:
    """Refuse text and teachers that are not there: cheap, so that it can come before Ray starts."""
    from raysed.config import with_absolute_paths
    from raysed.data.corpus import find_sources
    from raysed.model.teachers.file import EmbeddingFile
    from raysed.store.hub import refuse_missing_model

    config = with_absolute_paths(config)
    if any(recipe.trains_on_corpus(config) for recipe in parse_recipes(config.recipes)):
        find_sources(config.corpus)
    for teacher in config.teachers:
        if EmbeddingFile.takes(teacher.path):
            _ = EmbeddingFile(teacher).width
        elif not teacher.is_members:
            refuse_missing_model(teacher.path, f"teachers: {teacher.path!r}")


def check_depths(config: Config, layers: int) -> None:
    """Refuse to pool more layers than there are; `encoder.layers` is checked where the encoder is."""
    encoder = "encoder.static" if config.encoder.static else repr(config.encoder.path)
    asked = [("evaluation.layers has", depth, encoder) for depth in config.evaluation.layers]
    asked.append(("evaluation.transfer.layers is", config.evaluation.transfer.layers, "the encoder"))
    for problem, depth, what in asked:
        if isinstance(depth, int) and not 1 <= depth <= layers:
            raise UserError(f"{problem} {depth}, but {what} has {layers} layer{'s' * (layers != 1)}")


def check_width(config: Config, width: int) -> None:
    """Refuse shorter embeddings that are no shorter."""
    if config.sed.widths and config.sed.widths[-1] >= width:
        raise UserError(
            f"sed.widths has {config.sed.widths[-1]}, but the learner's embeddings have {width} dimensions, which are "
            "always trained; name smaller ones"
        )


def _check_dev(config: Config) -> None:
    if config.evaluation.dev is not None:
        return
    for stage in stages():
        block = getattr(config, stage)
        if getattr(block, "keep", None) == "best_on_dev":
            other = get_args(type(block).model_fields["keep"].annotation)[0]
            raise UserError(f"{stage}.keep: best_on_dev needs evaluation.dev; set it, or use {stage}.keep: {other}")
    if config.calibration.natsv_k == "dev":
        raise UserError("calibration.natsv_k: dev needs evaluation.dev; set it, or give a number")


def _check_teachers(config: Config, recipes: list[Recipe]) -> None:
    recipe = next((recipe.text for recipe in recipes if recipe.ensemble == TEACHERS), None)
    if recipe and not config.teachers:
        raise UserError(f"recipe {recipe!r}: {TEACHERS} names no model; list at least one there")
    if config.teachers and recipe is None:
        raise UserError(f"{TEACHERS} is set, but no recipe uses it; add {TEACHERS}-sed to recipes")
    for teacher in config.teachers:
        if teacher.is_members:
            node_of(teacher, recipes)
    weights = config.combination.weights
    if config.combination.chooses_on_dev and config.evaluation.dev is None:
        what = (
            "combination.weights: dev chooses weights" if weights == "dev" else "combination.leave_out chooses teachers"
        )
        raise UserError(f"{what} on evaluation.dev; name a dev task")
    if isinstance(weights, list) and len(weights) != len(config.teachers):
        raise UserError(
            f"combination.weights has {len(weights)} weights for {len(config.teachers)} teachers; give one for each"
        )

    recipe = next((recipe.text for recipe in recipes if recipe.members), None)
    if config.encoder.static and recipe:
        raise UserError(
            f"recipe {recipe!r} trains members, which encoder.static cannot be; use {TEACHERS}-sed with teachers, or "
            "leave encoder.static out"
        )


def _check_stages(config: Config, recipes: list[Recipe]) -> None:
    for recipe in recipes:
        for stage in recipe.members:
            for setting, problem in stages()[stage].needs(getattr(config, stage)):
                block, _, name = setting.partition(".")
                if not getattr(getattr(config, block), name):
                    raise UserError(f"recipe {recipe.text!r}: {problem}")
        continues = any(stages()[stage].is_grid for stage in recipe.members[1:])
        if continues and config.sts.models > config.members.count:
            raise UserError(
                f"sts.models is {config.sts.models}, but in recipe {recipe.text!r} each lower bound continues the "
                f"{config.members.count} members before it (members.count); set it to at most {config.members.count}"
            )
        if recipe.distils:
            _check_learner(config, recipe)
            _check_widths(config, recipe)
            _check_head(config, recipe)


def _check_learner(config: Config, recipe: Recipe) -> None:
    if config.sed.start == "mlm" and recipe.members[:1] != ("mlm",):
        raise UserError(f"sed.start is mlm, but recipe {recipe.text!r} does not begin with mlm; use sed.start: encoder")
    has_grid = any(stages()[stage].is_grid for stage in recipe.members)
    if config.sed.zero_stage == 3 and (config.sed.keep != "last" or has_grid):
        raise UserError(
            f"recipe {recipe.text!r} keeps the learner's best weights, which ZeRO stage 3 does not hold in one place; "
            "use sed.zero_stage: 2 or less"
        )


def _check_widths(config: Config, recipe: Recipe) -> None:
    """Refuse short embeddings whose targets are not in the order of their importance."""
    if not config.sed.widths:
        return
    if recipe.ensemble != TEACHERS:
        raise UserError(
            f"recipe {recipe.text!r}: sed.widths is for recipes of {TEACHERS}, whose targets it puts in order; leave "
            f"it out, or distil {TEACHERS}-sed"
        )
    if recipe.calibration:
        raise UserError(
            f"recipe {recipe.text!r}: sed.widths makes the first coordinates count most, but a calibration mixes them; "
            f"use {recipe.uncalibrated}, or leave sed.widths out"
        )
    if config.combination.turn:
        raise UserError(
            "sed.widths turns targets to their principal directions, so they cannot be turned towards the learner; "
            "leave combination.turn out"
        )
    if config.sed.target == "centred_mean":
        raise UserError(
            "sed.widths needs targets in the order of their importance, which sed.target: centred_mean would disturb; "
            "use sed.target: mean"
        )


def _check_head(config: Config, recipe: Recipe) -> None:
    """Refuse a head where targets cannot be of another width than the learner."""
    head = config.sed.head
    if head is None:
        return
    if recipe.ensemble != TEACHERS:
        raise UserError(
            f"recipe {recipe.text!r}: sed.head is for recipes of {TEACHERS}, because members have the learner's "
            "width; leave it out"
        )
    if config.sed.widths:
        raise UserError(
            "sed.widths needs targets in the order of their importance, and sed.head leaves them as they are; use only "
            "one of the two"
        )
    if config.combination.turn:
        raise UserError("sed.head learns its own turn towards the targets; leave combination.turn out")
    if head == "keep" and recipe.calibration:
        raise UserError(
            f"recipe {recipe.text!r}: sed.head: keep gives vectors in the teachers' space, which a calibration leaves; "
            f"use {recipe.uncalibrated}, or sed.head: fold"
        )


def _check_fit(config: Config, recipes: list[Recipe]) -> None:
    tasks = config.evaluation.tasks
    for name in config.flow.fit_tasks or []:
        if name not in tasks:
            raise UserError(
                f"flow.fit_tasks names {name!r}, which is not in evaluation.tasks; the tasks are {', '.join(tasks)}"
            )
    if not any(recipe.calibration for recipe in recipes):
        return
    fit = config.flow
    if fit.fit_on == "nli" and not config.nli.train:
        raise UserError("flow.fit_on is nli, but nli.train names no sentence pairs; list them there")
    if fit.fit_tasks == []:
        raise UserError("flow.fit_tasks is empty; name at least one task, or leave it out to use all")
    if fit.fit_tasks and fit.fit_on != "tasks":
        raise UserError(f"flow.fit_tasks needs flow.fit_on: tasks, but that is {fit.fit_on}; change one of them")
    if fit.per_task and (fit.fit_on != "tasks" or fit.fit_tasks):
        raise UserError(
            "flow.per_task fits on each task's own sentences, so it needs flow.fit_on: tasks and no flow.fit_tasks"
        )
    if fit.per_task and config.export.recipe and parse_recipe(config.export.recipe).calibration:
        raise UserError(
            f"export.recipe is {config.export.recipe}, but flow.per_task makes a calibration for each task, which is "
            f"not one model; export {parse_recipe(config.export.recipe).uncalibrated}"
        )

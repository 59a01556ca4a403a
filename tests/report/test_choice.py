"""Which model of a run is exported, and what is said of it."""

import pytest

from raysed.config import make_config
from raysed.errors import UserError
from raysed.plan.artefacts import ScoredModel
from raysed.report.choice import choose
from raysed.report.results import Row

KINDS = {"base": "base", "ct": "member", "ct-sed": "learner"}


def models_and_rows(scores, left_out=()):
    """`scores`: recipe to the dev scores of its models."""
    models, rows = [], []
    for recipe, values in scores.items():
        plain = recipe.removesuffix("-flow").removesuffix("-whiten")
        for index, value in enumerate(values):
            out = (recipe, index) in left_out
            models.append(ScoredModel(recipe, KINDS[plain], index, f"{recipe}/{index}", (2,), None, out))
            for layers, score in ((2, value), (1, 99.0)):
                metrics = {"dev": {"spearman": score}, "test": {"spearman": 1.0}}
                rows.append(Row(recipe, KINDS[plain], index, None, layers, metrics, out))
    return models, rows


def chosen(scores, left_out=(), dev="dev", **settings):
    tasks = {"tasks": {"dev": "d.tsv", "test": "t.tsv"}, "dev": dev}
    config = make_config({"recipes": ["ct-sed", "ct-sed-flow"], "evaluation": tasks, **settings})
    models, rows = models_and_rows(scores, left_out)
    return choose(config, rows, models)


def test_the_best_on_dev_of_all_models_is_chosen():
    """At the main pooling; the members too, and every one of several learners."""
    choice = chosen({"base": [40], "base-flow": [55], "ct": [45, 46], "ct-sed": [47], "ct-sed-flow": [57, 58.3]})
    assert (choice.model.recipe, choice.model.index) == ("ct-sed-flow", 1)
    assert choice.words() == (
        "ct-sed-flow, the best on dev of 7 models (base, base-flow, ct, ct-sed, ct-sed-flow): 58.3, "
        "18.3 above the untouched encoder (40.0)"
    )


def test_a_calibrated_base_that_is_better_is_exported():
    choice = chosen({"base": [40], "base-flow": [55], "base-whiten": [60.5], "ct-sed": [47], "ct-sed-flow": [57.4]})
    assert choice.model.recipe == "base-whiten"


def test_training_that_gains_nothing_under_the_same_calibration_is_no_candidate():
    """ct-sed-flow beats all, but for the base with a flow, which costs no training; ct-sed beats the base."""
    scores = {"base": [40], "base-flow": [58, 57], "ct-sed": [47], "ct-sed-flow": [58, 57.5]}
    choice = chosen(scores)
    assert choice.model.recipe == "base-flow" and "ct-sed-flow" not in choice.among and "ct-sed" in choice.among
    assert chosen({"base": [40], "ct": [40.05]}).model.recipe == "base", "less than 0.1 is called none"
    nothing = chosen({"base": [40], "ct": [39]})
    assert nothing.words() == "base, because nothing else in the run is better on dev: 40.0"


def test_it_is_exported_when_it_is_asked_for_by_name():
    scores = {"base": [40], "base-flow": [58], "ct-sed": [47], "ct-sed-flow": [50, 52]}
    choice = chosen(scores, export={"recipe": "ct-sed-flow"})
    assert (choice.model.recipe, choice.model.index) == ("ct-sed-flow", 1)
    assert choice.words() == (
        "ct-sed-flow, as asked for by export.recipe, the best on dev of 2 models (ct-sed-flow): 52.0, "
        "12.0 above the untouched encoder (40.0)"
    )


def test_what_could_not_be_made_cannot_be_exported():
    with pytest.raises(UserError, match=r"export\.recipe is ct-sed-flow, which has no model"):
        chosen({"base": [40], "ct-sed": [47]}, export={"recipe": "ct-sed-flow"})


def test_without_a_dev_task_it_is_the_last_recipe_that_has_a_model():
    choice = chosen({"base": [40], "ct-sed": [47, 48], "ct-sed-flow": [50]}, dev=None)
    assert choice.words() == "ct-sed-flow, the last recipe, because there is no dev task"
    assert chosen({"base": [40], "ct-sed": [47, 48]}, dev=None).model.recipe == "ct-sed"


def test_collapsed_models_and_calibrations_of_single_tasks_are_no_candidates():
    scores = {"base": [40], "base-flow": [70], "ct": [90, 45], "ct-sed": [47], "ct-sed-flow": [80]}
    choice = chosen(scores, left_out=[("ct", 0)], flow={"per_task": True, "fit_on": "tasks"})
    assert choice.model.recipe == "ct-sed" and choice.among == ("base", "ct", "ct-sed")


def test_a_score_that_is_not_defined_is_not_the_best():
    assert chosen({"base": [40], "ct": [float("nan")], "ct-sed": [41]}).model.recipe == "ct-sed"

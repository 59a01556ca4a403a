"""Which model of a run is exported, and what is said of it."""

import pytest

from raysed.config import make_config
from raysed.errors import UserError
from raysed.plan.artefacts import ScoredModel
from raysed.report.choice import choose
from raysed.report.scores import Row

KINDS = {"base": "base", "ct": "member", "ct-sed": "learner", "tf-idf": "baseline"}


def models_and_rows(scores, left_out=()):
    """`scores`: recipe to the dev scores of its models; TF-IDF has a row and is no model."""
    models, rows = [], []
    for recipe, values in scores.items():
        plain = recipe.removesuffix("-flow").removesuffix("-whiten")
        for index, value in enumerate(values):
            out = (recipe, index) in left_out
            if recipe != "tf-idf":
                models.append(ScoredModel(recipe, KINDS[plain], index, f"{recipe}/{index}", (2,), None, out))
            for layers, score in ((2, value), (1, 99.0)) if recipe != "tf-idf" else ((0, value),):
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


def test_what_is_worse_than_words_alone_is_refused_unless_it_is_asked_for():
    scores = {"base": [40], "ct-sed": [47.25], "tf-idf": [56.88]}
    choice = chosen(scores)
    assert choice.refusal == (
        "no model is exported: ct-sed, the best there is, has 47.2 on dev, which is worse than TF-IDF (56.9); to "
        "export it all the same, repeat the command with --allow-worse or set export.allow_worse: true"
    )
    assert choice.title == "ct-sed (not exported)"
    for export in ({"allow_worse": True}, {"recipe": "ct-sed"}):
        allowed = chosen(scores, export=export)
        assert allowed.refusal is None and allowed.title == "ct-sed (exported)"
        assert allowed.words().endswith("7.2 above the untouched encoder (40.0), 9.6 below TF-IDF (56.9)")


def test_the_untouched_encoder_is_refused_like_any_other():
    choice = chosen({"base": [40], "ct-sed": [39], "tf-idf": [56.88]})
    assert "base, the best there is, has 40.0 on dev, which is worse than TF-IDF (56.9);" in choice.refusal
    assert choice.words() == "base, because nothing else in the run is better on dev: 40.0, 16.9 below TF-IDF (56.9)"


def test_what_is_worse_than_the_untouched_encoder_is_exported_by_name_only_and_both_are_said():
    choice = chosen({"base": [58], "ct-sed": [40], "tf-idf": [57]}, export={"recipe": "ct-sed"})
    assert choice.refusal is None
    assert choice.words().endswith(": 40.0, 18.0 below the untouched encoder (58.0), 17.0 below TF-IDF (57.0)")


@pytest.mark.parametrize(("tf_idf", "is_refused"), [(47.0, False), (47.05, False), (47.15, True), (None, False)])
def test_less_than_a_tenth_and_a_score_that_is_not_there_refuse_nothing(tf_idf, is_refused):
    scores = {"base": [40], "ct-sed": [47.0], **({} if tf_idf is None else {"tf-idf": [tf_idf]})}
    assert bool(chosen(scores).refusal) == is_refused


def test_a_model_without_a_score_is_worse_than_any_score():
    nothing = float("nan")
    choice = chosen({"base": [nothing], "ct-sed": [nothing], "tf-idf": [12.0]})
    assert "base, the best there is, has no score on dev, which is worse than TF-IDF (12.0)" in choice.refusal
    assert chosen({"base": [nothing], "ct-sed": [nothing], "tf-idf": [nothing]}).refusal is None


def test_without_a_dev_task_nothing_is_refused():
    assert chosen({"base": [40], "ct-sed": [47], "tf-idf": [90]}, dev=None).refusal is None

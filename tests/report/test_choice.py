"""Which model of a run is exported, and what is said of it."""

import random

import pytest

from raysed.config import ExportConfig
from raysed.errors import UserError
from raysed.made import Made
from raysed.plan.results import EvaluatedModel
from raysed.report.choice import choose
from raysed.report.scores import Row, ScoreTable

KINDS = {"base": "base", "ct": "member", "ct-sed": "learner", "tf-idf": "baseline"}


def models_and_rows(scores, left_out=()):
    """Of dev scores by recipe; TF-IDF has a row and is no model."""
    models, rows = [], []
    for recipe, values in scores.items():
        plain = recipe.removesuffix("-flow").removesuffix("-whiten")
        for index, value in enumerate(values):
            out = (recipe, index) in left_out
            if recipe != "tf-idf":
                models.append(EvaluatedModel(recipe, KINDS[plain], index, Made(f"{recipe}/{index}"), (2,), None, out))
            for layers, score in ((2, value), (1, 99.0)) if recipe != "tf-idf" else ((0, value),):
                metrics = {"dev": {"spearman": score}, "test": {"spearman": 1.0}}
                rows.append(Row(recipe, KINDS[plain], index, None, layers, metrics, out))
    return models, rows


RECIPES = ["ct-sed", "ct-sed-flow"]


def chosen(scores, left_out=(), dev="dev", per_task=False, tasks=("test",), sizes=None, interval=None, **export):
    """Without `interval`, every difference on dev is certain."""
    models, rows = models_and_rows(scores, left_out)
    table, export = ScoreTable(rows, tasks, 2, sizes=sizes or {}), ExportConfig(**export)
    on_dev = {(row.recipe, row.index): row.score("dev") for row in rows if row.layers != 1}

    def certain(a, b):
        return (on_dev[a.recipe, a.index] - on_dev[b.recipe, b.index],) * 2

    return choose(table, models, RECIPES, export, dev, per_task, interval or certain)


@pytest.mark.parametrize(
    ("scores", "export", "words"),
    [
        (
            {"base": [40], "base-flow": [55], "ct": [45, 46], "ct-sed": [47], "ct-sed-flow": [57, 58.3]},
            {},
            "ct-sed-flow, the best on dev of 7 models (base, base-flow, ct, ct-sed, ct-sed-flow): 58.3 against 40.0 "
            "for the original encoder",
        ),
        ({"base": [40], "ct": [39]}, {}, "base, because nothing else in the run is better on dev: 40.0"),
        ({"base": [40], "ct-sed": [47, 48]}, {"dev": None}, "ct-sed, the last recipe, because there is no dev task"),
    ],
)
def test_it_says_what_was_chosen_and_why(scores, export, words):
    """At the main pooling; members are candidates too, and every one of several learners."""
    choice = chosen(scores, **export)
    assert choice.words() == words and choice.refusal is None


def test_training_that_gains_nothing_under_the_same_calibration_is_no_candidate():
    """ct-sed-flow beats all, but for the base with a flow, which costs no training; ct-sed beats the base."""
    scores = {"base": [40], "base-flow": [58, 57], "ct-sed": [47], "ct-sed-flow": [58, 57.5]}
    choice = chosen(scores)
    assert choice.model.recipe == "base-flow" and "(base, base-flow, ct-sed)" in choice.words()
    assert chosen({"base": [40], "ct": [40.05]}).model.recipe == "base", "less than 0.1 is called none"
    assert chosen({"base": [40], "ct": [float("nan")], "ct-sed": [41]}).model.recipe == "ct-sed"


def test_what_could_not_be_made_cannot_be_exported():
    with pytest.raises(UserError, match=r"export\.recipe is ct-sed-flow, which has no model"):
        chosen({"base": [40], "ct-sed": [47]}, recipe="ct-sed-flow")


def test_collapsed_models_and_calibrations_of_single_tasks_are_no_candidates():
    scores = {"base": [40], "base-flow": [70], "ct": [90, 45], "ct-sed": [47], "ct-sed-flow": [80]}
    assert "(base, ct, ct-sed)" in chosen(scores, left_out=[("ct", 0)], per_task=True).words()


def test_what_is_worse_than_words_alone_is_refused_unless_it_is_asked_for():
    scores = {"base": [40], "ct-sed": [47.25], "tf-idf": [56.88]}
    choice = chosen(scores)
    assert choice.refusal == (
        "no model is exported: ct-sed, the best model, scores 47.2 on dev, less than TF-IDF (56.9); to export it "
        "anyway, add --allow-worse or set export.allow_worse: true"
    )
    assert choice.title == "ct-sed (not exported)"
    assert chosen({**scores, "tf-idf": [47.3]}).refusal is chosen({**scores, "tf-idf": []}).refusal is None
    for export in ({"allow_worse": True}, {"recipe": "ct-sed"}):
        allowed = chosen(scores, **export)
        assert allowed.refusal is None and allowed.title == "ct-sed (exported)"
        assert allowed.words().endswith(": 47.2 against 40.0 for the original encoder and 56.9 for TF-IDF")


def test_a_model_without_a_score_is_worse_than_any_score():
    nothing = float("nan")
    choice = chosen({"base": [nothing], "ct-sed": [nothing], "tf-idf": [12.0]})
    assert "base, the best model, has no score on dev, less than TF-IDF (12.0)" in choice.refusal
    assert chosen({"base": [nothing], "ct-sed": [nothing], "tf-idf": [nothing]}).refusal is None


def test_without_a_dev_task_a_worse_model_is_exported_with_a_warning():
    size = "40 generated pairs (written and graded by a program)"
    scores, about = {"base": [50], "ct-sed": [47.25], "tf-idf": [56.88]}, {"tasks": ["dev"], "sizes": {"dev": size}}
    choice = chosen(scores, dev=None, **about)
    assert choice.refusal is None and choice.title == "ct-sed (exported)"
    less = "scores 47.2 on dev (40 generated pairs), less than the original encoder (50.0) and TF-IDF (56.9)"
    assert less in choice.warning
    assert chosen({**scores, "ct-sed": [57]}, dev=None, **about).warning is None


def test_of_models_that_dev_cannot_tell_apart_the_last_recipe_is_exported():
    """A calibration of the encoder is better by 1.4 points of chance, so the learner is exported, and that is said."""
    scores = {"base": [52.8], "base-whiten": [60.0], "ct": [58.0], "ct-sed": [58.6], "tf-idf": [32.0]}
    choice = chosen(scores, interval=lambda best, other: (-3.0, 6.0))
    assert choice.words() == (
        "ct-sed, the last recipe not clearly below base-whiten (60.0) on dev: 58.6 against 52.8 for the original "
        "encoder and 32.0 for TF-IDF"
    )
    assert chosen(scores, interval=lambda best, other: (0.1, 6.0)).model.recipe == "base-whiten"
    assert chosen(scores, interval=lambda best, other: None).model.recipe == "ct-sed", "too few pairs to tell"
    refusable = chosen({**scores, "tf-idf": [59.0]}, interval=lambda best, other: (-3.0, 6.0))
    assert refusable.model.recipe == "base-whiten" and refusable.refusal is None, "an equal is not refused for the best"


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_equals_a_plain_reference(seed):
    rng = random.Random(seed)
    scores = {name: [rng.uniform(50, 54) for _ in range(rng.choice([1, 2]))] for name in
              ("base-flow", "base-whiten", "ct", "ct-sed", "ct-sed-flow")}  # fmt: skip
    scores = {"base": [rng.uniform(50, 53)], **scores, "tf-idf": [rng.uniform(48, 53)]}
    every = {(name, i): score for name, values in scores.items() for i, score in enumerate(values)}
    base, words, width = scores["base"][0], scores["tf-idf"][0], rng.uniform(0, 2)

    def passes(name, score):
        if name == "tf-idf" or max(base, words) - score >= 0.1:
            return False
        return name.startswith("base") or score - (max(scores["base-flow"]) if "flow" in name else base) >= 0.1

    able = {key: score for key, score in every.items() if passes(key[0], score)}
    best = max(able.values(), default=None)
    equal = [key for key, score in able.items() if best - score < max(width, 0.1) or best == score]
    order = ["ct-sed-flow", "ct-sed", "ct", "base-whiten", "base-flow", "base"]
    bases = {"base", "base-flow", "base-whiten"}
    wanted = min(equal, key=lambda k: (3 if k[0] in bases else order.index(k[0]), -every[k]), default=None)
    interval = lambda a, b: tuple(every[a.recipe, a.index] - every[b.recipe, b.index] + w for w in (-width, width))  # noqa: E731
    choice = chosen(scores, interval=interval)
    assert wanted is None or (choice.model.recipe, choice.model.index) == wanted
    assert (choice.refusal is None) == (wanted is not None)

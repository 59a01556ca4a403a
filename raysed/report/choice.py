"""Choose which model of a run to export."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from raysed.config import ExportConfig
from raysed.errors import UserError
from raysed.plan.results import EvaluatedModel
from raysed.recipe import BASE, TEACHERS, parse_recipe
from raysed.report.scores import ScoreTable
from raysed.score.intervals import NO_DIFFERENCE, Difference
from raysed.score.lexical import TF_IDF

Interval = tuple[float, float] | None


@dataclass(frozen=True)
class Choice:
    """The model to export and the reason; scores are x100, and None if undefined.

    They are on `scored_on`: the dev task, or without one the headline tasks, whose scores decide nothing. `others` has
    the scores of the original encoder, unless it is the model itself, and of TF-IDF.
    """

    model: EvaluatedModel
    reason: str
    scored_on: str = ""
    has_dev: bool = False
    score: float | None = None
    others: Mapping[str, float | None] = field(default_factory=dict)
    may_be_worse: bool = False

    @property
    def title(self) -> str:
        return f"{self.model.recipe} ({'not ' if self.refusal else ''}exported)"

    def words(self) -> str:
        """Describe in one line which model was chosen and why."""
        words = f"{self.model.recipe}, {self.reason}"
        if not self.has_dev:
            return words
        known = {name: score for name, score in self.others.items() if score is not None}
        against = " and ".join(f"{score:.1f} for {name}" for name, score in known.items())
        return f"{words}: {_shown(self.score)}" + (f" against {against}" if against else "")

    @property
    def refusal(self) -> str | None:
        """Why this model is not exported, in one sentence; None if it is."""
        if not self._shortfall or not self.has_dev or self.may_be_worse:
            return None
        return (
            f"no model is exported: {self.model.recipe}, the best model, {self._shortfall}; to export it anyway, add "
            "--allow-worse or set export.allow_worse: true"
        )

    @property
    def warning(self) -> str | None:
        """Why a dev task might have refused this model, in one sentence; None if nothing suggests it."""
        if not self._shortfall or self.has_dev:
            return None
        return f"{self.model.recipe} is exported, but {self._shortfall}; without a dev task, nothing refuses it"

    @property
    def _shortfall(self) -> str:
        better = [f"{name} ({other:.1f})" for name, other in _better(self.others, self.score).items()]
        result = "has no score" if self.score is None else f"scores {self.score:.1f}"
        return f"{result} on {self.scored_on}, less than {' and '.join(better)}" if better else ""


def choose(
    scores: ScoreTable,
    models: Sequence[EvaluatedModel],
    recipes: Sequence[str],
    export: ExportConfig,
    dev: str | None,
    per_task: bool = False,
    interval_on_dev: Callable[[EvaluatedModel, EvaluatedModel], Interval] = lambda a, b: (0.0, 0.0),
) -> Choice:
    """Choose the model to export: the last recipe whose model is the best candidate on the dev task, or may be.

    With `export.recipe`, candidates are that recipe's models. Otherwise all models of the run are, including the
    original encoder, calibrated or not. A trained model must beat the original encoder under the same calibration.
    Candidates that are not clearly worse than the best count as equal, unless they would not be exported. Of equals,
    the recipe that stands last in `recipes` is chosen, the original encoder and its calibrations last of all. Without a
    dev task, take the first model of the last of `recipes` that has one, even if it scores worse. External teachers and
    calibrations of single tasks (`per_task`) cannot be exported.

    Args:
        interval_on_dev: returns the 95 % interval of two models' difference on the dev task; None if undefined.
    """
    base, requested = next(model for model in models if model.recipe == BASE), export.recipe
    candidates = [
        model
        for model in models
        if model.recipe != TEACHERS
        and not (per_task and parse_recipe(model.recipe).calibration)
        and requested in (None, model.recipe)
    ]
    if not candidates:
        raise UserError(
            f"export.recipe is {requested}, which has no model because it was left out (see above); name another recipe"
        )
    candidates = [model for model in candidates if not model.left_out] or candidates
    tasks = scores.tasks if dev is None else [dev]
    measured = {
        (row.recipe, row.index): row.average(tasks)
        for row in scores.rows
        if (row.layers == scores.main_layers and row.kind in ("base", "member", "learner")) or row.recipe == TF_IDF
    }
    measured = {model: score for model, score in measured.items() if score is not None}
    scored_on = ", ".join(map(scores.named, tasks))
    others = {scores.base_name: measured.get((BASE, base.index)), "TF-IDF": measured.get((TF_IDF, 0))}
    if dev is None:
        places = _places(recipes)
        chosen = min(candidates, key=lambda model: places.get(model.recipe, len(places)))
        reason = "the last recipe, because there is no dev task"
    else:
        candidates = [model for model in candidates if (model.recipe, model.index) in measured] or candidates
        if not requested:
            candidates = [model for model in candidates if _is_candidate(model, measured)] or [base]

        def score_of(model: EvaluatedModel) -> float:
            return measured.get((model.recipe, model.index), -math.inf)

        best = chosen = max(candidates, key=score_of)
        among = ", ".join(dict.fromkeys(model.recipe for model in candidates))
        reason = f"because nothing else in the run is better on {scored_on}"
        if len(candidates) > 1:
            reason = f"the best on {scored_on} of {len(candidates)} models ({among})"
            passing = [(model, score_of(model)) for model in candidates if not _better(others, score_of(model))]
            chosen = _last_of_equals((best, score_of(best)), passing, _places(recipes), interval_on_dev)
        if chosen is not best:
            reason = f"the last recipe not clearly below {best.recipe} ({score_of(best):.1f}) on {scored_on}"
    if requested:
        reason = "as set by export.recipe"
    if chosen.recipe == BASE:
        del others[scores.base_name]
    score, may_be_worse = measured.get((chosen.recipe, chosen.index)), requested is not None or export.allow_worse
    return Choice(chosen, reason, scored_on, dev is not None, score, others, may_be_worse)


def _places(recipes: Sequence[str]) -> dict[str, int]:
    """Return the recipes of a run's models, by how late they stand in `recipes`; the last is 0."""
    last_first = [parse_recipe(text) for text in reversed(recipes)]
    texts = [text for recipe in last_first for text in (recipe.text, recipe.uncalibrated)]
    texts += [recipe.ensemble for recipe in last_first]
    return {text: place for place, text in enumerate(dict.fromkeys(texts))}


def _last_of_equals(
    best: tuple[EvaluatedModel, float],
    others: Sequence[tuple[EvaluatedModel, float]],
    places: Mapping[str, int],
    interval_on_dev: Callable[[EvaluatedModel, EvaluatedModel], Interval],
) -> EvaluatedModel:
    """Return the best model of the last recipe that is not clearly worse on dev than the best model."""

    def order(scored: tuple[EvaluatedModel, float]) -> tuple[bool, int, float]:
        model, score = scored
        return model.kind == "base", places.get(model.recipe, len(places)), -score

    for model, score in sorted(others, key=order):
        if model is best[0] or not Difference(best[1] - score, interval_on_dev(best[0], model)).is_clear:
            return model
    return best[0]


def _better(others: Mapping[str, float | None], score: float | None) -> dict[str, float]:
    """Return those of `others` that a model with this score does not reach."""
    known = {name: other for name, other in others.items() if other is not None}
    return {name: other for name, other in known.items() if score is None or other - score >= NO_DIFFERENCE}


def _shown(score: float | None) -> str:
    return "no score" if score is None else f"{score:.1f}"


def _is_candidate(model: EvaluatedModel, on_dev: Mapping[tuple[str, int], float]) -> bool:
    """Return whether a model needed no training or beats the original encoder under the same calibration."""
    same = "-".join([BASE, *parse_recipe(model.recipe).calibration])
    original = max((score for (recipe, _), score in on_dev.items() if recipe == same), default=-200.0)
    score = on_dev.get((model.recipe, model.index), -math.inf)
    return model.kind == "base" or score - original >= NO_DIFFERENCE

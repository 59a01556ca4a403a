"""Choose which model of a run to export."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raysed.config import ExportConfig
from raysed.errors import UserError
from raysed.plan.artefacts import ScoredModel
from raysed.recipe import BASE, TEACHERS, parse_recipe
from raysed.report.scores import ScoreTable
from raysed.score.intervals import NO_DIFFERENCE
from raysed.score.lexical import TF_IDF

_ORIGINAL, _REQUESTED = "the original encoder", "as set by export.recipe"


@dataclass(frozen=True)
class Choice:
    """The model to export and the reason; scores are on the dev task, x100, and None if undefined.

    Without a dev task they are on the headline `tasks`, and do not decide. `others` has the scores of the original
    encoder and TF-IDF.
    """

    model: ScoredModel
    reason: str
    dev: str | None = None
    tasks: str = ""
    score: float | None = None
    others: Mapping[str, float | None] = field(default_factory=dict)
    may_be_worse: bool = False

    @property
    def title(self) -> str:
        return f"{self.model.recipe} ({'not ' if self.refusal else ''}exported)"

    def words(self) -> str:
        """Describe in one line which model was chosen and why."""
        words = f"{self.model.recipe}, {self.reason}"
        if self.dev is None:
            return words
        known = {name: score for name, score in self.others.items() if score is not None}
        if self.model.recipe == BASE:
            known.pop(_ORIGINAL, None)
        against = " and ".join(f"{score:.1f} for {name}" for name, score in known.items())
        return f"{words}: {_shown(self.score)}" + (f" against {against}" if against else "")

    @property
    def refusal(self) -> str | None:
        """Why this model is not exported, in one sentence; None if it is."""
        if self.dev is None or self.may_be_worse or not self._better:
            return None
        return (
            f"no model is exported: {self.model.recipe}, the best model, {_result(self.score)} on {self.dev}, "
            f"less than {self._better}; to export it anyway, add --allow-worse or set export.allow_worse: true"
        )

    @property
    def warning(self) -> str | None:
        """What speaks against this model where no dev task decides, in one sentence; None if nothing does."""
        if self.dev is not None or not self._better:
            return None
        return (
            f"{self.model.recipe} is exported, but {_result(self.score)} on {self.tasks}, less than {self._better}; "
            "without a dev task, nothing refuses it"
        )

    @property
    def _better(self) -> str:
        score = -math.inf if self.score is None else self.score
        known = {name: other for name, other in self.others.items() if other is not None}
        better = [f"{name} ({other:.1f})" for name, other in known.items() if other - score >= NO_DIFFERENCE]
        return " and ".join(better)


def choose(
    scores: ScoreTable,
    models: Sequence[ScoredModel],
    recipes: Sequence[str],
    export: ExportConfig,
    dev: str | None,
    per_task: bool = False,
) -> Choice:
    """Choose the model to export: the best candidate on the dev task.

    With `export.recipe`, candidates are that recipe's models. Otherwise all models of the run are, including the
    original encoder, calibrated or not. A trained model must beat the original encoder under the same calibration.
    Without a dev task, take the first model of the last of `recipes` that has one, even if it scores worse. External
    teachers and calibrations of single tasks (`per_task`) cannot be exported.
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
    if dev is None:
        made = {model.recipe: model for model in reversed(candidates)}
        last_first = [parse_recipe(text) for text in reversed(recipes)]
        texts = [requested, *(text for recipe in last_first for text in (recipe.text, recipe.uncalibrated)), BASE]
        best = next(made[text] for text in texts if text in made)
        reason = _REQUESTED if requested else "the last recipe, because there is no dev task"
        score = scores.average_of(best.recipe, best.kind, best.index)
        others = {
            _ORIGINAL: scores.average_of(BASE, base.kind, base.index),
            "TF-IDF": scores.average_of(TF_IDF, "baseline", 0),
        }
        return Choice(best, reason, None, ", ".join(map(scores.named, scores.tasks)), score, others)
    on_dev = {
        (row.recipe, row.index): row.score(dev)
        for row in scores.rows
        if (row.layers == scores.main_layers and row.kind in ("base", "member", "learner")) or row.recipe == TF_IDF
    }
    on_dev = {model: score for model, score in on_dev.items() if score is not None}
    candidates = [model for model in candidates if (model.recipe, model.index) in on_dev] or candidates
    if not requested:
        candidates = [model for model in candidates if _is_candidate(model, on_dev)] or [base]
    best = max(candidates, key=lambda model: on_dev.get((model.recipe, model.index), -math.inf))
    among = ", ".join(dict.fromkeys(model.recipe for model in candidates))
    named = scores.named(dev)
    reason = _REQUESTED if requested else f"because nothing else in the run is better on {named}"
    if len(candidates) > 1 and not requested:
        reason = f"the best on {named} of {len(candidates)} models ({among})"
    others = {_ORIGINAL: on_dev.get((BASE, base.index)), "TF-IDF": on_dev.get((TF_IDF, 0))}
    score, may_be_worse = on_dev.get((best.recipe, best.index)), requested is not None or export.allow_worse
    return Choice(best, reason, named, "", score, others, may_be_worse)


def _shown(score: float | None) -> str:
    return "no score" if score is None else f"{score:.1f}"


def _result(score: float | None) -> str:
    return "has no score" if score is None else f"scores {score:.1f}"


def _is_candidate(model: ScoredModel, on_dev: Mapping[tuple[str, int], float]) -> bool:
    """Return whether a model needed no training or beats the original encoder under the same calibration."""
    same = "-".join([BASE, *parse_recipe(model.recipe).calibration])
    original = max((score for (recipe, _), score in on_dev.items() if recipe == same), default=-200.0)
    score = on_dev.get((model.recipe, model.index), -math.inf)
    return model.kind == "base" or score - original >= NO_DIFFERENCE

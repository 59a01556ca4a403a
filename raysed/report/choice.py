"""The models of a run, and which of them is exported."""

from collections.abc import Sequence
from dataclasses import dataclass

from raysed.config import Config
from raysed.errors import UserError
from raysed.plan.artefacts import ScoredModel
from raysed.recipe import BASE, TEACHERS, parse_recipe
from raysed.report.findings import NO_DIFFERENCE
from raysed.report.results import Row


@dataclass(frozen=True)
class Choice:
    """The model to export, and why.

    Attributes:
        model: the chosen one.
        base_weights: artefact of the untouched encoder, None for the pre-trained one.
        among: the recipes of all candidates.
        candidates: their number.
        dev: the dev task, if there is one.
        score: of the model on it, x100.
        base: that of the untouched encoder.
        asked: whether `export.recipe` named it.
    """

    model: ScoredModel
    base_weights: str | None
    among: tuple[str, ...]
    candidates: int
    dev: str | None = None
    score: float | None = None
    base: float | None = None
    asked: bool = False

    def words(self) -> str:
        """Returns which model was chosen and why, in a line."""
        reasons = ["as asked for by export.recipe"] if self.asked else []
        if self.score is None:
            return ", ".join([self.model.recipe, *(reasons or ["the last recipe, because there is no dev task"])])
        if self.candidates > 1:
            reasons.append(f"the best on {self.dev} of {self.candidates} models ({', '.join(self.among)})")
        elif not self.asked:
            reasons.append(f"because nothing else in the run is better on {self.dev}")
        gain = self.score - self.base
        words = f"{', '.join([self.model.recipe, *reasons])}: {self.score:.1f}"
        if self.model.recipe == BASE:
            return words
        return f"{words}, {abs(gain):.1f} {'above' if gain >= 0 else 'below'} the untouched encoder ({self.base:.1f})"


def choose(config: Config, rows: Sequence[Row], models: Sequence[ScoredModel]) -> Choice:
    """Chooses the model to export: the best on the dev task of all that can be.

    With `export.recipe` these are that recipe's models. Otherwise they are all of the run, the untouched encoder and
    its calibrated versions among them, except those that were trained and are no better than the untouched encoder
    under the same calibration, and except calibrations of single tasks. Without a dev task it is the first model of the
    last recipe.

    Args:
        config: the run's settings.
        rows: scored models.
        models: all models of the run.

    Raises:
        UserError: `export.recipe` names what could not be made.
    """
    base, asked = next(model for model in models if model.recipe == BASE), config.export.recipe
    made_here = [model for model in models if model.recipe != TEACHERS]
    candidates = [model for model in made_here if not (config.flow.per_task and parse_recipe(model.recipe).calibration)]
    if asked:
        candidates = [model for model in candidates if model.recipe == asked]
        if not candidates:
            raise UserError(
                f"export.recipe is {asked}, which has no model because it was left out (see above); name another recipe"
            )
    candidates = [model for model in candidates if not model.left_out] or candidates
    scores, base_score = _dev_scores(config, rows), None
    if config.evaluation.dev is not None:
        base_score = scores.get((BASE, base.index))
        candidates = [model for model in candidates if (model.recipe, model.index) in scores] or candidates
        if not asked:
            candidates = [model for model in candidates if _is_worth_it(model, scores)] or [base]
        best = max(candidates, key=lambda model: scores.get((model.recipe, model.index), -200.0))
    else:
        wanted = asked or _last_made(config, candidates)
        best = next(model for model in candidates if model.recipe == wanted)
    score = scores.get((best.recipe, best.index))
    return Choice(
        best,
        base.weights,
        tuple(dict.fromkeys(model.recipe for model in candidates)),
        len(candidates),
        config.evaluation.dev,
        score if base_score is not None else None,
        base_score,
        asked is not None,
    )


def _dev_scores(config: Config, rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """By recipe and index; what has no score that is defined is not in it."""
    dev, main = config.evaluation.dev, config.encoder.layers
    found = {
        (row.recipe, row.index): row.score(dev)
        for row in rows
        if dev is not None and row.kind in ("base", "member", "learner") and row.layers == main
    }
    return {key: value for key, value in found.items() if value is not None}


def _is_worth_it(model: ScoredModel, scores: dict[tuple[str, int], float]) -> bool:
    """Whether a trained model is truly better than the untouched encoder under the same calibration."""
    if model.kind == "base":
        return True
    like = "-".join([BASE, *parse_recipe(model.recipe).calibration])
    untouched = [score for (recipe, _), score in scores.items() if recipe == like]
    return scores[model.recipe, model.index] - max(untouched, default=-200.0) >= NO_DIFFERENCE


def _last_made(config: Config, candidates: Sequence[ScoredModel]) -> str:
    """The last recipe that has a model; without its calibration where that could not be fitted; or the base."""
    made = {model.recipe for model in candidates}
    recipes = [parse_recipe(text) for text in reversed(config.recipes)]
    return next((text for recipe in recipes for text in (recipe.text, recipe.uncalibrated) if text in made), BASE)

"""The models of a run, and which of them is exported."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raysed.config import Config
from raysed.errors import UserError
from raysed.plan.artefacts import ScoredModel
from raysed.recipe import BASE, TEACHERS, parse_recipe
from raysed.report.findings import NO_DIFFERENCE
from raysed.report.scores import Row
from raysed.score.lexical import TF_IDF

_UNTOUCHED = "the untouched encoder"


@dataclass(frozen=True)
class Choice:
    """The model to export, and why.

    Attributes:
        base_weights: artefact of the untouched encoder, None for the pre-trained one.
        among: the recipes of all candidates, which are `candidates` models.
        score: of the model on the dev task, x100, as are those of the untouched encoder (`base`) and of TF-IDF; None
            where it is not defined.
        asked: whether `export.recipe` named it.
        allow_worse: whether it is exported although it is worse than one of the two.
    """

    model: ScoredModel
    base_weights: str | None
    among: tuple[str, ...]
    candidates: int
    dev: str | None = None
    score: float | None = None
    base: float | None = None
    tf_idf: float | None = None
    asked: bool = False
    allow_worse: bool = False

    @property
    def title(self) -> str:
        """What tables and pictures call it."""
        return f"{self.model.recipe} ({'not ' if self.refusal else ''}exported)"

    def words(self) -> str:
        """Return which model was chosen and why, in a line."""
        reasons = ["as asked for by export.recipe"] if self.asked else []
        if self.dev is None:
            return ", ".join([self.model.recipe, *(reasons or ["the last recipe, because there is no dev task"])])
        if self.candidates > 1:
            reasons.append(f"the best on {self.dev} of {self.candidates} models ({', '.join(self.among)})")
        elif not self.asked:
            reasons.append(f"because nothing else in the run is better on {self.dev}")
        words = f"{', '.join([self.model.recipe, *reasons])}: {_shown(self.score)}"
        shown = {_UNTOUCHED: self.base} if self.model.recipe != BASE else {}
        shown |= {name: score for name, score in self.worse_than.items() if name != _UNTOUCHED}
        return ", ".join([words, *(self._against(*other) for other in shown.items() if None not in other)])

    def _against(self, name: str, other: float) -> str:
        if self.score is None:
            return f"{name} has {other:.1f}"
        gain = self.score - other
        return f"{abs(gain):.1f} {'above' if gain >= 0 else 'below'} {name} ({other:.1f})"

    @property
    def worse_than(self) -> dict[str, float]:
        """What costs no training and is better on the dev task, with its score: the untouched encoder, TF-IDF."""
        score = -math.inf if self.score is None else self.score
        others = {_UNTOUCHED: self.base, "TF-IDF": self.tf_idf}
        return {name: other for name, other in others.items() if other is not None and other - score >= NO_DIFFERENCE}

    @property
    def refusal(self) -> str | None:
        """Why this model is not exported, in a sentence; None where it is."""
        if not self.worse_than or self.asked or self.allow_worse:
            return None
        others = " and ".join(f"{name} ({score:.1f})" for name, score in self.worse_than.items())
        return (
            f"no model is exported: {self.model.recipe}, the best there is, has {_shown(self.score)} on {self.dev}, "
            f"which is worse than {others}; to export it all the same, repeat the command with --allow-worse or set "
            "export.allow_worse: true"
        )


def choose(config: Config, rows: Sequence[Row], models: Sequence[ScoredModel]) -> Choice:
    """Choose the model to export: the best on the dev task of all that can be.

    With `export.recipe` these are that recipe's models. Otherwise they are all of the run, the untouched encoder and
    its calibrated versions among them, except those that were trained and are no better than the untouched encoder
    under the same calibration, and except calibrations of single tasks. Without a dev task it is the first model of the
    last recipe.

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
    scores = _dev_scores(config, rows)
    if config.evaluation.dev is not None:
        candidates = [model for model in candidates if (model.recipe, model.index) in scores] or candidates
        if not asked:
            candidates = [model for model in candidates if _is_worth_it(model, scores)] or [base]
        best = max(candidates, key=lambda model: scores.get((model.recipe, model.index), -200.0))
    else:
        wanted = asked or _last_made(config, candidates)
        best = next(model for model in candidates if model.recipe == wanted)
    return Choice(
        best,
        base.weights,
        tuple(dict.fromkeys(model.recipe for model in candidates)),
        len(candidates),
        config.evaluation.dev,
        score=scores.get((best.recipe, best.index)),
        base=scores.get((BASE, base.index)),
        tf_idf=scores.get((TF_IDF, 0)),
        asked=asked is not None,
        allow_worse=config.export.allow_worse,
    )


def _shown(score: float | None) -> str:
    return "no score" if score is None else f"{score:.1f}"


def _dev_scores(config: Config, rows: Sequence[Row]) -> dict[tuple[str, int], float]:
    """By recipe and index; what has no score that is defined is not in it."""
    dev, main = config.evaluation.dev, config.encoder.layers
    if dev is None:
        return {}
    single = [row for row in rows if row.kind in ("base", "member", "learner") and row.layers == main]
    rows = [*single, *(row for row in rows if row.recipe == TF_IDF)]
    found = {(row.recipe, row.index): row.score(dev) for row in rows}
    return {key: value for key, value in found.items() if value is not None}


def _is_worth_it(model: ScoredModel, scores: dict[tuple[str, int], float]) -> bool:
    """Whether a trained model is truly better than the untouched encoder under the same calibration."""
    if model.kind == "base":
        return True
    like = "-".join([BASE, *parse_recipe(model.recipe).calibration])
    untouched = [score for (recipe, _), score in scores.items() if recipe == like]
    return scores.get((model.recipe, model.index), -math.inf) - max(untouched, default=-200.0) >= NO_DIFFERENCE


def _last_made(config: Config, candidates: Sequence[ScoredModel]) -> str:
    """The last recipe that has a model; without its calibration where that could not be fitted; or the base."""
    made = {model.recipe for model in candidates}
    recipes = [parse_recipe(text) for text in reversed(config.recipes)]
    return next((text for recipe in recipes for text in (recipe.text, recipe.uncalibrated) if text in made), BASE)

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
    """The model to export, and why; scores are on the dev task, x100, and None where they are not defined.

    Attributes:
        base_weights: artefact of the untouched encoder, None for the pre-trained one.
        among: the recipes of all candidates, which are `candidates` models.
        asked: whether `export.recipe` named it.
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
        for name, other in shown.items():
            if other is not None and self.score is None:
                words += f", {name} has {other:.1f}"
            elif other is not None:
                side = "above" if self.score >= other else "below"
                words += f", {abs(self.score - other):.1f} {side} {name} ({other:.1f})"
        return words

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
    last recipe that has one.

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
    dev, scores = config.evaluation.dev, {}
    if dev is not None:
        for row in rows:
            is_single = row.kind in ("base", "member", "learner") and row.layers == config.encoder.layers
            if (is_single or row.recipe == TF_IDF) and row.score(dev) is not None:
                scores[row.recipe, row.index] = row.score(dev)
        candidates = [model for model in candidates if (model.recipe, model.index) in scores] or candidates
        if not asked:
            candidates = [model for model in candidates if _is_worth_it(model, scores)] or [base]
        best = max(candidates, key=lambda model: scores.get((model.recipe, model.index), -200.0))
    else:
        made = {model.recipe: model for model in reversed(candidates)}
        recipes = [parse_recipe(text) for text in reversed(config.recipes)]
        texts = [asked, *(text for recipe in recipes for text in (recipe.text, recipe.uncalibrated)), BASE]
        best = next(made[text] for text in texts if text in made)
    return Choice(
        best,
        base.weights,
        tuple(dict.fromkeys(model.recipe for model in candidates)),
        len(candidates),
        dev,
        score=scores.get((best.recipe, best.index)),
        base=scores.get((BASE, base.index)),
        tf_idf=scores.get((TF_IDF, 0)),
        asked=asked is not None,
        allow_worse=config.export.allow_worse,
    )


def _shown(score: float | None) -> str:
    return "no score" if score is None else f"{score:.1f}"


def _is_worth_it(model: ScoredModel, scores: dict[tuple[str, int], float]) -> bool:
    """Return whether a trained model is truly better than the untouched encoder under the same calibration."""
    like = "-".join([BASE, *parse_recipe(model.recipe).calibration])
    untouched = max((score for (recipe, _), score in scores.items() if recipe == like), default=-200.0)
    score = scores.get((model.recipe, model.index), -math.inf)
    return model.kind == "base" or score - untouched >= NO_DIFFERENCE

"""What recipes need under a run's settings: training tables and numbers of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raysed.recipe import Recipe, last_stage
from raysed.registry import stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raysed.config import Config, CorpusConfig

CORPUS, MEMBERS_CORPUS = "corpus", "members-corpus"
"""Artefacts of sentences: for learners and calibrations; for members, if they read more."""


def view_kinds(recipe: Recipe, config: Config) -> list[str]:
    """Return the distinct kinds of views with a table that a recipe trains on."""
    return [name.removeprefix("views/") for name in _tables(recipe, config) if name.startswith("views/")]


def trains_on_corpus(recipe: Recipe, config: Config) -> bool:
    """Return whether a recipe trains on the corpus."""
    return recipe.distils or CORPUS in _tables(recipe, config)


def reads_corpus(recipe: Recipe, config: Config) -> bool:
    """Return whether a recipe trains on the corpus or fits its calibration on it."""
    return trains_on_corpus(recipe, config) or (bool(recipe.calibration) and config.flow.fit_on == "corpus")


def corpora(config: Config, recipes: Sequence[Recipe]) -> dict[str, CorpusConfig]:
    """Return the settings of each artefact of sentences."""
    drawn, whole = config.sed.sentences, config.corpus
    if drawn is None or not any(recipe.distils for recipe in recipes):
        return {CORPUS: whole}
    apart = any(CORPUS in _tables(recipe, config) for recipe in recipes)
    return {CORPUS: whole.model_copy(update={"sentences": drawn}), **({MEMBERS_CORPUS: whole} if apart else {})}


def _tables(recipe: Recipe, config: Config) -> list[str]:
    """Return the distinct artefacts that a recipe's members train on: `corpus`, `pairs/nli`, `views/files`, ..."""
    names = [name for stage in recipe.members for name in stages()[stage].tables(getattr(config, stage))]
    return list(dict.fromkeys(names))


def models_of(node: str, config: Config) -> int:
    """Return how many models an ensemble has, if none is left out."""
    has_grid = any(stages()[name].is_grid for name in node.split("-"))
    return config.sts.models if has_grid else config.members.count


def trainings_of(node: str, config: Config) -> int:
    """Return how many models of a node are trained, if none of those they continue is left out.

    >>> from raysed.config import Config
    >>> config = Config(sts={"models": 3})
    >>> [trainings_of(node, config) for node in ("ct", "sts", "sts-ct")]
    [10, 60, 3]
    """
    return models_of(node, config) * (len(config.sts.lower_bounds) if last_stage(node).is_grid else 1)

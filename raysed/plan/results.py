"""What a script hands to the report: the models that it has evaluated, and facts of its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from raysed.config import Layers
from raysed.made import Made
from raysed.make.scores import poolings_without_fit
from raysed.plan.tables import CORPUS, MEMBERS_CORPUS
from raysed.recipe import BASE
from raysed.score.ensemble import by_title

if TYPE_CHECKING:
    from raysed.plan.check import Job
    from raysed.plan.models import TrainedEnsemble


@dataclass(frozen=True)
class EvaluatedModel:
    """A model with embeddings of the evaluation's sentences.

    Attributes:
        kind: `base`, `member` or `learner`.
        embeddings: one file per pooling.
        weights: of the encoder; None: the pre-trained one, or an external teacher.
        left_out: whether it has collapsed; it is scored, but not used otherwise.
    """

    recipe: str
    kind: str
    index: int
    embeddings: Made
    poolings: Sequence[Layers]
    weights: Made | None = None
    left_out: bool = False


@dataclass(frozen=True)
class Results:
    """A finished run, without its scores.

    Attributes:
        models: in reading order.
        cluster: the machines, for people.
        left_out: why models were left out, by name.
        members: names of each ensemble's members.
        members_corpus: facts about the members' corpus, if learners read only a part of it.
        together: the combined external teachers' embeddings; None if they were not combined or scored.
        worth: scores of the teachers alone and together, with their names; None if not scored.
        shares_space_of: the only teacher, if learners share its space.
    """

    models: Sequence[EvaluatedModel]
    cluster: str
    corpus: Mapping[str, Any]
    left_out: Mapping[str, str]
    members: Mapping[str, Sequence[str]]
    members_corpus: Mapping[str, Any] = field(default_factory=dict)
    grids: Sequence[Mapping[str, Any]] = ()
    pairs: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    together: Made | None = None
    worth: Mapping[str, Any] | None = None
    shares_space_of: str | None = None


def reading_order(job: Job) -> list[str]:
    """Return the recipes that are scored: the base, then ensemble, learner and result of each."""
    texts = [BASE, *("-".join([BASE, *recipe.calibration]) for recipe in job.recipes if recipe.calibration)]
    for recipe in job.recipes:
        texts += [recipe.ensemble, *([recipe.uncalibrated] if recipe.distils else []), recipe.text]
    return list(dict.fromkeys(texts))


def results_of(
    run: Any,
    job: Job,
    tables: Mapping[str, Made],
    ensembles: Mapping[str, TrainedEnsemble],
    scored: Mapping[str, Sequence[EvaluatedModel]],
    combination: Made | None,
    together: Made | None,
    worth: Made | None,
) -> Results:
    """Collect what the report needs to know of a `run`; of a rehearsal, what the settings say.

    Args:
        combination: of external teachers.
    """
    models, config = [], job.config
    left_out = {name: why for ensemble in ensembles.values() for name, why in ensemble.left_out.items()}
    for model in (model for recipe in reading_order(job) for model in scored.get(recipe, [])):
        meta = run.meta(model.embeddings)
        if meta and (why := poolings_without_fit(meta)):
            left_out[model.embeddings.name] = why
        poolings = [layers for layers in model.poolings if meta and str(layers) not in meta.get("failed", {})]
        if config.encoder.pool_layers in poolings:
            models.append(replace(model, poolings=poolings))
    # Learners reproduce a single teacher's vectors unless these are centred.
    shares_space = (run.meta(combination) or {}).get("shared") and config.sed.target in (None, "mean")
    scores = run.meta(worth)
    return Results(
        models,
        str(run.cluster),
        corpus=run.meta(tables.get(CORPUS)) or {},
        left_out=left_out | run.failures,
        members={node: [each.name for each in ensemble.trained] for node, ensemble in ensembles.items()},
        members_corpus=run.meta(tables.get(MEMBERS_CORPUS)) or {},
        grids=[ensemble.grid for ensemble in ensembles.values() if ensemble.grid],
        pairs={kind: pairs.summary() for kind, pairs in job.pairs.items()},
        views={kind: (run.meta(tables[f"views/{kind}"]) or {}).get("summary", "") for kind in job.views},
        together=together if run.meta(together) else None,
        worth=scores and by_title(scores, [teacher.title for teacher in job.teachers]),
        shares_space_of=job.teachers[0].title if shares_space else None,
    )

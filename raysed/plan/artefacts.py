"""What the report needs to know about a run's finished models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from raysed.config import Layers
from raysed.graph import ExternalInput, OutcomeMember, State
from raysed.make.scores import poolings_without_fit
from raysed.plan.requirements import CORPUS, MEMBERS_CORPUS
from raysed.recipe import SED, TEACHERS, last_stage, member_nodes
from raysed.score.ensemble import by_title

if TYPE_CHECKING:
    from raysed.plan.graph import Plan

COMBINED_EMBEDDINGS = f"{TEACHERS}/together"
"""Artefact of the combined teachers' embeddings of the evaluation's sentences."""
SPEEDS = "speeds"
"""Artefact of the teachers' speeds, relative to the run's own models."""
TEACHER_SELECTION, TEACHER_SCORES = f"{TEACHERS}/choice", f"{TEACHERS}/worth"
"""Artefacts: the teachers that are best together on the dev task, and their scores, see `raysed.score.ensemble`."""


def outcome_of(node: str) -> str:
    """Return the artefact that lists the members of an ensemble."""
    return f"{node}/grid/choice" if last_stage(node).is_grid else f"{node}/ensemble"


@dataclass(frozen=True)
class ScoredModel:
    """A model that may be scored, and where its embeddings of the evaluation's sentences are.

    Attributes:
        kind: `base`, `member` or `learner`.
        embeddings: artefact with one file per pooling.
        weights: artefact of the encoder, None for the pre-trained one; known after the run.
        left_out: whether it has collapsed; it is scored, but not used otherwise.
    """

    recipe: str
    kind: str
    index: int
    embeddings: str
    poolings: tuple[Layers, ...]
    weights: str | None = None
    left_out: bool = False
    model: Any = field(default=None, repr=False)


@dataclass(frozen=True)
class Facts:
    """Results of the stages other than scores.

    Attributes:
        members_corpus: facts about the members' corpus, if learners read only a part of it.
        together: artefact of the combined external teachers; None if they were not combined or scored.
        worth: scores of the teachers alone and together, with their names; None if not scored.
        shares_space_of: the only teacher, if learners share its space.
    """

    cluster: str
    corpus: Mapping[str, Any]
    left_out: Mapping[str, str]
    members: Mapping[str, Sequence[str]]
    members_corpus: Mapping[str, Any] = field(default_factory=dict)
    grids: Sequence[Mapping[str, Any]] = ()
    pairs: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)
    together: str | None = None
    worth: Mapping[str, Any] | None = None
    shares_space_of: str | None = None


def scored_models(plan: Plan, state: State) -> list[ScoredModel]:
    """Return the models that can be scored, in reading order."""
    found = []
    for scored in (scored for recipe in plan.recipes() for scored in plan.scored.get(recipe, [])):
        entry = state.entry(scored.embeddings)
        poolings = tuple(k for k in scored.poolings if entry and str(k) not in entry.meta.get("failed", {}))
        if plan.config.encoder.pool_layers not in poolings:
            continue
        weights, is_collapsed = scored.model, False
        if isinstance(scored.model, OutcomeMember):
            weights = state.listed(scored.model.outcome)[scored.model.index][0]
            is_collapsed = weights not in dict(state.listed(scored.model.outcome, "healthy"))
        elif isinstance(scored.model, ExternalInput):
            weights = scored.model.value
        elif scored.model:
            weights = scored.model.name
        found.append(replace(scored, poolings=poolings, weights=weights, left_out=is_collapsed))
    return found


def facts_of(plan: Plan, state: State, cluster: str) -> Facts:
    """Collect the facts for the report."""
    job, config = plan.job, plan.config
    outcomes = {n: state.entry(outcome_of(n)) for depth in member_nodes(job.recipes) for n in depth}
    corpus, members_corpus, targets = map(state.entry, (CORPUS, MEMBERS_CORPUS, f"{TEACHERS}-{SED}/targets"))
    left_out = {name: why for entry in outcomes.values() for name, why in entry.meta["left_out"].items()}
    worth = state.entry(TEACHER_SCORES)
    for scored in (scored for group in plan.scored.values() for scored in group):
        entry = state.entry(scored.embeddings)
        if entry and (why := poolings_without_fit(entry.meta)):
            left_out[scored.embeddings] = why
    left_out |= {name: why for name, (why, _) in state.failures.items() if "/calibrations/" in name}
    # Learners reproduce a single teacher's vectors unless these are centred.
    shares_space = targets and targets.meta.get("shared") and config.sed.target in (None, "mean")
    return Facts(
        cluster=cluster,
        corpus=corpus.meta if corpus else {},
        members_corpus=members_corpus.meta if members_corpus else {},
        left_out=left_out,
        members={node: [name for name, _ in state.listed(outcome_of(node))] for node in outcomes},
        grids=[entry.meta["grid"] for entry in outcomes.values() if "grid" in entry.meta],
        pairs={kind: pairs.summary() for kind, pairs in job.pairs.items()},
        views={kind: state.entry(f"views/{kind}").meta["summary"] for kind in job.views},
        together=COMBINED_EMBEDDINGS if state.entry(COMBINED_EMBEDDINGS) else None,
        worth=worth and by_title(worth.meta, [teacher.title for teacher in job.teachers]),
        shares_space_of=job.teachers[0].title if shares_space else None,
    )

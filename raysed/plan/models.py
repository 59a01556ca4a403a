"""The models that a run trains, and what becomes of an ensemble once its members are trained."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raysed.config import Config, derive_seed
from raysed.errors import RunFailed, UserError
from raysed.made import Made, Trained, Training, made
from raysed.make.fidelity import learner_fidelity
from raysed.make.models import (
    LearnerTrainer,
    MemberTrainer,
    learner_updates,
    member_updates,
    train_learner,
    train_member,
)
from raysed.make.scores import embeddings
from raysed.plan.check import Job
from raysed.plan.results import EvaluatedModel
from raysed.plan.size import need_of
from raysed.plan.tables import CORPUS, MEMBERS_CORPUS
from raysed.plan.teachers import old_vectors
from raysed.recipe import SED, TEACHERS, Recipe, last_stage
from raysed.registry import stages
from raysed.train.grid import choose_bound
from raysed.train.memory import checkpoint_bytes
from raysed.train.stage import BEST_ON_DEV


def evaluated(
    job: Job, recipe: str, kind: str, index: int, weights: Made | None, what: str, is_left_out: bool = False
) -> EvaluatedModel:
    """Describe a model and its embeddings of the evaluation's sentences."""
    inputs = {"encoder": job.encoder, "model": weights, "sentences": job.sentences}
    name, title = f"{recipe}/embeddings/{index:02d}", f"embeddings by {what}"
    found = made(name, title, "evaluation", embeddings, inputs, {"layers": job.poolings}, how="worker")
    return EvaluatedModel(recipe, kind, index, found, job.poolings, weights, is_left_out)


# -- members ---------------------------------------------------------------------------------------------------------


def models_of(node: str, config: Config) -> int:
    """Return how many models an ensemble has, if none is left out."""
    has_grid = any(stages()[name].is_grid for name in node.split("-"))
    return config.sts.models if has_grid else config.members.count


def members(
    job: Job,
    node: str,
    stage: str,
    ensembles: Mapping[str, TrainedEnsemble],
    tables: Mapping[str, Made],
    start: Made | None,
    base: Made,
) -> list[Made]:
    """Describe the members of an ensemble, or all models of its grid.

    Args:
        stage: of the run; all its trainings are one experiment.
        ensembles: finished ones. The healthy members of the one before are continued.
        start: of members that continue none.
        base: embeddings of the evaluation by the untrained encoder.
    """
    config, (*parents, kind) = job.config, node.split("-")
    starts: Sequence[Made | None] = [start] * models_of(node, config)
    if parents:
        starts = ensembles["-".join(parents)].healthy[: len(starts)]
    bounds = config.sts.lower_bounds if last_stage(node).is_grid else [None]
    own = {name: tables[name] for name in stages()[kind].tables(getattr(config, kind))}
    if CORPUS in own:
        own[CORPUS] = tables.get(MEMBERS_CORPUS, tables[CORPUS])
    places = [(bound, index, model) for bound in bounds for index, model in enumerate(starts)]
    return [_member(job, node, *place, stage, own, base if job.dev and not parents else None) for place in places]


def _member(
    job: Job,
    node: str,
    bound: float | None,
    index: int,
    start: Made | None,
    stage: str,
    tables: Mapping[str, Made],
    base: Made | None,
) -> Made:
    config, kind, options = job.config, last_stage(node), job.config.members
    block, title = getattr(config, kind.name), f"member {index:02d} of {node}"
    keep = kind.keeps(block, has_dev=job.dev is not None)
    neutral = {"train": [], "checkpoint": keep, "copy": keep}  # part of the fingerprint in other ways
    block = block.model_copy(update={name: neutral[name] for name in neutral.keys() & type(block).model_fields.keys()})
    # All bounds share seeds: their models differ in the bound, not in the order of batches.
    settings = {"stage": kind.name, kind.name: block, "seed": derive_seed(config.seed, node, index)}
    settings["precision"] = options.precision
    inputs: dict[str, Any] = {"encoder": job.encoder, "start": start, **tables}
    untracked: dict[str, Any] = {"options": options, **({"base": base} if base else {})}
    if CORPUS in tables:
        settings["share"] = options.share
    if bound is not None:
        settings["lower_bound"] = bound
        title = f"grid model {index:02d} of {node} with lower bound {bound:g}"
    if keep == BEST_ON_DEV:
        inputs["dev"] = job.dev
        settings["evaluate_every"] = getattr(block, "evaluate_every", None) or options.evaluate_every
    else:
        untracked["dev"] = job.dev
    training = Training(
        node,
        bound,
        index,
        MemberTrainer,
        partial(need_of, kind.name, config, job.shape),
        partial(member_updates, node, settings),
        tables,
        checkpoint_bytes(kind.size(block, job.shape), job.shape),
        kind.rows_per_update(block),
    )
    name = f"{node}/members/{index:02d}" if bound is None else f"{node}/grid/{bound:g}/{index:02d}"
    return made(name, title, stage, train_member, inputs, settings, untracked, how=training)


# -- ensembles -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainedEnsemble:
    """The trained members of a node: of a grid, those of the best bound.

    Attributes:
        left_out: why others are missing or not used, by name.
        grid: the scores of all bounds.
    """

    trained: Sequence[Trained]
    left_out: Mapping[str, str] = field(default_factory=dict)
    grid: Mapping[str, Any] | None = None

    @property
    def healthy(self) -> list[Made]:
        """The members that have not collapsed, which alone are continued, averaged and calibrated."""
        return [each.made for each in self.trained if not each.collapsed]

    def lines(self, node: str) -> Iterator[str]:
        """Yield lines for the user."""
        for name, reason in self.left_out.items():
            yield f"left out: {name}: {reason}"
        if self.grid:
            won = f"lower bound {self.grid['winner']:g} wins with {self.grid['score']:.2f}"
            yield f"{node}: {won} on {self.grid['task']}"


def ensemble(job: Job, node: str, trained: Sequence[Trained]) -> TrainedEnsemble:
    """Return the ensemble that trainings have made: all models, or those of the best lower bound.

    Raises:
        RunFailed: too few could be trained, see `members.min_members`.
        UserError: too few have not collapsed, or a training failed for a reason that the user can fix.
    """
    for each in trained:
        if each.is_mistake:  # such as a full disk: instead of continuing without the member
            raise UserError(f"{each.name}: {each.failure}")
    if last_stage(node).is_grid:
        return best_of_grid(node, trained, job.config.members.min_members, job.config.evaluation.dev)
    is_used = any(
        (recipe.distils and recipe.ensemble == node) or recipe.ensemble.startswith(f"{node}-") for recipe in job.recipes
    )
    return all_members(node, trained, job.config.members.min_members, is_used)


def evaluated_members(job: Job, node: str, found: TrainedEnsemble) -> list[EvaluatedModel]:
    """Describe an ensemble's members and their embeddings of the evaluation's sentences."""
    return [
        evaluated(job, node, "member", index, each.made, f"member {index:02d} of {node}", bool(each.collapsed))
        for index, each in enumerate(found.trained)
    ]


def all_members(node: str, trained: Sequence[Trained], min_members: int | None, is_used: bool) -> TrainedEnsemble:
    """Return the ensemble of all trained members; `is_used`: others depend on the healthy ones."""
    failed = {each.name: each.failure for each in trained if each.failure}
    found = [each for each in trained if not each.failure]
    needed = _needed(min_members, len(trained))
    if len(found) < needed:
        name, reason = next(iter(failed.items()))
        raise RunFailed(
            f"only {len(found)} of {len(trained)} members of {node} could be trained, but {needed} are needed "
            f"(members.min_members); {name}: {reason}"
        )
    collapsed = {each.name: each.collapsed for each in found if each.collapsed}
    healthy, needed = len(found) - len(collapsed), _needed(min_members, len(found)) if min_members else 1
    if healthy < needed and is_used:
        name, reason = next(iter(collapsed.items()))
        raise UserError(
            f"only {healthy} of {len(found)} members of {node} have not collapsed, but {needed} are needed; "
            f"{name}: {reason}; try a lower learning rate, and for bsl a momentum near 1 and a predictor"
        )
    return TrainedEnsemble(found, failed | collapsed)


def best_of_grid(node: str, trained: Sequence[Trained], min_members: int | None, task: str | None) -> TrainedEnsemble:
    """Return the ensemble of the best lower bound's models; only a bound with enough models can win."""
    groups: dict[float, list[Trained]] = {}
    for each in trained:
        groups.setdefault(each.bound, []).append(each)
    needed = _needed(min_members, max(map(len, groups.values())))
    found = {bound: [each for each in group if not each.failure] for bound, group in groups.items()}
    failed = {each.name: each.failure for each in trained if each.failure}
    complete = {bound: group for bound, group in found.items() if len(group) >= needed}
    if not complete:
        name, reason = next(iter(failed.items()))
        raise RunFailed(f"no lower bound of {node} has the {needed} models it needs; {name}: {reason}")
    scores = {bound: [each.dev for each in group] for bound, group in found.items() if group}
    choice = choose_bound({bound: scores[bound] for bound in complete})
    grid = {
        "recipe": node,
        "task": task,
        **choice,
        "bounds": [
            {
                "lower_bound": bound,
                "scores": of_bound,
                "mean": statistics.fmean(of_bound),
                "std": statistics.stdev(of_bound) if len(of_bound) > 1 else 0.0,
                "max": max(of_bound),
            }
            for bound, of_bound in sorted(scores.items())
        ],
    }
    return TrainedEnsemble(complete[choice["winner"]], failed, grid)


def _needed(min_members: int | None, count: int) -> int:
    """Return how many of `count` models are needed: `members.min_members` may exceed `count`."""
    return min(min_members or count, count)


# -- learners --------------------------------------------------------------------------------------------------------


def learners(job: Job, recipe: Recipe, start: Made | None, corpus: Made, targets: Made, base: Made) -> list[Made]:
    """Describe the learners of a recipe's targets; `base`: embeddings of the evaluation by the untrained encoder."""
    return [_learner(job, recipe, index, start, corpus, targets, base) for index in range(job.config.sed.learners)]


def _learner(job: Job, recipe: Recipe, index: int, start: Made | None, corpus: Made, targets: Made, base: Made) -> Made:
    config, sed, name = job.config, job.config.sed, recipe.uncalibrated
    is_grid = any(stages()[name].is_grid for name in recipe.members)
    own = None if recipe.ensemble == TEACHERS else last_stage(recipe.ensemble).target
    keep = "best_on_dev" if is_grid else sed.checkpoint
    # Precision and start are part of the fingerprint through the inputs.
    settled = {
        "target_precision": "fp32",
        "start": "encoder",
        "checkpoint": keep,
        "target": sed.target or own or "mean",
    }
    block = sed.model_copy(update=settled)
    settings = {"sed": block, "keep": keep, "seed": derive_seed(config.seed, name, "learner", index)}
    inputs = {"encoder": job.encoder, "start": start, "targets": targets}
    untracked: dict[str, Any] = {"options": sed.model_copy(update=settled)}
    if job.dev and sed.start == "encoder" and not sed.head:
        untracked["base"] = base
    (inputs if keep == BEST_ON_DEV else untracked)["dev"] = job.dev
    training = Training(
        name,
        None,
        index,
        LearnerTrainer,
        partial(need_of, SED, config, job.shape),
        partial(learner_updates, block),
        {CORPUS: corpus},
        checkpoint_bytes(stages()[SED].size(block, job.shape), job.shape),
        sed.batch_size,
        is_gang=True,
    )
    stage = "+".join(recipe.uncalibrated for recipe in job.distilling)
    place, title = f"{name}/learners/{index:02d}", f"learner {index:02d} of {name}"
    return made(place, title, stage, train_learner, inputs, settings, untracked, how=training)


def evaluated_learners(job: Job, recipe: Recipe, found: Sequence[Made]) -> list[EvaluatedModel]:
    """Describe a recipe's learners and their embeddings of the evaluation's sentences."""
    text = recipe.uncalibrated
    return [evaluated(job, text, "learner", index, made, made.step.title) for index, made in enumerate(found)]


def fidelity_of(job: Job, recipe: Recipe, model: Made, corpus: Made, targets: Made) -> Made:
    """Describe the comparison of a learner's searches with its teachers'."""
    inputs = {"corpus": corpus, "targets": targets, "model": model, "encoder": job.encoder}
    inputs |= old_vectors(job, corpus) if recipe.ensemble == TEACHERS else {}
    name, title = f"{recipe.uncalibrated}/fidelity/00", f"comparison of {recipe.uncalibrated} with its teachers"
    settings = {"layers": job.config.encoder.pool_layers}
    return made(name, title, "evaluation", learner_fidelity, inputs, settings, how="worker")

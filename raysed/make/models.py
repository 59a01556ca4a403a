"""Trained artefacts (members and learners), and the outcomes of ensembles."""

import json
import logging
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed, nn

from raysed.config import MembersConfig
from raysed.context import Context, Outcome, ignore
from raysed.data.tokens import Tokenizer
from raysed.errors import RunFailed, UserError, last_line
from raysed.graph import (
    LISTS,
    Artefact,
    CandidateResult,
    Candidates,
    ExternalInput,
    GangTraining,
    OutcomeMember,
    Task,
    Training,
    resolve_input,
)
from raysed.make.inputs import Named, layers_file
from raysed.model.encoder import Encoder
from raysed.model.pretrained import load_start, write_checkpoint
from raysed.process import StallTimer
from raysed.recipe import SED, last_stage
from raysed.registry import stages
from raysed.score.tasks import DevTask
from raysed.store.checkpoints import Checkpoints
from raysed.store.storage import Entry, Storage
from raysed.train.collapse import collapse
from raysed.train.deepspeed import prepare_deepspeed
from raysed.train.grid import choose_bound
from raysed.train.selection import Metrics, TrainingResult, untrained_entry
from raysed.train.setup import set_up
from raysed.train.stage import BEST_ON_DEV, Start
from raysed.train.stages.sed import SedConfig
from raysed.train.state import broadcast_from_rank0

log = logging.getLogger(__name__)


# -- one training ----------------------------------------------------------------------------------------------------


class Trainer:
    """One training, or one worker's part of it: set-up, updates and files."""

    def __init__(self, inputs: Named, settings: Named, context: Context):
        self._began = time.monotonic()
        self.inputs, self.settings, self.context = inputs, settings, context
        self.encoder, self.tokenizer = load_start(inputs["encoder"], inputs["start"])
        start = Start(
            self.encoder.to(context.device),
            self.tokenizer,
            inputs,
            settings["seed"],
            settings.get("lower_bound"),
            settings.get("share", 1.0),
            inputs["encoder"],
            context.rank,
            context.world,
        )
        stage = stages()[settings.get("stage", SED)]
        self.setup = set_up(stage, settings[stage.name], inputs["options"], start)
        self._untrained: list[Metrics] = []

    def run(self) -> TrainingResult:
        """Train from the newest checkpoint on, log the history, and close the engine, however the training ends."""
        with closing(self.setup.engine):
            return self._run()

    def _run(self) -> TrainingResult:
        setup, context, dev = self.setup, self.context, self._dev()
        base, evaluate = self.inputs.get("base"), dev and dev.scorer()
        log_entry = context.log.write if context.log else ignore
        if dev and context.rank == 0:
            known = base and dev.score(np.load(base / layers_file(dev.layers))[dev.rows])
            score = evaluate(self.encoder) if known is None else known
            self._untrained = [untrained_entry(setup.objective, setup.plan, score)]
            log_entry(self._untrained[0])
        timer, has_begun = StallTimer(context.stall_seconds), False

        def on_metrics(entry: Metrics) -> None:
            log_entry(entry)
            if has_begun:  # a resume replays earlier entries, already reported
                score = max(entry["dev"].values()) if "dev" in entry else None
                context.report({"step": entry["step"], "total": setup.plan.steps, "loss": entry["loss"], "dev": score})

        def batch_at(step: int) -> Any:
            nonlocal has_begun
            has_begun = True
            timer.restart()
            return setup.batch_at(step)

        def evaluate_everywhere(module: nn.Module) -> float:
            return broadcast_from_rank0(evaluate(module), next(module.parameters()).device)

        training = replace(
            setup,
            batch_at=batch_at,
            evaluate=evaluate and evaluate_everywhere,
            checkpoints=context.checkpoints,
            is_writer=context.rank == 0,
            on_metrics=on_metrics,
            warned=context.warned,
        )
        try:
            return training.train()
        finally:
            timer.cancel()

    def _dev(self) -> DevTask | None:
        """Return the dev task, tokenised here if the run makes the tokenizer."""
        dev = self.inputs.get("dev")
        if dev is None or dev.tokens is not None:
            return dev
        tokenizer = Tokenizer(self.tokenizer, self.inputs["encoder"].max_length, dev.prompts)
        return replace(dev, tokens=tokenizer(dev.evaluation.sentences, dev.evaluation.roles))

    def write(self, out: Path, result: TrainingResult) -> Named:
        """Write the trained model; return the facts for the manifest."""
        raise NotImplementedError

    def _write(
        self, out: Path, kind: str, encoder: Encoder, result: TrainingResult, description: Named, meta: Named
    ) -> Named:
        """Write a model and a description of its origin; return the facts for the manifest."""
        task = self.context.task
        depends, name = (task.depends, task.name) if task else ({}, None)
        description = {**depends, "start": depends.get("start") or None, kind: name, **description}
        write_checkpoint(encoder, self.tokenizer, out, description, [*self._untrained, *result.history])
        return {**meta, "seconds": round(time.monotonic() - self._began, 1), "resumed_at": result.resumed_at}


def train(task: Task, trainer: type[Trainer], storage: Storage, context: Context) -> Outcome:
    """Train a model, or a worker's part of it, and publish it.

    A failure that another start may fix is raised, until `max_retries` are used up. Others are returned.
    """
    if task.exists(storage):  # a worker published it and was lost before it could report
        return Outcome()
    checkpoints, options = task.checkpoints(storage), resolve_input(task.inputs["options"], storage)
    begun = (0, {}) if context.rank else (checkpoints.begin(context.job), checkpoints.failure(context.job))
    starts, failed = context.broadcast(begun)
    if "failure" in failed:  # of another worker; it ended all of them
        return Outcome(failure=failed["failure"], is_mistake=failed["is_mistake"])
    if starts > options.max_retries:
        cause = f"; the last error was: {failed['cause']}" if failed else ""
        return Outcome(failure=f"its worker was lost {starts} times without a new checkpoint in between{cause}")
    try:
        with context.training(task, storage) as own:
            training = task.checked(trainer(task.resolve_inputs(storage), task.settings, own))
            result = training.run()
            if context.rank == 0:
                task.publish(storage, lambda out: task.checked(training.write(out, result)))
                checkpoints.clear()
            return Outcome(result.steps - result.resumed_at)
    except Exception as error:
        failure = _failure(error, context, checkpoints, starts, options.max_retries)
        log.log(logging.DEBUG if failure.is_mistake else logging.ERROR, "giving up on %s", task.name, exc_info=True)
        if context.world > 1:  # others may wait for this worker: all start again, and find the recorded failure
            raise
        return failure


def _failure(error: Exception, context: Context, checkpoints: Checkpoints, starts: int, max_retries: int) -> Outcome:
    """Return how an error ends a training, and record it for other workers; raise it if another start may fix it."""
    # No restart fixes an `OSError`, which storage has already retried, or another job's take-over (`RunFailed`).
    is_mistake = isinstance(error, UserError | OSError)
    # With several workers, the loss of another one may be the cause; the next start counts this one.
    may_retry = starts < max_retries or context.world > 1
    if may_retry and not (is_mistake or isinstance(error, RunFailed)):
        # The first worker to fail in a start names the cause; the others then lose their connection to it.
        if context.world > 1 and checkpoints.failure(context.job).get("start") != starts:
            checkpoints.fail(context.job, start=starts, cause=last_line(error))
        raise error
    failure = str(error) if isinstance(error, UserError) else last_line(error)
    if context.world > 1:
        checkpoints.fail(context.job, start=starts, failure=failure, is_mistake=is_mistake)
    return Outcome(failure=failure, is_mistake=is_mistake)


# -- members ---------------------------------------------------------------------------------------------------------


def member(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Train a model of an ensemble."""
    training = MemberTrainer(inputs, settings, context)
    return training.write(out, training.run())


class Member(Artefact):
    """A model of the ensemble `node`, or with `bound` one of its grid.

    Args:
        stage: of the run; all its trainings are one experiment.
        block: settings of the node's last stage.
        tables: training data by name.
        base: embeddings of the evaluation by the untrained encoder, if training starts from that.
        memory: see `raysed.graph.Training`.
    """

    def __init__(
        self,
        node: str,
        index: int,
        bound: float | None,
        stage: str,
        block: Any,
        members: MembersConfig,
        seed: int,
        encoder: ExternalInput,
        start: Artefact | OutcomeMember | None,
        tables: Mapping[str, Artefact],
        dev: ExternalInput | None,
        base: Artefact | None,
        memory: Callable[..., Any],
    ):
        kind, title = last_stage(node), f"member {index:02d} of {node}"
        keep = kind.keeps(block, has_dev=dev is not None)
        neutral = {"train": [], "checkpoint": keep, "copy": keep}
        known = type(block).model_fields
        block = block.model_copy(update={name: value for name, value in neutral.items() if name in known})
        every = getattr(block, "evaluate_every", None) or members.evaluate_every
        inputs: dict[str, Any] = {"encoder": encoder, "start": start, **tables}
        settings = {"stage": kind.name, kind.name: block, "seed": seed, "precision": members.precision}
        untracked: dict[str, Any] = {"options": members}
        if "corpus" in tables:
            settings["share"] = members.share
        if base:
            untracked["base"] = base
        if bound is not None:
            settings["lower_bound"] = bound
            title = f"grid model {index:02d} of {node} with lower bound {bound:g}"
        if keep == BEST_ON_DEV:
            inputs["dev"], settings["evaluate_every"] = dev, every
        else:
            untracked["dev"] = dev
        execution = Training(
            MemberTrainer,
            memory,
            partial(member_updates, node, settings),
            tables,
            kind.rows_per_update(block),
            {"node": node, "lower_bound": bound, "seed": index},
        )
        name = f"{node}/members/{index:02d}" if bound is None else f"{node}/grid/{bound:g}/{index:02d}"
        super().__init__(name, title, stage, member, inputs, settings, untracked, execution, is_intermediate=True)


class MemberTrainer(Trainer):
    """The training of a member."""

    def write(self, out: Path, result: TrainingResult) -> Named:
        meta = {"kept": result.kept, "kept_step": result.kept_step, "dev": result.score}
        if reason := collapse(entry for entry in result.history if entry["step"] <= result.kept_step):
            meta["collapsed"] = reason
        encoder = self.setup.objective.candidates()[result.kept]
        return self._write(out, "member", encoder, result, {"stage": self.settings["stage"], **meta}, meta)


def member_updates(recipe: str, settings: Named, rows: Mapping[str, int]) -> int:
    """Return the number of updates of a member, given the `rows` of its tables."""
    stage, block = stages()[settings["stage"]], settings[settings["stage"]]
    count = stage.rows_read(block, settings.get("share", 1.0), rows)
    if count < 2 and "views" in stage.Settings.model_fields:
        raise UserError(f"recipe {recipe!r}: {stage.name} needs at least 2 pairs of views, but {count} were found")
    return stage.steps(block, count)


# -- learners --------------------------------------------------------------------------------------------------------


def learner(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Distil a learner in this process alone."""
    training = LearnerTrainer(inputs, settings, context)
    return training.write(out, training.run())


class Learner(Artefact):
    """A model distilled from the target table of `recipe`.

    Args:
        stage: of the run; all its learners train at the same time.
        sed: settings, with `checkpoint` and `target` as this recipe resolves them.
        base: embeddings of the evaluation by the untrained encoder, if training starts from that.
    """

    def __init__(
        self,
        recipe: str,
        index: int,
        stage: str,
        sed: SedConfig,
        seed: int,
        encoder: ExternalInput,
        start: Artefact | OutcomeMember | None,
        targets: Artefact,
        dev: ExternalInput | None,
        base: Artefact | None,
        memory: Callable[..., Any],
    ):
        # Both are already part of the fingerprint, through the inputs.
        block = sed.model_copy(update={"target_precision": "fp32", "start": "encoder"})
        settings = {"sed": block, "keep": sed.checkpoint, "seed": seed}
        inputs = {"encoder": encoder, "start": start, "targets": targets}
        untracked: dict[str, Any] = {"options": sed}
        if base:
            untracked["base"] = base
        (inputs if sed.checkpoint == BEST_ON_DEV else untracked)["dev"] = dev
        name, title = f"{recipe}/learners/{index:02d}", f"learner {index:02d} of {recipe}"
        execution = GangTraining(LearnerTrainer, memory, {"node": recipe, "lower_bound": None, "seed": index})
        super().__init__(name, title, stage, learner, inputs, settings, untracked, execution)


class LearnerTrainer(Trainer):
    """The training of a learner."""

    def __init__(self, inputs: Named, settings: Named, context: Context):
        if distributed.is_initialized():  # otherwise torch alone makes the updates
            prepare_deepspeed(gpu=context.device != "cpu")
        super().__init__(inputs, settings, context)

    def write(self, out: Path, result: TrainingResult) -> Named:
        """Write the learner without the parts that only training needs."""
        trained, steps = self.setup.objective.learner, result.steps
        encoder, _ = load_start(self.inputs["encoder"], self.inputs["start"])
        encoder.set_head(trained.head_weight())
        encoder.load_state_dict(trained.state_dict())
        description = {"seed": self.settings["seed"], "steps": steps}
        meta = {"dev": result.score, "held_out": result.held_out, "steps": steps, "kept_step": result.kept_step}
        meta["sentences"] = (steps - result.resumed_at) * self.setup.batch_at.sentences
        return self._write(out, "learner", encoder, result, description, meta)


# -- outcomes of ensembles -------------------------------------------------------------------------------------------


class EnsembleOutcome(Artefact):
    """The trained and the healthy members of an ensemble; `is_used`: another artefact needs the healthy ones."""

    def __init__(self, node: str, stage: str, members: Sequence[Artefact], min_members: int | None, is_used: bool):
        inputs = {"members": Candidates(tuple(members))}
        settings = {"node": node, "min_members": min_members, "is_used": is_used}
        name, title, lines = f"{node}/ensemble", f"ensemble of {node}", partial(_outcome_lines, node)
        super().__init__(name, title, stage, ensemble, inputs, settings, is_outcome=True, lines=lines)


class GridOutcome(Artefact):
    """The lower bound whose models become the ensemble, chosen from the bounds in `models`."""

    def __init__(
        self,
        node: str,
        stage: str,
        models: Mapping[Artefact, float],
        min_members: int | None,
        dev: ExternalInput | None,
        task: str | None,
    ):
        settings = {"node": node, "min_members": min_members, "task": task}
        settings["bounds"] = {each.name: bound for each, bound in models.items()}
        inputs = {"members": Candidates(tuple(models)), "dev": dev}
        name, title, lines = f"{node}/grid/choice", f"lower bound of {node}", partial(_outcome_lines, node)
        super().__init__(name, title, stage, grid_choice, inputs, settings, is_outcome=True, lines=lines)


def _outcome_lines(node: str, entry: Entry) -> Iterator[str]:
    for name, reason in entry.meta["left_out"].items():
        yield f"left out: {name}: {reason}"
    if grid := entry.meta.get("grid"):
        yield f"{node}: lower bound {grid['winner']:g} wins with {grid['score']:.2f} on {grid['task']}"


def ensemble(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """List the trained members, and the healthy ones to build on; raise if there are too few."""
    node, min_members = settings["node"], settings["min_members"]
    members = [each for each in inputs["members"] if each.fingerprint]  # others lack a healthy member to start from
    _refuse_mistakes(members)
    trained = [each for each in members if each.meta is not None]
    left_out = {each.name: each.reason or "it ended without a result" for each in members if each.meta is None}
    needed = _needed(min_members, len(members))
    if len(trained) < needed:
        name, reason = next(iter(left_out.items()))
        raise RunFailed(
            f"only {len(trained)} of {len(members)} members of {node} could be trained, but {needed} are needed "
            f"(members.min_members); {name}: {reason}"
        )
    collapsed = {each.name: each.meta["collapsed"] for each in trained if "collapsed" in each.meta}
    healthy, needed = len(trained) - len(collapsed), _needed(min_members, len(trained)) if min_members else 1
    if healthy < needed and settings["is_used"]:
        name, reason = next(iter(collapsed.items()))
        raise UserError(
            f"only {healthy} of {len(trained)} members of {node} have not collapsed, but {needed} are needed; "
            f"{name}: {reason}; try a lower learning rate, and for bsl a momentum near 1 and a predictor"
        )
    return _outcome(out, trained, {"left_out": left_out | collapsed})


def grid_choice(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """List the models of the best lower bound as the ensemble; raise if no bound has enough models."""
    node = settings["node"]
    groups: dict[float, list[CandidateResult]] = {}
    _refuse_mistakes(inputs["members"])
    for each in inputs["members"]:
        if each.fingerprint:  # others lack a healthy member to start from
            groups.setdefault(settings["bounds"][each.name], []).append(each)
    needed = _needed(settings["min_members"], max(map(len, groups.values())))
    trained = {bound: [each for each in group if each.meta is not None] for bound, group in groups.items()}
    complete = {bound: group for bound, group in trained.items() if len(group) >= needed}
    failed = [each for each in inputs["members"] if each.reason]
    if not complete:
        name, reason = (failed[0].name, failed[0].reason) if failed else (node, "no model finished training")
        raise RunFailed(f"no lower bound of {node} has the {needed} models it needs; {name}: {reason}")
    scores = {bound: [each.meta["dev"] for each in group] for bound, group in trained.items() if group}
    choice = choose_bound({bound: scores[bound] for bound in complete})
    grid = {
        "recipe": node,
        "task": settings["task"],
        "winner": choice.lower_bound,
        "score": choice.score,
        "runner_up": choice.runner_up,
        "margin": choice.margin,
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
    left_out = {each.name: each.reason for each in failed}
    return _outcome(out, complete[choice.lower_bound], {"grid": grid, "left_out": left_out})


def _outcome(out: Path, trained: Sequence[CandidateResult], about: Named) -> dict[str, Any]:
    pairs = [(each.name, each.fingerprint) for each in trained]
    # Aligned with `all`: artefacts made from a healthy member keep its number.
    sound = [("", "") if "collapsed" in each.meta else pair for each, pair in zip(trained, pairs)]
    lists = {"all": pairs, "healthy": [pair for pair in sound if pair[0]], "sound": sound}
    (out / "outcome.json").write_text(json.dumps({**lists, **about}, indent=1))
    return {LISTS: lists, **about}


def _needed(min_members: int | None, count: int) -> int:
    """Return how many of `count` models are needed: `members.min_members` may exceed `count`."""
    return min(min_members or count, count)


def _refuse_mistakes(found: Sequence[CandidateResult]) -> None:
    """Raise an error that the user can fix, such as a full disk, instead of continuing without the member."""
    for each in found:
        if each.is_mistake:
            raise UserError(f"{each.name}: {each.reason}")

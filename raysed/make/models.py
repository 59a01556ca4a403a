"""Train members and learners."""

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed, nn

from raysed.context import Context, Outcome, ignore
from raysed.data.targets import rows_to_learn
from raysed.data.tokens import Tokenizer
from raysed.errors import RunFailed, UserError, last_line
from raysed.made import Step, resolve_input
from raysed.make.inputs import Named, layers_file
from raysed.model.encoder import Encoder
from raysed.model.pretrained import load_start, write_checkpoint
from raysed.process import StallTimer
from raysed.recipe import SED
from raysed.registry import stages
from raysed.score.tasks import DevTask
from raysed.store.checkpoints import Checkpoints
from raysed.store.storage import Storage
from raysed.train.collapse import collapse
from raysed.train.deepspeed import prepare_deepspeed
from raysed.train.selection import Metrics, TrainingResult, untrained_entry
from raysed.train.setup import set_up
from raysed.train.stage import BEST_ON_HELD_OUT, Start
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
        step = self.context.step
        depends, name = (step.depends, step.name) if step else ({}, None)
        description = {**depends, "start": depends.get("start") or None, kind: name, **description}
        write_checkpoint(encoder, self.tokenizer, out, description, [*self._untrained, *result.history])
        return {**meta, "seconds": round(time.monotonic() - self._began, 1), "resumed_at": result.resumed_at}


def train(step: Step, trainer: type[Trainer], storage: Storage, context: Context) -> Outcome:
    """Train a model, or a worker's part of it, and publish it.

    A failure that another start may fix is raised, until `max_retries` are used up. Others are returned.
    """
    starts, checkpoints, options = 0, step.checkpoints(storage), resolve_input(step.inputs["options"], storage)
    try:
        if step.exists(storage):  # a worker published it and was lost before it could report
            return Outcome()
        begun = (0, {}) if context.rank else (checkpoints.begin(context.job), checkpoints.failure(context.job))
        starts, failed = context.broadcast(begun)
        if "failure" in failed:  # of another worker; it ended all of them
            return Outcome(failure=failed["failure"], is_mistake=failed["is_mistake"])
        if starts > options.max_retries:
            cause = f"; the last error was: {failed['cause']}" if failed else ""
            return Outcome(failure=f"its worker was lost {starts} times without a new checkpoint in between{cause}")
        with context.training(step, storage) as own:
            training = step.checked(trainer(step.resolve_inputs(storage), step.settings, own))
            result = training.run()
            if context.rank == 0:
                step.publish(storage, lambda out: step.checked(training.write(out, result)))
                checkpoints.clear()
            return Outcome(result.steps - result.resumed_at)
    except Exception as error:
        failure = _failure(error, context, checkpoints, starts, options.max_retries)
        log.log(logging.DEBUG if failure.is_mistake else logging.ERROR, "giving up on %s", step.name, exc_info=True)
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


def train_member(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Train a model of an ensemble."""
    training = MemberTrainer(inputs, settings, context)
    return training.write(out, training.run())


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


def train_learner(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Distil a learner in this process alone."""
    training = LearnerTrainer(inputs, settings, context)
    return training.write(out, training.run())


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
        meta["sentences"] = (steps - result.resumed_at) * self.setup.batch_at.batch_size
        return self._write(out, "learner", encoder, result, description, meta)


def learner_updates(sed: SedConfig, rows: Mapping[str, int]) -> int:
    """Return the number of updates of a learner, given the `rows` of the corpus."""
    stage = stages()[SED]
    count = stage.rows_read(sed, 1.0, rows)
    return stage.steps(sed, max(rows_to_learn(count), 1) if sed.checkpoint == BEST_ON_HELD_OUT else count)

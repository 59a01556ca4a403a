"""Trained artefacts: members and learners; and the outcomes of ensembles."""

import json
import logging
import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed, nn

from raysed.cluster.process import expect_no_progress, made_progress
from raysed.cluster.work import Bench, Ended, Work
from raysed.config import MembersConfig
from raysed.data.tokens import tokenize
from raysed.errors import RunFailed, UserError, last_line
from raysed.graph import LISTS, CandidateResult, Task
from raysed.make.work import Named, layers_file
from raysed.model.encoder import Encoder
from raysed.model.head import fold
from raysed.model.pretrained import load_start, write_checkpoint
from raysed.model.prompts import with_prompts
from raysed.registry import stages
from raysed.store.storage import Storage
from raysed.train.collapse import collapse
from raysed.train.deepspeed import prepare_deepspeed
from raysed.train.grid import STATISTICS, choose_bound, rungs_of
from raysed.train.loop import TrainingLoop
from raysed.train.selection import Metrics, TrainingResult, before_training
from raysed.train.stage import Start
from raysed.train.stages.sed import STAGE
from raysed.train.state import broadcast_from_rank0

log = logging.getLogger(__name__)


# -- one training ----------------------------------------------------------------------------------------------------


class _Training:
    """One training: what its `setup` is made from, the updates, and the files."""

    setup: TrainingLoop

    def __init__(self, tables: Sequence[str], inputs: Named, settings: Named, work: Work):
        self._began = time.monotonic()
        self.inputs, self.settings, self.work = inputs, settings, work
        encoder, tokenizer = load_start(inputs["encoder"], inputs["start"])
        data = {table: inputs[table] for table in tables}
        more = {name: settings[name] for name in ("lower_bound", "share") if name in settings}
        self.start = Start(encoder.to(work.device), tokenizer, data, settings["seed"], config=inputs["encoder"], **more)
        self._first: list[Metrics] = []

    def run(self, until: int | None = None) -> TrainingResult:
        """Train from the newest checkpoint on, and log the history."""
        setup, work, dev = self.setup, self.work, self.inputs.get("dev")
        if dev and dev.tokens is None:  # they need an encoder that the run makes
            max_length = self.inputs["encoder"].max_length
            asked = with_prompts(dev.evaluation.sentences, dev.evaluation.roles, dev.prompts)
            dev = replace(dev, tokens=tokenize(self.start.tokenizer, asked, max_length))
        criterion = self.settings.get("criterion", "spearman")
        evaluate = dev and dev.scorer(criterion, work.token_budget)
        if work.rank == 0:
            base, known = self.inputs.get("base"), None
            if base is not None and dev:
                known = dev.score(np.load(base / layers_file(dev.layers))[dev.rows], criterion)
            self._first = before_training(setup.objective, setup.plan, self.start.encoder, evaluate, known)
            for entry in self._first if work.log else ():
                work.log.write(entry)

        has_begun = False

        def on_metrics(entry: Metrics) -> None:
            if work.log:
                work.log.write(entry)
            if has_begun:  # entries from before a resume were reported then
                score = max(entry["dev"].values()) if "dev" in entry else None
                work.report({"step": entry["step"], "total": setup.plan.steps, "loss": entry["loss"], "dev": score})

        def batch_at(step: int) -> Any:
            nonlocal has_begun
            has_begun = True
            made_progress()
            return setup.batch_at(step)

        def everywhere(module: nn.Module) -> float:
            return broadcast_from_rank0(evaluate(module), next(module.parameters()).device)

        training = replace(
            setup,
            batch_at=batch_at,
            evaluate=evaluate and everywhere,
            checkpoints=work.checkpoints,
            is_writer=work.rank == 0,
            on_metrics=on_metrics,
            until=until,
            warned=work.warned,
        )
        try:
            return training.train()
        finally:
            expect_no_progress()

    def write_model(
        self, out: Path, kind: str, encoder: Encoder, result: TrainingResult, description: Named, meta: Named
    ) -> Named:
        """Write the trained model and a description of its origin; return the facts for the manifest."""
        task = self.work.task
        depends, name = (task.depends, task.name) if task else ({}, None)
        description = {**depends, "start": depends.get("start") or None, kind: name, **description}
        seconds = round(time.monotonic() - self._began, 1)
        write_checkpoint(encoder, self.start.tokenizer, out, description, [*self._first, *result.history])
        return {**meta, "seconds": seconds, "resumed_at": result.resumed_at}

    def publish(self, storage: Storage, result: TrainingResult) -> None:
        task = self.work.task
        task.publish(storage, lambda out: task.checked(self.write(out, result)))
        self.work.checkpoints.clear()


# -- members ---------------------------------------------------------------------------------------------------------


def member(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Train one model of an ensemble."""
    training = _Member(inputs, settings, work)
    return training.write(out, training.run())


class _Member(_Training):
    def __init__(self, inputs: Named, settings: Named, work: Work):
        stage, block, how = stages()[settings["stage"]], settings[settings["stage"]], inputs["how"]
        super().__init__(stage.tables(block), inputs, settings, work)
        every = {name: how[name] for name in ("checkpoint_every", "evaluate_every")}
        self.setup = stage.set_up(block, MembersConfig(precision=settings["precision"], **every), self.start)

    def write(self, out: Path, result: TrainingResult) -> Named:
        meta = {"kept": result.kept, "kept_step": result.kept_step, "dev": result.score}
        if reason := collapse(entry for entry in result.history if entry["step"] <= result.kept_step):
            meta["collapsed"] = reason
        encoder = self.setup.objective.candidates()[result.kept]
        return self.write_model(out, "member", encoder, result, {"stage": self.settings["stage"], **meta}, meta)


def member_updates(recipe: str, settings: Named, rows: Mapping[str, int]) -> int:
    """Return the updates of one member, given the `rows` of the tables it learns from."""
    stage, block = stages()[settings["stage"]], settings[settings["stage"]]
    count = stage.rows_read(block, settings.get("share", 1.0), rows)
    if count < 2 and "views" in stage.Settings.model_fields:
        raise UserError(f"recipe {recipe!r}: {stage.name} needs at least 2 pairs of views, but {count} were found")
    return stage.steps(block, count)


def grid_halving(steps: int, sts: Any, needed: int, evaluate_every: int) -> dict[str, Any]:
    """Return how bounds are halved, see `cluster.work.Trial`; one with fewer than `needed` models is out."""
    rungs = rungs_of(steps, sts.asha_rungs, sts.asha_reduction, evaluate_every)
    return {"rungs": rungs, "reduction": sts.asha_reduction, "least": needed, "statistic": STATISTICS[sts.statistic]}


def train_member(task: Task, until: int, bench: Bench) -> Ended:
    """Train a member; raise a failure, for another start, until `members.max_retries` are used up."""
    if task.exists(bench.storage):
        if "lower_bound" not in task.settings:  # finished here by a worker that was lost before it could report
            return Ended()
        lines = (bench.storage.fetch(task.name) / "history.jsonl").read_text().splitlines()
        score = TrainingResult(history=[json.loads(line) for line in lines]).score_by(until)
        if score is not None:
            return Ended(score)
    retries = task.inputs["how"]["max_retries"]
    starts = task.checkpoints(bench.storage).begin(bench.job, until)
    if starts > retries:
        return Ended(failed=(f"its worker was lost {starts} times without a new checkpoint in between", False))
    try:
        with bench.work(task) as work:
            training = task.checked(_Member(task.resolve_inputs(bench.storage), task.settings, work))
            result = training.run(until)
            updates = result.steps - result.resumed_at
            if result.steps < training.setup.plan.steps:
                return Ended(result.score_by(until), updates)
            training.publish(bench.storage, result)
            return Ended(result.score, updates)
    except UserError as error:
        return Ended(failed=(str(error), True))
    except Exception as error:
        if starts < retries:
            raise
        log.exception("giving up on %s", task.name)  # in the worker's log
        return Ended(failed=(last_line(error), False))


# -- learners --------------------------------------------------------------------------------------------------------


def learner(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Distil one learner in this process alone."""
    training = _Learner(inputs, settings, work)
    return training.write(out, training.run())


class _Learner(_Training):
    def __init__(self, inputs: Named, settings: Named, work: Work):
        tables = [name for name in ("targets", "candidates", "corpus") if name in inputs]
        super().__init__(tables, inputs, settings, work)
        self.setup = STAGE.set_up_worker(settings["sed"], self.start, work.rank, work.world)

    def run(self, until: int | None = None) -> TrainingResult:
        result = super().run(until)
        self.setup.engine.close()
        return result

    def write(self, out: Path, result: TrainingResult) -> Named:
        """Write the learner without the parts that only its training needed."""
        sed, settings, trained = self.settings["sed"], self.settings, self.setup.objective.learner
        encoder, _ = load_start(self.inputs["encoder"], self.inputs["start"])
        encoder.set_head(trained.head_weight())
        encoder.load_state_dict(trained.state_dict())
        if sed.head == "fold":
            encoder.set_head(fold(encoder.head_weight()))
        description = {"seed": settings["seed"], "steps": result.steps}
        meta = {"dev": result.score, "held_out": result.held_out, "steps": result.steps, "kept_step": result.kept_step}
        meta["sentences"] = (result.steps - result.resumed_at) * self.setup.batch_at.batch_size
        return self.write_model(out, "learner", encoder, result, description, meta)


def train_learners(tasks: Sequence[Task], bench: Bench) -> None:
    """Train learners in turn as one of their workers; report errors that no restart would fix."""
    if distributed.is_initialized():  # otherwise plain torch makes the updates
        prepare_deepspeed(gpu=bench.share.device != "cpu")
    for task in tasks:
        if task.exists(bench.storage):  # published by workers that failed later
            continue
        begun = None
        if not bench.rank and not bench.has_failed():
            begun = task.checkpoints(bench.storage).begin(bench.job)
        starts = bench.broadcast(begun)
        if starts is None:  # after a user's mistake, which no restart fixes
            return
        if starts > task.inputs["how"]["max_retries"]:
            bench.say(task.name, {"gave_up": starts})
            return
        _train_learner(task, bench)


def _train_learner(task: Task, bench: Bench) -> None:
    try:
        with bench.work(task) as work:
            training = task.checked(_Learner(task.resolve_inputs(bench.storage), task.settings, work))
            result = training.run()
            if bench.rank == 0:
                training.publish(bench.storage, result)
            bench.published(task.name)
    except UserError as error:
        bench.say(task.name, {"failed": str(error)})
        if bench.rank:
            raise  # rank 0 may wait for this one; restarted, it finds the report
    except Exception as error:
        bench.say(task.name, {"error": last_line(error)})
        raise


# -- outcomes of ensembles -------------------------------------------------------------------------------------------


def ensemble(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """List the trained members, and the healthy ones that others may build on; raise if they are too few."""
    node, asked = settings["node"], settings["min_members"]
    found = [f for f in inputs["members"] if f.fingerprint]  # others have no healthy member to go on from
    _refuse_mistakes(found)
    there, failed = [f for f in found if f.meta is not None], [f for f in found if f.meta is None]
    left_out = {f.name: f.reason or "it ended without a result" for f in failed}
    needed = _needed(asked, len(found))
    if len(there) < needed:
        name, reason = next(iter(left_out.items()))
        raise RunFailed(
            f"only {len(there)} of {len(found)} members of {node} could be trained, but {needed} are needed "
            f"(members.min_members); {name}: {reason}"
        )
    collapsed = {f.name: f.meta["collapsed"] for f in there if "collapsed" in f.meta}
    healthy, needed = len(there) - len(collapsed), _needed(asked, len(there)) if asked else 1
    if healthy < needed and settings["is_used"]:
        name, reason = next(iter(collapsed.items()))
        raise UserError(
            f"only {healthy} of {len(there)} members of {node} have not collapsed, but {needed} are needed; "
            f"{name}: {reason}; try a lower learning rate, and for bsl a momentum near 1 and a predictor"
        )
    return _outcome(out, there, {"left_out": left_out | collapsed})


def grid_choice(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Make the models of the best lower bound the ensemble; raise if no bound has enough models."""
    node, sts, steps = settings["node"], settings["sts"], inputs["trained"]["steps"]
    by_bound: dict[float, list[CandidateResult]] = {}
    _refuse_mistakes(inputs["members"])
    for found in inputs["members"]:
        if found.meta is not None:
            by_bound.setdefault(settings["bounds"][found.name], []).append(found)
    could_be = Counter(settings["bounds"][f.name] for f in inputs["members"] if f.fingerprint)
    needed = _needed(settings["min_members"], max(could_be.values()))
    complete = {bound: group for bound, group in by_bound.items() if len(group) >= needed}
    failed = [found for found in inputs["members"] if found.reason]
    if not complete:
        name, reason = (failed[0].name, failed[0].reason) if failed else (node, "no model finished training")
        raise RunFailed(f"no lower bound of {node} has the {needed} models it needs; {name}: {reason}")
    scores = {bound: [found.meta["dev"] for found in group] for bound, group in complete.items()}
    reached = {bound: (steps, [found.meta["dev"] for found in group]) for bound, group in by_bound.items()}
    for stopped in inputs["trained"]["stopped"]:
        reached[stopped["lower_bound"]] = stopped["updates"], stopped["scores"]
    choice = choose_bound(scores, sts.statistic)
    grid = {
        "recipe": node,
        "criterion": sts.criterion,
        "statistic": sts.statistic,
        "task": settings["task"],
        "scheduler": sts.scheduler,
        "updates": sum(updates * len(scores) for updates, scores in reached.values()),
        "updates_full": len(sts.lower_bounds) * sts.models * steps,
        "winner": choice.lower_bound,
        "score": choice.score,
        "runner_up": choice.runner_up,
        "margin": choice.margin,
        "bounds": [
            {
                "lower_bound": bound,
                "scores": scores,
                "mean": statistics.fmean(scores),
                "std": statistics.stdev(scores) if len(scores) > 1 else 0.0,
                "max": max(scores),
                "stopped_at": updates if updates < steps else None,
            }
            for bound, (updates, scores) in sorted(reached.items())
        ],
    }
    left_out = {found.name: found.reason for found in failed}
    return _outcome(out, complete[choice.lower_bound], {"grid": grid, "left_out": left_out})


def _outcome(out: Path, there: Sequence[CandidateResult], about: Named) -> dict[str, Any]:
    def pairs(members: Sequence[CandidateResult]) -> list[tuple[str, str]]:
        return [(found.name, found.fingerprint) for found in members]

    healthy = [found for found in there if "collapsed" not in found.meta]
    lists = {
        "all": pairs(there),
        "healthy": pairs(healthy),
        # Aligned with `all`, for artefacts that are made from healthy members and keep their numbers.
        "sound": [pair if found in healthy else ("", "") for found, pair in zip(there, pairs(there))],
    }
    (out / "outcome.json").write_text(json.dumps({**lists, **about}, indent=1))
    return {LISTS: lists, **about}


def _needed(min_members: int | None, count: int) -> int:
    """Return how many of `count` models are needed: `members.min_members` may exceed `count`."""
    return min(min_members or count, count)


def _refuse_mistakes(found: Sequence[CandidateResult]) -> None:
    """Raise errors that the user can fix, such as a full disk, instead of going on without the member."""
    for each in found:
        if each.is_mistake:
            raise UserError(f"{each.name}: {each.reason}")

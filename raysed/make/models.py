"""Trained artefacts: members, alone or several as one program, and learners; and the outcome of an ensemble."""

import json
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from raysed.cluster.work import Bench, Ended, Ranks, Task, Work
from raysed.config import MembersConfig
from raysed.errors import RunFailed, UserError, last_line
from raysed.graph import LISTS, Found
from raysed.make.work import layers_file
from raysed.model.encoder import Encoder
from raysed.model.encoding import is_out_of_memory
from raysed.model.head import fold
from raysed.model.pretrained import load_start, write_checkpoint
from raysed.registry import stages
from raysed.store.metrics import MetricsLog
from raysed.store.storage import Storage
from raysed.train.collapse import collapse
from raysed.train.deepspeed import prepare_deepspeed
from raysed.train.grid import Ladder, choose_bound, rungs_of
from raysed.train.loop import Run
from raysed.train.selection import Metrics, Result, before_training
from raysed.train.stack import can_be_stacked, train_together
from raysed.train.stage import Setup, Start
from raysed.train.stages.sed import STAGE, Distillation
from raysed.train.state import broadcast_from_rank0

log = logging.getLogger(__name__)


# -- one training ----------------------------------------------------------------------------------------------------


class Training:
    """One model in the making.

    Args:
        metrics: its log; None on a worker that leaves all writing to another one.

    Attributes:
        start: what a `Setup` is made from.
    """

    def __init__(self, task: Task, tables: Sequence[str], bench: Bench, metrics: MetricsLog | None):
        self._began = time.monotonic()
        self._task, self._bench, self._metrics = task, bench, metrics
        self._inputs = task.received(bench.storage)
        encoder, tokenizer = self.load_start()
        bound, data = task.settings.get("lower_bound"), {table: self._inputs[table] for table in tables}
        self.start = Start(encoder.to(bench.device), tokenizer, data, task.settings["seed"], bound)
        self._checkpoints = task.checkpoints(bench.storage)
        self._first: list[Metrics] = []

    def load_start(self) -> tuple[Encoder, Any]:
        """Load the encoder and the tokenizer that the training starts from."""
        return load_start(self._inputs["encoder"], self._inputs["start"])

    def run(self, setup: Setup, criterion: str = "spearman", until: int | None = None) -> Run:
        """Return the training from the newest checkpoint on; it logs the history.

        Args:
            setup: made from `start`.
        """
        bench, dev, name = self._bench, self._inputs.get("dev"), self._task.name
        evaluate = dev and dev.scorer(criterion, bench.token_budget)
        if self._metrics:
            base, known = self._inputs.get("base"), None
            if base is not None and dev:
                known = dev.score(np.load(base / layers_file(dev.layers))[dev.rows], criterion)
            self._first = before_training(setup.objective, setup.plan, self.start.encoder, evaluate, known)
            for entry in self._first:
                self._metrics.write(entry)

        def on_metrics(entry: Metrics) -> None:
            if self._metrics:
                self._metrics.write(entry)
                score = max(entry["dev"].values()) if "dev" in entry else None
                words = {"step": entry["step"], "total": setup.plan.steps, "loss": entry["loss"], "dev": score}
                bench.report(name, words)

        def batch_at(step: int) -> Any:
            bench.made_progress()
            return setup.batch_at(step)

        return Run(
            setup.objective,
            batch_at,
            setup.plan,
            setup.engine,
            evaluate=_broadcast_from_rank0(evaluate),
            checkpoints=self._checkpoints,
            is_writer=self._metrics is not None,
            on_metrics=on_metrics,
            until=until,
            warned=bench.warned,
        )

    def publish(
        self, encoder: Encoder, result: Result, description: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> None:
        """Commit the trained model and remove its checkpoints."""
        history, depends = [*self._first, *result.history], self._task.depends
        description = {**depends, "start": depends["start"] or None, **description}
        seconds = round(time.monotonic() - self._began, 1)
        self._bench.storage.commit(
            self._task.name,
            lambda path: write_checkpoint(encoder, self.start.tokenizer, path, description, history),
            depends,
            {"title": self._task.title, **meta, "seconds": seconds, "resumed_at": result.resumed_at},
        )
        self._checkpoints.clear()


def _broadcast_from_rank0(evaluate: Callable[[nn.Module], float] | None) -> Callable[[nn.Module], float] | None:
    if evaluate is None:
        return None
    return lambda module: broadcast_from_rank0(evaluate(module), next(module.parameters()).device)


# -- members ---------------------------------------------------------------------------------------------------------


def member(out: Path, inputs: Mapping[str, Any], settings: Mapping[str, Any], work: Work) -> None:
    """Train one model of an ensemble; see `train_members`, which publishes it."""
    raise NotImplementedError("members are trained by train_members")


def member_updates(settings: Mapping[str, Any], rows: Mapping[str, int]) -> int:
    """Return the updates of one member, by the sizes of the tables that it learns from."""
    stage, block = stages()[settings["stage"]], settings[settings["stage"]]
    count = sum(rows[table] for table in stage.tables(block))
    if count < 2 and "views" in stage.Settings.model_fields:
        raise UserError(f"{stage.name} needs at least 2 pairs of views, but {count} were found")
    return stage.steps(block, count)


def grid_ladder(steps: int, sts: Any, models: int, needed: int, evaluate_every: int) -> Ladder:
    """Return what hands out the trainings of a grid of lower bounds.

    Args:
        models: of each bound.
        needed: models without which a bound is out.
    """
    is_asha = sts.scheduler == "asha" and len(sts.lower_bounds) > 1
    rungs = rungs_of(steps, sts.asha_rungs if is_asha else 1, sts.asha_reduction, evaluate_every)
    return Ladder(sts.lower_bounds, models, rungs, sts.asha_reduction, sts.statistic, needed)


def train_members(tasks: Sequence[Task], until: int, bench: Bench) -> list[Ended]:
    """Train some members as one program, and those that this does not bring to their ends one by one."""
    known = {task.name: done for task in tasks if (done := _already_ended(task, bench.storage, until))}
    waiting = [task for task in tasks if task.name not in known]
    starts = None
    if len(waiting) > 1:
        # Counted for the first only: a stack that was lost with its worker is not tried again.
        starts = waiting[0].checkpoints(bench.storage).begin(bench.job)
        if starts == 0:
            known |= _ended_together(waiting, bench, until)
    for task in waiting:
        if task.name not in known:
            known[task.name] = _ended_alone(task, bench, until, starts)
        starts = None
    return [known[task.name] for task in tasks]


def _ended_together(tasks: Sequence[Task], bench: Bench, until: int) -> dict[str, Ended]:
    """Train members as one program; nothing where that is not possible, or ends before its time."""
    listed = ", ".join(task.name for task in tasks)
    try:
        with ExitStack() as logs:
            works = [_Member(t, bench, logs.enter_context(bench.open_log(t.name, t.depends)), until) for t in tasks]
            if not all(can_be_stacked(work.setup.engine) for work in works):
                log.warning("%s are trained one by one: their encoder takes no packed rows", listed)
                return {}
            with bench.steps_are_counted():
                results = train_together([work.run() for work in works])
            return {task.name: work.ended(result) for task, work, result in zip(tasks, works, results)}
    except (UserError, RuntimeError, MemoryError) as error:
        if not (isinstance(error, UserError) or is_out_of_memory(error)):
            raise
        log.warning("%s go on one by one: %s", listed, last_line(error))
        return {}


def _ended_alone(task: Task, bench: Bench, until: int, starts: int | None) -> Ended:
    """Train a member; a failure is raised for another start unless `members.max_retries` starts were in vain."""
    retries = task.inputs["how"]["max_retries"]
    if starts is None:
        starts = task.checkpoints(bench.storage).begin(bench.job)
    if starts > retries:
        return Ended(failed=(f"its worker was lost {starts} times without a new checkpoint in between", False))
    try:
        with bench.open_log(task.name, task.depends) as metrics, bench.steps_are_counted():
            work = _Member(task, bench, metrics, until)
            return work.ended(work.run().train())
    except UserError as error:
        return Ended(failed=(str(error), True))
    except Exception as error:
        if starts < retries:
            raise
        log.exception("%s is given up", task.name)  # in the worker's log
        return Ended(failed=(last_line(error), False))


def _already_ended(task: Task, storage: Storage, until: int) -> Ended | None:
    """What is known of a finished member, of a grid model the dev score after so many updates; None if not finished."""
    if not task.is_there(storage):
        return None
    if "lower_bound" not in task.settings:  # finished by this trial, before its worker was lost with another member
        return Ended()
    lines = (storage.fetch(task.name) / "history.jsonl").read_text().splitlines()
    score = Result(history=[json.loads(line) for line in lines]).score_by(until)
    return None if score is None else Ended(score)


class _Member:
    """A member in the making, up to so many updates."""

    def __init__(self, task: Task, bench: Bench, metrics: MetricsLog, until: int):
        self._task, self._metrics, self._until = task, metrics, until
        settings, how = task.settings, task.inputs["how"]
        self._stage = settings["stage"]
        stage, block = stages()[self._stage], settings[self._stage]
        self._training = Training(task, stage.tables(block), bench, metrics)
        every = {name: how[name] for name in ("checkpoint_every", "evaluate_every")}
        members = MembersConfig(precision=settings["precision"], **every)
        self.setup = stage.set_up(block, members, self._training.start)

    def run(self) -> Run:
        """Return the training."""
        return self._training.run(self.setup, self._task.settings.get("criterion", "spearman"), self._until)

    def ended(self, result: Result) -> Ended:
        """Publish the member where that was all of its training."""
        settings, updates, score = self._task.settings, result.steps - result.resumed_at, result.score_by(self._until)
        if score is not None:
            about = {"stage": self._stage, "index": int(self._task.name[-2:]), "seed": settings["seed"]}
            self._metrics.conclude({**about, "lower_bound": settings.get("lower_bound")}, {"best_dev": score})
        if result.steps < self.setup.plan.steps:
            return Ended(score, updates)
        outcome = {"kept": result.kept, "kept_step": result.kept_step, "dev": result.score}
        if reason := collapse(entry for entry in result.history if entry["step"] <= result.kept_step):
            outcome["collapsed"] = reason
        description = {"member": self._task.name, "stage": self._stage, **outcome}
        encoder = self.setup.objective.candidates()[result.kept]
        self._training.publish(encoder, result, description, outcome)
        return Ended(result.score, updates)


# -- outcomes of ensembles -------------------------------------------------------------------------------------------


def ensemble(out: Path, inputs: Mapping[str, Any], settings: Mapping[str, Any], work: Work) -> Mapping[str, Any]:
    """List the members that were trained, and those that others may build on.

    Raises:
        RunFailed: too few could be trained.
        UserError: the same, and the user can correct it; or too few have not collapsed.
    """
    node, found = settings["node"], inputs["members"]
    there, failed = [f for f in found if f.meta is not None], [f for f in found if f.meta is None]
    needed = _needed(settings["min_members"], len(found))
    if len(there) < needed:
        _refuse(
            f"only {len(there)} of {len(found)} members of {node} could be trained, but {needed} are needed "
            f"(members.min_members); {failed[0].name}: {failed[0].reason or 'it ended without a result'}",
            failed,
        )
    collapsed = {f.name: f.meta["collapsed"] for f in there if "collapsed" in f.meta}
    healthy = len(there) - len(collapsed)
    needed = _needed(settings["min_members"], len(there)) if settings["min_members"] else 1
    if healthy < needed and settings["is_used"]:
        name, reason = next(iter(collapsed.items()))
        raise UserError(
            f"only {healthy} of {len(there)} members of {node} have not collapsed, but {needed} are needed; "
            f"{name}: {reason}; try a lower learning rate, and for bsl a momentum near 1 and a predictor"
        )
    left_out = {f.name: f.reason or "it ended without a result" for f in failed} | collapsed
    return _outcome(out, there, {"left_out": left_out})


def grid_choice(out: Path, inputs: Mapping[str, Any], settings: Mapping[str, Any], work: Work) -> Mapping[str, Any]:
    """Make the models of the best lower bound the ensemble.

    Raises:
        RunFailed: no bound has as many models as it needs.
        UserError: the same, and the user can correct it.
    """
    node, ladder, bound_of = settings["node"], inputs["ladder"], settings["bounds"]
    by_bound: dict[float, list[Found]] = {}
    for found in inputs["members"]:
        if found.meta is not None:
            by_bound.setdefault(bound_of[found.name], []).append(found)
    needed = _needed(settings["min_members"], settings["models"])
    complete = {bound: group for bound, group in by_bound.items() if len(group) >= needed}
    failed = [found for found in inputs["members"] if found.reason]
    if not complete:
        name, reason = (failed[0].name, failed[0].reason) if failed else (node, "no model was trained to the end")
        _refuse(f"no lower bound of {node} has the {needed} models it needs; {name}: {reason}", failed)
    scores = {bound: [found.meta["dev"] for found in group] for bound, group in complete.items()}
    grid = describe_grid(settings, scores, ladder)
    left_out = {found.name: found.reason for found in failed}
    return _outcome(out, complete[grid["winner"]], {"grid": grid, "left_out": left_out})


def describe_grid(
    settings: Mapping[str, Any], scores: Mapping[float, Sequence[float]], ladder: Ladder
) -> dict[str, Any]:
    """Choose a grid's lower bound, and say how that came about.

    Args:
        settings: `node`, `task` and the block `sts`.
        scores: dev scores of the models of every bound that was trained to the end.

    Returns:
        What the report takes.
    """
    sts = settings["sts"]
    choice = choose_bound(scores, sts.statistic)
    return {
        "recipe": settings["node"],
        "criterion": sts.criterion,
        "statistic": sts.statistic,
        "task": settings["task"],
        "scheduler": sts.scheduler,
        "updates": ladder.updates(),
        "updates_full": len(sts.lower_bounds) * sts.models * ladder.rungs[-1],
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
                "stopped_at": updates if updates < ladder.rungs[-1] else None,
            }
            for bound, (updates, of_bound) in sorted(ladder.reached().items())
            if of_bound
        ],
    }


def _outcome(out: Path, there: Sequence[Found], about: Mapping[str, Any]) -> dict[str, Any]:
    healthy = [found for found in there if "collapsed" not in found.meta]
    lists = {
        "all": [(found.name, found.fingerprint) for found in there],
        "healthy": [(found.name, found.fingerprint) for found in healthy],
        # Collapsed members are scored, but probed only where a recipe has no others.
        "probed": [(found.name, found.fingerprint) for found in healthy or there[:1]],
        # At the places of `all`, for what is made of healthy members under the number of the member.
        "sound": [(f.name, f.fingerprint) if "collapsed" not in f.meta else ("", "") for f in there],
    }
    (out / "outcome.json").write_text(json.dumps({**lists, **about}, indent=1))
    return {LISTS: lists, **about}


def _needed(min_members: int | None, count: int) -> int:
    """How many of so many models must be there: `members.min_members` may be more than a group has."""
    return min(min_members or count, count)


def _refuse(message: str, failed: Sequence[Found]) -> None:
    raise UserError(message) if any(found.is_mistake for found in failed) else RunFailed(message)


# -- learners --------------------------------------------------------------------------------------------------------


def learner(out: Path, inputs: Mapping[str, Any], settings: Mapping[str, Any], work: Work) -> None:
    """Distil one learner; see `train_learners`, which publishes it."""
    raise NotImplementedError("learners are trained by train_learners")


def train_learners(tasks: Sequence[Task], bench: Bench, ranks: Ranks) -> None:
    """Train learners one after the other on one of their workers; what another start would not mend is said."""
    prepare_deepspeed(gpu=bench.device != "cpu")
    for task in tasks:
        is_done = task.is_there(bench.storage)  # by workers that have failed since
        if not is_done and not _train_or_give_up(task, bench, ranks):
            return


def _train_or_give_up(task: Task, bench: Bench, ranks: Ranks) -> bool:
    """Whether to go on."""
    begun = None
    if not ranks.rank and not ranks.has_failed():
        begun = task.checkpoints(bench.storage).begin(bench.job)
    starts = ranks.broadcast(begun)
    if starts is None:  # after a user's mistake, which another start does not mend
        return False
    if starts > task.inputs["how"]["max_retries"]:
        ranks.say(task.name, {"gave_up": starts})
        return False
    try:
        own_log = nullcontext() if ranks.rank else bench.open_log(task.name, task.depends)
        with own_log as metrics:
            _train_and_publish(task, bench, ranks, metrics)
    except UserError as error:
        ranks.say(task.name, {"failed": str(error)})
        if ranks.rank:
            raise  # the first may wait for this one; started anew, it finds what was said
    except Exception as error:
        ranks.say(task.name, {"error": last_line(error)})
        raise
    return True


def _train_and_publish(task: Task, bench: Bench, ranks: Ranks, metrics: MetricsLog | None) -> None:
    sed = task.settings["sed"]
    training = Training(task, ["targets"], bench, metrics)
    setup = STAGE.set_up_worker(sed, training.start, ranks.rank, ranks.world)
    run = training.run(setup)
    with bench.steps_are_counted():
        result = run.train()
    weights = setup.engine.weights()  # gathered by all workers, whatever the ZeRO stage
    setup.engine.close()
    if metrics is None:
        return
    if result.score is not None:
        metrics.conclude({"stage": "learner", "seed": task.settings["seed"]}, {"best_dev": result.score})
    encoder, _ = training.load_start()
    if sed.head:
        encoder.set_head(weights["learner.head.weight"].T.cpu().numpy())
    Distillation(encoder).load_state_dict(weights)
    if sed.head == "fold":
        encoder.set_head(fold(encoder.head_weight()))
    description = {"learner": task.name, "seed": task.settings["seed"], "steps": result.steps}
    meta = {"dev": result.score, "held_out": result.held_out, "steps": result.steps, "kept_step": result.kept_step}
    meta["sentences"] = (result.steps - result.resumed_at) * sed.batch_size
    training.publish(encoder, result, description, meta)

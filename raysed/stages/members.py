"""Ray Tune: all members of one depth, grid models included, are one experiment.

A trial is the training of one member, or of a few that train as one program.

The truth about a member is the run directory, not Tune's own state: a trial looks for its newest checkpoint there, and
publishes its artefact there. Tune places the trials, restarts failed ones and never stops the experiment for one.
"""

import json
import logging
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from raysed.cluster.draining import is_draining
from raysed.cluster.gauges import TrainingGauges
from raysed.cluster.heartbeat import beating, watched
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import MOST_RESTARTS, Share
from raysed.config import Config
from raysed.errors import UserError, last_line
from raysed.model.encoding import is_out_of_memory
from raysed.plan.artefacts import Member, criterion_of
from raysed.registry import stages
from raysed.stages.worker import Training, Workplace, steps_are_counted
from raysed.store.metrics import MetricsLog, metrics_log
from raysed.store.progress import Progress, tell
from raysed.store.storage import Entry, Storage
from raysed.train.collapse import collapse
from raysed.train.grid import Ladder, Task, choose_bound, rungs_of
from raysed.train.loop import Run
from raysed.train.selection import Result
from raysed.train.stack import can_be_stacked, train_together

log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """How the members of an experiment ended: artefacts by name, and the reasons of those that failed."""

    finished: dict[str, Entry] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    user_mistake: bool = False
    """Whether the user can mend one of the failures, such as a loss that is not finite."""
    ladders: dict[str, Ladder] = field(default_factory=dict)
    """How far the bounds of each grid came, by node."""


def train_members(
    nodes: Mapping[str, Sequence[Member]],
    config: Config,
    storage: Storage,
    share: Share,
    rows: Mapping[str, int],
) -> Outcome:
    """Trains what is not finished yet, as many at a time as the plan says.

    Args:
        share: how many at a time, and what each gets.
        rows: sizes of the tables that they learn from, by artefact.

    Returns:
        The finished members and, by name, why others failed; whether enough are left is the caller's question.
    """
    queue = _Queue([_group(node, members, config, storage, rows) for node, members in nodes.items()], share.workers)
    outcome = Outcome(ladders=queue.ladders())
    everyone = [member for members in nodes.values() for member in members]
    failed: dict[str, tuple[str, bool]] = {}
    if queue.updates:
        count = sum(storage.finished(member.name, member.depends) is None for member in everyone)
        log.info("training %d of %d members: %s", count, len(everyone), share)
        failed = _run_trials(queue, config, storage, share)
    for member in everyone:
        if entry := storage.finished(member.name, member.depends):
            outcome.finished[member.name] = entry
        elif member.name in failed or member.lower_bound is None:
            outcome.failed[member.name], mistake = failed.get(member.name, ("it ended without a result", False))
            outcome.user_mistake |= mistake
    return outcome


def describe_grid(node: str, scores: Mapping[float, Sequence[float]], ladder: Ladder, config: Config) -> dict[str, Any]:
    """Chooses a grid's lower bound, and says how it came to that.

    Args:
        node: e.g. `sts`.
        scores: dev scores of the models of every bound that was trained to the end.

    Returns:
        What `Report.grids` takes.
    """
    sts = config.sts
    choice = choose_bound(scores, sts.statistic)
    return {
        "recipe": node,
        "criterion": sts.criterion,
        "statistic": sts.statistic,
        "task": config.evaluation.dev,
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


# -- the driver's side -----------------------------------------------------------------------------------------------


@dataclass
class _Group:
    """The members of one node that are still to be trained, in the order in which they are handed out."""

    node: str
    steps: int
    together: int
    members: deque[Member] = field(default_factory=deque)
    ladder: Ladder | None = None
    by_place: dict[tuple[float, int], Member] = field(default_factory=dict)

    def left(self) -> int:
        """Returns how many members may still be trained."""
        return self.ladder.left() if self.ladder else len(self.members)

    def take(self) -> tuple[list[Member], list[Task]]:
        """Returns the members that one worker trains next, at the same time; of a grid what is to be done with them."""
        if self.ladder is None:
            return [self.members.popleft() for _ in range(min(self.together, len(self.members)))], []
        tasks: list[Task] = []
        while len(tasks) < self.together and (task := self.ladder.next()):
            if tasks and task.until != tasks[0].until:
                self.ladder.put_back(task)
                break
            tasks.append(task)
        return [self.by_place[task.lower_bound, task.index] for task in tasks], tasks


def _group(node: str, members: Sequence[Member], config: Config, storage: Storage, rows: Mapping[str, int]) -> _Group:
    stage, settings = stages()[members[0].stage], getattr(config, members[0].stage)
    steps = stage.steps(settings, sum(rows[table] for table in stage.tables(settings)))
    together = stage.members_together(config.members)
    if members[0].lower_bound is None:
        return _Group(node, steps, together, deque(m for m in members if not storage.finished(m.name, m.depends)))
    sts = config.sts
    bounds = list(dict.fromkeys(member.lower_bound for member in members))
    asha = sts.scheduler == "asha" and len(bounds) > 1  # a single bound, e.g. one chosen before, has no rival
    every = stage.evaluate_every(sts, config.members)
    rungs = rungs_of(steps, sts.asha_rungs if asha else 1, sts.asha_reduction, every)
    count = len(members) // len(bounds)
    needed = min(config.members.min_members or count, count)
    ladder = Ladder(bounds, count, rungs, sts.asha_reduction, sts.statistic, needed)
    group = _Group(node, steps, together, ladder=ladder, by_place={(m.lower_bound, m.index): m for m in members})
    if not asha:  # without rungs what is finished needs no trial; with them, the ladder has to see its scores again
        for task in list(iter(group.ladder.next, None)):
            _pass_over(group, task, storage)
    return group


def _pass_over(group: _Group, task: Task, storage: Storage) -> None:
    member = group.by_place[task.lower_bound, task.index]
    entry = storage.finished(member.name, member.depends)
    if entry:
        group.ladder.record(task, entry.meta["dev"])
    else:
        group.ladder.put_back(task)


class _Queue(Searcher):
    """Hands trainings to Tune, from each node in turn, so that members and grid models run side by side."""

    def __init__(self, groups: Sequence[_Group], workers: int):
        super().__init__()
        self._groups, self._is_shared = list(groups), sum(group.left() for group in groups) > workers
        self._turn = 0
        self._running: dict[str, tuple[_Group, list[Task]]] = {}

    @property
    def trainings(self) -> int:
        """How many members there may be to train."""
        return sum(group.left() for group in self._groups)

    @property
    def updates(self) -> int:
        """Updates that all of it may take."""
        return sum(group.steps * group.left() for group in self._groups)

    def nodes(self) -> list[str]:
        """Returns the nodes that have something to train."""
        return [group.node for group in self._groups if group.left()]

    def ladders(self) -> dict[str, Ladder]:
        """Returns the grids, by node."""
        return {group.node: group.ladder for group in self._groups if group.ladder is not None}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Returns what the next worker trains, of the next node that has something."""
        for offset in range(len(self._groups)):
            place = (self._turn + offset) % len(self._groups)
            group = self._groups[place]
            members, tasks = group.take()
            if members:
                self._turn = place + 1
                self._running[trial_id] = (group, tasks)
                until = tasks[0].until if tasks else group.steps
                return {"members": list(map(vars, members)), "until": until, "called": self._called(members)}
        return None if self._running else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Tells the grid how a training ended."""
        group, tasks = self._running.pop(trial_id, (None, []))
        scores = (not error and (result or {}).get("scores")) or [None] * len(tasks)
        for task, score in zip(tasks, scores):
            group.ladder.record(task, score)

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the run directory knows what is done."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""

    def _called(self, members: Sequence[Member]) -> str:
        """What a worker is called in Ray's list of actors."""
        more = f" with {len(members) - 1} more" if len(members) > 1 else ""
        return f"{members[0].name}{more}{' and others after it' if self._is_shared else ''}"


def _run_trials(queue: _Queue, config: Config, storage: Storage, share: Share) -> dict[str, tuple[str, bool]]:
    """Runs one Tune experiment; returns why trials failed, by member, and whether the user can mend it."""
    name = "+".join(queue.nodes())
    progress = _ProgressCallback(name, queue.trainings, queue.updates)
    res = config.resources
    with watched(res.silence_seconds, share, stall=res.stall_seconds) as watch:
        place = ray.put(Workplace(config, storage, share, watch))
        results = _tuner(name, queue, storage, share, place, progress).fit()
    progress.finish()
    tell(sentences=sum(_sentences(result, config) for result in results))
    storage.remove("tune")  # Tune's own state; ours is in the manifest
    return {name: reason for result in results for name, reason in _reasons(result).items()}


def _sentences(result: Any, config: Config) -> int:
    """Sentences, or pairs, of the batches that a trial has learnt from since its last start."""
    updates = (result.metrics or {}).get("updates", 0)
    stage = result.config["members"][0]["stage"]
    return updates * stages()[stage].rows_per_update(getattr(config, stage))


class _Named:
    """Gives a trial's actor a name in Ray's list of actors, in place of the function's."""

    def setup(self, config: dict[str, Any]) -> None:
        """Called by Tune once, before the actor is listed; a worker that trains further members keeps the name."""
        super().setup(config)
        self._name = config["called"]


def _tuner(
    name: str, queue: _Queue, storage: Storage, share: Share, place: Any, progress: "_ProgressCallback"
) -> tune.Tuner:
    return tune.Tuner(
        tune.with_resources(
            tune.with_parameters(_train_some, place=place), tune.PlacementGroupFactory([share.resources])
        ),
        tune_config=tune.TuneConfig(
            search_alg=queue,
            num_samples=-1,
            max_concurrent_trials=share.workers,
            reuse_actors=True,  # importing torch and transformers costs seconds: pay it once per worker
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=f"{name}-{int(time.time())}",  # a new one each time: Tune must not continue from its own state
            storage_path=storage.uri("tune"),
            failure_config=tune.FailureConfig(max_failures=MOST_RESTARTS),
            callbacks=[progress],
            verbose=0,
        ),
    )


def _trial_name(trial: Any) -> str:
    """A grid model that climbs is several trials, so the updates are part of the name."""
    return f"{trial.config['members'][0]['name'].replace('/', '-')}-{trial.config['until']}"


def _reasons(result: Any) -> dict[str, tuple[str, bool]]:
    """Why members of a trial have failed, by name, and whether the user can mend it."""
    names = [member["name"] for member in result.config["members"]]
    if result.error is not None:
        return dict.fromkeys(names, (last_line(getattr(result.error, "cause", None) or result.error), False))
    failed = (result.metrics or {}).get("failed", [])
    return {name: tuple(reason) for name, reason in zip(names, failed) if reason}


class _ProgressCallback(tune.Callback):
    """One line for the whole experiment."""

    def __init__(self, title: str, count: int, updates: int):
        self._title, self._count, self._updates = title, count, updates
        self._steps: dict[str, int] = {}
        self._latest: dict[str, dict] = {}
        self._done: set[str] = set()
        self._progress: Progress | None = None

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        if "total" not in result:
            return
        if self._progress is None:
            self._progress = Progress(f"train {self._title}", self._updates)
        name = result["member"]
        self._steps[name] = result["step"]
        self._latest[name] = result
        if result["step"] == result["total"]:
            self._done.add(name)
        tell(trained=len(self._done), trainings=self._count)
        self._progress.update(sum(self._steps.values()), self._note(result))

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        log.warning("%s failed and is not tried again", trial)

    def finish(self) -> None:
        if self._progress:
            self._progress.close(f"{len(self._done)} of {self._count} members")

    def _note(self, result: dict) -> str:
        dev = [r["dev"] for r in self._latest.values() if r.get("dev") is not None]
        score = f" · dev {min(dev):.1f}..{max(dev):.1f}" if dev else ""
        return f"{len(self._done)}/{self._count} members · loss {result['loss']:.4f}{score}"


# -- the trial's side ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ended:
    """How the training of a member ended on a worker, which may not be the end of the member.

    Attributes:
        score: on the dev task so far.
        updates: made since the worker's start.
        failed: what another start would not mend, and whether the user can.
    """

    score: float | None = None
    updates: int = 0
    failed: tuple[str, bool] | None = None


def _train_some(trial: dict[str, Any], place: Any) -> None:
    """One trial; what another start would not mend is reported, not raised."""
    place = ray.get(place) if isinstance(place, ray.ObjectRef) else place
    prepare_worker(place.share.threads)
    members, until = [Member(**member) for member in trial["members"]], trial["until"]
    with beating(place.watch, trial["called"]):
        ended = _all_ended(members, place, until)
    tune.report(
        {
            "scores": [each.score for each in ended],
            "failed": [each.failed for each in ended],
            "updates": sum(each.updates for each in ended),
        }
    )


_train_some.__mixins__ = (_Named,)


def _all_ended(members: Sequence[Member], place: Workplace, until: int) -> list[_Ended]:
    """Trains some members together, and those that this does not bring to their ends one by one."""
    known = {member.name: done for member in members if (done := _already_ended(member, place.storage, until))}
    waiting = [member for member in members if member.name not in known]
    starts = None
    if len(waiting) > 1:
        # Counted for the first only: a stack that was lost with its worker is not tried again.
        starts = place.storage.checkpoints(waiting[0].name, waiting[0].depends).begin(place.job)
        if starts == 0:
            known |= _ended_together(waiting, place, until)
    for member in waiting:
        if member.name not in known:
            known[member.name] = _ended_alone(member, place, until, starts)
        starts = None
    return [known[member.name] for member in members]


def _ended_together(members: Sequence[Member], place: Workplace, until: int) -> dict[str, _Ended]:
    """Trains members as one program; nothing where that is not possible, or ends before its time."""
    try:
        with ExitStack() as logs:
            works = [_Work(m, place, logs.enter_context(_log_of(m, place)), until) for m in members]
            if not all(can_be_stacked(work.setup.engine) for work in works):
                log.warning("%s are trained one by one: their encoder takes no packed rows", _list_of(members))
                return {}
            with steps_are_counted():
                results = train_together([work.run() for work in works])
            return {work.member.name: work.ended(result) for work, result in zip(works, results)}
    except (UserError, RuntimeError, MemoryError) as error:
        if not (isinstance(error, UserError) or is_out_of_memory(error)):
            raise
        log.warning("%s go on one by one: %s", _list_of(members), last_line(error))
        return {}


def _ended_alone(member: Member, place: Workplace, until: int, starts: int | None) -> _Ended:
    """Trains a member; a failure is raised for another start unless `members.max_retries` starts were in vain."""
    retries = place.config.members.max_retries
    if starts is None:
        starts = place.storage.checkpoints(member.name, member.depends).begin(place.job)
    if starts > retries:
        return _Ended(failed=(f"its worker was lost {starts} times without a new checkpoint in between", False))
    try:
        with _log_of(member, place) as metrics, steps_are_counted():
            work = _Work(member, place, metrics, until)
            return work.ended(work.run().train())
    except UserError as error:
        return _Ended(failed=(str(error), True))
    except Exception as error:
        if starts < retries:
            raise
        log.exception("%s is given up", member.name)  # in the worker's log
        return _Ended(failed=(last_line(error), False))


def _log_of(member: Member, place: Workplace) -> AbstractContextManager[MetricsLog]:
    return metrics_log(place.storage, place.config, member.name, member.depends)


def _list_of(members: Sequence[Member]) -> str:
    return ", ".join(member.name for member in members)


def _already_ended(member: Member, storage: Storage, until: int) -> _Ended | None:
    """What is known of a finished member, of a grid model the dev score after so many updates; None if not finished."""
    if not storage.finished(member.name, member.depends):
        return None
    if member.lower_bound is None:  # finished by this trial, before its worker was lost with another member
        return _Ended()
    lines = (storage.fetch(member.name) / "history.jsonl").read_text().splitlines()
    score = Result(history=[json.loads(line) for line in lines]).score_by(until)
    return None if score is None else _Ended(score)


class _Work:
    """A member in the making, up to so many updates."""

    def __init__(self, member: Member, place: Workplace, metrics: MetricsLog, until: int):
        self.member, self._place, self._metrics, self._until = member, place, metrics, until
        stage, settings = stages()[member.stage], getattr(place.config, member.stage)
        self._training = Training(member, stage.tables(settings), place, metrics)
        start = replace(self._training.start, lower_bound=member.lower_bound)
        self.setup = stage.set_up(settings, place.config.members, start)

    def run(self) -> Run:
        """Returns the training."""
        report = _Reporter(self.member.name, self._place.config.run)
        criterion = criterion_of(self.member.stage, self._place.config)
        return self._training.prepared(self.setup, report, criterion, self._until, warned=is_draining)

    def ended(self, result: Result) -> _Ended:
        """Publishes the member where that was all of its training."""
        member, updates, score = self.member, result.steps - result.resumed_at, result.score_by(self._until)
        if score is not None:
            about = {"stage": member.stage, "index": member.index, "seed": member.seed}
            self._metrics.conclude({**about, "lower_bound": member.lower_bound}, {"best_dev": score})
        if result.steps < self.setup.plan.steps:
            return _Ended(score, updates)
        outcome = {"kept": result.kept, "kept_step": result.kept_step, "dev": result.score}
        if reason := collapse(entry for entry in result.history if entry["step"] <= result.kept_step):
            outcome["collapsed"] = reason
        description = {"member": member.name, "stage": member.stage, **outcome}
        encoder = self.setup.objective.candidates()[result.kept]
        self._training.publish(encoder, result, description, outcome)
        return _Ended(result.score, updates)


class _Reporter:
    """Sends the history to Tune and to Prometheus; the last dev score stands until there is another."""

    def __init__(self, member: str, run: str):
        self._member, self._gauges = member, TrainingGauges(run, member)
        self._latest: float | None = None

    def __call__(self, words: dict[str, Any]) -> None:
        self._gauges(words)
        if words["dev"] is not None:
            self._latest = words["dev"]
        tune.report({**words, "member": self._member, "dev": self._latest})

"""Ray Tune: all members of one depth, grid models included, are one experiment.

A trial is the training of one member, or of a few that train as one program. The run directory, not Tune's own state,
knows what is done: a trial looks for its newest checkpoint there, and publishes its artefact there.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from raysed.cluster.gauges import Gauges
from raysed.cluster.nodes import is_draining
from raysed.cluster.process import prepare_worker
from raysed.cluster.resources import MOST_RESTARTS
from raysed.cluster.watchdog import expect_no_progress, made_progress, watched_workers
from raysed.cluster.work import Bench
from raysed.errors import last_line
from raysed.graph import Shared, Task
from raysed.store.progress import Progress, emit

log = logging.getLogger(__name__)


# -- the driver's side -----------------------------------------------------------------------------------------------


@dataclass
class Group:
    """The members of one node that are still to be trained, in the order in which they are handed out.

    Attributes:
        together: members that one worker trains as one program.
        rows_per_update: sentences, or pairs, of a batch.
        ladder: what hands out the models of a grid, which are in `by_place` by lower bound and index.
    """

    node: str
    worker: Callable[[Sequence[Task], int, Bench], list[Any]]
    steps: int
    together: int
    rows_per_update: int
    members: deque[Task] = field(default_factory=deque)
    ladder: Any = None
    by_place: Mapping[tuple[float, int], Task] = field(default_factory=dict)

    def left(self) -> int:
        """Return how many members may still be trained."""
        return self.ladder.left() if self.ladder else len(self.members)

    def take(self) -> tuple[list[Task], list[Any]]:
        """Return the members that one worker trains next, at the same time; of a grid what is to be done with them."""
        if self.ladder is None:
            return [self.members.popleft() for _ in range(min(self.together, len(self.members)))], []
        steps: list[Any] = []
        while len(steps) < self.together and (step := self.ladder.next()):
            if steps and step.until != steps[0].until:
                self.ladder.put_back(step)
                break
            steps.append(step)
        return [self.by_place[step.lower_bound, step.index] for step in steps], steps

    def pass_over_finished(self, scores: Mapping[str, float]) -> None:
        """Tell a ladder of a single rung which models need no trial; one with rungs has to see all scores again."""
        if self.ladder is None or len(self.ladder.rungs) > 1:
            return
        for step in list(iter(self.ladder.next, None)):
            name = self.by_place[step.lower_bound, step.index].name
            if name in scores:
                self.ladder.record(step, scores[name])
            else:
                self.ladder.put_back(step)


class Queue(Searcher):
    """Hands trainings to Tune, from each node in turn, so that members and grid models run side by side."""

    def __init__(self, groups: Sequence[Group], workers: int):
        super().__init__()
        self._groups, self._is_shared = list(groups), sum(group.left() for group in groups) > workers
        self._turn = 0
        self._running: dict[str, tuple[Group, list[Any]]] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return what the next worker trains, of the next node that has something."""
        for offset in range(len(self._groups)):
            place = (self._turn + offset) % len(self._groups)
            group = self._groups[place]
            tasks, steps = group.take()
            if tasks:
                self._turn = place + 1
                self._running[trial_id] = (group, steps)
                return {
                    "members": [task.name for task in tasks],
                    "group": place,
                    "until": steps[0].until if steps else group.steps,
                    "called": self._called(tasks),
                }
        return None if self._running else Searcher.FINISHED

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Tell the grid how a training ended."""
        group, steps = self._running.pop(trial_id, (None, []))
        scores = (not error and (result or {}).get("scores")) or [None] * len(steps)
        for step, score in zip(steps, scores):
            group.ladder.record(step, score)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the run directory knows what is done, here and in `restore`."""

    restore = save

    def _called(self, tasks: Sequence[Task]) -> str:
        """What a worker is called in Ray's list of actors."""
        more = f" with {len(tasks) - 1} more" if len(tasks) > 1 else ""
        return f"{tasks[0].name}{more}{' and others after it' if self._is_shared else ''}"


def train_groups(groups: Sequence[Group], bench: Bench) -> dict[str, tuple[str, bool]]:
    """Run one Tune experiment; return why members failed, by name, and whether the user can mend it."""
    left, updates = (sum(g.left() for g in groups), sum(g.steps * g.left() for g in groups))
    if not updates:
        return {}
    title, res = "+".join(group.node for group in groups if group.left()), bench.resources
    progress = _ProgressCallback(title, left, updates)
    tasks = {task.name: task for group in groups for task in (*group.members, *group.by_place.values())}
    with watched_workers(res.silence_seconds, bench.share, stall=res.stall_seconds) as watchdog:
        workplace = ray.put((replace(bench, watchdog=watchdog), tasks, [group.worker for group in groups]))
        results = _tuner(title, Queue(groups, bench.share.workers), bench, workplace, progress).fit()
    progress.finish()
    rows = [group.rows_per_update for group in groups]
    emit(sentences=sum((result.metrics or {}).get("updates", 0) * rows[result.config["group"]] for result in results))
    bench.storage.remove("tune")  # Tune's own state; ours is in the manifest
    return {name: reason for result in results for name, reason in _reasons(result).items()}


def _tuner(title: str, queue: Queue, bench: Bench, workplace: Any, progress: "_ProgressCallback") -> tune.Tuner:
    trainable = tune.with_parameters(_train_some, workplace=Shared(partial(ray.get, workplace)))
    return tune.Tuner(
        tune.with_resources(trainable, tune.PlacementGroupFactory([bench.share.resources])),
        tune_config=tune.TuneConfig(
            search_alg=queue,
            num_samples=-1,
            max_concurrent_trials=bench.share.workers,
            reuse_actors=True,  # importing torch and transformers costs seconds: pay it once per worker
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=f"{title}-{int(time.time())}",  # a new one each time: Tune must not continue from its own state
            storage_path=bench.storage.uri("tune"),
            failure_config=tune.FailureConfig(max_failures=MOST_RESTARTS),
            callbacks=[progress],
            verbose=0,
        ),
    )


def _trial_name(trial: Any) -> str:
    """A grid model that climbs is several trials, so the updates are part of the name."""
    return f"{trial.config['members'][0].replace('/', '-')}-{trial.config['until']}"


def _reasons(result: Any) -> dict[str, tuple[str, bool]]:
    names = result.config["members"]
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
        emit(trained=len(self._done), trainings=self._count)
        dev = [r["dev"] for r in self._latest.values() if r.get("dev") is not None]
        score = f" · dev {min(dev):.1f}..{max(dev):.1f}" if dev else ""
        note = f"{len(self._done)}/{self._count} members · loss {result['loss']:.4f}{score}"
        self._progress.update(sum(self._steps.values()), note)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        log.warning("%s failed and is not tried again", trial)

    def finish(self) -> None:
        if self._progress:
            self._progress.close(f"{len(self._done)} of {self._count} members")


# -- the trial's side ------------------------------------------------------------------------------------------------


class _Named:
    """Gives a trial's actor a name in Ray's list of actors, in place of the function's."""

    def setup(self, config: dict[str, Any]) -> None:
        """Called by Tune once, before the actor is listed; a worker that trains further members keeps the name."""
        super().setup(config)
        self._name = config["called"]


def _train_some(trial: dict[str, Any], workplace: Shared) -> None:
    """One trial; what another start would not mend is reported, not raised."""
    bench, tasks, workers = workplace.get()
    prepare_worker(bench.share.threads)
    reporters = {name: _Reporter(name, bench.run) for name in trial["members"]}
    bench = replace(
        bench,
        report=lambda name, words: reporters[name](words),
        warned=is_draining,
        made_progress=made_progress,
        expect_no_progress=expect_no_progress,
    )
    with bench.watchdog.guard(trial["called"]):
        some = [tasks[name] for name in trial["members"]]
        ended = workers[trial["group"]](some, trial["until"], bench)
    tune.report(
        {
            "scores": [each.score for each in ended],
            "failed": [each.failed for each in ended],
            "updates": sum(each.updates for each in ended),
        }
    )


_train_some.__mixins__ = (_Named,)


class _Reporter:
    """Sends the history to Tune and to Prometheus; the last dev score stands until there is another."""

    def __init__(self, member: str, run: str):
        self._member, self._gauges = member, Gauges("training", run, member)
        self._latest: float | None = None

    def __call__(self, words: dict[str, Any]) -> None:
        self._gauges(words)
        if words["dev"] is not None:
            self._latest = words["dev"]
        tune.report({**words, "member": self._member, "dev": self._latest})

"""Ray Tune: the members of one depth, grid models included, are the trials of one experiment.

The run directory, not Tune's state, knows what is done: finished members are no trials, and a trial resumes from the
newest checkpoint there and publishes its artefact there. Tune's results and logs stay in `tune/`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler

from raysed.cluster.process import prepare_worker
from raysed.cluster.watchdog import watched_workers
from raysed.cluster.work import MOST_RESTARTS, Bench, Failures, Stopped, TrainingLine, Trial, line_of_members, title_of
from raysed.errors import last_line
from raysed.store.progress import emit

log = logging.getLogger(__name__)


def train_members(trials: Sequence[Trial], bench: Bench) -> tuple[Failures, dict[str, Stopped]]:
    """Run one experiment; return why members failed, by member, and which bounds were stopped, by trial."""
    by_name = {trial.name: trial for trial in trials}
    line, res = line_of_members(trials), bench.resources
    (reduction, rungs) = next(((t.reduction, t.rungs) for t in trials if t.reduction), (0, ()))
    asha = reduction and ASHAScheduler(
        # Rungs are given as powers of the reduction, because their updates are rounded to evaluations.
        time_attr="rung",
        metric="dev",
        mode="max",
        max_t=reduction ** (len(rungs) - 1),
        reduction_factor=reduction,
    )
    with watched_workers(res.silence_seconds, bench.share, stall=res.stall_seconds) as watchdog:
        train = tune.with_parameters(_train, bench=replace(bench, watchdog=watchdog), trials=by_name)
        tuner = tune.Tuner(
            tune.with_resources(train, tune.PlacementGroupFactory([bench.share.resources])),
            param_space={"member": tune.grid_search(list(by_name))},
            tune_config=tune.TuneConfig(
                scheduler=asha or None,
                max_concurrent_trials=bench.share.workers,
                reuse_actors=True,  # importing torch and transformers costs seconds: pay it once per worker
                trial_name_creator=_trial_name,
                trial_dirname_creator=_trial_name,
            ),
            run_config=tune.RunConfig(
                name=title_of(trials),
                storage_path=bench.storage.uri("tune"),
                failure_config=tune.FailureConfig(max_failures=MOST_RESTARTS),
                callbacks=[_Progress(line)],
                verbose=0,
            ),
        )
        results = tuner.fit()
    line.close()
    failed: Failures = {}
    stopped: dict[str, Stopped] = {}
    for result in results:
        trial, found = by_name[result.config["member"]], result.metrics or {}
        if result.error is not None:
            reason = last_line(getattr(result.error, "cause", None) or result.error)
            failed |= dict.fromkeys([task.name for task in trial.tasks], (reason, False))
            continue
        failed |= {name: (reason, is_mistake) for name, reason, is_mistake in found.get("failed", [])}
        emit(sentences=found.get("updates", 0) * trial.rows_per_update)
        if found.get("reached", 0) < trial.rungs[-1] and found.get("scores"):
            about = {"lower_bound": found["lower_bound"], "updates": found["reached"], "scores": found["scores"]}
            stopped[trial.name] = about
    return failed, stopped


def _trial_name(trial: Any) -> str:
    return trial.config["member"].replace("/", "-")


class _Progress(tune.Callback):
    """One progress line for the whole experiment."""

    def __init__(self, line: TrainingLine):
        self._line = line

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        if "loss" in result:
            self._line.report(result["member"], result)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        log.warning("%s failed and will not be tried again", trial)


# -- the trial's side ------------------------------------------------------------------------------------------------


def _train(config: dict[str, Any], bench: Bench, trials: Mapping[str, Trial]) -> None:
    """Run one trial; errors that no restart would fix are reported, not raised."""
    trial = trials[config["member"]]
    prepare_worker(bench.share.threads)
    latest = {}
    for task in trial.tasks:
        about = {"member": task.name, "lower_bound": task.settings.get("lower_bound"), "seed": task.settings["seed"]}
        latest[task.name] = {**about, "step": 0, "total": 0, "dev": None}

    def report(name: str, words: Mapping[str, Any]) -> None:
        """Send a history entry to Tune; the last dev score stands until there is another."""
        latest[name] |= {key: value for key, value in words.items() if key != "dev" or value is not None}
        tune.report(dict(latest[name]))

    bench = replace(bench, report=report)
    tasks, failed, updates = trial.tasks, [], 0
    with bench.watchdog.guard(trial.name):
        for rung, until in enumerate(trial.rungs):
            ended = trial.train(tasks, until, bench)
            updates += sum(each.updates for each in ended)
            failed += [(task.name, *each.failed) for task, each in zip(tasks, ended) if each.failed]
            scores = [each.score for each in ended if each.score is not None]
            tasks = [task for task, each in zip(tasks, ended) if not each.failed]
            score = trial.statistic(scores) if scores else None
            about = {"reached": until, "updates": updates, "failed": failed, "scores": scores}
            if trial.reduction and len(tasks) >= trial.least:
                about["rung"] = trial.reduction**rung
            tune.report({**latest[trial.tasks[0].name], "dev": score, **about})
            if len(tasks) < trial.least:
                return

"""Ray Tune: the members of one depth, grid models included, are the trials of one experiment.

The run directory, not Tune's state, knows what is done: finished members are no trials, and a trial resumes from the
newest checkpoint there and publishes its artefact there. Tune's results and logs stay in `tune/`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray import tune
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import BasicVariantGenerator

from raysed.cluster.halving import Halving
from raysed.cluster.jobs import OnEvent, TrainingJob, key_of
from raysed.cluster.watchdog import Watchdog
from raysed.context import MAX_RESTARTS, Context, Outcome
from raysed.errors import last_line
from raysed.make.models import train
from raysed.model.pretrained import read_history
from raysed.process import prepare_worker
from raysed.resources import Share
from raysed.store.storage import Storage

log = logging.getLogger(__name__)

_SEARCHED = ("node", "lower_bound", "seed")


@dataclass(frozen=True)
class Prepared:
    """What the trainings of an experiment need, besides their `config`; `jobs` by `key_of` the config."""

    storage: Storage
    context: Context
    watchdog: Watchdog
    threads: int
    jobs: Mapping[tuple, TrainingJob]


class HalvingScheduler(FIFOScheduler):
    """Compare groups of trials by their `dev` score in rounds, and stop the worse ones.

    A trial that reports a `rung` (its updates so far) is paused until all trials of the round have reported theirs, so
    that the choice does not depend on which worker is faster.

    Args:
        halvings: what is compared; the trainings of a group are values of `key_of`, see `raysed.ray.train_member`.
        workers: how many trials run at once; 0: as many as fit.
    """

    def __init__(self, halvings: Sequence[Halving], workers: int = 0):
        super().__init__()
        self._halvings = {key: each for each in halvings for keys in each.groups.values() for key in keys}
        self._workers = workers
        self._rungs: dict[tuple, int] = {}

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Pause a trial that has reached a rung, or decide about all of its round."""
        key = key_of(trial.config)
        if (halving := self._halvings.get(key)) is None:
            return self.CONTINUE
        if result.get("failure"):
            halving.fail(key)
        if "rung" not in result:
            return self.CONTINUE
        self._rungs[key] = result["rung"]
        halving.reach(key, result["rung"], result["dev"])
        goes_on = halving.goes_on(key, result["rung"])
        if goes_on is None:
            if self._workers:  # Tune's search counts the trials that are not complete
                tune_controller.search_alg.on_trial_complete(trial.trial_id)
            return self.PAUSE
        return self.CONTINUE if goes_on else self.STOP

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Stop paused trials that have lost; return the first trial that waits for a worker."""
        trials = tune_controller.get_trials()
        for trial in trials:
            halving = self._halvings.get(key := key_of(trial.config))
            if halving and trial.status == "ERROR":  # for good: one that is tried again is pending at once
                halving.fail(key)
        paused = []
        for trial in trials:
            if trial.status == "PAUSED":
                goes_on = self._halvings[key := key_of(trial.config)].goes_on(key, self._rungs[key])
                if goes_on is False:
                    tune_controller.stop_trial(trial)
                elif goes_on:
                    paused.append(trial)
        at_work = sum(trial.status in ("PENDING", "RUNNING") for trial in trials)
        if paused and (not self._workers or at_work < self._workers):
            return paused[0]
        return next((trial for trial in trials if trial.status == "PENDING"), None)


def run_trials(
    title: str, run: str, jobs: Sequence[TrainingJob], share: Share, prepared: Prepared, on_event: OnEvent
) -> None:
    """Run one experiment, a trial per training."""
    by_key, jobs = {job.key: job for job in jobs}, list(jobs)
    events = _Events(by_key, on_event)
    halvings = list({id(job.halving): job.halving for job in jobs if job.halving}.values())
    points = [dict(zip(_SEARCHED, job.key)) for job in jobs]
    labels = {"bundle_label_selector": [dict(share.label_selector)]} if share.label_selector else {}
    space = {name: tune.choice(list(dict.fromkeys(point[name] for point in points))) for name in _SEARCHED}
    tuner = tune.Tuner(
        tune.with_resources(
            tune.with_parameters(train_member, prepared=replace(prepared, jobs=by_key)),
            tune.PlacementGroupFactory([share.resources], **labels),
        ),
        param_space={"run": run, **space},
        tune_config=tune.TuneConfig(
            search_alg=BasicVariantGenerator(points_to_evaluate=points, max_concurrent=share.workers),
            num_samples=len(points),
            scheduler=HalvingScheduler(halvings, share.workers) if halvings else None,
            reuse_actors=True,  # importing torch and transformers costs seconds: pay it once per worker
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=title,
            storage_path=prepared.storage.uri("tune"),
            failure_config=tune.FailureConfig(max_failures=MAX_RESTARTS),
            callbacks=[events],
            verbose=2 if log.isEnabledFor(logging.DEBUG) else 0,  # with --verbose, Tune's own table
        ),
    )
    for result in tuner.fit():
        job, last = by_key[key_of(result.config)], result.metrics or {}
        if result.error is not None:
            reason = last_line(getattr(result.error, "cause", None) or result.error)
            on_event(job.name, {"outcome": Outcome(failure=reason)})
        else:
            made = events.updates[job.name]
            outcome = Outcome(last.get("dev"), made, last.get("failure"), bool(last.get("mistake")))
            on_event(job.name, {"outcome": outcome})


def _trial_name(trial: Any) -> str:
    node, bound, seed = key_of(trial.config)
    return "-".join([node, *([] if bound is None else [f"{bound:g}"]), f"{seed:02d}"])


class _Events(tune.Callback):
    def __init__(self, jobs: Mapping[tuple, TrainingJob], on_event: OnEvent):
        self._jobs, self._on_event = jobs, on_event
        self.updates: Counter[str] = Counter()

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        # What TensorBoard's HParams show; Tune itself enters only what it has drawn, and not given points.
        trial.evaluated_params = {name: trial.config[name] for name in _SEARCHED}

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        name = self._jobs[key_of(trial.config)].name
        if "updates" in result:  # at a rung or the end: those since the last rung, maybe in another process
            self.updates[name] += result["updates"]
        else:
            self._on_event(name, result)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        log.warning("%s failed and will not be tried again", trial)


# -- the trial's side ------------------------------------------------------------------------------------------------


def train_member(config: dict[str, Any], prepared: Prepared | None = None) -> None:
    """Train one member of an ensemble: a trainable for Ray Tune.

    A trial reports `step`, `total`, `loss` and `dev` at every entry of its history, and in the end the `path` of the
    model. It resumes by itself, so give it a `FailureConfig(max_failures=3)`. Tune also retries a mistake in the
    `config`, which `raysed.ray.prepare_member` finds before.

    Args:
        config: `run` has the settings: the full path of a configuration, the name of a shipped one, or a dictionary;
            `storage` can replace theirs. `node` names the ensemble, such as `ct`; `seed` is the number of the member,
            and `lower_bound` one of a grid. Other keys override settings, such as `ct.steps`, and make the trial a run
            of its own, with a hash in its name.
        prepared: what raysed's own runs have prepared already.
    """
    if is_own := prepared is None:
        from raysed.cluster.programs import prepare_member

        prepared = prepare_member(config)
    job, storage = prepared.jobs[key_of(config)], prepared.storage
    prepare_worker(prepared.threads)
    latest: dict[str, Any] = {"step": 0, "total": 0, "dev": None}

    def report(entry: Mapping[str, Any]) -> None:
        """Send a history entry to Tune; the last dev score stands until there is another."""
        latest.update({key: value for key, value in entry.items() if key != "dev" or value is not None})
        tune.report({**latest, "timesteps_total": latest["step"]})  # TensorBoard's axis

    context = replace(prepared.context, report=report)
    with prepared.watchdog.guard(job.name):
        for until in job.rungs:
            is_last = until == job.rungs[-1]
            outcome = train(job.task, job.worker, storage, context, None if is_last else until)
            if outcome.failure or is_last:
                break
            tune.report({**latest, "updates": outcome.updates, "rung": until, "dev": outcome.score})
    if is_own and outcome.failure:
        raise outcome.error()
    entry = storage.entry(job.name)
    if entry and not latest["step"]:  # it was trained before
        for row in read_history(storage.fetch(job.name)):
            scores = row.get("dev", {}).values()
            latest |= {"step": row["step"], "total": row["step"], "loss": row.get("loss")}
            latest["dev"] = max(scores, default=latest["dev"])
    end = {"failure": outcome.failure, "mistake": outcome.is_mistake} if outcome.failure else {"path": ""}
    if entry and not outcome.failure:
        end["path"] = storage.uri(entry.place)
    tune.report({**latest, "updates": outcome.updates, **end})

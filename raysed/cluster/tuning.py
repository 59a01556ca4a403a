"""Ray Tune: the members of one depth, grid models included, are the trials of one experiment.

The run directory, not Tune's state, knows what is done: finished members are no trials, and a trial resumes from the
newest checkpoint there and publishes its artefact there. Tune's results and logs stay in `tune/`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray import tune
from ray.tune.search import BasicVariantGenerator

from raysed.cluster.jobs import OnEvent, TrainingJob, key_of
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
    threads: int
    jobs: Mapping[tuple, TrainingJob]


def run_trials(
    title: str, run: str, jobs: Sequence[TrainingJob], share: Share, prepared: Prepared, on_event: OnEvent
) -> None:
    """Run one experiment, a trial per training."""
    points = [dict(zip(_SEARCHED, job.key)) for job in jobs]
    labels = {"bundle_label_selector": [dict(share.label_selector)]} if share.label_selector else {}
    space = {name: tune.choice(list(dict.fromkeys(point[name] for point in points))) for name in _SEARCHED}
    tuner = tune.Tuner(
        tune.with_resources(
            tune.with_parameters(train_member, prepared=prepared),
            tune.PlacementGroupFactory([share.resources], **labels),
        ),
        param_space={"run": run, **space},
        tune_config=tune.TuneConfig(
            search_alg=BasicVariantGenerator(points_to_evaluate=points, max_concurrent=share.workers),
            num_samples=len(points),
            reuse_actors=True,  # importing torch and transformers costs seconds: pay it once per worker
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
        ),
        run_config=tune.RunConfig(
            name=title,
            storage_path=prepared.storage.uri("tune"),
            failure_config=tune.FailureConfig(max_failures=MAX_RESTARTS),
            callbacks=[_Events(prepared.jobs, on_event)],
            verbose=2 if log.isEnabledFor(logging.DEBUG) else 0,  # with --verbose, Tune's own table
        ),
    )
    for result in tuner.fit():
        job, last = prepared.jobs[key_of(result.config)], result.metrics or {}
        if result.error is not None:
            reason = last_line(getattr(result.error, "cause", None) or result.error)
            on_event(job.name, {"outcome": Outcome(failure=reason)})
        else:
            outcome = Outcome(last.get("updates", 0), last.get("failure"), bool(last.get("mistake")))
            on_event(job.name, {"outcome": outcome})


def _trial_name(trial: Any) -> str:
    node, bound, seed = key_of(trial.config)
    return "-".join([node, *([] if bound is None else [f"{bound:g}"]), f"{seed:02d}"])


class _Events(tune.Callback):
    def __init__(self, jobs: Mapping[tuple, TrainingJob], on_event: OnEvent):
        self._jobs, self._on_event = jobs, on_event

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        # What TensorBoard's HParams show; Tune itself enters only what it has drawn, and not given points.
        trial.evaluated_params = {name: trial.config[name] for name in _SEARCHED}

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        if "updates" not in result:  # which the end has
            self._on_event(self._jobs[key_of(trial.config)].name, result)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        log.warning("%s failed and will not be tried again", trial)


# -- the trial's side ------------------------------------------------------------------------------------------------


def train_member(config: dict[str, Any], prepared: Prepared) -> None:
    """Train one member of an ensemble: a trainable for Ray Tune, which resumes by itself.

    A trial reports `step`, `total`, `loss` and `dev` at every entry of its history, and in the end the `path` of the
    model.

    Args:
        config: `node` names the ensemble, such as `ct`; `seed` is the number of the member, and `lower_bound` one of a
            grid; `run` is the run's directory, for people.
    """
    job, storage = prepared.jobs[key_of(config)], prepared.storage
    prepare_worker(prepared.threads)
    latest: dict[str, Any] = {"step": 0, "total": 0, "dev": None}

    def report(entry: Mapping[str, Any]) -> None:
        """Send a history entry to Tune; the last dev score stands until there is another."""
        latest.update({key: value for key, value in entry.items() if key != "dev" or value is not None})
        tune.report({**latest, "timesteps_total": latest["step"]})  # TensorBoard's axis

    context = replace(prepared.context, report=report)
    outcome = train(job.step, job.worker, storage, context)
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

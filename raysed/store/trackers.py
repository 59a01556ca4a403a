"""Experiment trackers beside the run's own logs, Weights & Biases and MLflow, imported where a setting names them."""

import importlib.util
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raysed.config import TrackingConfig, stable_hash
from raysed.errors import UserError, last_line

log = logging.getLogger(__name__)


def check_trackers(config: TrackingConfig) -> None:
    """Refuse trackers whose packages are not installed."""
    for package in ("wandb", "mlflow"):  # the settings are named after them
        if getattr(config, package) is not None and importlib.util.find_spec(package) is None:
            raise UserError(f"tracking.{package} needs the package {package}; install it on all nodes, or leave it out")


def trackers_of(config: TrackingConfig, run: str, name: str, identity: Any) -> "Trackers":
    """Open the training of an artefact on all trackers that are set; one of equal identity goes on where it was."""
    key = stable_hash([run, name, identity])[:16]
    wanted = ((_Wandb, config.wandb), (_Mlflow, config.mlflow))
    return Trackers([partial(kind, place, run, name, key) for kind, place in wanted if place is not None])


class Trackers:
    """All trackers of one training; one that fails is left alone from then on, because training matters more."""

    def __init__(self, openers: Sequence[Callable[[], Any]]):
        self._open: list[Any] = []
        for opener in openers:
            self._try(lambda opener=opener: self._open.append(opener()))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Send the values of a step by name, e.g. `loss` or `dev/second`."""
        self._open = [t for t in self._open if self._try(lambda tracker=t: tracker.write(step, values))]

    def close(self, failed: bool) -> None:
        """End the training there."""
        for tracker in self._open:
            self._try(lambda tracker=tracker: tracker.close(failed))

    @staticmethod
    def _try(action: Callable[[], Any]) -> bool:
        try:
            action()
        except Exception as error:  # whatever a service and its client come up with
            log.warning("a tracker failed and gets no more data of this training: %s", last_line(error))
            return False
        return True


class _Wandb:
    """A run on Weights & Biases, in the group of all trainings of a run; it drops steps that it has itself."""

    def __init__(self, project: str, run: str, name: str, key: str):
        import wandb

        options = {"id": key, "resume": "allow", "reinit": "create_new", "dir": tempfile.gettempdir()}
        quiet = wandb.Settings(silent=True, console="off")
        self._run = wandb.init(project=project, group=run, name=name, settings=quiet, **options)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Mlflow:
    """A run on MLflow, in an experiment of the run's name."""

    def __init__(self, uri: str, run: str, name: str, key: str):
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=uri)
        experiment = f"raysed/{run}"
        found = self._client.get_experiment_by_name(experiment)
        place = found.experiment_id if found else self._client.create_experiment(experiment)
        before = self._client.search_runs([place], f"tags.raysed_key = '{key}'", max_results=1)
        self._run = before[0] if before else self._client.create_run(place, run_name=name, tags={"raysed_key": key})
        history = self._client.get_metric_history(self._run.info.run_id, "loss") if before else []
        self._last = max((point.step for point in history), default=-1)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._last:
            for key, value in values.items():
                self._client.log_metric(self._run.info.run_id, key, value, step=step)

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._run.info.run_id, status="FAILED" if failed else "FINISHED")

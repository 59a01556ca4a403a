"""Adapters to experiment trackers: what they are told, and that they harm nothing."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from raysed.config import TrackingConfig, make_config
from raysed.errors import UserError
from raysed.plan.check import check
from raysed.store.metrics import MetricsLog
from raysed.store.storage import Storage
from raysed.store.trackers import Trackers, check_trackers, trackers_of

HISTORY = [{"step": 10, "loss": 0.5}, {"step": 20, "loss": 0.25, "dev": {"first": 60.5}}]
BOTH = TrackingConfig(wandb="sentences", mlflow="https://tracker.example")


class FakeWandb(ModuleType):
    """Its runs by id; a step that is not larger than the last one is dropped, as there."""

    def __init__(self):
        super().__init__("wandb")
        self.runs: dict[str, SimpleNamespace] = {}
        self.Settings = lambda **settings: settings

    def init(self, id: str, **named):
        run = self.runs.setdefault(id, SimpleNamespace(named=named, steps={}, ended=None))

        def log(values: dict, step: int) -> None:
            if step > max(run.steps, default=-1):
                run.steps[step] = values

        run.log, run.finish = log, lambda exit_code: setattr(run, "ended", exit_code)
        return run


class FakeClient:
    """MLflow's client on a server that all clients share."""

    def __init__(self, server: dict, tracking_uri: str):
        self.server = server
        server["uri"] = tracking_uri

    def get_experiment_by_name(self, name: str):
        return SimpleNamespace(experiment_id=name) if name in self.server["experiments"] else None

    def create_experiment(self, name: str) -> str:
        self.server["experiments"].append(name)
        return name

    def search_runs(self, places: list, query: str, max_results: int) -> list:
        found = [
            run for run in self.server["runs"].values() if query == f"tags.raysed_key = '{run.tags['raysed_key']}'"
        ]
        return found[:max_results]

    def create_run(self, place: str, run_name: str, tags: dict):
        run_id = f"run{len(self.server['runs'])}"
        run = SimpleNamespace(
            info=SimpleNamespace(run_id=run_id), place=place, name=run_name, tags=tags, points=[], ended=None
        )
        self.server["runs"][run_id] = run
        return run

    def get_metric_history(self, run_id: str, key: str) -> list:
        return [SimpleNamespace(step=step) for name, _, step in self.server["runs"][run_id].points if name == key]

    def log_metric(self, run_id: str, key: str, value: float, step: int) -> None:
        self.server["runs"][run_id].points.append((key, value, step))

    def set_terminated(self, run_id: str, status: str) -> None:
        self.server["runs"][run_id].ended = status


@pytest.fixture
def wandb(monkeypatch) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


@pytest.fixture
def mlflow(monkeypatch) -> dict:
    server: dict = {"experiments": [], "runs": {}}
    package, tracking = ModuleType("mlflow"), ModuleType("mlflow.tracking")
    tracking.MlflowClient = lambda tracking_uri: FakeClient(server, tracking_uri)
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", tracking)
    return server


def train(storage: Storage, history: list, identity: str = "a") -> None:
    with MetricsLog(storage, "ct/members/00", trackers_of(BOTH, "mine", "ct/members/00", identity)) as metrics:
        for entry in history:
            metrics.write(entry)


def test_every_entry_reaches_both_trackers(wandb, mlflow, tmp_path):
    train(Storage(str(tmp_path), "mine"), HISTORY)
    (run,) = wandb.runs.values()
    assert (run.named["project"], run.named["group"], run.named["name"]) == ("sentences", "mine", "ct/members/00")
    assert run.steps == {10: {"step": 10, "loss": 0.5}, 20: {"step": 20, "loss": 0.25, "dev/first": 60.5}}
    assert run.ended == 0
    assert (mlflow["uri"], mlflow["experiments"]) == ("https://tracker.example", ["raysed/mine"])
    (run,) = mlflow["runs"].values()
    assert (run.place, run.name, run.ended) == ("raysed/mine", "ct/members/00", "FINISHED")
    assert ("dev/first", 60.5, 20) in run.points and ("loss", 0.5, 10) in run.points


def test_a_training_that_continues_goes_on_in_the_same_place(wandb, mlflow, tmp_path):
    """It hands its whole history in again, and every step is there once."""
    storage = Storage(str(tmp_path), "mine")
    train(storage, HISTORY[:1])
    train(storage, HISTORY)
    assert [list(run.steps) for run in wandb.runs.values()] == [[10, 20]]
    (run,) = mlflow["runs"].values()
    assert [step for key, _, step in run.points if key == "loss"] == [10, 20]
    train(storage, HISTORY, identity="other settings")
    assert len(wandb.runs) == len(mlflow["runs"]) == 2


def test_a_training_that_fails_is_marked(wandb, mlflow, tmp_path):
    trackers = trackers_of(BOTH, "mine", "ct/members/00", "a")
    with pytest.raises(RuntimeError), MetricsLog(Storage(str(tmp_path), "mine"), "ct/members/00", trackers):
        raise RuntimeError
    assert [run.ended for run in wandb.runs.values()] == [1]
    assert [run.ended for run in mlflow["runs"].values()] == ["FAILED"]


class Broken:
    def __init__(self):
        self.calls = 0

    def write(self, step, values) -> None:
        self.calls += 1
        raise ConnectionError("the service is away")

    def close(self, failed) -> None:
        pytest.fail("it hears no more")


def test_a_tracker_that_fails_is_left_alone_and_the_training_goes_on(tmp_path, caplog):
    broken, storage = Broken(), Storage(str(tmp_path), "mine")
    with MetricsLog(storage, "ct/members/00", Trackers([lambda: broken])) as metrics:
        for entry in HISTORY:
            metrics.write(entry)
    assert broken.calls == 1
    assert caplog.messages == ["a tracker failed and gets no more data of this training: the service is away"]
    assert len((tmp_path / "mine/logs/ct/members/00/metrics.jsonl").read_text().splitlines()) == 2


def test_a_tracker_that_cannot_be_opened_is_left_alone(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as on a node that lacks it
    trackers_of(TrackingConfig(wandb="sentences"), "mine", "ct/members/00", "a").write(1, {"loss": 0.5})
    assert len(caplog.messages) == 1 and "wandb" in caplog.text


@pytest.mark.parametrize("package", ["wandb", "mlflow"])
def test_a_package_that_is_not_installed_is_named_before_anything_starts(monkeypatch, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=rf"^tracking\.{package} needs the package {package}; install it on all nodes"):
        check_trackers(TrackingConfig(**{package: "x"}))
    check_trackers(TrackingConfig())


def test_trackers_change_nothing_else(tiny_encoder_dir, tmp_path, wandb, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    (tmp_path / "pairs.tsv").write_text("score\tsentence1\tsentence2\n1\ta cat\ta dog\n4\ta\tthe\n2\ta\tb\n")
    settings = {
        "encoder": {"path": str(tiny_encoder_dir), "max_length": 16},
        "corpus": {"source": "bundled:everyday"},
        "evaluation": {"tasks": {"mine": str(tmp_path / "pairs.tsv")}, "dev": "mine", "layers": [1]},
    }
    before = check(make_config(settings)).depends
    assert check(make_config({**settings, "tracking": {"wandb": "sentences"}})).depends == before


@pytest.mark.slow
def test_the_real_clients_take_it(tmp_path, monkeypatch):
    """Offline, where they are installed."""
    pytest.importorskip("wandb")
    client = pytest.importorskip("mlflow.tracking").MlflowClient
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = TrackingConfig(wandb="sentences", mlflow=(tmp_path / "mlruns").as_uri())
    storage = Storage(str(tmp_path), "mine")
    for history in (HISTORY[:1], HISTORY):
        with MetricsLog(storage, "ct/members/00", trackers_of(config, "mine", "ct/members/00", "a")) as metrics:
            for entry in history:
                metrics.write(entry)
    assert list(tmp_path.glob("wandb/offline-run-*"))
    server = client(tracking_uri=config.mlflow)
    place = server.get_experiment_by_name("raysed/mine").experiment_id
    (run,) = server.search_runs([place])
    assert [point.step for point in server.get_metric_history(run.info.run_id, "loss")] == [10, 20]
    assert json.loads(json.dumps(run.data.metrics))["dev/first"] == 60.5

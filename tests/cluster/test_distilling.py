"""Learners as runs of Ray Train: their outcomes, what they report, and controllers that fail or do not end."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import ray.train
import torch
from learners import tiny_learner, write_targets
from trainings import job

from raysed import interrupts
from raysed.cluster import distilling
from raysed.cluster.distilling import run_learners
from raysed.cluster.tuning import Prepared
from raysed.config import Config, find_config, load_config
from raysed.context import Context
from raysed.resources import Cluster, Share, plan_learners
from raysed.store.storage import Storage
from raysed.train import setup
from raysed.train.stage import Start
from raysed.train.stages.sed import STAGE

TWO = Share(2, 1, 0.0, 1)


def learner(marks: Path, node: str):
    made = job(marks, node, 0, updates=0, is_gang=True)
    made.step.settings.update(sed=Config().sed)
    return made


def distil(place: Path, jobs: list, events, share: Share = TWO) -> tuple[dict, list]:
    """Trains learners; returns their outcomes and the rows that they have reported."""
    outcomes, rows = {}, []

    def on_event(name: str, event: dict) -> None:
        if "outcome" in event:
            assert name not in outcomes, "an outcome is reported once"
            outcomes[name] = event["outcome"]
        else:
            rows.append((name, event["step"], event["dev"]))

    prepared = Prepared(Storage(str(place), "run"), Context(), 1, {})
    run_learners("the/run", jobs, share, prepared, events, on_event)
    return outcomes, rows


@pytest.mark.parametrize(("gpus", "workers"), [(0, 1), (0, 2), (2, 1), (2, 2)])
def test_learners_of_the_main_job_have_deepspeed_whatever_the_hardware(tmp_path, monkeypatch, gpus, workers):
    """With the settings that ship: a worker of Ray Train has a process group, and there the engine is DeepSpeed's."""
    config, about, engines = load_config(find_config("quickstart")), {}, []
    share = plan_learners(Cluster(((8, gpus),)), config.resources, config.sed.learners, asked=workers)
    prepared = Prepared(Storage(str(tmp_path), "run"), Context(), 1, {})
    monkeypatch.setattr(distilling, "TorchTrainer", lambda loop, **kwargs: about.update(kwargs))
    distilling._trainer(learner(tmp_path, "ct-sed"), "the/run", share, prepared, None, 0)
    scaling = about["scaling_config"]
    assert (scaling.use_gpu, about["torch_config"].backend) == ((True, "nccl") if gpus else (False, "gloo"))
    assert scaling.num_workers == ((1, 2) if workers == 2 else 1), "fewer after nodes are lost"
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(setup, "DeepSpeedEngine", lambda *given: engines.append(given))
    write_targets(tmp_path / "targets", 96, 40)
    start = Start(tiny_learner(), None, {"targets": tmp_path / "targets"}, seed=0, world=workers)
    setup.set_up(STAGE, config.sed, config.sed, start)
    assert [given[1:3] for given in engines] == [(config.sed, workers)]


class Events:
    """Stands in for the queue that workers write to."""

    def __init__(self):
        self.entries = []

    def qsize(self) -> int:
        return len(self.entries)

    def get_nowait_batch(self, count: int) -> list:
        taken, self.entries[:count] = self.entries[:count], []
        return taken


@pytest.fixture
def trainer_of(monkeypatch):
    """Puts a function in the place of Ray Train's `fit`; it takes the job, how often that failed, and the events."""

    def replace(fit) -> None:
        def trainer(made, run, share, prepared, events, attempt):
            return SimpleNamespace(fit=lambda: fit(made, attempt, events))

        monkeypatch.setattr(distilling, "_trainer", trainer)

    return replace


def test_learners_train_as_many_at_once_as_planned_and_the_error_of_one_is_its_outcome(tmp_path, trainer_of):
    """What the others report is passed on in its order."""
    at_work, most = [], []

    def fit(made, attempt, events):
        if made.name == "e-sed/00":
            raise ray.train.TrainingFailedError("Traceback\nRuntimeError: no node has what a worker asks for")
        at_work.append(made.name)
        most.append(len(at_work))
        time.sleep(0.1)
        rows = [{"step": step, "total": 4, "loss": 1.0, "dev": None} for step in (1, 2)]
        events.entries.append((made.name, {**rows[-1], "rows": rows}))
        events.entries.append((made.name, {"path": "there"}))
        at_work.remove(made.name)

    trainer_of(fit)
    jobs = [learner(tmp_path, f"{name}-sed") for name in "abcde"]
    outcomes, rows = distil(tmp_path, jobs, Events())
    failures = {name: outcome.failure for name, outcome in outcomes.items() if outcome.failure}
    assert outcomes.keys() == {each.name for each in jobs} and max(most) == 2
    assert failures == {"e-sed/00": "RuntimeError: no node has what a worker asks for"}
    assert [row for row in rows if row[0] == "a-sed/00"] == [("a-sed/00", 1, None), ("a-sed/00", 2, None)]


@pytest.mark.parametrize("failures", [2, 3])
def test_a_training_whose_controller_fails_is_started_again(tmp_path, caplog, trainer_of, failures):
    """As where Ray Train, on a machine with too much to do, takes a living controller for dead."""
    began = []

    def fit(made, attempt, events):
        began.append(attempt)
        if len(began) <= failures:
            raise ray.train.ControllerError(RuntimeError("its placement group was removed"))
        events.entries.append((made.name, {"path": "there"}))

    trainer_of(fit)
    outcomes, _ = distil(tmp_path, [learner(tmp_path, "ct-sed")], Events())
    assert began == [0, 1, 2] and caplog.text.count("Ray Train failed; restarting it") == failures
    assert ("placement group" in (outcomes["ct-sed/00"].failure or "")) == (failures == 3)


def test_what_ray_train_kept_of_an_earlier_start_is_removed_before_it_starts(tmp_path, trainer_of):
    """Or it would continue from that, instead of from our checkpoints."""
    storage, found = Storage(str(tmp_path), "run"), []
    storage.plain.write("train/learner/checkpoint_manager_snapshot.json", b"{}")
    trainer_of(lambda made, attempt, events: found.append(list(storage.plain.sizes_below("train"))))
    distil(tmp_path, [learner(tmp_path, "ct-sed")], Events())
    assert found == [[]]


def test_after_a_signal_no_controller_is_started_again_and_no_learner_that_waits(tmp_path, trainer_of, monkeypatch):
    began = []

    def fit(made, attempt, events):
        began.append(made.name)
        monkeypatch.setattr(interrupts, "received_signal", lambda: 2)
        raise ray.train.ControllerError(RuntimeError("ended"))

    trainer_of(fit)
    distil(tmp_path, [learner(tmp_path, node) for node in ("ct-sed", "bsl-sed")], Events(), Share(1, 1, 0.0, 1))
    assert began == ["ct-sed/00"]


def test_a_controller_that_does_not_end_after_its_learners_is_not_waited_for(tmp_path, caplog, trainer_of, monkeypatch):
    """As Ray Train's, when it is stopped after the last learner is published."""
    over = threading.Event()

    def fit(made, attempt, events):
        events.entries.append((made.name, {"path": "there"}))
        over.wait(60)

    monkeypatch.setattr(distilling, "_ENDING_S", 0.1)
    trainer_of(fit)
    outcomes, _ = distil(tmp_path, [learner(tmp_path, "ct-sed")], Events())
    over.set()
    assert outcomes["ct-sed/00"].failure is None
    assert "all learners are finished, but Ray Train has not ended" in caplog.text

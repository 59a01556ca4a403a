"""Members as trials of Ray Tune: a table of results by node, bound and seed, lost workers, and halved grids."""

import json
import statistics
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import trainings
from ray import tune
from trainings import grid, job, starts

from raysed.cluster import tuning
from raysed.cluster.halving import Halving
from raysed.cluster.local import LocalBackend
from raysed.cluster.tuning import HalvingScheduler, Prepared, run_trials
from raysed.cluster.watchdog import Watchdog
from raysed.config import ResourcesConfig
from raysed.context import Context
from raysed.resources import Share
from raysed.store.storage import Storage

MEAN, TWO = statistics.fmean, Share(2, 1, 0.0, 1)


@pytest.fixture
def tuned(ray_cluster, monkeypatch):
    """Runs trainings as trials, two at a time; returns their outcomes, and Tune's results as a table."""
    results = []

    class Tuner(tune.Tuner):
        def __init__(self, *arguments, tune_config, **named):
            assert tune_config.search_alg.max_concurrent == TWO.workers, "as many at once as planned"
            super().__init__(*arguments, tune_config=tune_config, **named)

        def fit(self):
            results.append(super().fit())
            return results[-1]

    monkeypatch.setattr(tuning.tune, "Tuner", Tuner)

    def run(place: Path, jobs: list):
        storage, outcomes, rows = Storage(str(place), "run"), {}, []

        def on_event(name: str, event: dict) -> None:
            if "outcome" in event:
                assert name not in outcomes, "an outcome is reported once"
                outcomes[name] = event["outcome"]
            else:
                rows.append((name, event["step"], event["total"], event["loss"], event["dev"]))

        prepared = Prepared(storage, Context(), Watchdog(60), 1, {})
        run_trials("nodes", "the/run", jobs, TWO, prepared, on_event)
        return outcomes, rows, results[-1].get_dataframe()

    ray.cloudpickle.register_pickle_by_value(trainings)
    yield run
    ray.cloudpickle.unregister_pickle_by_value(trainings)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_training_is_a_trial_with_its_path_and_a_lost_worker_is_replaced(tuned, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    kinds = {"ct": "", "bsl": "lost", "simcse": "wrong", "mlm": "taken"}
    jobs = [job(marks, node, 7, score=70, behaves=behaves) for node, behaves in kinds.items()]
    outcomes, rows, table = tuned(tmp_path, jobs)
    assert {name: outcome.failure for name, outcome in outcomes.items()} == {
        "ct/07": None,
        "bsl/07": None,
        "simcse/07": "a planted mistake",
        "mlm/07": "another job has taken the run over",
    }
    assert [name for name, outcome in outcomes.items() if outcome.is_mistake] == ["simcse/07"]
    assert outcomes["ct/07"].score == 79 and outcomes["ct/07"].updates == 9
    assert starts(marks) == {"bsl-07": [9, 9], "ct-07": [9], "mlm-07": [9], "simcse-07": [9]}
    assert sorted(rows) == [("bsl/07", 9, 9, 0.5, 79), ("ct/07", 9, 9, 0.5, 79)]
    table = table.set_index("config/node")
    assert set(table["config/run"]) == {"the/run"} and set(table["config/seed"]) == {7}
    assert table["config/lower_bound"].isna().all()
    place = Storage(str(tmp_path), "run").uri("ct/07")
    assert table["path"]["ct"].startswith(place) and Path(table["path"]["ct"], "model").read_text() == "ct/07"
    assert table["step"]["ct"] == 9 and table["dev"]["ct"] == 79
    (events,) = (tmp_path / "run/tune/nodes/ct-07").glob("events.*")
    assert b"_hparams_/session_start_info" in events.read_bytes(), "TensorBoard shows node, bound and seed"
    (*_, last) = (tmp_path / "run/tune/nodes/bsl-07/result.json").read_text().splitlines()
    assert json.loads(last)["config"] == {"run": "the/run", "node": "bsl", "lower_bound": None, "seed": 7}


def halved(marks: Path) -> list:
    """Returns the grids of two nodes, of which some trainings are lost or fail."""
    marks.mkdir()
    # 0.3 has the best single model but not the best mean; 0.6 loses a model that nothing mends, and is given up.
    first = {0.3: (90, 5), 0.6: (99, 99), 0.9: (70, 71)}
    behaves = {(0.9, 0): "lost", (0.6, 1): "wrong"}
    jobs = grid(marks, "sts", first, (1, 9), MEAN, reduction=3, behaves=behaves)
    return [*jobs, *grid(marks, "ct-sts", {0.0: (10,), 0.3: (20,)}, (4, 8), max)]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_grids_are_halved_as_without_ray(tuned, tmp_path):
    """Two nodes in one experiment, several groups and seeds, a lost and a failing training, two workers."""
    here, there = tmp_path / "here", tmp_path / "there"
    local, jobs = {}, halved(here)
    backend = LocalBackend(Storage(str(tmp_path), "local"), ResourcesConfig(gpu=False), print)

    def on_event(name: str, event: dict) -> None:
        if "outcome" in event:
            local[name] = event["outcome"]

    backend.map(jobs, backend.share, Context(), on_event)
    stopped = jobs[0].halving.stopped
    assert stopped == {0.3: (1, [91, 6])}
    assert jobs[-1].halving.stopped == {0.0: (4, [14])}

    on_ray = halved(there)
    outcomes, _, table = tuned(tmp_path, on_ray)
    assert [job.halving.stopped for job in on_ray] == [job.halving.stopped for job in jobs]
    assert outcomes.keys() == local.keys() == {job.name for job in jobs}
    for name, outcome in outcomes.items():
        assert (outcome.updates, outcome.failure) == (local[name].updates, local[name].failure), name
    finished = table[table["path"].notna()]
    assert set(zip(finished["config/node"], finished["config/lower_bound"], finished["config/seed"])) == {
        ("sts", 0.9, 0),
        ("sts", 0.9, 1),
        ("ct-sts", 0.3, 0),
    }
    assert starts(here).keys() == starts(there).keys()
    assert starts(there)["sts-0.3-00"] == [1] and starts(there)["sts-0.9-01"].count(9) == 1


class Controller:
    """Tune's, with the trials of two bounds and a seed each."""

    def __init__(self, *bounds: float, workers: int = 0):
        configs = {bound: {"run": "", "node": "sts", "lower_bound": bound, "seed": 0} for bound in bounds}
        self.trials = {
            b: SimpleNamespace(config=config, trial_id=str(b), status="RUNNING") for b, config in configs.items()
        }
        self.search_alg, self.completed = (
            SimpleNamespace(on_trial_complete=lambda name: self.completed.append(name)),
            [],
        )
        self.halving = Halving({b: [("sts", b, 0)] for b in bounds}, (1, 2, 3), 2, 1, MEAN)
        self.scheduler = HalvingScheduler([self.halving], workers)

    def get_trials(self) -> list:
        return list(self.trials.values())

    def stop_trial(self, trial) -> None:
        trial.status = "TERMINATED"

    def report(self, bound: float, **result) -> str:
        return self.scheduler.on_trial_result(self, self.trials[bound], result)

    def choose(self) -> float | None:
        trial = self.scheduler.choose_trial_to_run(self)
        return trial and trial.config["lower_bound"]


def test_a_trial_that_is_still_saving_when_its_round_ends_is_stopped_or_continued_later():
    """Tune pauses a trial only when it has saved its state."""
    tuned = Controller(0.1, 0.2, 0.3)
    assert tuned.report(0.1, rung=1, dev=5) == tuned.report(0.2, rung=1, dev=9) == "PAUSE"
    assert tuned.report(0.3, rung=1, dev=7) == "CONTINUE" and tuned.choose() is None
    for bound in (0.1, 0.2):
        tuned.trials[bound].status = "PAUSED"
    assert tuned.choose() == 0.2 and tuned.trials[0.1].status == "TERMINATED"


def test_a_paused_trial_starts_once_per_round():
    tuned = Controller(0.1, 0.2, 0.3)
    tuned.trials[0.2].status = "PAUSED"
    for bound in (0.2, 0.3, 0.1):
        tuned.report(bound, rung=1, dev=10 * bound)
    assert tuned.choose() == 0.2
    tuned.trials[0.2].status = "RUNNING"
    assert tuned.report(0.2, rung=1, dev=2) == "CONTINUE", "which it reports again in another process"
    assert tuned.report(0.2, rung=2, dev=9) == "PAUSE"
    tuned.trials[0.2].status = "PAUSED"
    assert tuned.choose() is None
    assert tuned.report(0.3, rung=2, dev=1) == "STOP" and tuned.choose() == 0.2


def test_a_trial_that_is_tried_again_counts_and_one_that_has_failed_for_good_does_not():
    tuned = Controller(0.1, 0.2)
    tuned.scheduler.on_trial_error(tuned, tuned.trials[0.2])  # as before Tune tries again
    tuned.trials[0.2].status = "PENDING"
    assert tuned.choose() == 0.2 and tuned.report(0.1, rung=1, dev=5) == "PAUSE"
    tuned.trials[0.1].status, tuned.trials[0.2].status = "PAUSED", "ERROR"
    assert tuned.choose() == 0.1, "nothing waits for what has failed"


def test_a_trial_that_says_that_it_has_failed_is_not_waited_for():
    tuned = Controller(0.1, 0.2)
    assert tuned.report(0.1, rung=1, dev=5) == "PAUSE"
    tuned.trials[0.1].status = "PAUSED"
    assert tuned.report(0.2, failure="no memory") == "CONTINUE"
    assert tuned.choose() == 0.1


def test_paused_trials_hold_no_place_and_no_more_run_at_once_than_planned():
    tuned = Controller(0.1, 0.2, 0.3, 0.4, workers=1)
    for bound in tuned.trials:
        tuned.trials[bound].status = "PAUSED"
        tuned.report(bound, rung=1, dev=10 * bound)
    assert tuned.completed == ["0.1", "0.2", "0.3"], "Tune's search starts others for these"
    assert tuned.choose() == 0.3
    tuned.trials[0.3].status = "RUNNING"
    assert tuned.choose() is None

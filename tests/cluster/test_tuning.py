"""Members as trials of Ray Tune: a table of results by node, bound and seed."""

from pathlib import Path

import pytest
import ray
import trainings
from ray import tune
from trainings import job, starts

from raysed.cluster import tuning
from raysed.cluster.tuning import Prepared, run_trials
from raysed.context import Context
from raysed.resources import Share
from raysed.store.storage import Storage

TWO = Share(2, 1, 0.0, 1)


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

        prepared = Prepared(storage, Context(), 1, {})
        run_trials("nodes", "the/run", jobs, TWO, prepared, on_event)
        return outcomes, rows, results[-1].get_dataframe()

    ray.cloudpickle.register_pickle_by_value(trainings)
    yield run
    ray.cloudpickle.unregister_pickle_by_value(trainings)


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_training_is_a_trial_with_its_path(tuned, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    kinds = {"ct": "", "simcse": "wrong", "mlm": "taken"}
    jobs = [job(marks, node, 7, score=70, behaves=behaves) for node, behaves in kinds.items()]
    outcomes, rows, table = tuned(tmp_path, jobs)
    assert {name: outcome.failure for name, outcome in outcomes.items()} == {
        "ct/07": None,
        "simcse/07": "a planted mistake",
        "mlm/07": "another job has taken the run over",
    }
    assert [name for name, outcome in outcomes.items() if outcome.is_mistake] == ["simcse/07"]
    assert outcomes["ct/07"].updates == 9
    assert starts(marks) == {"ct-07": [9], "mlm-07": [9], "simcse-07": [9]}
    assert rows == [("ct/07", 9, 9, 0.5, 79)]
    table = table.set_index("config/node")
    assert set(table["config/run"]) == {"the/run"} and set(table["config/seed"]) == {7}
    assert table["config/lower_bound"].isna().all()
    place = Storage(str(tmp_path), "run").uri("ct/07")
    assert table["path"]["ct"].startswith(place) and Path(table["path"]["ct"], "model").read_text() == "ct/07"
    assert table["step"]["ct"] == 9 and table["dev"]["ct"] == 79
    (events,) = (tmp_path / "run/tune/nodes/ct-07").glob("events.*")
    assert b"_hparams_/session_start_info" in events.read_bytes(), "TensorBoard shows node, bound and seed"

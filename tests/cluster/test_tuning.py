"""Members as trials of Ray Tune: one table of results by member, retries of lost workers, and halved bounds."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray

from raysed.cluster import tuning
from raysed.cluster.resources import Share
from raysed.cluster.work import Bench, Ended, Trial
from raysed.config import ResourcesConfig
from raysed.errors import RunFailed
from raysed.store.storage import Storage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def by_value():
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def task(name: str, bound: float | None = None, seed: int = 0) -> SimpleNamespace:
    return SimpleNamespace(name=name, settings={"lower_bound": bound, "seed": seed})


def train(member, until, bench) -> Ended:
    """Scores grow with updates, and with the bound."""
    marks = Path(bench.storage.location) / f"{member.name.replace('/', '-')}.starts"
    starts = marks.read_text().count("x") if marks.exists() else 0
    marks.write_text("x" * (starts + 1))
    if member.name.endswith("lost") and not starts:
        os.kill(os.getpid(), signal.SIGKILL)
    if member.name.endswith("taken"):
        raise RunFailed("another job has taken the run over")
    score = until + 100 * (member.settings["lower_bound"] or 0)
    bench.report(member.name, {"step": until, "total": 9, "loss": 0.5, "dev": score})
    is_wrong = member.name == "ct/wrong"
    return Ended(None if is_wrong else until, until, ("a planted mistake", True) if is_wrong else None)


def run(storage: Path, trials: list[Trial], workers: int = 2):
    bench = Bench(Storage(str(storage), "run"), ResourcesConfig(), Share(workers, 1, 0.0, 1))
    return tuning.train_members(trials, bench)


def test_every_member_is_a_trial_with_its_logs_and_a_lost_worker_is_replaced(ray_cluster, tmp_path):
    trials = [
        Trial("ct", name, [task(name, seed=7)], train, (9,), 16)
        for name in ("ct/00", "ct/lost", "ct/wrong", "ct/taken")
    ]
    failed, stopped = run(tmp_path, trials)
    taken = "another job has taken the run over", False
    assert failed == {"ct/wrong": ("a planted mistake", True), "ct/taken": taken} and not stopped
    starts = {name: (tmp_path / f"ct-{name}.starts").read_text() for name in ("00", "lost", "wrong", "taken")}
    assert starts == {"00": "x", "lost": "xx", "wrong": "x", "taken": "x"}
    for name in ("ct-00", "ct-lost"):
        (*_, last) = (tmp_path / "run/tune/ct" / name / "result.json").read_text().splitlines()
        row = json.loads(last)
        assert (row["member"], row["seed"], row["step"], row["dev"]) == (name.replace("-", "/"), 7, 9, 9)
        assert (tmp_path / "run/tune/ct" / name / "progress.csv").is_file()


def test_bounds_are_halved_by_tunes_own_scheduler(ray_cluster, tmp_path):
    """One worker, so in their order: the first goes to the end, worse ones stop at the first rung."""

    def scored(member, until, bench):
        return Ended(until + 100 * member.settings["lower_bound"], until)

    trials = [
        Trial("sts", f"sts/grid/{b}", [task(f"sts/grid/{b}/{i}", b) for i in (0, 1)], scored, (1, 3, 9), 16, 3, 2)
        for b in (0.5, 0.1, 0.9, 0.3)
    ]
    failed, stopped = run(tmp_path, trials, workers=1)
    assert not failed and stopped.keys() == {"sts/grid/0.1", "sts/grid/0.3"}
    assert stopped["sts/grid/0.3"] == {"lower_bound": 0.3, "updates": 1, "scores": [31.0, 31.0]}

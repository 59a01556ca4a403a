"""Without Ray a run is what it is with Ray, and what one engine has begun the other goes on with."""

import json
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
import ray.train
from ray import tune
from safetensors.torch import load_file
from started_jobs import ALONE, artefact, threads_of_ray, tiny_settings

import raysed.pipeline
from raysed.config import make_config
from raysed.store.checkpoints import Checkpoints
from raysed.store.storage import Storage

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("blank_pictures")]

TRAINED = [*(f"ct/members/{index:02d}" for index in range(3)), "ct-sed/learners/00"]


def run(storage: Path, engine: str, **changes) -> Path:
    resources = tiny_settings()["resources"] | (ALONE if engine == "local" else {})
    config = make_config({**tiny_settings(resources=resources, **changes), "storage": str(storage)})
    with threads_of_ray():
        raysed.pipeline.run(config, lambda line: None)
    return storage / "tiny"


def meta(root: Path, name: str) -> dict:
    return json.loads((root / f"manifest/{name}.json").read_text())["meta"]


def assert_equal(first: Path, second: Path) -> None:
    for name in TRAINED:
        mine, theirs = (load_file(artefact(root, name) / "model.safetensors") for root in (first, second))
        assert max(float((mine[key] - theirs[key]).abs().max()) for key in theirs) < 1e-6, name
    for name in ("ct-sed/embeddings/00", "ct-sed-flow/calibrations/00"):
        mine, theirs = (np.load(artefact(root, name) / "layers-1.npy") for root in (first, second))
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def lose(root: Path, *names: str) -> None:
    for name in names:
        (root / f"manifest/{name}.json").unlink()
    (root / "report.json").unlink(missing_ok=True)


KILLED = {"ct/members/02": 4, "ct-sed/learners/00": 10}


class FaultyStorage(Storage):
    """Kills the workers of a member and of a learner after a checkpoint."""

    def __reduce__(self):
        return FaultyStorage, super().__reduce__()[1]

    def checkpoints(self, name, depends):
        checkpoints = super().checkpoints(name, depends)
        if name in KILLED:
            checkpoints.save = partial(self._save_and_die, checkpoints.save, KILLED[name])
        return checkpoints

    def _save_and_die(self, save, last, step, write):
        save(step, write)
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def run_of_ray(ray_cluster, finished_run, tmp_path_factory) -> Path:
    """A run on Ray that goes on with what one process has begun, and loses two workers.

    There are checkpoints of a member and of a learner, whose updates DeepSpeed goes on with; all else is to be made.
    Workers of the learner and of another member are killed after a checkpoint; none may fail without a new one.
    """
    storage = tmp_path_factory.mktemp("ray")
    root, save = storage / "tiny", Checkpoints.save
    shutil.copytree(finished_run, root)
    for victim in ("ct-sed/learners/00", "ct/members/01"):
        with pytest.MonkeyPatch.context() as patch:

            def stop(checkpoints, step, write, victim=victim):
                save(checkpoints, step, write)
                if checkpoints._name.endswith(victim):
                    raise KeyboardInterrupt

            patch.setattr(Checkpoints, "save", stop)
            lose(root, victim)
            with pytest.raises(KeyboardInterrupt):
                run(storage, "local")
    for path in (root / "manifest").iterdir():
        if path.name not in ("checkpoints", "corpus.json"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    state = root / "train/ct-sed-learners-00"
    state.mkdir(parents=True)
    (state / "checkpoint_manager_snapshot.json").write_text("{")  # of an earlier start, which Ray Train must not read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raysed.pipeline, "Storage", FaultyStorage)
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        sed = {**tiny_settings()["sed"], "max_retries": 0}
        run(storage, "ray", sed=sed, members={**tiny_settings()["members"], "max_retries": 0})
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    return root


@pytest.mark.cluster
def test_ray_goes_on_with_what_one_process_has_begun_and_makes_the_same(run_of_ray, finished_run):
    assert_equal(run_of_ray, finished_run)
    resumed = {name: meta(run_of_ray, name)["resumed_at"] for name in TRAINED}
    assert resumed == {TRAINED[0]: 0, TRAINED[1]: 4, TRAINED[2]: 4, TRAINED[3]: 10}


@pytest.mark.cluster
def test_ray_tune_has_a_trial_for_each_member_with_its_place(run_of_ray):
    table = tune.ExperimentAnalysis(str(run_of_ray / "tune/ct")).dataframe().set_index("config/seed").sort_index()
    assert list(table.index) == [0, 1, 2] and set(table["config/node"]) == {"ct"}
    assert [Path(path) for path in table["path"]] == [artefact(run_of_ray, name) for name in TRAINED[:3]]
    assert set(table["step"]) == {12} and table["config/lower_bound"].isna().all()
    events = [path.read_bytes() for path in (run_of_ray / "tune/ct").glob("*/events.*")]
    assert any(b"_hparams_/session_start_info" in each for each in events), "TensorBoard shows node, bound and seed"


@pytest.mark.cluster
def test_ray_train_has_the_metrics_of_a_learner_and_its_place(run_of_ray):
    result = ray.train.Result.from_path(str(run_of_ray / "train/ct-sed-learners-00"))
    assert result.metrics["step"] == result.metrics["total"] and result.metrics["loss"] > 0
    place = json.loads((Path(result.checkpoint.path) / "learner.json").read_text())["path"]
    assert place == result.metrics["path"] and Path(place) == artefact(run_of_ray, "ct-sed/learners/00")

"""Without Ray a run is what it is with Ray, and what one engine has begun the other goes on with."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file
from started_jobs import artefact, manifest, start_job, tiny_settings, wait_until

import raysed.pipeline
from raysed.config import make_config
from raysed.errors import UserError
from raysed.plan.check import check
from raysed.store.checkpoints import Checkpoints

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("blank_pictures")]

TRAINED = [*(f"ct/members/{index:02d}" for index in range(3)), "ct-sed/learners/00"]


def run(storage: Path, engine: str) -> Path:
    resources = {**tiny_settings()["resources"], "engine": engine}
    config = make_config({**tiny_settings(resources=resources), "storage": str(storage)})
    raysed.pipeline.run(config, lambda line: None)
    return storage / "tiny"


def assert_equal(first: Path, second: Path) -> None:
    for name in TRAINED:
        mine, theirs = (load_file(artefact(root, name) / "model.safetensors") for root in (first, second))
        assert max(float((mine[key] - theirs[key]).abs().max()) for key in theirs) < 1e-6, name
    for name in ("ct-sed/embeddings/00", "ct-sed-flow/calibrations/00"):
        mine, theirs = (np.load(artefact(root, name) / "layers-1.npy") for root in (first, second))
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.fixture(scope="module")
def run_of_ray(ray_cluster, tmp_path_factory) -> Path:
    """The directory of a run on Ray; tests copy it and change nothing in it."""
    return run(tmp_path_factory.mktemp("ray"), "ray")


@pytest.mark.cluster
def test_ray_makes_what_one_process_makes(run_of_ray, finished_run):
    assert_equal(run_of_ray, finished_run)


def lose(root: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(artefact(root, name))
    (root / "report.json").unlink(missing_ok=True)


@pytest.mark.cluster
def test_ray_goes_on_with_what_one_process_has_begun(ray_cluster, finished_run, tmp_path, monkeypatch):
    """From the checkpoint of a member, and from that of a learner, whose updates DeepSpeed makes then."""
    root, victims = tmp_path / "tiny", ("ct-sed/learners/00", "ct/members/01")
    shutil.copytree(finished_run, root)
    for victim in victims:
        with monkeypatch.context() as patch:
            save = Checkpoints.save

            def stop(checkpoints, step, write, save=save, victim=victim):
                save(checkpoints, step, write)
                if checkpoints._name.endswith(victim):
                    raise KeyboardInterrupt

            patch.setattr(Checkpoints, "save", stop)
            lose(root, victim)
            with pytest.raises(KeyboardInterrupt):
                run(tmp_path, "local")
    run(tmp_path, "ray")
    for victim in victims:
        assert json.loads((root / f"manifest/{victim}.json").read_text())["meta"]["resumed_at"] > 0
    assert_equal(root, finished_run)


@pytest.mark.cluster
def test_one_process_goes_on_with_what_ray_has_made(run_of_ray, finished_run, tmp_path):
    """Of the members one is lost, and the learner."""
    shutil.copytree(run_of_ray, tmp_path / "tiny")
    lose(tmp_path / "tiny", "ct/members/01", "ct-sed/learners/00")
    assert_equal(run(tmp_path, "local"), finished_run)


@pytest.mark.parametrize(
    ("changes", "engine"),
    [
        ({}, "ray"),
        ({"recipes": ["teachers-sed"], "teachers": ["bundled:encoder"]}, "local"),
        ({"recipes": ["teachers-sed"], "teachers": ["bundled:encoder"], "sed": {"learners": 2}}, "ray"),
        ({"recipes": ["base-whiten"]}, "local"),
        ({"recipes": ["base-whiten"], "resources": {"engine": "ray"}}, "ray"),
        ({"resources": {"engine": "local"}}, "local"),
    ],
)
def test_ray_is_taken_where_something_can_run_side_by_side(changes, engine, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert raysed.pipeline._engine_of(make_config(changes)) == engine
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    asked = changes.get("resources", {}).get("engine")
    assert raysed.pipeline._engine_of(make_config(changes)) == (asked or "ray")


def test_several_gpus_are_worth_a_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert raysed.pipeline._engine_of(make_config({"recipes": ["base-whiten"]})) == "ray"




@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_without_ray_a_job_that_is_stopped_says_so(tmp_path, number):
    config, root = tmp_path / "tiny.yaml", tmp_path / "s/tiny"
    config.write_text(yaml.safe_dump(tiny_settings(resources={"engine": "local"})))
    job = start_job(config, str(tmp_path / "s"), tmp_path)
    wait_until(lambda: any(name.startswith("checkpoints/ct/members/") for name in manifest(root)), job)
    job.send_signal(number)
    output = job.communicate(timeout=60)[0]
    assert job.returncode == 128 + number and output.endswith("stopped; the same command continues from here\n")
    assert json.loads((root / "status.json").read_text())["state"] == "stopped"


def test_without_ray_nothing_of_it_is_imported(tiny_encoder_dir, tmp_path):
    settings = {"run": "run", "storage": str(tmp_path), "recipes": ["teachers-sed"], "teachers": ["bundled:encoder"]}
    settings |= {"encoder": {"path": str(tiny_encoder_dir), "max_length": 16}, "corpus": {"sentences": 64}}
    settings |= {"sed": {"head": "fold"}, "export": {"allow_worse": True}, "evaluation": tiny_settings()["evaluation"]}
    code = f"""
import sys, raysed
assert raysed.run({settings!r}).path
print(*sorted(set(sys.modules) & {{"ray", "deepspeed"}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "", done.stderr

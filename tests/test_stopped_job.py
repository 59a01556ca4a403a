"""Jobs that are stopped and killed: the same command continues them, and the end is that of an undisturbed one."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from s3 import CREDENTIALS, below, s3_bucket
from started_jobs import (
    ALONE,
    artefact,
    digest,
    manifest,
    processes_of,
    start_job,
    threads_of_ray,
    tiny_settings,
    wait_until,
)

import raysed
from raysed.store.storage import Storage

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]

MEMBERS, LEARNER = "checkpoints/ct/members/", "checkpoints/ct-sed/learners/00/"
RESULTS = ("ct/members/00", "ct/members/02", "ct-sed/learners/00", "model")


@pytest.fixture
def config(short_path) -> Path:
    path = short_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny_settings()))
    return path


def wait_for_the_end_of_ray(place: Path, seconds: float, kill: bool = False) -> None:
    """Ray's own processes end when they notice that the others are gone."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(place)) and time.monotonic() < deadline:
        for line in left if kill else ():
            subprocess.run(["kill", "-9", line.split()[0]], stderr=subprocess.DEVNULL)
        time.sleep(0.5)
    assert not processes_of(place)


def test_a_job_that_is_stopped_ends_with_the_same_model(finished_run, short_path, config):
    """Ctrl-C while a learner trains: nothing is lost, and what continues has bitwise the undisturbed model.

    The file that names a cluster on this machine that is gone disturbs none. The learner has dropout, and keeps weights
    of before it was stopped.
    """
    (short_path / "r/ray").mkdir(parents=True)
    (short_path / "r/ray/ray_current_cluster").write_text("127.0.0.1:9")
    root = short_path / "s/tiny"
    shutil.copytree(finished_run, root)
    for made in ("ct-sed/learners", "ct-sed/embeddings", "ct-sed/fidelity", "ct-sed-flow"):
        shutil.rmtree(root / "manifest" / made)
    (root / "report.json").unlink()
    kept = {name: time for name, time in manifest(root).items() if name.startswith("ct/")}
    job = start_job(config, str(root.parent), short_path)
    wait_until(lambda: any(name.startswith(LEARNER) for name in manifest(root)), job)
    job.send_signal(signal.SIGINT)  # which Ray Train would take for itself
    output = job.communicate(timeout=60)[0]
    assert job.returncode == 128 + signal.SIGINT, output
    assert output.endswith("Stopped. Run the same command again to continue.\n")
    assert json.loads((root / "status.json").read_text())["state"] == "stopped"
    wait_for_the_end_of_ray(short_path, seconds=15)
    settings = tiny_settings(storage=str(root.parent))
    settings["resources"] |= ALONE
    with threads_of_ray():
        raysed.run(settings)
    assert kept.items() <= manifest(root).items(), "nothing that was made is lost or made again"
    learner = json.loads((root / "manifest/ct-sed/learners/00.json").read_text())
    assert learner["meta"]["resumed_at"] >= 5 > learner["meta"]["kept_step"]
    for name in RESULTS:
        assert digest(artefact(root, name)) == digest(artefact(finished_run, name)), name


@pytest.mark.nodes
def test_a_job_on_s3_that_is_killed_in_every_stage_ends_with_the_same_model(
    finished_run, short_path, config, monkeypatch
):
    """All its processes at once, without a word, as when a machine is taken away; then it has nothing to do."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_bucket() as bucket:
        location = below(bucket, "runs")
        seen = Storage(location, "tiny")
        for stage in (
            *("corpus", MEMBERS, "ct/members/", "ct-sed/targets", LEARNER),
            *("ct-sed/learners/00", "ct-sed-flow/calibrations/00", "model"),
        ):
            job = start_job(config, location, short_path)
            wait_until(lambda stage=stage: any(e.name.startswith(stage) for e in seen.entries()), job)
            if stage == MEMBERS:
                job.send_signal(signal.SIGINT)  # of which Ray Tune would end the experiment alone
                assert job.communicate(timeout=60)[0].endswith("again to continue.\n")
            else:
                os.killpg(job.pid, signal.SIGKILL)
                job.communicate(timeout=60)
            wait_for_the_end_of_ray(short_path / "r", seconds=60, kill=True)
        finished = start_job(config, location, short_path)
        output = finished.communicate(timeout=300)[0]
        assert finished.returncode == 0, output
        again = start_job(config, location, short_path).communicate(timeout=120)[0]
        assert again.splitlines()[-1].startswith("nothing to do: ")
        for name in RESULTS:
            assert digest(seen.fetch(name)) == digest(artefact(finished_run, name)), name

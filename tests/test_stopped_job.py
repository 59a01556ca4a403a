"""Jobs that are stopped and killed: the same command continues them, and the end is that of an undisturbed one."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from s3 import CREDENTIALS, below, s3_bucket
from started_jobs import artefact, digest, manifest, processes_of, remade, start_job, tiny_settings, wait_until

from raysed.store.storage import Storage

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]


MEMBERS, LEARNER = "checkpoints/ct/members/", "checkpoints/ct-sed/learners/00/"
AFTERWARDS = "ct/embeddings/"
STOPS = (
    (("",), signal.SIGHUP),  # of a terminal that is closed
    ((MEMBERS,), signal.SIGTERM),
    ((MEMBERS, AFTERWARDS), signal.SIGINT),  # Ray Tune would end the experiment alone
    ((LEARNER,), signal.SIGINT),  # Ray Train would take it for itself
)
"""What has to be made before the job is stopped, and how."""


def test_a_job_that_is_stopped_in_every_way_ends_with_the_same_model(finished_run, short_path):
    """Each time the same command continues, loses nothing, and in the end has bitwise the undisturbed model.

    By a terminal that is closed, by the end of all processes, Ray's own among them, as `timeout` tells them, and by
    Ctrl-C, while members train and while the learner does. Then by SIGKILL. The file that names a cluster on this
    machine that is gone disturbs none, nor do the files of Ray Tune and Ray Train, which are cut in half before each
    start. The learner has dropout, and ends with weights that it had before it was stopped.
    """
    (short_path / "r/ray").mkdir(parents=True)
    (short_path / "r/ray/ray_current_cluster").write_text("127.0.0.1:9")
    storage = short_path / "s"
    config = storage.parent / "tiny.yaml"
    config.write_text(yaml.safe_dump(tiny_settings()))
    root = storage / "tiny"
    made: dict[str, float] = {}
    stopped = "stopped; the same command continues from here\n"
    cut: set[str] = set()

    def started() -> subprocess.Popen:
        for place in ("tune", "train"):
            for path in filter(Path.is_file, (root / place).rglob("*")):
                os.truncate(path, path.stat().st_size // 2)
                cut.add(place)
        return start_job(config, str(storage), storage.parent)

    def job_that_makes(*what: str) -> subprocess.Popen:
        """Returns when the job has published something new of such a name."""
        before, job = manifest(root), started()
        wait_until(lambda: any(name.startswith(what) for name in remade(before, manifest(root))), job)
        return job

    def ended(job: subprocess.Popen, status: int, seconds: float, last_words: str = "") -> None:
        """Ends in time, says so, and nothing that was made is lost or made again."""
        output = job.communicate(timeout=seconds)[0]
        assert job.returncode == status and output.endswith(last_words), output
        assert made.items() <= manifest(root).items()
        made.update({name: time for name, time in manifest(root).items() if name.startswith("ct/")})

    for made_before, number in STOPS:
        job = job_that_makes(*made_before)
        if number == signal.SIGINT:
            job.send_signal(number)
        else:
            os.killpg(job.pid, number)
        ended(job, 128 + number, 60 if number == signal.SIGINT else 30, stopped)
        assert json.loads((root / "status.json").read_text())["state"] == "stopped"
        assert not processes_of(storage.parent)
    job = job_that_makes("")
    job.kill()
    ended(job, -signal.SIGKILL, 60)
    ended(started(), 0, 300)
    assert cut == {"tune", "train"}
    assert {"ct/members/00", "ct/members/01", "ct/members/02"} <= made.keys()
    learner = json.loads((root / "manifest/ct-sed/learners/00.json").read_text())
    assert learner["meta"]["resumed_at"] >= 5 > learner["meta"]["kept_step"]
    for name in ("ct/members/00", "ct/members/02", "ct-sed/learners/00", "model"):
        assert digest(artefact(root, name)) == digest(artefact(finished_run, name)), name
    deadline = time.monotonic() + 60
    while processes_of(storage.parent) and time.monotonic() < deadline:
        time.sleep(1)
    assert not processes_of(storage.parent)


@pytest.mark.nodes
def test_a_job_on_s3_that_is_killed_in_every_stage_ends_with_the_same_model(finished_run, short_path, monkeypatch):
    """All its processes at once, without a word, as when a machine is taken away; then it has nothing to do."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    config = short_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(tiny_settings()))
    with s3_bucket() as bucket:
        location = below(bucket, "runs")
        seen = Storage(location, "tiny")
        stages = (
            *("corpus", "checkpoints/ct/members/", "ct/members/", "ct-sed/targets", "checkpoints/ct-sed/learners/00/"),
            *("ct-sed/learners/00", "ct-sed-flow/calibrations/00", "model"),
        )
        for stage in stages:
            job = start_job(config, location, short_path)
            wait_until(lambda stage=stage: any(e.name.startswith(stage) for e in seen.entries()), job)
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate(timeout=60)
            deadline = time.monotonic() + 60
            while processes_of(short_path / "r") and time.monotonic() < deadline:  # Ray's own end when they notice
                subprocess.run(["pkill", "-9", "-f", str(short_path / "r")])
                time.sleep(0.5)
        finished = start_job(config, location, short_path)
        output = finished.communicate(timeout=300)[0]
        assert finished.returncode == 0, output
        again = start_job(config, location, short_path)
        assert again.communicate(timeout=120)[0].splitlines()[-1].startswith("nothing to do: ")
        for name in ("ct/members/00", "ct/members/02", "ct-sed/learners/00", "model"):
            assert digest(Storage(location, "tiny").fetch(name)) == digest(artefact(finished_run, name)), name

"""`ray up` on hosts of its own: a head and two workers, a job from outside, and nothing left after `ray down`."""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

import hosts

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
PORT = 18265
SETTINGS = (
    *("recipes=[ct-sed]", "corpus.sentences=200", "members.count=3", "ct.steps=4", "members.evaluate_every=4"),
    *("sed.epochs=0.5", "evaluation.pool_layers=[2]", "resources.wait_minutes=2", "export.allow_worse=true"),
)

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(900)]


class Launcher:
    """The user's own machine: a home directory, the cluster file filled in, and Ray's commands."""

    def __init__(self, directory: Path, machines: hosts.Hosts):
        self.home = directory / "home"
        self.home.mkdir()
        self.file = directory / "cluster.yaml"
        description = yaml.safe_load((ROOT / "docs/own-machines.yaml").read_text())
        description["cluster_name"] = f"raysed-{os.getpid()}"
        description["provider"] |= {"head_ip": machines.addresses[0], "worker_ips": machines.addresses[1:]}
        description["auth"] = {"ssh_user": "root", "ssh_private_key": str(machines.key)}
        # Without a network nothing can be installed; all else is as users get it.
        description["setup_commands"] = [f"mkdir -p ~/raysed && ln -sfn {sys.prefix} ~/raysed/venv"]
        self.file.write_text(yaml.safe_dump(description))
        clean = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        self.environment = {**clean, "HOME": str(self.home), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self.environment |= {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "HF_HUB_OFFLINE": "1"}
        self.environment["RAY_UP_enable_autoscaler_v2"] = "0"

    def run(self, *words: str, seconds: float = 300) -> str:
        """Runs a command as the user would, from the root of the repository; returns what it prints."""
        done = subprocess.run(
            [str(word) for word in words],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
        )
        assert done.returncode == 0, f"{words} ended with {done.returncode}:\n{done.stdout[-6000:]}"
        return done.stdout

    @contextmanager
    def dashboard(self) -> Iterator[str]:
        """The tunnel that `ray dashboard` keeps open; yields its address."""
        words = [str(BIN / "ray"), "dashboard", str(self.file), "--port", str(PORT)]
        tunnel = subprocess.Popen(
            words,
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + 60
            while status(f"http://127.0.0.1:{PORT}/api/version") is None:
                assert tunnel.poll() is None and time.monotonic() < until, "ray dashboard does not forward"
                time.sleep(0.5)
            yield f"http://127.0.0.1:{PORT}"
        finally:
            os.killpg(tunnel.pid, 15)
            tunnel.wait()


def wait_for_nodes(machines: hosts.Hosts, seconds: float = 120) -> None:
    """Waits until Ray runs on every host."""
    until, missing = time.monotonic() + seconds, machines.addresses
    while missing := [a for a in missing if not any("raylet/raylet" in line for line in machines.processes(a))]:
        assert time.monotonic() < until, f"Ray was not started on {missing}"
        time.sleep(1)


def wait_until_empty(machines: hosts.Hosts, seconds: float = 240) -> None:
    """Waits until no host has a process any more."""
    started = time.monotonic()
    while left := [process for address in machines.addresses for process in machines.processes(address)]:
        assert time.monotonic() - started < seconds, left
        time.sleep(1)


def status(address: str, token: str | None = None) -> int | None:
    """The answer of a web server; None where there is none."""
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def test_a_cluster_is_launched_runs_a_job_and_goes_away(tmp_path):
    if missing := hosts.missing_programs():
        pytest.skip(f"hosts of its own need {missing}")
    with hosts.Hosts(3, tmp_path) as machines:
        user = Launcher(tmp_path, machines)
        user.run("ray", "get-auth-token", "--generate")
        user.run("ray", "up", "--yes", "--no-config-cache", user.file)
        wait_for_nodes(machines)
        listed = user.run("ray", "exec", user.file, "RAY_AUTH_MODE=token ~/raysed/venv/bin/ray status")
        assert "Active:" in listed, listed
        token = (user.home / ".ray/auth_token").read_text().strip()
        head, worker = machines.addresses[:2]
        assert machines.reaches(worker, head, 6379)
        assert not machines.reaches(worker, head, 8265), "the dashboard listens to other machines"
        with user.dashboard() as address:
            assert status(f"{address}/api/jobs/") == 401
            assert status(f"{address}/api/jobs/", "0" * 64) in (401, 403)
            assert status(f"{address}/api/jobs/", token) == 200
            submit = ("ray", "job", "submit", "--address", address, "--working-dir", ".", "--")
            job = ("python", "jobs/ensemble_then_distill.py", "--storage", tmp_path / "runs", "--run", "launched")
            said = user.run(*submit, *job, *(word for setting in SETTINGS for word in ("--set", setting)), seconds=500)
            with pytest.raises(AssertionError, match=r"error: unknown setting ct\.step"):
                user.run(*submit, *job, "--set", "ct.step=5")
        assert re.search(r"cluster: 3 nodes, \d+ CPUs, 0 GPUs", said), said
        assert (tmp_path / "runs/launched/report.md").is_file()
        told = user.run(BIN / "python", "-m", "raysed", "status", "launched", "--storage", tmp_path / "runs")
        assert told.startswith("launched: complete after "), told
        user.run("ray", "down", "--yes", user.file)
        wait_until_empty(machines)

"""Dashboards as a person sees them, in headless Chromium: TensorBoard, and the pages of Ray while a job runs."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import browser

from raysed.store.metrics import MetricsLog
from raysed.store.storage import Storage

import faults

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("needs_browser")]


@pytest.fixture
def needs_browser() -> None:
    browser()  # before anything is started


def opened(address: str, profile: Path, seconds: int = 15) -> str:
    """What the page has become after so many seconds of its own time."""
    options = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--window-size=1600,1600",
        f"--user-data-dir={profile}",
    ]
    options += [f"--virtual-time-budget={1000 * seconds}", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    done = subprocess.run([browser(), *options, "--dump-dom", address], capture_output=True, text=True, timeout=180)
    return re.sub(r"<(script|style)\b.*?</\1>", "", done.stdout, flags=re.S)


def wait_for(address: str, seconds: float = 120) -> None:
    """Waits for a server to answer."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{address} never answered")


@pytest.fixture
def tensorboard(tmp_path) -> Iterator[Callable[[Path], str]]:
    """Serves a directory of logs; returns the address."""
    pytest.importorskip("tensorboard")
    servers = []

    def serve(logs: Path) -> str:
        port = faults.free_port()
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--host", "127.0.0.1"]
        servers.append(subprocess.Popen([*command, "--port", str(port)], stderr=subprocess.DEVNULL))
        address = f"http://127.0.0.1:{port}/"
        wait_for(address)
        return address

    yield serve
    for server in servers:
        server.kill()


def test_tensorboard_shows_trainings_and_their_curves(tensorboard, tmp_path):
    storage = Storage(str(tmp_path), "run")
    for index, bound in enumerate((0.3, 0.6)):
        with MetricsLog(storage, f"sts/grid/{bound}/00") as metrics:
            for step in range(0, 50, 10):
                metrics.write({"step": step, "loss": 1.0 / (1 + step + index), "dev": {"encoder": 50.0 + step}})
    address = tensorboard(tmp_path / "run/logs")
    page = opened(address, tmp_path / "profile")
    for words in ("sts/grid/0.3/00", "sts/grid/0.6/00", ">loss<", 'title="dev/encoder"'):
        assert words in page, words


@pytest.fixture(scope="module")
def nodes() -> Iterator[faults.Nodes]:
    with faults.Nodes(2, dashboard=True) as cluster:
        yield cluster


@pytest.fixture
def start(nodes, tmp_path) -> Iterator[Callable[..., tuple[str, faults.Job]]]:
    """Starts a job; returns the dashboard's address and the job."""
    jobs = []

    def begin(**changes: object) -> tuple[str, faults.Job]:
        jobs.append(faults.Job(tmp_path, nodes.address, **changes))
        return f"http://{nodes.cluster.head_node.webui_url}", jobs[-1]

    yield begin
    for job in jobs:
        job.process.kill()


@pytest.mark.nodes
def test_the_pages_of_ray_show_what_trains_members(start, tmp_path):
    address, job = start(members={"count": 2}, ct={"steps": 4000})
    job.wait_for_step("ct/members/01", 5)
    assert "ALIVE" in opened(f"{address}/#/actors", tmp_path / "profile")
    assert opened(f"{address}/#/cluster", tmp_path / "profile").count("ALIVE") >= 3


@pytest.mark.nodes
def test_ray_knows_the_training_of_a_learner_and_its_state(start):
    """By its interface, because there is no page for it."""
    address, job = start(members={"count": 2}, ct={"steps": 10}, sed={"epochs": 200})
    job.wait_for_step("ct-sed/learners/00", 1)
    with urllib.request.urlopen(f"{address}/api/train/v2/runs/v1", timeout=60) as answer:
        (training,) = json.load(answer)["train_runs"]
    assert training["name"] == "ct-sed-learners-00" and training["status"] == "RUNNING"

"""Workers that are forks of one process, which has imported what all import."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray
from ray._private import ray_constants

from raysed.cluster import forked_worker, forks
from raysed.cluster.fork_server import FIRST, LATER, WITHOUT_RAY
from raysed.cluster.forks import forking
from raysed.cluster.session import ray_session

RAYS_OWN = "setup_worker.py"


@pytest.fixture
def untouched(monkeypatch):
    """What is patched while tests share a Ray."""
    monkeypatch.setattr(ray_constants, "SETUP_WORKER_FILENAME", RAYS_OWN)
    monkeypatch.delenv("RAYSED_FORKS", raising=False)
    return monkeypatch


@pytest.mark.cluster
def test_workers_have_imported_what_all_import(ray_cluster):
    """Else all is as right as before and far slower: Ray starts workers in another way, or the process has ended."""

    @ray.remote
    def missing(names):
        return [name for name in names if name not in sys.modules]

    assert ray.get(missing.remote([*WITHOUT_RAY, *FIRST])) == []


@pytest.mark.cluster
def test_what_later_stages_need_can_be_imported(ray_cluster):
    @ray.remote(max_calls=1)  # each call in a new fork
    def there():
        return all(name in sys.modules for name in LATER)

    deadline = time.monotonic() + 60
    while not ray.get(there.remote()):
        assert time.monotonic() < deadline


@pytest.mark.cluster
def test_many_workers_on_few_cores_are_not_warned_of(ray_cluster):
    """Ray would, at sixteen on two cores, in the midst of what a run prints."""

    @ray.remote(num_cpus=0)
    class Idle:
        def ready(self):
            pass

    workers = [Idle.remote() for _ in range(22)]
    ray.get([worker.ready.remote() for worker in workers])
    said = Path(ray._private.worker.global_worker.node.get_logs_dir_path(), "raylet.out").read_text()
    assert said and "maximum expected startup concurrency" not in said


@pytest.mark.cluster
def test_a_worker_of_another_job_or_of_another_kind_is_not_forked(ray_cluster, monkeypatch):
    """Its job would be that of the first worker, which Ray's library has read from the environment."""
    ray.get(ray.remote(lambda: None).remote())  # there is a first worker
    monkeypatch.setenv("RAY_JOB_ID", "99999999")
    assert not forked_worker.is_forked(["script", "--language=PYTHON"])
    assert not forked_worker.is_forked(["script", "--language=CPP"])
    packages = '--serialized-runtime-env-context={"command_prefix": ["conda"], "env_vars": {}}'
    assert not forked_worker.is_forked(["script", "--language=PYTHON", packages])


def test_without_the_process_workers_are_started_as_ever(untouched, tmp_path):
    for place in ({}, {"RAYSED_FORKS": str(tmp_path / "nobody")}):
        for name, value in place.items():
            untouched.setenv(name, value)
        assert not forked_worker.is_forked(["script", "--language=PYTHON"])


def test_a_process_that_does_not_answer_is_not_waited_for(untouched, tmp_path):
    """Nor is one that hangs up, as a process does that is killed."""
    place = str(tmp_path / "forks")
    untouched.setattr(forked_worker, "_PATIENCE", 0.2)
    untouched.setenv("RAYSED_FORKS", place)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(place)
        listening.listen()
        assert not forked_worker.is_forked(["script", "--language=PYTHON"])
        hanging_up = threading.Thread(target=lambda: listening.accept()[0].close())
        hanging_up.start()
        assert not forked_worker.is_forked(["script", "--language=PYTHON"])
        hanging_up.join()


@pytest.mark.parametrize("reason", ["gpu", "unknown version", "not wanted", "not on Linux"])
def test_where_forking_is_not_known_to_work_ray_is_left_alone(reason, untouched):
    match reason:
        case "gpu":
            untouched.setattr(forks, "_ACCELERATORS", ("/dev/nul[l]",))
        case "unknown version":
            untouched.setattr(forks, "version", lambda package: "3.0.0")
        case "not wanted":
            untouched.setenv("RAYSED_FORK_WORKERS", "0")
        case "not on Linux":
            untouched.setattr(sys, "platform", "darwin")
    before = dict(os.environ)
    with forking() as server:
        assert server is None and ray_constants.SETUP_WORKER_FILENAME == RAYS_OWN and dict(os.environ) == before


def test_nothing_is_left_when_it_is_over(untouched):
    untouched.setenv("RAY_worker_register_timeout_seconds", "77")
    before = dict(os.environ)
    with forking() as server:
        directory = os.path.dirname(os.environ["RAYSED_FORKS"])
        assert os.path.isdir(directory) and ray_constants.SETUP_WORKER_FILENAME == forked_worker.__file__
    assert dict(os.environ) == before and ray_constants.SETUP_WORKER_FILENAME == RAYS_OWN
    assert server.returncode == -signal.SIGKILL and not os.path.exists(directory)


def test_a_cluster_starts_its_own_workers(untouched):
    untouched.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    untouched.setattr("ray.is_initialized", lambda: False)
    untouched.setattr("ray.init", lambda **options: pytest.fail("forking") if "RAYSED_FORKS" in os.environ else Here())
    untouched.setattr("ray.shutdown", lambda: None)
    with ray_session(lambda: None):
        assert ray_constants.SETUP_WORKER_FILENAME == RAYS_OWN


class Here:
    """What `ray.init` returns."""

    dashboard_url = None


DRIVER = """
import time
from raysed.cluster.forks import forking
with forking() as server:
    print(server.pid, flush=True)
    time.sleep(100)
"""


@pytest.mark.slow
def test_the_process_ends_when_its_driver_is_killed():
    with subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, text=True) as driver:
        server = psutil.Process(int(driver.stdout.readline()))
        assert server.is_running()
        driver.kill()
    server.wait(60)  # until it has done its imports, at the latest


FORKS = """
import os, threading
from ray._raylet import ObjectID
from raysed.cluster.fork_server import draw_ids

ObjectID.from_random()  # as imports may have done
for _ in range(3):
    draw_ids()
    if os.fork() == 0:
        show = lambda: print(ObjectID.from_random().hex(), flush=True)
        show()
        for _ in range(10):
            thread = threading.Thread(target=show)
            thread.start()
            thread.join()
        os._exit(0)
    os.wait()
"""


def test_no_two_workers_draw_the_same_ids():
    """Neither in their main threads nor in the first, second or tenth thread that they start."""
    found = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True).stdout
    assert len(set(found.split())) == len(found.split()) == 33


LEAVES = """
import atexit, os, sys, threading, time
from raysed.cluster.fork_server import _leave

class Kept:
    def __del__(self):
        print("taken apart")

def end_late():
    time.sleep(0.2)
    print("thread")

kept = Kept()
atexit.register(print, "handler")
if os.fork() == 0:
    threading.Thread(target=end_late).start()
    print("work")
    _leave(STATUS)
atexit.unregister(print)
del Kept.__del__
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize("status, expected", [("0", 0), ("None", 0), ("3", 3), ("'a reason'", 1)])
def test_a_worker_ends_as_python_does_but_does_not_take_apart_what_was_imported(status, expected):
    """That would copy the pages of all of it."""
    command = [sys.executable, "-c", LEAVES.replace("STATUS", status)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.stdout.split(), ended.returncode) == (["work", "thread", "handler"], expected), ended.stderr


@pytest.mark.cluster
def test_a_worker_that_nobody_needs_ends_at_little_cost(ray_cluster):
    """It would copy the 200 MB that were imported, were the interpreter taken apart."""

    @ray.remote(num_cpus=0)
    class Idle:
        def process(self):
            return os.getpid()

    idle = Idle.remote()
    process = psutil.Process(ray.get(idle.process.remote()))
    del idle
    copied = []
    with suppress(psutil.Error):  # until there is no such process
        while True:
            copied.append(process.memory_full_info().uss)
    assert max(copied) < 120 * 2**20, max(copied)

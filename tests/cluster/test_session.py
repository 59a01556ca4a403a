"""The Ray of a run: which one is joined, or that one is started, and who gets in."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from started_jobs import processes_of

from raysed import interrupts, pipeline, process
from raysed.cluster import session
from raysed.config import make_config
from raysed.errors import RunFailed, UserError
from raysed.store import systems


def test_a_ray_that_runs_already_gets_the_same_variables(monkeypatch):
    """Tune and Train read them in this process, whoever has started Ray."""
    for name in session.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")  # a user's own choice stays
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with session.session("ray") as connect:
        said = connect()
        found = {name: os.environ.get(name) for name in session.VARIABLES}
    assert said == ["Ray: the one that this process has started"]
    assert found == {**session.VARIABLES, "RAY_AIR_NEW_OUTPUT": "1"}


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"TMPDIR": f"/{'é' * 20}"}, "/tmp"),
        ({"TMPDIR": "/scratch"}, None),
        ({"TMPDIR": "/x" * 30, "RAY_TMPDIR": "/y"}, "/y"),
    ],
)
def test_the_names_of_rays_sockets_are_not_too_long(monkeypatch, variables, place):
    """Below a long TMPDIR Ray would not start."""
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with session.session("ray"):
        assert os.environ.get("RAY_TMPDIR") == place


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_named_at_once(address, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=f"^Ray cannot be used at '{address}'; start it"):
        said_by_session()


@pytest.fixture
def started(monkeypatch, tmp_path) -> list[tuple]:
    """What `ray.init` was asked for, without doing it; Ray's temporary directory is `tmp_path`."""
    calls: list[tuple] = []

    def init(address: str, **options: object) -> SimpleNamespace:
        own = "USAGE_STATS_ENABLED", "ENABLE_UV_RUN_RUNTIME_ENV", "TRAIN_ENABLE_STATE_TRACKING"
        calls.append((address, options.get("dashboard_host"), *(os.environ.get(f"RAY_{name}") for name in own)))
        return SimpleNamespace(address_info={"session_dir": str(tmp_path / "session")}, dashboard_url="127.0.0.1:8265")

    for name in (*session.VARIABLES, *session._STARTED_VARIABLES, *session._JOINED_VARIABLES):
        monkeypatch.setenv(name, "")  # put back in the end
        monkeypatch.delenv(name)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return calls


JOINED, STARTED = ("auto", None, "0", None, "1"), ("local", "127.0.0.1", "0", "0", None)
"""A Ray that starts here shows itself to this machine only, reports to nobody, and packs no directory for `uv run`.

The dashboard of one that was there shows the learners.
"""


@contextmanager
def running(directory: Path) -> Iterator[str]:
    """A server with an address in the file that `ray start` writes."""
    (directory / "ray").mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (directory / "ray/ray_current_cluster").write_text(address)
        yield address


def said_by_session() -> list[str]:
    with session.session("ray") as connect:
        return connect()


def test_a_ray_that_runs_on_this_machine_is_joined_as_by_ray_init(started, monkeypatch, tmp_path):
    joined = "Ray: joined the one that runs on this machine at {}, dashboard http://127.0.0.1:8265"
    with running(tmp_path) as address:
        assert said_by_session() == [joined.format(address)] and started == [JOINED]
        monkeypatch.setattr("os.geteuid", lambda: 12345)  # of another user it is joined only if it is named
        said = said_by_session()
        assert said[0].startswith(f"Ray: the one at {address} belongs to another user and is not joined")
        assert said[1:] == [
            "Ray: started on this machine, dashboard http://127.0.0.1:8265",
            f"Ray's logs: {tmp_path}/session/logs",
        ]
        monkeypatch.setenv("RAY_ADDRESS", "auto")
        assert said_by_session() == [joined.format(address)]
    assert [call[0] for call in started] == ["auto", "local", "auto"]


def test_a_ray_that_is_gone_is_not_joined_and_not_waited_for(started, monkeypatch, tmp_path):
    with running(tmp_path) as address:
        pass
    gone, where, _ = said_by_session()
    assert gone.startswith(f"Ray: the one at {address} does not answer and is not joined") and str(tmp_path) in gone
    assert started == [STARTED] and where.startswith("Ray: started on this machine")
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    with pytest.raises(UserError, match=f"^Ray cannot be used at '{address}'; start it"):
        said_by_session()


SEVERAL_WORKERS = {"recipes": ["teachers-sed"], "teachers": ["bundled:encoder"], "sed": {"workers": 2}}


@pytest.mark.parametrize(
    ("changes", "alone", "as_main_job"),
    [
        ({}, "local", "ray"),
        ({"resources": {"engine": "ray"}}, "ray", "ray"),
        ({"resources": {"engine": "local"}}, "local", "local"),
        (SEVERAL_WORKERS, "ray", "ray"),
    ],
)
def test_the_main_job_takes_ray_and_a_function_takes_one_that_it_is_given(changes, alone, as_main_job, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    config = make_config(changes)
    assert [pipeline._engine_of(config, starts_ray)[0] for starts_ray in (False, True)] == [alone, as_main_job]
    for variable, is_initialized in (("127.0.0.1:1", False), ("", True)):
        monkeypatch.setenv("RAY_ADDRESS", variable)
        monkeypatch.setattr("ray.is_initialized", lambda answer=is_initialized: answer)
        assert pipeline._engine_of(config, starts_ray=False) == (as_main_job, [])


@pytest.mark.parametrize("missing", ["ray", "deepspeed"])
def test_without_the_extra_the_main_job_says_how_to_install_it(monkeypatch, missing):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("raysed.pipeline.find_spec", lambda name: name != missing or None)
    engine, (said,) = pipeline._engine_of(make_config({}), starts_ray=True)
    assert engine == "local" and said.startswith("Ray: not all installed") and "[ray]'" in said


@pytest.mark.parametrize("below", ["a-file", "/proc", "/sys/kernel"])
def test_a_directory_that_ray_cannot_write_is_a_sentence(monkeypatch, tmp_path, below):
    (tmp_path / "a-file").touch()
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / below))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x" * 32)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(UserError, match=r"^Ray cannot start here: .*; set RAY_TMPDIR to a directory that can be"):
        said_by_session()


ON_RAY = r"""
import os, re, signal, subprocess, sys, urllib.error, urllib.request
from pathlib import Path
from raysed import interrupts
from raysed.cluster.session import session

interrupts.listen()
with session("ray") as connect:
    said = connect()
    import ray

    enter = "from raysed.cluster.session import session\nwith session('ray') as connect: connect(), print('in')"
    stranger = {name: value for name, value in os.environ.items() if "AUTH" not in name}
    stranger |= {"HOME": sys.argv[1], "RAY_NUM_REDIS_GET_RETRIES": "1"}  # one try to connect, not twenty
    stranger |= {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    tried = subprocess.run([sys.executable, "-c", enter], env=stranger, capture_output=True, text=True)
    print(tried.stdout or "it requires a token: set RAY_AUTH_MODE=token and" in tried.stderr or tried.stderr)
    try:
        urllib.request.urlopen(re.search(r"http:\S+", " ".join(said))[0] + "/api/jobs/", b'{"entrypoint": "id"}')
    except urllib.error.HTTPError as error:
        print(error.code)
    print(ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0))
print(oct((Path.home() / ".ray/auth_token").stat().st_mode)[-3:])
try:
    signal.raise_signal(signal.SIGTERM)
except KeyboardInterrupt:
    interrupts.acknowledge()
    print("heard")
"""


@pytest.mark.cluster
def test_who_has_no_token_gets_into_no_ray_that_starts_here_and_a_signal_is_heard_after_it(tmp_path):
    """As another user, over the machine's address or the dashboard's; nor can others read the token.

    Its workers have the priority of this process. Ray's own handlers of signals end with it, and with them those that
    it has replaced.
    """
    own = {name: value for name, value in os.environ.items() if "AUTH" not in name and name != "RAY_worker_niceness"}
    own |= {"HOME": str(tmp_path / "own"), "RAY_ADDRESS": "local"}
    command = [sys.executable, "-c", ON_RAY, str(tmp_path)]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("True\n401\nTrue\n600\nheard\n", 0), done.stderr


@pytest.fixture
def command() -> Iterator[None]:
    """This process has the handlers of a command."""
    before = {number: signal.getsignal(number) for number in interrupts.NUMBERS}
    interrupts.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_command_hears_why_ray_does_not_start(started, command, monkeypatch):
    def fails(*address: str, **options: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("ray.init", fails)
    with session.session("ray") as connect:
        with pytest.raises(UserError, match=r"^Ray cannot start here: no space left; set RAY_TMPDIR to"):
            connect()


def test_a_start_of_ray_that_does_not_end_is_given_up(started, command, monkeypatch):
    """Nothing can end it then, except the end of the process, which waits for nothing."""
    may_end, ended = threading.Event(), []
    monkeypatch.setattr("ray.init", lambda *address, **options: may_end.wait(60))
    monkeypatch.setattr("ray.shutdown", lambda: ended.append("in between"))
    monkeypatch.setattr(session, "_START_S", 0.1)
    monkeypatch.setattr(session, "_SILENT_S", 0.05)
    try:
        with pytest.raises(RunFailed, match=r"^Ray does not start within 0\.1 s; see its logs"):
            with session.session("ray") as connect:
                connect()
        assert systems.are_unanswered() and not ended
    finally:
        may_end.set()


STARTS = r"""
import argparse, os, signal, sys, threading, time
import psutil
from raysed import interrupts
from raysed.cli import main_of
from raysed.cluster.session import session

def job(arguments):
    with session("ray") as connect:
        {work}

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
sys.exit(main_of(job, argparse.ArgumentParser()))
"""
HEARS = """
        connect()
        import ray
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                os.killpg(0, number)
                time.sleep(30)
            except KeyboardInterrupt as error:
                interrupts.acknowledge()
                print(error, ray.get(ray.remote(lambda: "answers").remote()), flush=True)
                interrupts.listen()
"""
STOPPED = "\nStopped. Run the same command again to continue.\n"
SOON = "threading.Timer(1, os.killpg, (0, signal.SIGTERM)).start(), connect(), time.sleep(60)"


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("work", "code", "said", "complained"),
    [
        (HEARS, 0, "15 answers\n1 answers\n", ""),
        (SOON, 143, "", STOPPED),
        (SOON.replace("TERM", "INT"), 130, "", STOPPED),
    ],
    ids=["hears", "stopped", "interrupted"],
)
def test_ray_that_starts_in_a_command_lives_until_the_end_of_its_session(
    short_path, monkeypatch, work, code, said, complained
):
    """A signal to all processes of the job ends none of Ray's; they end soon after the session, however it ends.

    A command that is stopped while Ray starts does not wait for that.
    """
    monkeypatch.setenv("RAY_TMPDIR", str(short_path))
    monkeypatch.setenv("RAY_ADDRESS", "local")
    program = [sys.executable, "-c", STARTS.format(work=work)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=200, start_new_session=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, said, complained)
    deadline = time.monotonic() + (20 if code else 1)
    while (left := processes_of(short_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


@pytest.mark.parametrize(
    ("version", "mode", "sentence"),
    [
        ("2.59.0", None, "Ray was imported without .*; set RAY_AUTH_MODE=token before you import it"),
        ("2.60.0", None, "Ray cannot keep its token: .*; set RAY_AUTH_TOKEN to a long secret"),
        ("2.59.0", "token", "Ray cannot keep its token: .*; set RAY_AUTH_TOKEN to a long secret"),
    ],
)
def test_a_ray_that_could_not_ask_for_a_token_is_not_started(monkeypatch, tmp_path, version, mode, sentence):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.__version__", version)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    (tmp_path / "home").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match=f"^{sentence}$"):
        said_by_session()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_ray_of_another_version_is_named_with_both_versions(host, monkeypatch):
    def differs(*address: str, **options: object) -> None:
        theirs, ours = (
            f"was started with:\n    Ray: {version}\n    Python: 3.11.7\n" for version in ("2.1.0", "2.60.0")
        )
        raise RuntimeError(f"Version mismatch: The cluster {theirs}This process on node 10.0.0.1 {ours}")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", differs)
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        address = f"{f'[{host}]' if ':' in host else host}:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        versions = "it has Ray 2.1.0 and Python 3.11.7, but this process Ray 2.60.0 and Python 3.11.7: install the same"
        with pytest.raises(UserError, match=f"^Ray cannot be used at '{re.escape(address)}'; {versions}"):
            said_by_session()


def test_a_worker_says_once_that_ray_slows_it_down(monkeypatch, caplog):
    process._warn_of_niceness.cache_clear()
    monkeypatch.delenv("RAY_worker_niceness")
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("os.getpriority", lambda *which: 15)
    for _ in range(2):
        process.prepare_worker(1)
    (said,) = caplog.messages
    assert said.startswith("Ray gave this worker niceness 15") and said.endswith("with RAY_worker_niceness=0")


@pytest.mark.cluster
def test_a_disk_that_is_full_under_rays_memory_is_said_in_a_sentence(ray_cluster):
    """As Ray raises it where a task's result fits neither into memory nor on the disk."""

    @ray.remote
    def fills() -> None:
        raise ray.exceptions.OutOfDiskError

    with pytest.raises(UserError, match=r"^no disk space left for objects that Ray spills from memory; free"):
        with session.session("ray"):
            ray.get(fills.remote())

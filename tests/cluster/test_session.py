"""The Ray of a run, where somebody has started it before."""

import os
import re
import socket
import subprocess
import sys
from unittest.mock import Mock

import pytest
import ray

from raysed.cluster import session
from raysed.errors import UserError


def test_a_ray_that_runs_already_gets_the_same_variables(monkeypatch):
    """Tune and Train read them in this process, whoever has started Ray."""
    for name in session.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "1")  # a user's own choice stays
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    with session.session("ray") as dashboard:
        found = {name: os.environ.get(name) for name in session.VARIABLES}
    assert dashboard is None and found == {**session.VARIABLES, "RAY_AIR_NEW_OUTPUT": "1"}


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


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nobody.invalid:6379", "127.0.0.1:99999"])
def test_a_cluster_that_does_not_answer_is_named_at_once(address, monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", address)
    if "invalid" in address:  # as where names are looked up, which tests must not do
        monkeypatch.setattr("socket.create_connection", Mock(side_effect=socket.gaierror("Name or service not known")))
    with pytest.raises(UserError, match=f"^Ray cannot be used at '{address}'; start it"):
        with session.session("ray"):
            pass


@pytest.mark.cluster
def test_a_signal_is_still_heard_when_ray_has_ended():
    """Ray's own handlers end with it, and with them those that it has replaced."""
    job = """
import signal
from raysed import interrupts
from raysed.cluster.session import session

interrupts.listen()
with session("ray"):
    pass
try:
    signal.raise_signal(signal.SIGTERM)
except KeyboardInterrupt:
    interrupts.acknowledge()
    print("heard")
"""
    done = subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("heard\n", 0), done.stderr


@pytest.mark.cluster
def test_who_has_no_token_gets_into_no_ray_that_starts_here(tmp_path):
    """As another user, over the machine's address or the dashboard's; nor can others read the token."""
    job = """
import os, subprocess, sys, urllib.error, urllib.request
from pathlib import Path
from raysed.cluster.session import session

with session("ray") as dashboard:
    import ray

    enter = f"import ray; ray.init({ray.get_runtime_context().gcs_address!r}); print('in')"
    stranger = {name: value for name, value in os.environ.items() if "AUTH" not in name}
    stranger |= {"HOME": sys.argv[1], "RAY_NUM_REDIS_GET_RETRIES": "1"}  # one try to connect, not twenty
    tried = subprocess.run([sys.executable, "-c", enter], env=stranger, capture_output=True, text=True)
    print(tried.stdout or "AuthenticationError: " in tried.stderr or tried.stderr)
    try:
        urllib.request.urlopen(dashboard.split()[0] + "/api/jobs/", b'{"entrypoint": "id"}')
    except urllib.error.HTTPError as error:
        print(error.code)
print(oct((Path.home() / ".ray/auth_token").stat().st_mode)[-3:])
"""
    own = {name: value for name, value in os.environ.items() if "AUTH" not in name} | {"HOME": str(tmp_path / "own")}
    command = [sys.executable, "-c", job, str(tmp_path)]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("True\n401\n600\n", 0), done.stderr


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
        with session.session("ray"):
            pass


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_why_a_cluster_that_answers_cannot_be_used_is_said(host, monkeypatch):
    def differs(**options: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.1.0")

    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", differs)
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as server:
        address = f"{f'[{host}]' if ':' in host else host}:{server.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(UserError, match=f"^Ray cannot be used at '{re.escape(address)}'; Version mismatch: .*"):
            with session.session("ray"):
                pass


@pytest.mark.cluster
def test_a_disk_that_is_full_under_rays_memory_is_said_in_a_sentence(ray_cluster):
    """As Ray raises it where a task's result fits neither into memory nor on the disk."""

    @ray.remote
    def fills() -> None:
        raise ray.exceptions.OutOfDiskError

    with pytest.raises(UserError, match=r"^no disk space left for objects that Ray spills from memory; free"):
        with session.session("ray"):
            ray.get(fills.remote())

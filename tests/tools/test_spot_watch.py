"""The watcher of spot machines against a metadata service of this machine, with a `ray` that writes down its words."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

import spot_watch

HEADERS = ("X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token")


class Service:
    """Answers as AWS documents it: a token for PUT, 401 without a valid one, 404 as long as nothing is announced."""

    def __init__(self):
        self.notice: str | None = None
        self.tokens = 0
        self.questions = 0
        self.failing = 0

    def answer(self, method: str, path: str, headers) -> tuple[int, str]:
        """Returns status and text."""
        if self.failing:
            self.failing -= 1
            return 503, ""
        if (method, path) == ("PUT", "/latest/api/token"):
            if not 1 <= int(headers.get(HEADERS[0], 0)) <= 21600:
                return 400, ""
            self.tokens += 1
            return 200, f"token-{self.tokens}"
        self.questions += 1
        if headers.get(HEADERS[1]) != f"token-{self.tokens}":
            return 401, ""
        known = path == "/latest/meta-data/spot/instance-action" and self.notice is not None
        return (200, self.notice) if known else (404, "")


@contextmanager
def served(service: Service) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            status, text = service.answer(self.command, self.path, self.headers)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        do_PUT = do_GET

        def log_message(self, *words):
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def announcement(seconds: float, action: str = "terminate") -> str:
    end = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    return json.dumps({"action": action, "time": f"{end:%Y-%m-%dT%H:%M:%SZ}"})


@pytest.fixture
def ray_command(tmp_path, monkeypatch) -> Path:
    """A `ray` on the PATH that fails once if a file says so; returns the file with the words of each call."""
    calls, fake = tmp_path / "calls", tmp_path / "bin/ray"
    fake.parent.mkdir()
    writes = f'printf "%s|" "$@" >> {calls}; echo >> {calls}'
    fake.write_text(f"#!/bin/sh\n{writes}\nrm {tmp_path}/fail 2>/dev/null && exit 1\nexit 0\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # the service is never behind a proxy
    calls.touch()
    return calls


def run(endpoint: str, lock: Path, *options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, spot_watch.__file__, "--every", "0.02", "--lock", str(lock), *options],
        env={**os.environ, "AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint},
        stdout=subprocess.PIPE,
        text=True,
    )


def wait_for(condition) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_notice_drains_the_node_once(ray_command, tmp_path):
    """Nothing happens before it; a token that is too old is fetched anew; a second watcher leaves at once."""
    service = Service()
    with served(service) as endpoint:
        watcher = run(endpoint, tmp_path / "lock")
        wait_for(lambda: service.questions >= 2)
        assert run(endpoint, tmp_path / "lock").communicate(timeout=20)[0].endswith("watching already\n")
        service.tokens += 1
        wait_for(lambda: service.tokens >= 3)
        assert watcher.poll() is None and ray_command.read_text() == ""
        service.notice = announcement(100)
        said, _ = watcher.communicate(timeout=20)
    assert watcher.returncode == 0, said
    (call,) = ray_command.read_text().splitlines()
    words = call.rstrip("|").split("|")
    assert words[:3] == ["drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    assert words[3:6] == ["--reason-message", "AWS will terminate this spot instance", "--deadline-remaining-seconds"]
    assert 80 <= int(words[6]) <= 100 and len(words) == 7


def test_ray_takes_these_words():
    """Of the pinned version; the command is not part of Ray's promises."""
    from ray.scripts.scripts import drain_node

    options = {name: option for option in drain_node.params for name in option.opts}
    assert "DRAIN_NODE_REASON_PREEMPTION" in options["--reason"].type.choices
    assert options.keys() >= {"--reason-message", "--deadline-remaining-seconds"}
    assert [name for name, option in options.items() if option.required] == ["--reason", "--reason-message"]


def test_what_fails_is_tried_again(ray_command, tmp_path, monkeypatch):
    """The service, with words that are no notice, and Ray."""
    service, pauses = Service(), []
    service.failing, service.notice = 2, "<html>"
    (tmp_path / "fail").touch()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        assert len(pauses) < 20, "it never drains"
        if len(pauses) == 4:
            service.notice = announcement(-5, "stop")

    monkeypatch.setattr(spot_watch, "time", SimpleNamespace(sleep=pause))
    with served(service) as endpoint:
        spot_watch.watch(spot_watch.Metadata(endpoint), 5.0)
    first, second = ray_command.read_text().splitlines()
    assert first == second and "AWS will stop" in first and first.endswith("|0|")
    assert pauses == [5.0] * 5


def test_no_service_is_said_once(ray_command, monkeypatch, capsys):
    """On a machine that is not of AWS it does no harm."""
    pauses = iter(range(3))

    def pause(seconds: float) -> None:
        if next(pauses, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(spot_watch, "time", SimpleNamespace(sleep=pause))
    with pytest.raises(KeyboardInterrupt):
        spot_watch.watch(spot_watch.Metadata("http://127.0.0.1:9"), 5.0)
    assert capsys.readouterr().out.count("the metadata service does not say what it should") == 1
    assert ray_command.read_text() == ""


DRIVER = """
import ray

memory = 80 * 2**20
context = ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=memory, log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
input()
"""


OPEN = {"RAY_AUTH_MODE": "disabled"}
"""Else the driver alone would know Ray's token."""


@pytest.mark.nodes
def test_rays_own_command_drains_a_node(tmp_path):
    service = Service()
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"} | OPEN
    command, pipes = [sys.executable, "-c", DRIVER], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as driver:
        address = driver.stdout.readline().strip()
        service.notice = announcement(100)
        with served(service) as endpoint, pytest.MonkeyPatch.context() as patch:
            for name, value in {"RAY_ADDRESS": address, **OPEN}.items():
                patch.setenv(name, value)
            patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
            said, _ = run(endpoint, tmp_path / "lock").communicate(timeout=60)
        driver.communicate("\n")
    assert "ray drain-node ended with 0" in said

"""The watcher of spot machines against a metadata service of this machine, with a `ray` that writes down its words."""

import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

import spot_watch


class Service(BaseHTTPRequestHandler):
    """Answers as AWS documents it: a token for PUT, 401 without a valid one, 404 as long as nothing is announced."""

    def do_GET(self):
        status, text = self.answer(self.server.known)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    do_PUT = do_GET

    def answer(self, known: SimpleNamespace) -> tuple[int, str]:
        if known.failing:
            known.failing -= 1
            return 503, ""
        if (self.command, self.path) == ("PUT", "/latest/api/token"):
            known.tokens += 1
            is_valid = 1 <= int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21600
            return (200, f"token-{known.tokens}") if is_valid else (400, "")
        if self.headers["X-aws-ec2-metadata-token"] != f"token-{known.tokens}":
            return 401, ""
        is_known = self.path == "/latest/meta-data/spot/instance-action" and known.notice is not None
        return (200, known.notice) if is_known else (404, "")

    def log_message(self, *words):
        """Nothing."""


@pytest.fixture
def service(monkeypatch) -> Iterator[SimpleNamespace]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    server.known = SimpleNamespace(notice=None, tokens=0, failing=0, url=f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # the service is never behind a proxy
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.known.url)
    yield server.known
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
    calls.touch()
    return calls


def pauses(monkeypatch, *steps) -> list[float]:
    """Does the steps, one in each pause of the watcher; returns the lengths of the pauses."""
    waiting, lengths = iter(steps), []

    def pause(seconds: float) -> None:
        lengths.append(seconds)
        next(waiting)()

    monkeypatch.setattr(spot_watch, "time", SimpleNamespace(sleep=pause))
    return lengths


def test_a_notice_drains_the_node_once(service, ray_command, monkeypatch):
    """Nothing happens before it; a token that is too old is fetched anew."""

    def token_expires():
        service.tokens += 1

    def is_announced():
        assert service.tokens == 3 and ray_command.read_text() == ""
        service.notice = announcement(100)

    pauses(monkeypatch, token_expires, lambda: None, is_announced)
    spot_watch.watch(spot_watch.Metadata(service.url), 5.0)
    (call,) = ray_command.read_text().splitlines()
    words = call.rstrip("|").split("|")
    assert words[:3] == ["drain-node", "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    assert words[3:6] == ["--reason-message", "AWS will terminate this spot instance", "--deadline-remaining-seconds"]
    assert 80 <= int(words[6]) <= 100 and len(words) == 7


def test_a_second_watcher_leaves_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["spot_watch", "--lock", str(tmp_path / "lock")])
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert spot_watch.main() == 0
    assert capsys.readouterr().out.endswith("watching already\n")


def test_ray_takes_these_words():
    """Of the pinned version; the command is not part of Ray's promises."""
    from ray.scripts.scripts import drain_node

    options = {name: option for option in drain_node.params for name in option.opts}
    assert "DRAIN_NODE_REASON_PREEMPTION" in options["--reason"].type.choices
    assert options.keys() >= {"--reason-message", "--deadline-remaining-seconds"}
    assert [name for name, option in options.items() if option.required] == ["--reason", "--reason-message"]


def test_what_fails_is_tried_again(service, ray_command, tmp_path, monkeypatch):
    """The service, with words that are no notice, and Ray."""
    service.failing, service.notice = 2, "<html>"
    (tmp_path / "fail").touch()

    def is_announced():
        service.notice = announcement(-5, "stop")

    lengths = pauses(monkeypatch, *[lambda: None] * 3, is_announced, lambda: None)
    spot_watch.watch(spot_watch.Metadata(service.url), 5.0)
    first, second = ray_command.read_text().splitlines()
    assert first == second and "AWS will stop" in first and first.endswith("|0|")
    assert lengths == [5.0] * 5

"""The Ray of a run: that of the cluster, or one of its own, whose processes are gone when the run is over."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

from raysed import interrupts
from raysed.errors import UserError

VARIABLES = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the job, not only the experiment
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # the end of a learner is seen within that time, not within 2 s
    # Ray Train looks every 20 s which nodes there are; without this it would wait a minute for one that is gone.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "25",
    "RAY_USAGE_STATS_ENABLED": "0",  # no host is asked that the user did not name
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""For Ray's libraries, in every process of a run; a user's own choice stays."""
_ELSEWHERE = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
"""For a cluster, whose dashboard then knows the learners; it takes one more actor, which stays."""
_HERE = {"address": "local", "include_dashboard": None, "dashboard_host": "127.0.0.1"}
"""For a Ray that is started on this machine. Without an address it would be one that was started here before, as long
as its file is there, even if it is gone."""
_TO_BE_ASKED = ("raylet", "gcs_server")
"""Ray's servers that clean up when they are told to end."""
_ENDING_SECONDS = 10
"""For Ray's processes to end once they were told to."""


def is_ray_given() -> bool:
    """Whether there is a cluster to work on, or this process has started Ray already."""
    ray = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


@contextmanager
def session(engine: str) -> Iterator[str | None]:
    """Connect to the cluster of RAY_ADDRESS (`ray job submit` sets it) or start Ray here, if `engine` is ray.

    Yields the address of the dashboard, if any, and how to get in.
    """
    if engine == "local":
        with _noticing():
            yield None
        return
    is_elsewhere = bool(os.environ.get("RAY_ADDRESS"))
    for name, value in {**VARIABLES, **(_ELSEWHERE if is_elsewhere else {})}.items():
        os.environ.setdefault(name, value)
    try:
        if (ray := sys.modules.get("ray")) and ray.is_initialized():
            yield None
        else:
            with _started({} if is_elsewhere else _HERE) as dashboard:
                yield dashboard
    except Exception as error:  # such as objects that neither memory nor a node's disk has room for
        if (ray := sys.modules.get("ray")) and isinstance(error, ray.exceptions.OutOfDiskError):
            what = "no disk space left for what Ray moves out of memory"
            remedy = "free some space, or set RAY_TMPDIR to another disk where Ray is started"
            raise UserError(f"{what}; {remedy}") from None
        raise


@contextmanager
def _noticing() -> Iterator[None]:
    """Note an interrupt as soon as it arrives, so that nothing interrupts the cleaning up."""
    try:
        yield
    except KeyboardInterrupt:
        interrupts.notice()
        raise


def _connected(options: dict[str, Any]) -> Any:
    """Start or join Ray; UserError where a cluster that was named does not answer, or not without a token."""
    import ray  # takes a second that a run with nothing to do can save

    address = os.environ.get("RAY_ADDRESS", "")
    try:
        if not options and (named := re.fullmatch(r"([^/]+):(\d+)", address)):  # Ray would try for minutes
            socket.create_connection((named[1].strip("[]"), int(named[2])), timeout=10).close()
        return ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        if options:
            raise
        remedy = str(error)  # such as that the cluster has another version
        if "token" in f"{error} {error.__cause__}":
            remedy = "it asks for a token: export RAY_AUTH_MODE=token, with the cluster's own in ~/.ray/auth_token"
        elif isinstance(error, OSError | OverflowError):
            remedy = "start it (ray start --head), or name another with --address or RAY_ADDRESS"
        raise UserError(f"Ray cannot be used at {address!r}; {remedy}") from None


@contextmanager
def _started(options: dict[str, Any]) -> Iterator[str | None]:
    own, listening = _OwnRay(), interrupts.listening()
    with interrupts.when_stopped(interrupts.Stopping(is_hopeless=own.is_lost, at_last=own.kill)):
        try:
            with _noticing():
                with _deaf_children() if listening else nullcontext():
                    context = _connected(options)
                own.has_started()
                if listening:  # Ray has put its own handler of SIGTERM, which ends the process with exit code 1
                    interrupts.listen_again()
                with interrupts.errors_are_stops():
                    yield f"http://{context.dashboard_url}{_how_to_log_in()}" if context.dashboard_url else None
        finally:
            own.end()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Let processes that start in the block not hear when a terminal is closed, or SIGTERM is sent to all of a job.

    They are told to end by the job. Once the raylet, which has the memory that processes share, is gone, Ray ends any
    process whose thread then touches it, of its own accord, with exit code 1 and without a word.
    """
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGHUP, hangup)


def _how_to_log_in() -> str:
    """Ray sets this variable, too, when it starts with the token of an earlier start."""
    is_closed = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    return " (the page asks for a token; `ray get-auth-token` prints it)" if is_closed else ""


class _OwnRay:
    """The processes of a Ray that this one starts; none where it connects to a cluster."""

    def __init__(self) -> None:
        self._others = psutil.Process().children()
        self._servers: list[psutil.Process] = []
        self._family: set[psutil.Process] = set()
        self._is_ending = False

    def has_started(self) -> None:
        """Note Ray's servers, once it says that it has started."""
        self._servers = self._children()

    def _children(self) -> list[psutil.Process]:
        return [process for process in psutil.Process().children() if process not in self._others]

    def is_lost(self) -> bool:
        """Whether a server has ended although nobody told it to."""
        return not self._is_ending and not all(map(_lives, self._servers))

    def kill(self) -> None:
        """End all of them at once, the raylet last (see `_deaf_children`)."""
        servers = self._servers or self._children()
        self._remember(servers)
        raylets = {server for server in servers if _name(server) == "raylet"}  # has the memory that processes share
        _kill(self._family - raylets)
        psutil.wait_procs(self._family - raylets, timeout=1.0)
        _kill(raylets)

    def _remember(self, servers: Iterable[psutil.Process]) -> None:
        """Note the servers' children while they are found: a worker whose raylet is gone has another parent."""
        self._family.update(servers)
        for parent in servers:
            with suppress(psutil.NoSuchProcess):
                self._family.update(parent.children(recursive=True))

    def end(self) -> None:
        """End Ray and wait until its processes are gone; one that somebody else has ended would not answer."""
        import ray

        if self.is_lost():
            self.kill()
        else:
            self._remember(self._servers)
            self._is_ending = True
            for helper in (server for server in self._servers if _name(server) not in _TO_BE_ASKED):
                with suppress(psutil.NoSuchProcess):  # Ray would give the dashboard and the like a second each, in turn
                    _kill([helper, *helper.children(recursive=True)])
            threading.Thread(target=self._end_those_asked, daemon=True).start()
        ray.shutdown()
        deadline = time.monotonic() + _ENDING_SECONDS
        while any(map(_lives, self._family)) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _end_those_asked(self) -> None:
        """End each deaf server once Ray has asked it to end, after leaving it; Ray would wait a second for each."""
        deaf = [server for server in self._servers if _lives(server) and not _was_asked(server)]
        while deaf := [server for server in deaf if _lives(server)]:
            _kill(filter(_was_asked, deaf))
            time.sleep(0.02)


def _was_asked(process: psutil.Process) -> bool:
    """Whether SIGTERM waits for a process that has blocked it."""
    with suppress(OSError):
        pending = re.search(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        return bool(int(pending[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def _lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; until its exit code is read, an ended one stays listed as a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

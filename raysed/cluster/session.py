"""The Ray of a run: the given cluster's, or its own, whose processes are gone when the run is over."""

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
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # notice the end of a learner in 0.5 s, not in 2 s
    # Ray Train lists the nodes every 20 s; by default it would wait a minute for one that is gone.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "25",
    "RAY_USAGE_STATS_ENABLED": "0",  # contact no host that the user did not name
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Settings of Ray's libraries for every process of a run; the user's own values win."""
_ELSEWHERE = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
"""For a cluster, whose dashboard then shows the learners, at the cost of one actor that stays."""
_HERE = {"address": "local", "include_dashboard": None, "dashboard_host": "127.0.0.1"}
"""For a Ray started on this machine. Without an address, Ray would join an earlier one whose file is still there, even
if that one is gone."""
_LONGEST_TMPDIR = 30
"""Bytes; the names of Ray's sockets below it are up to 76 longer, and may have 107."""
_TO_BE_ASKED = ("raylet", "gcs_server")  # servers that clean up when told to end
_ENDING_SECONDS = 10  # for Ray's processes, once told to


def is_ray_given() -> bool:
    """Whether a cluster is named, or this process has already started Ray."""
    ray = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


@contextmanager
def session(engine: str) -> Iterator[str | None]:
    """Connect to the cluster at RAY_ADDRESS (`ray job submit` sets it) or start Ray here, unless `engine` is `local`.

    Yields the address of the dashboard, if any, and how to log in.
    """
    if engine == "local":
        with _noticing():
            yield None
        return
    is_elsewhere = bool(os.environ.get("RAY_ADDRESS"))
    if len(os.fsencode(os.environ.get("TMPDIR", ""))) > _LONGEST_TMPDIR:
        os.environ.setdefault("RAY_TMPDIR", "/tmp")
    for name, value in {**VARIABLES, **(_ELSEWHERE if is_elsewhere else {})}.items():
        os.environ.setdefault(name, value)
    try:
        if (ray := sys.modules.get("ray")) and ray.is_initialized():
            yield None
        else:
            with _started({} if is_elsewhere else _HERE) as dashboard:
                yield dashboard
    except Exception as error:  # such as objects that fit neither in memory nor on a node's disk
        if (ray := sys.modules.get("ray")) and isinstance(error, ray.exceptions.OutOfDiskError):
            what = "no disk space left for objects that Ray spills from memory"
            remedy = "free some space, or start Ray with RAY_TMPDIR on another disk"
            raise UserError(f"{what}; {remedy}") from None
        raise


@contextmanager
def _noticing() -> Iterator[None]:
    """Note an interrupt as soon as it arrives, so that nothing interrupts the clean-up."""
    try:
        yield
    except KeyboardInterrupt:
        interrupts.acknowledge()
        raise


def _connected(options: dict[str, Any]) -> Any:
    """Start or join Ray; raise UserError if the named cluster cannot be used, for example without a token."""
    if options:
        _require_token()
    import ray  # takes a second, which a run with nothing to do saves

    address = os.environ.get("RAY_ADDRESS", "")
    try:
        if not options and (named := re.fullmatch(r"([^/]+):(\d+)", address)):  # Ray would try for minutes
            socket.create_connection((named[1].strip("[]"), int(named[2])), timeout=10).close()
        return ray.init(logging_level=logging.ERROR, log_to_driver=False, **options)
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        if options:
            raise
        remedy = str(error)  # such as a version mismatch
        if "token" in f"{error} {error.__cause__}":
            remedy = "it requires a token: set RAY_AUTH_MODE=token and put the cluster's token into ~/.ray/auth_token"
        elif isinstance(error, OSError | OverflowError):
            remedy = "start it (ray start --head), or name another with --address or RAY_ADDRESS"
        raise UserError(f"Ray cannot be used at {address!r}; {remedy}") from None


def _require_token() -> None:
    """Have the Ray that starts here refuse strangers: its servers listen on all of the machine's addresses.

    Ray reads the variable when it is imported, and would write a token file that other users can read.
    """
    ray = sys.modules.get("ray")
    if ray is None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    elif "RAY_AUTH_MODE" not in os.environ and ray.__version__.startswith(("2.58.", "2.59.")):
        problem = "Ray was imported without RAY_AUTH_MODE, so anybody who reaches this machine could use it"
        raise UserError(f"{problem}; set RAY_AUTH_MODE=token before you import it")
    is_named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if os.environ.get("RAY_AUTH_MODE", "token").lower() == "token" and not is_named:
        token = Path.home() / ".ray/auth_token"
        try:
            token.parent.mkdir(parents=True, exist_ok=True)
            token.touch(0o600)  # Ray fills it
            token.chmod(0o600)
        except OSError as error:
            raise UserError(f"Ray cannot keep its token: {error}; set RAY_AUTH_TOKEN to a long secret") from None


@contextmanager
def _started(options: dict[str, Any]) -> Iterator[str | None]:
    own, listening = _OwnRay(), interrupts.listening()
    with interrupts.when_stopped(interrupts.Stopping(is_hopeless=own.is_lost, at_last=own.kill)):
        try:
            with _noticing():
                with _deaf_children() if listening else nullcontext():
                    context = _connected(options)
                own.has_started()
                if listening:  # Ray's own SIGTERM handler would exit with code 1
                    interrupts.listen_again()
                with interrupts.errors_are_stops():
                    yield f"http://{context.dashboard_url}{_how_to_log_in()}" if context.dashboard_url else None
        finally:
            own.end()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Make processes that start in the block deaf to a closed terminal and to a SIGTERM for all of a job.

    The job ends them itself. Once the raylet, which owns the shared memory, is gone, Ray silently ends any process that
    touches this memory, with exit code 1.
    """
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGHUP, hangup)


def _how_to_log_in() -> str:
    """Return how to log in."""
    is_closed = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    return " (the page asks for a token; `ray get-auth-token` prints it)" if is_closed else ""


class _OwnRay:
    """The processes of a Ray that this process starts; none if it connects to a cluster."""

    def __init__(self) -> None:
        self._others = psutil.Process().children()
        self._servers: list[psutil.Process] = []
        self._family: set[psutil.Process] = set()
        self._is_ending = False

    def has_started(self) -> None:
        self._servers = self._children()

    def _children(self) -> list[psutil.Process]:
        return [process for process in psutil.Process().children() if process not in self._others]

    def is_lost(self) -> bool:
        """Whether a server ended although nobody told it to."""
        return not self._is_ending and not all(map(_lives, self._servers))

    def kill(self) -> None:
        """Kill all of them, the raylet last (see `_deaf_children`)."""
        servers = self._servers or self._children()
        self._remember(servers)
        raylets = {server for server in servers if _name(server) == "raylet"}
        _kill(self._family - raylets)
        psutil.wait_procs(self._family - raylets, timeout=1.0)
        _kill(raylets)

    def _remember(self, servers: Iterable[psutil.Process]) -> None:
        """Record the servers' children while they can be found: a worker whose raylet is gone has another parent."""
        self._family.update(servers)
        for parent in servers:
            with suppress(psutil.NoSuchProcess):
                self._family.update(parent.children(recursive=True))

    def end(self) -> None:
        """End Ray and wait until its processes are gone; kill it if it is lost, because it would not answer."""
        import ray

        if self.is_lost():
            self.kill()
        else:
            self._remember(self._servers)
            self._is_ending = True
            for helper in (server for server in self._servers if _name(server) not in _TO_BE_ASKED):
                with suppress(psutil.NoSuchProcess):  # Ray would wait a second for each of them
                    _kill([helper, *helper.children(recursive=True)])
            threading.Thread(target=self._end_those_asked, daemon=True).start()
        ray.shutdown()
        if interrupts.listening():  # Ray has put the system's own handlers in place
            interrupts.listen_again()
        deadline = time.monotonic() + _ENDING_SECONDS
        while any(map(_lives, self._family)) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _end_those_asked(self) -> None:
        """Kill each deaf server once Ray has left it and asked it to end; Ray would wait a second for each."""
        deaf = [server for server in self._servers if _lives(server) and not _was_asked(server)]
        while deaf := [server for server in deaf if _lives(server)]:
            _kill(filter(_was_asked, deaf))
            time.sleep(0.02)


def _was_asked(process: psutil.Process) -> bool:
    """Whether a SIGTERM is pending for a process that blocks it."""
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
    """Whether a process is alive; an ended one stays listed as a zombie until its exit code is read."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

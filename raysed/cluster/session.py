"""The Ray of a run: one that was there before, or its own, whose processes are gone when the run is over."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import psutil

from raysed import interrupts
from raysed.errors import UserError

log = logging.getLogger(__name__)

VARIABLES = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the job, not only the experiment
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "30",  # for a trial's end on a busy machine; after 2 s the next one would fail
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # notice the end of a learner in 0.5 s, not in 2 s
    # Ray Train lists the nodes every 20 s; by default it would wait a minute for one that is gone.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "25",
    "RAY_USAGE_STATS_ENABLED": "0",  # contact no host that the user did not name
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""Settings of Ray's libraries for every process of a run; the user's own values win."""
_JOINED_VARIABLES = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
"""For a Ray that was there before: its dashboard then shows the learners, at the cost of one actor that stays."""
_STARTED_VARIABLES = {"RAY_worker_niceness": "0", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
"""For a Ray that starts here. With Ray's default niceness, 15, workers would get a thirtieth of a core that others use.
This machine is not taken away, so learners need no process that watches for it."""
_OWN = "local"
"""The address by which Ray starts anew, even beside another that runs here."""
_START_OPTIONS = {"include_dashboard": None, "dashboard_host": "127.0.0.1"}
_LONGEST_TMPDIR = 30
"""Bytes; the names of Ray's sockets below it are up to 76 longer, and may have 107."""
_SERVERS = ("raylet", "gcs_server")  # which clean up when told to end
_ENDING_SECONDS = 10  # for Ray's processes, once told to
_KEPT_LOG_BYTES, _KEPT_LOGS_BYTES = 2**20, 20 * 2**20
"""Of each of Ray's log files, and of all."""


def is_ray_given() -> bool:
    """Whether a cluster is named, or this process has already started Ray."""
    ray = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


@contextmanager
def session(engine: str, logs: Path | None = None) -> Iterator[list[str]]:
    """Join a Ray or start one, unless `engine` is `local`; where is decided as by `ray.init`.

    That is the cluster at RAY_ADDRESS (`ray job submit` sets it), else the one that runs on this machine, else a new
    one, whose log files are copied to `logs` in the end.

    Yields what to tell the user: which Ray is used, and why another one is not.
    """
    if engine == "local":
        with _noticing():
            yield []
        return
    if len(os.fsencode(os.environ.get("TMPDIR", ""))) > _LONGEST_TMPDIR:
        os.environ.setdefault("RAY_TMPDIR", "/tmp")
    _set_defaults(VARIABLES)
    try:
        if (ray := sys.modules.get("ray")) and ray.is_initialized():
            yield ["Ray: the one that this process has started"]
        else:
            address, lines = _find_ray()
            _set_defaults(_STARTED_VARIABLES if address == _OWN else _JOINED_VARIABLES)
            with _connection(address, logs) as dashboard:
                yield [*lines[:-1], f"{lines[-1]}, {dashboard}"]
    except Exception as error:  # such as objects that fit neither in memory nor on a node's disk
        if (ray := sys.modules.get("ray")) and isinstance(error, ray.exceptions.OutOfDiskError):
            what = "no disk space left for objects that Ray spills from memory"
            remedy = "free some space, or start Ray with RAY_TMPDIR on another disk"
            raise UserError(f"{what}; {remedy}") from None
        raise


def _set_defaults(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        os.environ.setdefault(name, value)


@contextmanager
def _noticing() -> Iterator[None]:
    """Note an interrupt as soon as it arrives, so that nothing interrupts the clean-up."""
    try:
        yield
    except KeyboardInterrupt:
        interrupts.acknowledge()
        raise


# Where ------------------------------------------------------------------------------------------------------------


def _find_ray() -> tuple[str, list[str]]:
    """Return the address of the Ray to use, and lines about it: which one it is, and why another one is not joined.

    Like `ray.init`, it looks in the file that `ray start` writes, but passes over a Ray that is gone, for which
    `ray.init` waits for minutes, and over another user's.
    """
    started, named = "Ray: started on this machine", os.environ.get("RAY_ADDRESS", "")
    if named not in ("", "auto"):
        return named, [started if named == _OWN else f"Ray: joined the cluster at {named}"]
    of_system = sys.platform == "linux" and os.environ.get("TMPDIR")
    file = Path(os.environ.get("RAY_TMPDIR") or of_system or "/tmp", "ray/ray_current_cluster")
    try:
        address, owner = file.read_text().strip() or named, file.stat().st_uid
    except OSError:
        address, owner = named, os.geteuid()
    if not address:
        return _OWN, [started]
    if not named and owner != os.geteuid():
        other = f"Ray: the one at {address} belongs to another user and is not joined (--address auto joins it)"
        return _OWN, [other, started]
    if not named and not _answers(address):
        gone = f"Ray: the one at {address} does not answer and is not joined (if it has ended, remove {file})"
        return _OWN, [gone, started]
    return address, ["Ray: joined the one that runs on this machine" + f" at {address}" * (address != named)]


def _answers(address: str) -> str | None:
    """Return where something answers: `here` on this machine, `there` elsewhere, None nowhere.

    That of `auto` is on this machine; a URI is left to Ray.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return "here" if address == "auto" else "there"
    with suppress(OSError, OverflowError):
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
            return "here" if connection.getsockname()[0] == connection.getpeername()[0] else "there"
    return None


def _connect(address: str) -> Any:
    """Start or join Ray; raise UserError if the one at the address cannot be used, for example without a token."""
    if address == _OWN:
        _require_token()
        import ray  # takes a second, which a run with nothing to do saves

        return ray.init(_OWN, **_START_OPTIONS, **_output_options())
    start_it = "start it (ray start --head), or name another with --address or RAY_ADDRESS"
    if not (place := _answers(address)):
        raise UserError(f"Ray cannot be used at {address!r}; {start_it}")
    # Ray sends a token unasked only from 2.60 on, and not to an address; once imported, it ignores the variable.
    if place == "here" and "ray" not in sys.modules and _has_token() and _expects_token(address):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    import ray

    try:
        return ray.init(os.environ.get("RAY_ADDRESS") or "auto", **_output_options())
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        words, remedy = f"{error} {error.__cause__}", str(error)
        if len(versions := re.findall(r"Ray: (\S+)\s+Python: (\S+)", words)) == 2:
            theirs, ours = (f"Ray {of_ray} and Python {of_python}" for of_ray, of_python in versions)
            remedy = f"it has {theirs}, but this process {ours}: install the same, or start another (--address local)"
        elif "token" in words:
            remedy = "it requires a token: set RAY_AUTH_MODE=token and put the cluster's token into ~/.ray/auth_token"
        elif isinstance(error, OSError):
            remedy = start_it
        raise UserError(f"Ray cannot be used at {address!r}; {remedy}") from None


def _output_options() -> dict[str, Any]:
    """Return how much Ray prints; everything where raysed prints its debug messages (`--verbose`)."""
    is_verbose = log.isEnabledFor(logging.DEBUG)
    return {"logging_level": logging.INFO if is_verbose else logging.ERROR, "log_to_driver": is_verbose}


def _has_token() -> bool:
    """Whether Ray would find a token, in the environment or in its usual file."""
    with suppress(OSError):
        return bool(_TOKEN_VARIABLES & os.environ.keys() or _token_file().stat().st_size)
    return False


def _expects_token(address: str) -> bool:
    """Whether the Ray at an address of this machine was started with tokens, as its servers' environment says.

    To one without, this process must not be one with: workers could not fetch its objects, and take it for dead.
    """
    ends = tuple(f"{sign}{address.rpartition(':')[2]}" for sign in "=:")
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline() if _name(process) in _SERVERS else []
            if command and (address == "auto" or any(part.endswith(ends) for part in command)):
                return process.environ().get("RAY_AUTH_MODE", "").lower() == "token"
    return True


_TOKEN_VARIABLES = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}


def _token_file() -> Path:
    return Path.home() / ".ray/auth_token"


def _require_token() -> None:
    """Have the Ray that starts here refuse strangers: its servers listen on all of the machine's addresses.

    Ray reads the variable when it is imported, and would write a token file that other users can read.
    """
    ray = sys.modules.get("ray")
    if ray is None:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    elif "RAY_AUTH_MODE" not in os.environ and tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60):
        problem = "Ray was imported without RAY_AUTH_MODE, so anybody who reaches this machine could use it"
        raise UserError(f"{problem}; set RAY_AUTH_MODE=token before you import it")
    if os.environ.get("RAY_AUTH_MODE", "token").lower() == "token" and not _TOKEN_VARIABLES & os.environ.keys():
        token = _token_file()
        try:
            token.parent.mkdir(parents=True, exist_ok=True)
            token.touch(0o600)  # Ray fills it
            token.chmod(0o600)
        except OSError as error:
            raise UserError(f"Ray cannot keep its token: {error}; set RAY_AUTH_TOKEN to a long secret") from None


# From start to end -------------------------------------------------------------------------------------------------


@contextmanager
def _connection(address: str, logs: Path | None) -> Iterator[str]:
    own, listening = _OwnRay(), interrupts.listening()
    written: Path | None = None

    def keep_logs() -> None:
        if written and logs:
            _copy_logs(written, logs)

    def end_at_once() -> None:
        own.kill()
        keep_logs()

    with interrupts.when_stopped(at_last=end_at_once):
        try:
            with _noticing():
                with _deaf_children() if listening else nullcontext():
                    context = _connect(address)
                own.has_started()
                if listening:  # Ray's own SIGTERM handler would exit with code 1
                    interrupts.listen_again()
                if address == _OWN:
                    written = Path(context.address_info["session_dir"], "logs")
                with interrupts.errors_are_stops():
                    yield _describe_dashboard(context.dashboard_url)
        finally:
            own.end()
            keep_logs()


def _describe_dashboard(address: str | None) -> str:
    """Return where the dashboard is and how to log in there."""
    is_closed = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    log_in = " (the page asks for a token; `ray get-auth-token` prints it)" if is_closed else ""
    return f"dashboard http://{address}{log_in}" if address else "without a dashboard"


def _copy_logs(source: Path, target: Path) -> None:
    """Copy the ends of the newest log files, which replace those of an earlier Ray."""
    left = _KEPT_LOGS_BYTES
    try:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        files = [file for file in source.iterdir() if file.is_file() and file.stat().st_size]
        for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
            with file.open("rb") as log_file:
                log_file.seek(-min(file.stat().st_size, _KEPT_LOG_BYTES, left), os.SEEK_END)
                left -= (target / file.name).write_bytes(log_file.read())
            if not left:
                break
    except OSError as error:  # a full disk must not hide how the job ended
        log.debug("Ray's logs were not kept: %s", error)


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


class _OwnRay:
    """The processes of a Ray that this process starts; none if it connects to a cluster."""

    def __init__(self) -> None:
        self._others = psutil.Process().children()
        self._servers: list[psutil.Process] = []
        self._family: set[psutil.Process] = set()

    def has_started(self) -> None:
        self._servers = self._children()

    def _children(self) -> list[psutil.Process]:
        return [process for process in psutil.Process().children() if process not in self._others]

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

        if not all(map(_lives, self._servers)):
            self.kill()
        else:
            self._remember(self._servers)
            for helper in (server for server in self._servers if _name(server) not in _SERVERS):
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

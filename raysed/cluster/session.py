"""The Ray of a run: one that was there before, or its own, which ends with the run."""

import ctypes
import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from raysed import interrupts
from raysed.errors import RunFailed, UserError
from raysed.store import systems

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
_STARTED_VARIABLES = {
    "RAY_worker_niceness": "0",  # with Ray's default, 15, workers would get a thirtieth of a core that others use
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # this machine is not taken away
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # below `uv run`, Ray would pack the working directory, models and all
}
"""For a Ray that starts here."""
_OWN = "local"
"""The address by which Ray starts anew, even beside another that runs here."""
_START_OPTIONS = {"include_dashboard": None, "dashboard_host": "127.0.0.1"}
_LONGEST_TMPDIR = 30
"""Bytes; the names of Ray's sockets below it are up to 76 longer, and may have 107."""
_END_S = 3.0
"""Seconds in which Ray's processes may end by themselves after their raylet."""
_SILENT_S, _START_S = 30.0, 300.0
"""Seconds until a start of Ray is said to be waited for, and until it is given up."""


def is_ray_given() -> bool:
    """Whether a cluster is named, or this process has already started Ray."""
    ray = sys.modules.get("ray")
    return bool(os.environ.get("RAY_ADDRESS")) or (ray is not None and ray.is_initialized())


@contextmanager
def session(engine: str) -> Iterator[Callable[[], list[str]]]:
    """Join a Ray or start one, unless `engine` is `local`; where is decided as by `ray.init`.

    That is the cluster at RAY_ADDRESS (`ray job submit` sets it), else the one that runs on this machine, else a new
    one.

    Yields a function that connects, and returns what to tell the user: which Ray is used, why another one is not, and
    where its dashboard and logs are.
    """
    if engine == "local":
        with _noticing():
            yield list
        return
    if len(os.fsencode(os.environ.get("TMPDIR", ""))) > _LONGEST_TMPDIR:
        os.environ.setdefault("RAY_TMPDIR", "/tmp")
    _set_defaults(VARIABLES)
    try:
        if (ray := sys.modules.get("ray")) and ray.is_initialized():
            yield lambda: ["Ray: the one that this process has started"]
        else:
            with _connection() as connect:
                yield connect
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
        with file.open() as opened:  # once: the owner is that of the text
            owner, address = os.fstat(opened.fileno()).st_uid, opened.read().strip() or named
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


def _answers(address: str) -> bool:
    """Whether something answers at an address; `auto` and a URI are left to Ray."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or "/" in host:
        return True
    with suppress(OSError, OverflowError), socket.create_connection((host.strip("[]"), int(port)), timeout=10):
        return True
    return False


def _connect(address: str) -> Any:
    """Start or join Ray; raise UserError if the one at the address cannot be used, for example without a token."""
    _set_defaults(_STARTED_VARIABLES if address == _OWN else _JOINED_VARIABLES)
    if address == _OWN:
        _require_token()
        import ray  # takes a second, which a run with nothing to do saves

        try:
            return ray.init(_OWN, **_START_OPTIONS, **_output_options())
        except OSError as error:  # such as a full disk
            remedy = "set RAY_TMPDIR to a directory that can be written"
            raise UserError(f"Ray cannot start here: {error}; {remedy}") from None
    start_it = "start it (ray start --head), or name another with --address or RAY_ADDRESS"
    if not _answers(address):
        raise UserError(f"Ray cannot be used at {address!r}; {start_it}")
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


_TOKEN_VARIABLES = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}


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
        token = Path.home() / ".ray/auth_token"
        try:
            token.parent.mkdir(parents=True, exist_ok=True)
            token.touch(0o600)  # Ray fills it
            token.chmod(0o600)
        except OSError as error:
            raise UserError(f"Ray cannot keep its token: {error}; set RAY_AUTH_TOKEN to a long secret") from None


# From start to end -------------------------------------------------------------------------------------------------


@contextmanager
def _connection() -> Iterator[Callable[[], list[str]]]:
    """Yield a function that connects to Ray and returns what to tell the user; end the connection."""
    is_command, start = interrupts.listening(), None

    def connect() -> list[str]:
        nonlocal start
        address, lines = _find_ray()
        if is_command:
            start = _start(address)
            context = _wait_for(start)
        else:
            context = _connect(address)
        logs = [f"Ray's logs: {context.address_info['session_dir']}/logs"] if address == _OWN else []
        return [*lines[:-1], f"{lines[-1]}, {_describe_dashboard(context.dashboard_url)}", *logs]

    try:
        with _noticing(), interrupts.errors_are_stops():
            yield connect
    finally:
        # Nothing stops a start of Ray, but this process ends before it, and its servers with this process.
        if (ray := sys.modules.get("ray")) and (start is None or start.done()):
            servers = psutil.Process().children(recursive=True) if is_command else []
            ray.shutdown()
            if is_command:  # Ray has put the system's own handlers in place
                interrupts.listen_again()
            _end(servers)


def _start(address: str) -> Future[Any]:
    """Connect in a thread, so that signals find our own handlers."""
    start: Future[Any] = Future()
    threading.Thread(target=_live, args=(address, start), name=systems.WAITING, daemon=True).start()
    return start


def _live(address: str, start: Future[Any]) -> None:
    """Connect, and stay until the raylet has ended: Ray's servers end with the thread that started them.

    `ray.shutdown` ends the raylet first, and would wait a second for each of the others: they are deaf to a closed
    terminal and to a SIGTERM for all of a job. Once the raylet, which owns the shared memory, is gone, Ray silently
    ends any process that touches this memory, with exit code 1.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGHUP})
    libc, handler = ctypes.CDLL(None), ctypes.create_string_buffer(1024)  # longer than any `struct sigaction`
    try:
        libc.sigaction(signal.SIGTERM, None, handler)
        context = _connect(address)
        libc.sigaction(signal.SIGTERM, handler, None)  # Ray's own would end the process after 3 s
        ours = {"name": "raylet", "ppid": os.getpid()}
        raylets = [process for process in psutil.process_iter(list(ours)) if process.info == ours]
        threading.current_thread().name = "Ray"
    except BaseException as error:
        start.set_exception(error)
        return
    start.set_result(context)
    psutil.wait_procs(raylets)


def _end(servers: Sequence[psutil.Process]) -> None:
    """Wait for processes of an ended Ray; end those that would notice only after a minute, as agents do."""
    _, left = psutil.wait_procs(servers, _END_S)
    for process in left:
        with suppress(psutil.Error):
            if "ray" in " ".join(process.cmdline()):
                process.kill()
    psutil.wait_procs(left, _END_S)


def _wait_for(start: Future[Any]) -> Any:
    """Return what `ray.init` returns in its thread, or raise its error."""
    if not wait([start], _SILENT_S).done:
        log.warning("waiting for Ray to start, up to %g s", _START_S)
    if not wait([start], _START_S - _SILENT_S).done:
        raise RunFailed(f"Ray does not start within {_START_S:g} s; see its logs, usually in /tmp/ray/session_latest")
    return start.result()


def _describe_dashboard(address: str | None) -> str:
    """Return where the dashboard is and how to log in there."""
    is_closed = os.environ.get("RAY_AUTH_MODE", "").lower() == "token"
    log_in = " (the page asks for a token; `ray get-auth-token` prints it)" if is_closed else ""
    return f"dashboard http://{address}{log_in}" if address else "without a dashboard"

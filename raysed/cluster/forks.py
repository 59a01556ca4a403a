"""Workers of a Ray on this machine as forks of one process, which has imported what all of them import.

Torch, transformers and Ray's libraries take four to eight seconds of a core, and a run starts a dozen workers one stage
after the other. So one process imports them while Ray starts, and this file stands in for Ray's script that starts a
worker: a worker is a copy of that process that runs Ray's own script with its own arguments, environment and files.
They also share the memory of what was imported. A worker whose runtime environment is more than variables, or that
cannot be forked for any other reason, is started as Ray would.

Ray has no public setting for this: `forking` puts the name of this file in the place of a constant, and only where
`can_fork` says that this is known to work.
"""

from __future__ import annotations

import gc
import glob
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

WITHOUT_RAY = ("numpy", "torch", "transformers", "raysed.plan.check", "raysed.training.optimizers")
"""What is imported while Ray starts."""
FIRST = ("raysed.stages.members",)
"""What is imported when the first worker is asked for: Ray's library reads its job and its raylet from the environment
once, when it is imported, and they are not known before."""
LATER = ("ray.data", "ray.train.torch", "raysed.stages.stages", "ray.util.metrics", "deepspeed")
"""What later stages need: it is imported while nobody asks."""
_OF_ALL_WORKERS = ("RAY_JOB_ID", "RAY_RAYLET_PID")
"""Variables in which a worker may not differ from the first one."""
_RAY = "2.60."
"""The versions that this was tried with."""
_ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/accel*", "/dev/neuron*", "/dev/davinci*")
_SOCKET, _OPTION = "RAYSED_FORKS", "RAYSED_FORK_WORKERS"
_VARIABLES = {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_worker_maximum_startup_concurrency": "16",
}
"""On a busy machine the imports can take longer than the minute that Ray gives a worker to report, and without its
first workers `ray.init` would wait for ever, deaf to signals. Ray would also warn of more workers than four times the
cores; forks are cheap."""
_PATIENCE = 120.0
"""Seconds that a worker waits to be forked, before it is started as ever."""
_LARGEST = 2**20
"""Bytes of a request."""
_THREADS = 128
"""More than those of a worker that draw ids."""


# -- the driver's side -------------------------------------------------------------------------------------------------


def can_fork() -> bool:
    """Whether workers can be forked: on Linux, with a version of Ray that is known, and without GPUs.

    Some libraries look for GPUs when they are imported, and a process that has begun to use CUDA cannot be forked.
    `RAYSED_FORK_WORKERS=0` in the environment also says no.
    """
    is_wanted = sys.platform == "linux" and os.environ.get(_OPTION) != "0" and version("ray").startswith(_RAY)
    return is_wanted and not any(glob.glob(pattern) for pattern in _ACCELERATORS)


@contextmanager
def forking() -> Iterator[subprocess.Popen | None]:
    """Has the workers of a Ray that is started in this block forked, where they can be.

    Yields:
        The process that they are forks of, which is ended with the block; None where Ray starts them as ever.
    """
    if not can_fork():
        yield None
        return
    kept = {name: os.environ.get(name) for name in (*_VARIABLES, _SOCKET)}
    with tempfile.TemporaryDirectory(prefix="raysed-") as directory:
        place = Path(directory, "forks")
        command = [sys.executable, __file__, "serve", str(place), str(os.getpid()), json.dumps(sys.path)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(command, start_new_session=True, **quiet)
        try:
            os.environ.update({**_VARIABLES, _SOCKET: str(place)})
            with _in_place_of_rays_script():
                yield server
        finally:
            _restore(kept)
            server.kill()
            server.wait()


@contextmanager
def _in_place_of_rays_script() -> Iterator[None]:
    from ray._private import ray_constants  # only here, because importing Ray takes a moment

    rays_own, ray_constants.SETUP_WORKER_FILENAME = ray_constants.SETUP_WORKER_FILENAME, os.path.abspath(__file__)
    try:
        yield
    finally:
        ray_constants.SETUP_WORKER_FILENAME = rays_own


def are_forked() -> bool:
    """Whether the workers of this process's Ray are forks, and so cost next to nothing to start."""
    return _SOCKET in os.environ


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# -- what Ray calls to start a worker ----------------------------------------------------------------------------------


def start_worker(arguments: list[str]) -> None:
    """Has a worker forked, or starts it as Ray would.

    Args:
        arguments: of Ray's script that starts a worker.
    """
    if not _is_forked(arguments):
        rays_own = os.path.join(os.path.dirname(arguments[0]), "setup_worker.py")
        os.execv(sys.executable, [sys.executable, rays_own, *arguments])


def _is_forked(arguments: list[str]) -> bool:
    """Has a worker forked, if it needs nothing that others do not have; returns whether it was."""
    options = dict(word.split("=", 1) for word in arguments if word.startswith("--") and "=" in word)
    own = json.loads(options.get("--serialized-runtime-env-context", "{}"))
    if options.get("--language") != "PYTHON" or any(own[key] for key in own.keys() - {"py_executable", "env_vars"}):
        return False
    kept = [word for word in arguments if not word.startswith(("--language=", "--serialized-runtime-env-context="))]
    environment = {**os.environ, **own.get("env_vars", {})}
    request = {"arguments": kept, "environment": environment, "directory": os.getcwd()}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(os.environ[_SOCKET])
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            return connection.recv(1) == b"!"
    except (OSError, KeyError):
        return False


# -- the process that is forked ----------------------------------------------------------------------------------------


def serve(place: str, parent: int, path: list[str]) -> None:
    """Imports, and forks a worker for everyone who asks, as long as the process that has started this one lives.

    Args:
        place: of the socket.
        parent: the process that has started this one.
        path: where that one looks for modules.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(place)
        listening.listen(100)  # from now on, who asks waits
        own_path, sys.path[:] = sys.path[1:], path
        for name in WITHOUT_RAY:
            importlib.import_module(name)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
        waiting: deque[str] | None = None
        while os.getppid() == parent:
            listening.settimeout(0 if waiting else 1)
            try:
                connection, _ = listening.accept()
            except (TimeoutError, BlockingIOError):
                if waiting:
                    importlib.import_module(waiting.popleft())
                continue
            content, files, _, _ = socket.recv_fds(connection, _LARGEST, 3)
            if not content:  # who asked has gone
                connection.close()
                continue
            request = json.loads(content)
            if waiting is None:
                _become_like(request)
                waiting = deque(LATER)
            if all(request["environment"].get(name) == os.environ.get(name) for name in _OF_ALL_WORKERS):
                draw_ids()
                gc.freeze()  # a look for garbage in a worker would copy the pages of all that was imported
                if os.fork() == 0:
                    listening.close()
                    _become_worker(request, connection, files, own_path)
            connection.close()
            for file in files:
                os.close(file)


def _become_like(request: Mapping[str, Any]) -> None:
    """Imports Ray in the environment of the first worker."""
    os.environ.clear()
    os.environ.update(request["environment"])
    for name in FIRST:
        importlib.import_module(name)


def draw_ids() -> None:
    """Draws from Ray's generators of ids, so that the next fork's ids are not those of the last one.

    A fork inherits the generator of the main thread and the sources that other threads' generators are seeded from:
    eight of them, which threads take in turn. So as many are drawn as a worker may have threads. Two workers with the
    same ids take each other's first object for their own, and one dies; Ray then waits for it for ever. Or one is told
    that its placement group was removed, which was that of the other.
    """
    from ray._raylet import ObjectID

    ObjectID.from_random()
    for _ in range(_THREADS):
        thread = threading.Thread(target=ObjectID.from_random)
        thread.start()
        thread.join()


def _become_worker(request: Mapping[str, Any], asking: socket.socket, files: list[int], path: list[str]) -> None:
    """Runs Ray's script as a new process would; whatever happens, this process does not go on as the one that forks."""
    try:
        asking.send(b"!")  # fails where nobody waits any more, who has then started another worker
        asking.close()
        _run_rays_script(request, files, path)
    except Exception:
        traceback.print_exc()
    os._exit(1)


def _run_rays_script(request: Mapping[str, Any], files: list[int], path: list[str]) -> None:
    os.setpgid(0, 0)  # when a worker ends, Ray kills its process group
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.modules["numpy"].random.seed()  # every process has random numbers of its own; Python's see to that themselves
    sys.argv = request["arguments"]
    sys.path[:] = [os.path.dirname(sys.argv[0]), *path]
    runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
    else:
        start_worker(sys.argv[1:])

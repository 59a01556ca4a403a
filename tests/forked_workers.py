"""Stands in for Ray's script that starts a worker: a worker is a fork of one process that has imported what all import.

Torch, transformers and Ray's libraries take some eight seconds of a core, and the tests start hundreds of workers. Here
the first start makes a process that imports them once. Every worker is a copy of it that runs Ray's own script with its
own arguments, environment and files. A worker whose runtime environment is more than variables is started as Ray would.

On a new machine these imports can take longer than the minute that Ray gives a worker to report, and without its first
workers `ray.init` waits for ever, deaf to signals. So the variables of `PATIENCE` have to be set before Ray starts.
"""

import fcntl
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

IMPORTED = (
    *("numpy", "torch", "transformers", "deepspeed", "ray.data", "ray.train.torch", "ray.tune", "ray.util.metrics"),
    *("raysed.stages.stages", "raysed.training.optimizers"),
)
PATIENCE = {"RAY_prestart_worker_first_driver": "0", "RAY_worker_register_timeout_seconds": "300"}
LARGEST = 2**20  # bytes of a request


def main(arguments: list[str]) -> None:
    """Starts a worker in one way or the other; or a script, after `run`, whose Ray starts its workers so."""
    if arguments[0] == "serve":
        serve(Path(arguments[1]), int(arguments[2]))
    elif arguments[0] == "run":
        run(arguments[1:])
    elif not is_forked(arguments):
        rays_own = os.path.join(os.path.dirname(arguments[0]), "setup_worker.py")
        os.execv(sys.executable, [sys.executable, rays_own, *arguments])


def run(arguments: list[str]) -> None:
    """Runs a script with its arguments, as Python would."""
    from ray._private import ray_constants

    ray_constants.SETUP_WORKER_FILENAME = os.path.abspath(__file__)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(arguments[0])
    runpy.run_path(arguments[0], run_name="__main__")


def is_forked(arguments: list[str]) -> bool:
    """Has a worker forked, if it needs nothing that others do not have; returns whether it was."""
    options = dict(word.split("=", 1) for word in arguments if word.startswith("--") and "=" in word)
    own = json.loads(options.get("--serialized-runtime-env-context", "{}"))
    if options["--language"] != "PYTHON" or any(own[key] for key in own.keys() - {"py_executable", "env_vars"}):
        return False
    kept = [word for word in arguments if not word.startswith(("--language=", "--serialized-runtime-env-context="))]
    environment = {**os.environ, **own.get("env_vars", {})}
    request = {"arguments": kept, "environment": environment, "directory": os.getcwd()}
    try:
        with connected(Path(options["--raylet-name"]).with_name("forks")) as connection:
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            return connection.recv(1) == b"!"
    except OSError:
        return False


def connected(place: Path) -> socket.socket:
    """Connects to the process that forks; starts it where there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(place))
        except OSError:
            place.unlink(missing_ok=True)
            start_server(place)
            connection.connect(str(place))
    return connection


def start_server(place: Path) -> None:
    """Returns when it listens, or has ended."""
    ready, told = os.pipe()
    command = [sys.executable, __file__, "serve", str(place), str(told)]
    subprocess.Popen(command, pass_fds=[told], start_new_session=True)
    os.close(told)
    os.read(ready, 1)


def serve(place: Path, told: int) -> None:
    """Imports, and then forks a worker for everyone who asks, as long as the raylet lives."""
    for name in IMPORTED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(place))
    listening.listen(100)
    listening.settimeout(1)
    os.write(told, b"!")
    os.close(told)
    while lives(int(os.environ["RAY_RAYLET_PID"])):
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        content, files, _, _ = socket.recv_fds(connection, LARGEST, 3)
        draw_ids()
        if content and os.fork() == 0:
            listening.close()
            connection.send(b"!")
            connection.close()
            become_worker(json.loads(content), files)
        connection.close()
        for file in files:
            os.close(file)


_THREADS = 128
"""More than those of a worker that draw ids."""


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


def become_worker(request: dict[str, Any], files: list[int]) -> None:
    """Runs Ray's script as a new process would."""
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
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)


def lives(process: int) -> bool:
    """Whether a process has not ended."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])

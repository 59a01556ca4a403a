"""Workers of a Ray on this machine as forks of one process, which has imported what all of them import.

Torch, transformers and Ray's libraries take four to eight seconds of a core, and a run starts a dozen workers. So one
process imports them while Ray starts, and `forked_worker` stands in for Ray's script that starts a worker: a worker is
a copy of that process that runs Ray's own script. They also share the memory of what was imported. A worker that
cannot be forked is started as Ray would.

Ray has no public setting for this: `forking` replaces a constant, and only where `can_fork` says that this is known to
work.
"""

from __future__ import annotations

import glob
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from raysed.cluster import fork_server, forked_worker
from raysed.cluster.forked_worker import SOCKET

_RAY = "2.60."
"""The versions that this was tried with."""
_ACCELERATORS = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/accel*", "/dev/neuron*", "/dev/davinci*")
_OPTION = "RAYSED_FORK_WORKERS"
_VARIABLES = {
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_worker_maximum_startup_concurrency": "16",
}
"""On a busy machine the imports can take longer than the minute that Ray gives a worker to report, and without its
first workers `ray.init` would wait for ever, deaf to signals. Ray would also warn of more workers than four times the
cores; forks are cheap."""


def can_fork() -> bool:
    """Whether workers can be forked: on Linux, with a version of Ray that is known, and without GPUs.

    Some libraries look for GPUs when they are imported, and a process that has begun to use CUDA cannot be forked.
    `RAYSED_FORK_WORKERS=0` in the environment also says no.
    """
    is_wanted = sys.platform == "linux" and os.environ.get(_OPTION) != "0" and version("ray").startswith(_RAY)
    return is_wanted and not any(glob.glob(pattern) for pattern in _ACCELERATORS)


@contextmanager
def forking() -> Iterator[subprocess.Popen | None]:
    """Have the workers of a Ray that is started in this block forked, where they can be; yield their parent."""
    if not can_fork():
        yield None
        return
    kept = {name: os.environ.get(name) for name in (*_VARIABLES, SOCKET)}
    with tempfile.TemporaryDirectory(prefix="raysed-") as directory:
        place = Path(directory, "forks")
        command = [sys.executable, fork_server.__file__, str(place), str(os.getpid()), json.dumps(sys.path)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        server = subprocess.Popen(command, start_new_session=True, **quiet)
        try:
            os.environ.update({**_VARIABLES, SOCKET: str(place)})
            from ray._private import ray_constants  # only here, because importing Ray takes a moment

            rays_own, ray_constants.SETUP_WORKER_FILENAME = ray_constants.SETUP_WORKER_FILENAME, forked_worker.__file__
            try:
                yield server
            finally:
                ray_constants.SETUP_WORKER_FILENAME = rays_own
        finally:
            for name in kept:
                os.environ.pop(name, None)
            os.environ.update({name: value for name, value in kept.items() if value is not None})
            server.kill()
            server.wait()


def are_forked() -> bool:
    """Whether the workers of this process's Ray are forks, and so cost next to nothing to start."""
    return SOCKET in os.environ

"""The process that workers are forked from, see `raysed.cluster.forks`: it imports what all of them import, and waits.

It is a script of its own, which imports nothing of this package before it knows where its driver looks for modules.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

WITHOUT_RAY = ("numpy", "torch", "transformers", "raysed.plan.check", "raysed.train.optimizers")
"""What is imported while Ray starts."""
FIRST = ("raysed.cluster.tuning", "raysed.make.models")
"""What is imported when the first worker is asked for: Ray's library reads its job and its raylet from the environment
once, when it is imported, and they are not known before."""
LATER = ("ray.data", "ray.train.torch", "raysed.plan.graph", "ray.util.metrics", "deepspeed")
"""What later stages need: it is imported while nobody asks."""
_OF_ALL_WORKERS = ("RAY_JOB_ID", "RAY_RAYLET_PID")
"""Variables in which a worker may not differ from the first one."""
_LARGEST = 2**20
"""Bytes of a request."""
_THREADS = 128
"""More than those of a worker that draw ids."""


def serve(place: str, parent: int, path: list[str]) -> None:
    """Import, and fork a worker for everyone who asks, while `parent` lives, the process that has started this one."""
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
    """Import Ray in the environment of the first worker."""
    os.environ.clear()
    os.environ.update(request["environment"])
    for name in FIRST:
        importlib.import_module(name)


def draw_ids() -> None:
    """Draw from Ray's generators of ids, so that the next fork's ids are not those of the last one.

    A fork inherits the generator of the main thread and the eight sources that other threads' generators are seeded
    from in turn. So as many are drawn as a worker may have threads. Two workers with the same ids take each other's
    first object for their own, and Ray waits for ever for the one that dies of it.
    """
    from ray._raylet import ObjectID

    ObjectID.from_random()
    for _ in range(_THREADS):
        thread = threading.Thread(target=ObjectID.from_random)
        thread.start()
        thread.join()


def _become_worker(request: Mapping[str, Any], asking: socket.socket, files: list[int], path: list[str]) -> None:
    """Run Ray's script as a new process would; whatever happens, this process does not go on as the one that forks."""
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
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
        _leave(0)
    except SystemExit as end:  # Ray's way to end a worker
        _leave(end.code)


def _leave(status: Any) -> None:
    """End this process as Python's forks end: threads are waited for and exit handlers run, and that is all.

    To take the interpreter apart would visit all that was imported, and so copy its pages: 0.4 seconds of a core.
    """
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))

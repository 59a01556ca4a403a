"""What Ray runs to start a worker where `raysed.cluster.forks` has its workers forked.

Ray starts a process of this file for every worker, so it imports next to nothing.
"""

import json
import os
import socket
import sys

SOCKET = "RAYSED_FORKS"
"""The variable that names the socket of the process that is forked."""
_PATIENCE = 120.0
"""Give up on the fork server after this many seconds and start the worker normally."""


def start_worker(arguments: list[str]) -> None:
    """Have a worker forked, or start it as Ray would, with the arguments of Ray's own script."""
    if not is_forked(arguments):
        rays_own = os.path.join(os.path.dirname(arguments[0]), "setup_worker.py")
        os.execv(sys.executable, [sys.executable, rays_own, *arguments])


def is_forked(arguments: list[str]) -> bool:
    """Have a worker forked, if it needs nothing that others do not have; return whether it was."""
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
            connection.connect(os.environ[SOCKET])
            socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
            return connection.recv(1) == b"!"
    except (OSError, KeyError):
        return False


if __name__ == "__main__":
    start_worker(sys.argv[1:])

"""File systems of clusters: calls that they do not have, and answers that do not come."""

import errno
import fcntl
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import cache
from typing import Any, TypeVar

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
_SILENT_S, _ANSWER_S = 5.0, 30.0
"""Seconds until a first access is said to wait, and until it is given up."""
WAITING = "waiting for a system"
"""Name of a thread that a system may keep waiting."""
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOLCK)
"""What Lustre, EFS, CIFS or FUSE answer to a call that they do not have."""


def answer(access: Callable[[], _Result], where: str) -> _Result:
    """Return what the first access to a file system returns; name it if that takes long, OSError after 30 s."""
    future: Future[_Result] = Future()

    def ask() -> None:
        try:
            future.set_result(access())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=ask, name=WAITING, daemon=True).start()
    if not wait([future], _SILENT_S).done:
        log.warning("waiting for %s, up to %g s", where, _ANSWER_S)
    if not wait([future], _ANSWER_S - _SILENT_S).done:
        raise TimeoutError(f"it does not answer within {_ANSWER_S:g} s")
    return future.result()


def are_unanswered() -> bool:
    """Return whether a library still waits, which would keep this process from ending."""
    return any(thread.name == WAITING for thread in threading.enumerate())


def lock(file: Any, how: int) -> None:
    """Lock an open file as `fcntl.flock` does; a warning where there are no locks."""
    if_supported("lock files: start no run twice at a time", fcntl.flock, file, how)


def if_supported(what: str, call: Callable[..., Any], *arguments: Any) -> None:
    """Call a function of the system; warn once if a file system does not have it."""
    try:
        call(*arguments)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _warn_once(f"the file system ({error.strerror}) cannot {what}")


@cache
def _warn_once(message: str) -> None:
    log.warning(message)

"""Stop on Ctrl-C, SIGTERM or a closed terminal: repeat the first signal until the job reacts; a second one kills it.

Python drops a KeyboardInterrupt raised in a destructor or in a callback of a C library; Ray has many.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_S = 1.0
"""Seconds until the signal is repeated. Another one in between is not a second one: `timeout` sends two at once."""

_acknowledged = threading.Event()
_received: int | None = None
_received_at = 0.0
_is_repeated = False  # whether the next signal is the first one again


def listen() -> None:
    """Turn `NUMBERS` into KeyboardInterrupt in the main thread, repeatedly until `acknowledge` is called."""
    global _acknowledged, _received
    if threading.current_thread() is threading.main_thread():
        _acknowledged, _received = threading.Event(), None  # an earlier job's thread keeps its event
        listen_again()


def listen_again() -> None:
    """Reinstall the handlers after a library has installed its own."""
    for number in NUMBERS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # set by `nohup`
            signal.signal(number, _interrupt)


def listening() -> bool:
    """Whether `listen` was called in this process and its handler for Ctrl-C is in place."""
    return signal.getsignal(signal.SIGINT) is _interrupt


def acknowledge() -> None:
    """Note that the job has received the interrupt; it is not repeated, and so does not disturb the clean-up."""
    _acknowledged.set()


def received_signal() -> int | None:
    """Return the first signal to stop the job, if any."""
    return _received


@contextmanager
def errors_are_stops() -> Iterator[None]:
    """Treat an error after a signal as a stop: the clean-up fails if Ray got the signal, too."""
    try:
        yield
    except Exception as error:
        if _received is None:
            raise
        raise KeyboardInterrupt(_received) from error


def _interrupt(number: int, frame: object) -> None:
    global _received, _received_at, _is_repeated
    if _received is None:
        _received, _received_at, _is_repeated = number, time.monotonic(), False
        threading.Thread(target=_repeat, args=(number, _acknowledged), daemon=True).start()
    elif _is_repeated:
        _is_repeated = False
        if _acknowledged.is_set():
            return
    elif time.monotonic() - _received_at < _REPEAT_S:
        return
    else:
        os._exit(128 + number)
    raise KeyboardInterrupt(number)


def _repeat(number: int, acknowledged: threading.Event) -> None:
    global _is_repeated
    while not acknowledged.wait(_REPEAT_S):
        _is_repeated = True
        os.kill(os.getpid(), number)

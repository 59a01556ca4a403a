"""Ctrl-C and a polite kill, repeated until the job has noticed.

Python drops a KeyboardInterrupt that happens to be raised inside a destructor or a callback of a C library, of which
Ray has many; a job would then go on as if nothing had been said.
"""

import os
import signal
import threading

_noticed = threading.Event()
_AGAIN_AFTER = 1.0


def listen() -> None:
    """Turns SIGINT and SIGTERM into KeyboardInterrupt, again and again until `notice` is called.

    Call it again after a library put handlers of its own. Outside the main thread nothing is done.
    """
    global _noticed
    if threading.current_thread() is threading.main_thread():
        _noticed = threading.Event()  # a new one: timers of an earlier job keep theirs
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)


def listening() -> bool:
    """Whether `listen` was called in this process and its handler for Ctrl-C is in place."""
    return signal.getsignal(signal.SIGINT) is _interrupt


def notice() -> None:
    """Says that the interrupt has arrived: what follows is cleaning up, which nothing interrupts any more."""
    _noticed.set()


def _interrupt(number: int, frame: object) -> None:
    if _noticed.is_set():
        return
    timer = threading.Timer(_AGAIN_AFTER, _again, (number, _noticed))
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt(number)


def _again(number: int, noticed: threading.Event) -> None:
    if not noticed.is_set():
        os.kill(os.getpid(), number)

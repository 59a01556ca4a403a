"""Stop on Ctrl-C, SIGTERM or a closed terminal: repeat the signal until the job reacts, and kill a job that does not.

Python drops a KeyboardInterrupt raised in a destructor or in a callback of a C library; Ray has many. If every process
gets the signal at once (`timeout`, systemd), Ray is gone before the job has cleaned up, and the clean-up would wait for
it. A thread therefore receives the signal, too, and ends a job that does not end by itself.
"""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_REPEAT_S = 1.0
_CLEAN_UP_S = 6.0  # seconds for a job to clean up
_AT_ONCE_S = 5.0  # seconds for `at_once`, such as a write to remote storage

_acknowledged, _has_ended = threading.Event(), threading.Event()
_received: int | None = None
_will_repeat = False  # whether a timer will send the signal again
_stoppings: list[tuple[Callable[[], None], Callable[[], None]]] = []
_last_words: Callable[[], None] | None = None
_wakeup: tuple[socket.socket, socket.socket] | None = None


def listen(last_words: Callable[[], None] | None = None) -> None:
    """Turn `NUMBERS` into KeyboardInterrupt in the main thread, repeatedly until `acknowledge` is called.

    A job that does not end in time is killed after `last_words`; without `last_words`, no job is killed.
    """
    global _acknowledged, _has_ended, _received, _will_repeat, _last_words
    if threading.current_thread() is threading.main_thread():
        _acknowledged, _has_ended = threading.Event(), threading.Event()  # an earlier job's timers keep theirs
        _received, _last_words, _will_repeat = None, last_words, False
        listen_again()


def listen_again() -> None:
    """Reinstall the handlers after a library has installed its own."""
    global _wakeup
    if _wakeup is None:  # the thread receives every signal, even while the main thread is in C++
        _wakeup = socket.socketpair()
        _wakeup[1].setblocking(False)
        threading.Thread(target=_watch, args=(_wakeup[0],), daemon=True).start()
    signal.set_wakeup_fd(_wakeup[1].fileno(), warn_on_full_buffer=False)
    for number in NUMBERS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # set by `nohup`
            signal.signal(number, _interrupt)


def listening() -> bool:
    """Whether `listen` was called in this process and its handler for Ctrl-C is in place."""
    return signal.getsignal(signal.SIGINT) is _interrupt


def disarm() -> None:
    """Note that the job has ended; from now on no signal kills it."""
    _has_ended.set()


def acknowledge() -> None:
    """Note that the job has received the interrupt; no further one disturbs its clean-up."""
    _acknowledged.set()


def received_signal() -> int | None:
    """Return the first signal to stop the job, if any."""
    return _received


def _do_nothing() -> None:
    pass


@contextmanager
def when_stopped(
    at_once: Callable[[], None] = _do_nothing, at_last: Callable[[], None] = _do_nothing
) -> Iterator[None]:
    """Register calls for a signal during the block: `at_once`, in its own thread, and `at_last`, before a kill."""
    stopping = at_once, at_last
    _stoppings.append(stopping)
    try:
        yield
    finally:
        _stoppings.remove(stopping)


@contextmanager
def errors_are_stops() -> Iterator[None]:
    """Treat an error after a signal as a stop: the clean-up fails if Ray got the signal, too.

    This includes SystemExit: while Ray starts, its own handlers are installed.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if _received is None:
            raise
        raise KeyboardInterrupt(_received) from error


def _interrupt(number: int, frame: object) -> None:
    global _received, _will_repeat
    if _acknowledged.is_set() or _will_repeat:  # `timeout` sends two; the second must not hit the clean-up
        return
    _received, _will_repeat = _received or number, True
    timer = threading.Timer(_REPEAT_S, _second_signal, (number, _acknowledged))
    timer.daemon = True
    timer.start()
    raise KeyboardInterrupt(number)


def _second_signal(number: int, acknowledged: threading.Event) -> None:
    global _will_repeat
    if not acknowledged.is_set():
        _will_repeat = False
        os.kill(os.getpid(), number)


def _watch(receiver: socket.socket) -> None:
    global _received
    while received := receiver.recv(64):
        number = next((number for number in received if number in NUMBERS), None)
        if number is not None and listening():
            _received = _received or number
            _end_in_time(number)


def _end_in_time(number: int) -> None:
    stoppings = list(_stoppings)
    caller = threading.Thread(target=_call, args=[at_once for at_once, _ in stoppings], daemon=True)
    caller.start()
    if _last_words is not None and not _has_ended.wait(_CLEAN_UP_S):
        _call(*(at_last for _, at_last in reversed(stoppings)))
        caller.join(_AT_ONCE_S)
        _call(_last_words, *(stream.flush for stream in (sys.stdout, sys.stderr) if stream))
        os._exit(128 + number)


def _call(*actions: Callable[[], None]) -> None:
    for action in actions:
        try:
            action()
        except Exception as error:  # the next action must run anyway
            log.debug("while stopping: %s", error)

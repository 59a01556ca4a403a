"""Further processes on this machine, in which the local engine trains models beside its own.

They are started as commands: `multiprocessing` would run the user's script again in each of them.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, BinaryIO

from raysed.cluster.process import prepare_process
from raysed.cluster.watchdog import Watchdog
from raysed.cluster.work import MOST_RESTARTS
from raysed.errors import RunFailed, last_line
from raysed.store.progress import shown

log = logging.getLogger(__name__)

Training = Callable[..., Any]
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from raysed.cluster.processes import serve; serve()"


class SideBySide:
    """Trains in this process and, while a `with` block lasts, in up to `count` - 1 others.

    Others begin once they have imported all that is needed, which takes seconds; what is short is done by then. If one
    dies, or its watchdog ends it, another repeats its training.

    Args:
        trainings: by name; can be pickled. Each takes a function to tell this process something, then arguments.
    """

    def __init__(self, trainings: Mapping[str, Training], count: int, watchdog: Watchdog):
        self._trainings, self._count = trainings, min(count, len(trainings)) - 1
        self._content = pickle.dumps((trainings, watchdog)) if self._count > 0 else b""

    def __enter__(self) -> SideBySide:
        self._others = [_Process(self._content) for _ in range(self._count)]
        self._pool = ThreadPoolExecutor(max(self._count, 1), "process")
        return self

    def __exit__(self, *error: object) -> None:
        for other in self._others:
            other.end()
        self._pool.shutdown()

    def train(
        self, calls: Mapping[str, tuple], tell: Callable[..., None], is_over: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """Call trainings with arguments; return what they return, by name.

        Args:
            calls: the arguments by name, in the order in which to begin.
            tell: gets what trainings tell, one call at a time.
            is_over: whether to begin no further training.

        Raises:
            RunFailed: a process ended while it started, or training ended too many processes.
            Exception: what a training has raised.
        """
        work = _Work(calls, tell, is_over)
        running = {other: self._pool.submit(work.do_in, other) for other in self._others}
        work.do(lambda name, arguments: self._trainings[name](work.tell, *arguments))
        wait([future for other, future in running.items() if other.is_busy])
        if work.errors:
            raise work.errors[0]
        return work.results


class _Work:
    """What is left to train, and what came of the rest."""

    def __init__(self, calls: Mapping[str, tuple], tell: Callable[..., None], is_over: Callable[[], bool]):
        self._left, self._tell, self._is_over = iter(calls.items()), tell, is_over
        self.results: dict[str, Any] = {}
        self.errors: list[Exception] = []
        self._lock = threading.Lock()

    def tell(self, *words: Any) -> None:
        with self._lock:
            self._tell(*words)

    def do(self, train: Callable[[str, tuple], Any]) -> None:
        while call := self._next():
            self.results[call[0]] = train(*call)

    def _next(self) -> tuple[str, tuple] | None:
        with self._lock:
            return None if self.errors or self._is_over() else next(self._left, None)

    def do_in(self, process: _Process) -> None:
        try:
            process.wait_until_ready()
            process.is_busy = True
            self.do(partial(process.train, tell=self.tell))
        except _Ended:
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            process.is_busy = False


class _Ended(Exception):
    """The other process was ended from here."""


class _Process:
    """Another process that knows all trainings; if it dies, it is replaced."""

    def __init__(self, content: bytes):
        self._content, self.is_busy, self._is_ended = content, False, False
        self._start()

    def _start(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the job, which ends this process
        )
        self._is_ready = False
        if self._is_ended:
            self.end()

    def end(self) -> None:
        self._is_ended = True
        self._popen.kill()
        self._code()

    def wait_until_ready(self) -> None:
        if not self._is_ready and self._heard(self._content) is None:
            raise RunFailed(f"a process that was to train ended with code {self._code()}, see native.log")
        self._is_ready = True

    def train(self, name: str, arguments: tuple, tell: Callable[..., None]) -> Any:
        for _ in range(MOST_RESTARTS):
            words = self._heard((name, arguments))
            while words and words[0] == "told":
                tell(*words[1])
                words = self._heard()
            if words:
                kind, outcome = words
                if kind == "raised":
                    raise outcome
                return outcome
            log.warning("%s: its process was lost (exit code %d); another one continues", name, self._code())
            self._start()
            self.wait_until_ready()
        raise RunFailed(f"{name}: its process was lost {MOST_RESTARTS} times")

    def _heard(self, told: Any = None) -> tuple[str, Any] | None:
        """Tell the process something, unless it is None; return what it says next, None if it is lost."""
        with suppress(OSError, EOFError, pickle.UnpicklingError):  # the last: it was lost while it spoke
            if told is not None:
                _write(self._popen.stdin, told)
            return pickle.load(self._popen.stdout)
        if self._is_ended:
            raise _Ended
        return None

    def _code(self) -> int:
        """Wait for the end of the process; return its exit code."""
        code = self._popen.wait()
        with suppress(OSError):  # what it was told, but did not hear
            self._popen.stdin.close()
        return code


def _write(file: BinaryIO, words: Any) -> None:
    file.write(pickle.dumps(words))
    file.flush()


# -- in the other process --------------------------------------------------------------------------------------------


def serve() -> None:
    """Read all trainings from stdin, then calls; train, and answer on stdout. What is printed goes to stderr."""
    prepare_process()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    heard: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(heard,), daemon=True).start()
    trainings, watchdog = pickle.loads(heard.get())
    _write(answers, ("ready", None))
    while True:
        name, arguments = heard.get()
        try:
            with shown(False), watchdog.guard(name):
                answer = "returned", trainings[name](lambda *words: _write(answers, ("told", words)), *arguments)
        except Exception as error:
            answer = "raised", _portable(error)
        _write(answers, answer)


def _listen(heard: queue.SimpleQueue) -> None:
    """Pass on what comes; end this process with the one that started it."""
    try:
        while True:
            heard.put(pickle.load(sys.stdin.buffer))
    finally:
        os._exit(1)


def _portable(error: Exception) -> Exception:
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        return RunFailed(last_line(error))

"""Further processes on this machine, which train and embed beside that of the local engine.

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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any

from raysed.cluster.process import prepare_process, return_memory
from raysed.cluster.watchdog import Watchdog
from raysed.cluster.work import MOST_RESTARTS
from raysed.errors import RunFailed, last_line
from raysed.store.progress import emit, listening, shown

log = logging.getLogger(__name__)

Tell = Callable[..., None]
Training = Callable[[Tell], Any]
_IDLE_S = 1.0  # without work, after which a process gives its free memory back
_COMMAND = "import sys; sys.path[:] = sys.argv[1:]; from raysed.cluster.processes import serve; serve()"


class SideBySide:
    """Trains models, or does other work, in this process and in others, which stay for what comes next.

    Others begin once they have imported all that is needed, which takes seconds. What is short is done by then; they
    are ended with it, or their imports would slow down what comes next. If one dies, or its watchdog ends it, another
    repeats its training.
    """

    def __init__(self, watchdog: Watchdog):
        self._watchdog = watchdog
        self._others: list[_Process] = []

    @property
    def count(self) -> int:
        """Processes that are there, with this one."""
        return 1 + len(self._others)

    def train(
        self,
        trainings: Mapping[str, Training],
        count: int,
        tell: Tell,
        is_over: Callable[[], bool] = lambda: False,
        tries: int = MOST_RESTARTS,
    ) -> dict[str, Any]:
        """Return what trainings return, by name, `count` of them at a time.

        Args:
            trainings: in the order in which to begin. Each can be pickled, and takes a function to tell this process
                something.
            tell: gets what trainings tell, one call at a time.
            is_over: whether to begin no further training.
            tries: of one training; all have lost their process.

        Raises:
            RunFailed: a process ended while it started, or a training ended too many processes.
            Exception: what a training has raised.
        """
        count = max(min(count, len(trainings)) - 1, 0)
        while len(self._others) < count:
            self._others.append(_Process(pickle.dumps((self._watchdog, next(iter(trainings.values()))))))
        work = _Work(trainings, tell, is_over, tries)
        running = {other: other.thread.submit(work.do_in, other) for other in self._others[:count]}
        work.do(lambda name, training: training(work.tell))
        wait([future for other, future in running.items() if other.is_busy])
        self._end([other for other in self._others if not other.is_ready])
        if work.errors:
            raise work.errors[0]
        return work.results

    def close(self) -> None:
        """End the other processes."""
        self._end(self._others)

    def _end(self, others: Sequence[_Process]) -> None:
        self._others = [other for other in self._others if other not in others]
        for other in others:
            other.end()
        for other in others:
            other.thread.shutdown()


class _Work:
    """What is left to train, and what came of the rest."""

    def __init__(self, trainings: Mapping[str, Training], tell: Tell, is_over: Callable[[], bool], tries: int):
        self._left, self._tell, self._is_over, self.tries = iter(trainings.items()), tell, is_over, tries
        self.results: dict[str, Any] = {}
        self.errors: list[Exception] = []
        self._lock = threading.Lock()

    def tell(self, *words: Any) -> None:
        with self._lock:
            self._tell(*words)

    def emit(self, facts: dict[str, Any]) -> None:
        with self._lock:
            emit(**facts)

    def do(self, train: Callable[[str, Training], Any]) -> None:
        while named := self._next():
            self.results[named[0]] = train(*named)

    def _next(self) -> tuple[str, Training] | None:
        with self._lock:
            return None if self.errors or self._is_over() else next(self._left, None)

    def do_in(self, process: _Process) -> None:
        try:
            process.wait_until_ready()
            process.is_busy = True
            self.do(partial(process.train, work=self))
        except _Ended:
            pass
        except Exception as error:
            self.errors.append(error)
        finally:
            process.is_busy = False


class _Ended(Exception):
    """The other process was ended from here."""


class _Process:
    """Another process; if it dies, it is replaced.

    Args:
        first: pickled, its watchdog and a training, with which it imports what all need.
    """

    def __init__(self, first: bytes):
        self._first, self.is_busy, self._is_ended = first, False, False
        self.thread = ThreadPoolExecutor(1, "process")  # here, waits for what it says
        self._start()

    def _start(self) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the job, which ends this process
        )
        self.is_ready = False
        if self._is_ended:
            self.end()

    def end(self) -> None:
        self._is_ended = True
        self._popen.kill()
        self._code()

    def wait_until_ready(self) -> None:
        if not self.is_ready and self._heard(self._first) is None:
            raise RunFailed(f"a process that was to train ended with code {self._code()}, see native.log or stderr")
        self.is_ready = True

    def train(self, name: str, training: Training, work: _Work) -> Any:
        for _ in range(work.tries):
            words = self._heard(pickle.dumps((name, training)))
            while words and words[0] in ("told", "emitted"):
                work.tell(*words[1]) if words[0] == "told" else work.emit(words[1])
                words = self._heard()
            if words:
                kind, outcome = words
                if kind == "raised":
                    raise outcome
                return outcome
            log.warning("%s: its process was lost (exit code %d); another one continues", name, self._code())
            self._start()
            self.wait_until_ready()
        raise RunFailed(f"{name}: its process was lost {work.tries} times")

    def _heard(self, told: bytes = b"") -> tuple[str, Any] | None:
        """Tell the process something pickled, or nothing; return what it says next, None if it is lost."""
        # UnpicklingError: it was lost while it spoke; ValueError: it was found lost before, and its stdin closed.
        with suppress(OSError, EOFError, ValueError, pickle.UnpicklingError):
            self._popen.stdin.write(told)
            self._popen.stdin.flush()
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


# -- in the other process --------------------------------------------------------------------------------------------


def serve() -> None:
    """Read trainings from stdin; train, and answer on stdout. What is printed goes to stderr."""
    prepare_process()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    heard: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(heard,), daemon=True).start()

    def say(kind: str, words: Any) -> None:
        answers.write(pickle.dumps((kind, words)))
        answers.flush()

    watchdog, _ = heard.get()
    say("ready", None)
    while True:
        name, training = _next(heard)
        try:
            with shown(False), listening(partial(say, "emitted")), watchdog.guard(name):
                answer = "returned", training(lambda *words: say("told", words))
        except Exception as error:
            answer = "raised", _portable(error)
        say(*answer)
        del training, answer


def _next(heard: queue.SimpleQueue) -> Any:
    """Return what comes next; meanwhile others need the memory."""
    try:
        return heard.get(timeout=_IDLE_S)
    except queue.Empty:
        return_memory()
        return heard.get()


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

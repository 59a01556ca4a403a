"""Trainings side by side in processes of one machine: nothing is lost with a process, and none stays."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest

from raysed.cluster.process import prepare_worker
from raysed.cluster.processes import SideBySide
from raysed.cluster.watchdog import Watchdog
from raysed.errors import RunFailed, UserError
from raysed.store.progress import emit, listening

pytestmark = pytest.mark.timeout(60)
CALM = Watchdog(60)


@pytest.fixture(autouse=True)
def none_stays() -> Iterator[None]:
    """Of the processes that a test starts; a Ray of other tests may be there."""
    before = psutil.Process().children()
    yield
    assert [process for process in psutil.Process().children() if process not in before] == []


def train(tell, name: str, place: Path, then=lambda: None) -> int:
    """Waits for the other training, so that each has a process; returns how often it was started before."""
    starts = len(list(place.glob(f"{name}-*")))
    (place / f"{name}-{os.getpid()}").touch()
    while len(list(place.glob("*"))) < 2:
        time.sleep(0.01)
    tell(name, starts)
    if not is_here(place):
        then()
    return starts


def is_here(place: Path) -> bool:
    return (place.parent / "here").read_text() == str(os.getpid())


def both(tmp_path: Path, then, watchdog: Watchdog = CALM) -> tuple[dict, list]:
    """Trains two models in two processes; calls `then` in the other one."""
    (tmp_path / "here").write_text(str(os.getpid()))
    place, told = tmp_path / "marks", []
    place.mkdir()
    trainings = {name: partial(train, name=name, place=place, then=partial(then, place)) for name in ("a", "b")}
    return train_all(trainings, 2, lambda *words: told.append(words), watchdog), told


def train_all(trainings: dict, count: int, tell=print, watchdog: Watchdog = CALM) -> dict:
    with closing(SideBySide(watchdog)) as side_by_side:
        return side_by_side.train(trainings, count, tell)


def nothing(place: Path) -> None:
    pass


def die(place: Path) -> None:
    if len(list(place.glob("b-*"))) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def stand_still(place: Path) -> None:
    if len(list(place.glob("b-*"))) == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


def make_a_mistake(place: Path) -> None:
    raise UserError("a number", setting="seed")


def raise_what_no_pickle_holds(place: Path) -> None:
    class Odd(Exception):
        pass

    raise Odd("of this place")


def print_much(place: Path) -> None:
    print("x" * 100_000, flush=True)


@pytest.mark.parametrize("then", [nothing, print_much])
def test_two_train_at_the_same_time_and_what_they_tell_arrives(tmp_path, then):
    ended, told = both(tmp_path, then)
    assert ended == {"a": 0, "b": 0} and sorted(told) == [("a", 0), ("b", 0)]
    assert len(pids(tmp_path / "marks")) == 2


@pytest.mark.parametrize(("then", "watchdog"), [(die, CALM), (stand_still, Watchdog(2))])
def test_what_a_process_trained_that_dies_or_stands_still_is_trained_again(tmp_path, caplog, then, watchdog):
    ended, told = both(tmp_path, then, watchdog)
    assert ended == {"a": 0, "b": 1} and sorted(told) == [("a", 0), ("b", 0), ("b", 1)]
    assert caplog.messages == ["b: its process was lost (exit code -9); another one continues"]


@pytest.mark.parametrize(
    ("then", "error", "message"),
    [(make_a_mistake, UserError, "seed: a number"), (raise_what_no_pickle_holds, RunFailed, "of this place")],
)
def test_an_error_in_another_process_is_raised_here(tmp_path, then, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        both(tmp_path, then)


def test_what_is_short_is_done_before_another_process_is_there():
    with closing(SideBySide(CALM)) as side_by_side:
        assert set(side_by_side.train(dict.fromkeys("abc", pid), 3, print).values()) == {os.getpid()}
        assert side_by_side.count == 1, "imports for nothing would take a core from what comes next"


def test_what_is_reported_in_another_process_is_heard_here(tmp_path):
    facts: list[dict] = []
    with listening(facts.append):
        both(tmp_path, report)
    assert facts == [{"sentences": 3}]


def report(place: Path) -> None:
    emit(sentences=3)


def test_what_loses_one_process_after_the_other_ends_the_run(tmp_path, caplog):
    (tmp_path / "here").write_text(str(os.getpid()))
    (tmp_path / "marks").mkdir()
    trainings = {name: partial(train, name=name, place=tmp_path / "marks", then=always_die) for name in "ab"}
    with closing(SideBySide(CALM)) as side_by_side, pytest.raises(RunFailed, match="b: its process was lost 2 times"):
        side_by_side.train(trainings, 2, print, tries=2)
    assert len(caplog.messages) == 2


def always_die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def pid(tell) -> int:
    return os.getpid()


def test_processes_stay_for_what_is_trained_next(tmp_path):
    with closing(SideBySide(CALM)) as side_by_side:

        def train(names: str, count: int) -> list[int]:
            waiting = partial(wait_for_others, place=tmp_path / names, count=count)
            return list(side_by_side.train(dict.fromkeys(names, waiting), count, print).values())

        first = train("ab", 2)
        assert set(first) == set(train("cd", 2)) and os.getpid() in first
        assert train("e", 1) == [os.getpid()]
        assert set(train("fgh", 3)) > set(first)


def wait_for_others(tell, place: Path, count: int) -> int:
    place.mkdir(exist_ok=True)
    (place / str(os.getpid())).touch()
    while len(list(place.iterdir())) < count:
        time.sleep(0.01)
    return os.getpid()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc keeps memory as it is told to")
def test_a_process_that_waits_for_work_gives_its_memory_back(tmp_path):
    (tmp_path / "here").write_text(str(os.getpid()))
    (tmp_path / "marks").mkdir()
    trainings = {name: partial(train, name=name, place=tmp_path / "marks", then=use_memory) for name in "ab"}
    with closing(SideBySide(CALM)) as side_by_side:
        side_by_side.train(trainings, 2, print)
        (other,) = (psutil.Process(pid) for pid in pids(tmp_path / "marks") - {os.getpid()})
        kept = other.memory_info().rss
        while other.memory_info().rss > kept - 200e6:
            time.sleep(0.1)


def use_memory() -> None:
    prepare_worker(1)
    np.ones(75_000_000, np.float32)  # 300 MB


def pids(marks: Path) -> set[int]:
    return {int(path.name.partition("-")[2]) for path in marks.iterdir()}


def test_a_process_that_cannot_start_ends_the_run_with_its_exit_code(monkeypatch):
    monkeypatch.setattr("raysed.cluster.processes._COMMAND", "raise SystemExit(7)")
    with pytest.raises(RunFailed, match=r"^a process that was to train ended with code 7, see native\.log or stderr$"):
        train_all(dict.fromkeys("ab", slow), 2)


def slow(tell) -> None:
    time.sleep(1)


def test_a_process_ends_with_the_one_that_started_it(tmp_path):
    """Also where that is killed."""
    script = tmp_path / "script.py"  # without a guard against being run again in another process
    script.write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_processes; "
        "test_processes.train_all(dict.fromkeys('ab', test_processes.endless), 2)"
    )
    job = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    pids = {int(job.stdout.readline()) for _ in range(2)}
    (other,) = pids - {job.pid}
    job.kill()
    job.wait()
    assert (
        len(pids) == 2 and psutil.wait_procs([psutil.Process(other)] if psutil.pid_exists(other) else [], 10)[1] == []
    )


def endless(tell) -> None:
    tell(os.getpid())
    sys.stdout.flush()
    time.sleep(60)

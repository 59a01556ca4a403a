"""Stops: a job ends within seconds and says so, also when nothing that it needs for cleaning up is left."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

JOB = """
import argparse, os, signal, sys, threading, time
from raysed import interrupts
from raysed.cli import main_of
from raysed.store.status import status_of
from raysed.store.storage import Storage

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which `nohup make test` would have it ignore
write_text = Storage.write_text

def write(storage, name, text):
    {before_writing}
    write_text(storage, name, text)

Storage.write_text = write

def job(arguments):
    with status_of(Storage({storage!r}, "mine"), every=0.1):
        try:
            print("ready", flush=True)
            time.sleep(600)
        finally:
            {cleaning_up}

sys.exit(main_of(job, argparse.ArgumentParser()))
"""
ENDLESS = "interrupts.acknowledge(); print('cleaning up', flush=True); time.sleep(600)"
USUAL = {"cleaning_up": "pass", "before_writing": "pass"}
PLANT = """if "stopped" in text:
        signal.raise_signal(signal.SIGTERM)"""


@contextmanager
def started(directory: Path, job: str = JOB, *, before: Sequence[str] = (), **words: str) -> Iterator[subprocess.Popen]:
    """A job that has begun; it is killed at the end."""
    program = job.format(**{**USUAL, "storage": str(directory), **words})
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*before, sys.executable, "-c", program], cwd=ROOT, **pipes) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGTERM, {}),
        (signal.SIGHUP, {"cleaning_up": "sys.stdout = None"}),
        # a library that hangs when the process ends, as the log of Ray Tune does where its experiment was cut off
        (signal.SIGINT, {"cleaning_up": "import atexit; atexit.register(time.sleep, 600); raise KeyboardInterrupt"}),
        (signal.SIGTERM, {"cleaning_up": "raise RuntimeError('no Ray')"}),
        # `timeout` sends two signals, and the job says how it ended in between
        (signal.SIGTERM, {"before_writing": PLANT}),
    ],
)
def test_a_job_ends_soon_and_says_that_it_was_stopped(tmp_path, number, words):
    """Two signals come at once, as `timeout` sends them."""
    with started(tmp_path, **words) as process:
        began = time.monotonic()
        for _ in range(2):
            process.send_signal(number)
        assert process.communicate(timeout=50) == ("", "\nStopped. Run the same command again to continue.\n")
        assert process.returncode == 128 + number and time.monotonic() - began < 20
    assert json.loads((tmp_path / "mine/status.json").read_text())["state"] == "stopped"


def test_a_second_signal_ends_a_job_at_once(tmp_path):
    """However it cleans up; only what comes within a second of the first signal is the same one."""
    with started(tmp_path, cleaning_up=ENDLESS) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "cleaning up\n"
        time.sleep(1.2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=5) == 128 + signal.SIGINT


def test_a_closed_terminal_ends_a_job_that_cannot_say_so(tmp_path):
    """With the code of SIGHUP, and without the exit handlers of libraries, which may hang."""
    words = {**USUAL, "cleaning_up": "import atexit; atexit.register(time.sleep, 600)", "storage": str(tmp_path)}
    terminal = f"""
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.executable, [sys.executable, "-c", {JOB.format(**words)!r}])
assert b"ready" in os.read(terminal, 1000)
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", terminal], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.stdout == f"{128 + signal.SIGHUP}\n", done.stderr


def test_an_interrupt_that_python_drops_comes_again():
    """Raised inside a destructor, the first KeyboardInterrupt never reaches the job."""
    job = """
import signal, sys, time
from raysed import interrupts

interrupts._REPEAT_S = 0.1
sys.unraisablehook = lambda unraisable: None

class Dropping:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

interrupts.listen()
try:
    thing = Dropping()
    del thing
    time.sleep(20)
except KeyboardInterrupt:
    interrupts.acknowledge()
    print("came again")
"""
    done = subprocess.run([sys.executable, "-c", job], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.returncode) == ("came again\n", 0), done.stderr


def test_a_job_of_nohup_outlives_its_terminal(tmp_path):
    job = JOB.replace("signal.signal(signal.SIGHUP, signal.SIG_DFL)", "")
    with started(tmp_path, job, before=["nohup"]) as process:
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM

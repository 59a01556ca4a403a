"""Stops: a job ends within seconds and says so, also when nothing that it needs for cleaning up is left."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysed.interrupts import errors_are_stops

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


def stop(directory: Path, number: signal.Signals = signal.SIGTERM, **words) -> tuple[subprocess.Popen, str, str, float]:
    """Runs a job, sends it a signal twice, as `timeout` does; returns it, what it has said, and how long it took."""
    words = {**USUAL, "storage": str(directory), **words}
    command = [sys.executable, "-c", JOB.format(**words)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        began = time.monotonic()
        for _ in range(2):
            process.send_signal(number)
        said, errors = process.communicate(timeout=50)
    finally:
        process.kill()
    return process, said, errors, time.monotonic() - began


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGTERM, {}),
        (signal.SIGHUP, {"cleaning_up": "sys.stdout = None"}),
        # a library that hangs when the process ends, as the log of Ray Tune does where its experiment was cut off
        (signal.SIGINT, {"cleaning_up": "import atexit; atexit.register(time.sleep, 600); raise KeyboardInterrupt"}),
        *((signal.SIGTERM, {"cleaning_up": f"raise {error}"}) for error in ("RuntimeError('no Ray')", "SystemExit(1)")),
        # `timeout` sends two signals, and the job says how it ended in between
        (signal.SIGTERM, {"before_writing": PLANT}),
    ],
    ids=[
        "at once",
        "without output",
        "hangs at exit",
        "error",
        "exit",
        "a signal while it says so",
    ],
)
def test_a_job_ends_soon_and_says_that_it_was_stopped(tmp_path, number, words):
    process, said, errors, seconds = stop(tmp_path, number, **words)
    assert process.returncode == 128 + number
    assert errors == "\nStopped. Run the same command again to continue.\n"
    assert said == ""
    assert json.loads((tmp_path / "mine/status.json").read_text())["state"] == "stopped"
    assert seconds < 20


def test_a_second_signal_ends_a_job_at_once(tmp_path):
    """However it cleans up; only what comes within a second of the first signal is the same one."""
    command = [sys.executable, "-c", JOB.format(**USUAL | {"cleaning_up": ENDLESS}, storage=str(tmp_path))]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "cleaning up\n"
        time.sleep(1.2)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=5) == 128 + signal.SIGINT
    finally:
        process.kill()


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


def test_an_error_without_a_signal_is_none(tmp_path):
    with pytest.raises(ZeroDivisionError), errors_are_stops():
        raise ZeroDivisionError


def test_a_job_of_nohup_outlives_its_terminal(tmp_path):
    job = JOB.replace("signal.signal(signal.SIGHUP, signal.SIG_DFL)", "").format(**USUAL, storage=str(tmp_path))
    command, pipes = ["nohup", sys.executable, "-c", job], {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
    try:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=1.5)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
    finally:
        process.kill()

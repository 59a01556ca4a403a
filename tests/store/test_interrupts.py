"""Stops: a job ends within seconds and says so, also when nothing that it needs for cleaning up is left."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

JOB = """
import argparse, os, signal, sys, threading, time
from raysed import interrupts
from raysed.cli import main_of
from raysed.store.status import status_of
from raysed.store.storage import Storage

interrupts._PATIENCE = {patience}
write_text = Storage.write_text

def write(storage, name, text):
    {before_writing}
    write_text(storage, name, text)

Storage.write_text = write

def job(arguments):
    def last():
        print("killed the rest", flush=True)

    stopping = interrupts.Stopping(is_hopeless=lambda: {hopeless}, at_last=last)
    with interrupts.when_stopped(stopping), status_of(Storage({storage!r}, "mine"), every=0.1):
        try:
            print("ready", flush=True)
            time.sleep(600)
        finally:
            {cleaning_up}

sys.exit(main_of(job, argparse.ArgumentParser()))
"""
ENDLESS = "interrupts.notice(); time.sleep(600)"


def stop(directory: Path, number: signal.Signals = signal.SIGTERM, **words) -> tuple[subprocess.Popen, str, str, float]:
    """Runs a job, sends it a signal twice, as `timeout` does; returns it, what it has said, and how long it took."""
    usual = {"patience": 60, "hopeless": False, "cleaning_up": ENDLESS, "before_writing": "pass"}
    words = {**usual, "storage": str(directory), **words}
    command = [sys.executable, "-c", JOB.format(**words)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    began = time.monotonic()
    for _ in range(2):
        process.send_signal(number)
    said, errors = process.communicate(timeout=50)
    return process, said, errors, time.monotonic() - began


def state(directory: Path) -> str:
    return json.loads((directory / "mine/status.json").read_text())["state"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_job_that_cannot_clean_up_is_ended(tmp_path, number, code):
    """Because nobody answers it any more, or because it has had its time."""
    for words in ({"hopeless": True}, {"patience": 1.0}):
        process, said, errors, seconds = stop(tmp_path, number, **words)
        assert process.returncode == code
        assert (said, errors) == ("killed the rest\n", "\nstopped; the same command continues from here\n")
        assert state(tmp_path) == "stopped"
        assert seconds < 20


@pytest.mark.parametrize("error", ["RuntimeError('Ray is gone')", "KeyboardInterrupt", "SystemExit(1)"])
def test_an_error_while_it_cleans_up_is_a_stop(tmp_path, error):
    process, _, errors, _ = stop(tmp_path, cleaning_up=f"raise {error}")
    assert (process.returncode, errors) == (143, "\nstopped; the same command continues from here\n")
    assert state(tmp_path) == "stopped"


def test_a_library_that_hangs_when_the_process_ends_is_not_waited_for(tmp_path):
    """As the log of Ray Tune does, now and then, where its experiment was cut off."""
    hang = "import atexit; atexit.register(time.sleep, 600); raise KeyboardInterrupt"
    process, _, errors, seconds = stop(tmp_path, signal.SIGINT, cleaning_up=hang)
    assert (process.returncode, errors) == (130, "\nstopped; the same command continues from here\n")
    assert seconds < 20


def test_a_signal_while_it_says_that_it_was_stopped_changes_nothing(tmp_path):
    """`timeout` sends two, and the job says how it ended in between; here its other thread cannot say it."""
    plant = """if "stopped" in text:
        if threading.current_thread() is not threading.main_thread():
            raise OSError("planted")
        signal.raise_signal(signal.SIGTERM)"""
    for patience in (0.0, 3.0):  # seconds until the signal comes again by itself
        again = f"interrupts._AGAIN_AFTER = {patience}; raise KeyboardInterrupt"
        process, _, errors, _ = stop(tmp_path, cleaning_up=again, before_writing=plant)
        assert (process.returncode, errors) == (143, "\nstopped; the same command continues from here\n")
        assert state(tmp_path) == "stopped"


def test_an_error_without_a_signal_is_none(tmp_path):
    from raysed.interrupts import errors_are_stops

    with pytest.raises(ZeroDivisionError), errors_are_stops():
        raise ZeroDivisionError

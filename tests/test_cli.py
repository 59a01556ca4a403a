"""The command line itself: outcomes become exit codes and one line, and signals end a job politely."""

import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysed.cli import main_of
from raysed.config import find_config
from raysed.errors import RunFailed, UserError

JOB = Path(__file__).resolve().parent.parent / "jobs/ensemble_then_distill.py"


@pytest.fixture
def command_line(undone, monkeypatch):
    """Calls `main_of` as the shell would."""

    def call(job: Callable, parser: Any, *arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["job.py", *map(str, arguments)])
        with warnings.catch_warnings():
            return main_of(job, parser)

    return call


class _Parser:
    def parse_args(self, arguments: Any) -> None:
        return None


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (None, 0, ""),
        (UserError("a.b is wrong:\n  because"), 2, "error: a.b is wrong: because\n"),
        (RunFailed("2 of 3 members\nwere trained"), 1, "failed: 2 of 3 members were trained\n"),
        (KeyboardInterrupt(), 130, "\nstopped; the same command continues from here\n"),
    ],
)
def test_outcomes_become_exit_codes_and_one_line(command_line, capfd, outcome, code, said):
    def job(arguments: Any) -> None:
        if outcome:
            raise outcome

    assert command_line(job, _Parser()) == code
    assert capfd.readouterr().err == said


def test_a_polite_kill_ends_like_ctrl_c(command_line, capfd):
    def job(arguments: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it went on")

    assert command_line(job, _Parser()) == 143
    assert "the same command continues from here" in capfd.readouterr().err


def test_an_interrupt_that_python_drops_comes_again(command_line, capfd, monkeypatch):
    """Raised inside a destructor, the first KeyboardInterrupt never reaches the job."""
    monkeypatch.setattr("raysed.interrupts._AGAIN_AFTER", 0.1)
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: None)

    class Dropping:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def job(arguments: Any) -> None:
        thing = Dropping()
        del thing
        time.sleep(5)
        pytest.fail("it went on")

    assert command_line(job, _Parser()) == 130


def test_other_errors_are_not_hidden(command_line):
    def job(arguments: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        command_line(job, _Parser())


def test_a_config_is_a_file_or_a_name(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    for name in ("a.yaml", "configs/b.yaml"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)
    assert find_config("a.yaml", tmp_path / "configs") == Path("a.yaml")
    assert find_config("b", tmp_path / "configs") == tmp_path / "configs/b.yaml"
    with pytest.raises(UserError, match=r"^--config a: there is no such file, .* name; the named configs are b$"):
        find_config("a", tmp_path / "configs")


def test_the_job_as_a_process(tmp_path):
    """From another directory, with nothing on the terminal but the sentence."""
    command = [sys.executable, str(JOB), "--storage", str(tmp_path / "runs"), "--set", "ct.step=5"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert (done.stdout, done.stderr) == ("", "error: unknown setting ct.step: did you mean ct.steps?\n")
    assert not (tmp_path / "runs").exists()

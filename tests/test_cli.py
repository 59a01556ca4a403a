"""The command line: outcomes become exit codes and one line, scripts are the commands."""

import os
import re
import subprocess
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raysed import cli
from raysed.commands import distill, evaluate
from raysed.errors import RunFailed, UserError

ROOT = Path(__file__).resolve().parent.parent
CONTINUES = "\nStopped. Run the same command again to continue.\n"


@pytest.fixture
def command_line(undone):
    """Calls `main_of` as the shell would."""

    def call(job: Callable[[], Any]) -> int:
        with warnings.catch_warnings():
            return cli.main_of(lambda arguments: job(), ArgumentParser(), arguments=[])

    return call


@pytest.mark.parametrize(
    ("outcome", "code", "said"),
    [
        (None, 0, ""),
        (UserError("a.b is wrong:\n  because"), 2, "error: a.b is wrong: because\n"),
        (RunFailed("2 of 3 members\nwere trained"), 1, "failed: 2 of 3 members were trained\n"),
        (MemoryError("1 GB"), 1, "failed: there is not enough memory; free some, or use a machine with more (1 GB)\n"),
        (KeyboardInterrupt(), 130, CONTINUES),
    ],
)
def test_outcomes_become_exit_codes_and_one_line(command_line, capfd, outcome, code, said):
    def job() -> None:
        if outcome:
            raise outcome

    assert command_line(job) == code
    assert capfd.readouterr().err == said


def test_other_errors_are_not_hidden(command_line):
    with pytest.raises(ZeroDivisionError):
        command_line(lambda: 1 / 0)


@pytest.fixture
def raysed(undone, monkeypatch, capsys):
    """Calls `raysed …`; returns the exit code, and what it writes."""

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["raysed", *words])
        try:
            code = cli.main()
        except SystemExit as ended:
            code = ended.code
        return code, *capsys.readouterr()

    return call


def test_help_names_every_command_and_each_has_help_with_an_example(raysed):
    code, said, _ = raysed("--help")
    assert code == 0 and all(f"\n  {name} " in said for name in (*cli.COMMANDS, "--version"))
    for name in cli.COMMANDS:
        code, said, _ = raysed(name, "--help")
        assert code == 0 and f"usage: raysed {name}" in said
        assert re.search(rf"(?:raysed {name}|jobs/\w+\.py) *[\w-]*", said.partition("\n\n")[2]), f"{name}: no example"


def test_a_terminal_may_lack_characters_and_a_command_its_output():
    """A question mark stands for what ASCII lacks; `raysed … >&-` has no output at all."""
    code = """
import argparse
from raysed.cli import main_of

main_of(lambda arguments: print("…"), argparse.ArgumentParser(), arguments=[])
"""
    for command, ending, said in (
        ([sys.executable, "-m", "raysed", "--help"], "", "usage: raysed COMMAND ...\n"),
        ([sys.executable, "-c", code], "", "?\n"),
        ([sys.executable, "-c", code], ">&-", ""),
    ):
        shell = ["sh", "-c", f'"$@" {ending}', "sh", *command]
        done = subprocess.run(
            shell, cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONIOENCODING": "ascii"}
        )
        assert done.stdout.startswith(said) and (done.returncode, done.stderr) == (0, "")


def test_a_distillation_is_planned_and_nothing_is_trained(raysed, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("".join(f"Sentence {n} is here.\n" for n in range(40)))
    code, said, _ = raysed("distill", "--teachers", "bundled:encoder", "--corpus", "t.txt", "--run", "small", "--plan")
    assert code == 0 and "plan of small for 1 node" in said and "teachers-sed  1 learner" in said
    assert re.search(
        r"^time: about \d+ minutes at the rates of this machine's \w+: trainings \d+, bundled \d+$", said, re.M
    )
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


def test_a_run_without_ray_is_planned_for_this_machine_as_busy_as_it_is(raysed, monkeypatch):
    """Though a cluster is named that does not answer."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(os, "getloadavg", lambda: (999.0, 0.0, 0.0))
    code, said, _ = raysed("run", "--plan", "--set", "resources.engine=local")
    assert code == 0 and said.startswith("plan of quickstart for 1 node")
    assert said.splitlines()[-1].startswith("load: 999.0 on ")


def test_an_unknown_command_is_a_users_mistake(raysed):
    known = "run, distill, evaluate, status, table"
    assert raysed("train") == (2, "", f"error: 'train' is not a command; the commands are {known}\n")
    assert raysed()[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["distill", "--teachers", "A", "--corpus", "c.txt", "--learner", ""], "--learner is empty"),
        (["run", "--storage", ""], "--storage is empty"),
        (["run", "--run", ""], "--run is empty"),
        (["status", "--storage", ""], "--storage is empty"),
        (["evaluate", "--models", "A", "", "--task", "t.csv"], "--models is empty"),
        (["evaluate", "--models", "A", "--task", ""], "--task is empty"),
        (["evaluate", "--models", "caf\udce9", "--task", "t.csv"], "--models 'caf\\udce9' is not UTF-8"),
        (["distill", "--teachers", "caf\udce9", "--corpus", "c.txt"], "--teachers 'caf\\udce9' is not UTF-8"),
        (["run", "--set", "encoder.path=caf\udce9"], "--set 'encoder.path=caf\\udce9' is not UTF-8"),
    ],
)
def test_values_that_are_empty_or_not_utf8_are_refused(raysed, words, said):
    """An empty value, as of a variable of the shell that is not set, would silently mean the default."""
    code, _, wrong = raysed(*words)
    assert code == 2 and wrong.startswith(f"error: {said}")


def test_options_for_several_may_also_be_repeated():
    assert evaluate.parser().parse_args("--models a b --models c".split()).models == ["a", "b", "c"]
    found = distill.parser().parse_args("--teachers a --teachers b --corpus c --corpus d".split())
    assert (found.teachers, found.corpus) == (["a", "b"], ["c", "d"])

"""The command `raysed`: its commands are those of the scripts in jobs/."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from raysed import cli

ROOT = Path(__file__).resolve().parent.parent


def called(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["raysed", *words])
    return cli.main()


def test_help_names_every_command_and_each_has_help(monkeypatch, capsys):
    assert called(monkeypatch, "--help") == 0
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in cli.COMMANDS)
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as ended:
            called(monkeypatch, name, "--help")
        said = capsys.readouterr().out
        assert ended.value.code == 0 and f"usage: raysed {name}" in said
        assert re.search(rf"(?:raysed {name}|jobs/\w+\.py) *[\w-]*", said.partition("\n\n")[2]), f"{name}: no example"


def test_an_unknown_command_is_a_users_mistake(monkeypatch, capsys):
    assert called(monkeypatch, "train") == 2
    known = "init, run, distill, teachers, evaluate, status"
    assert capsys.readouterr().err == f"error: 'train' is not a command; the commands are {known}\n"
    assert called(monkeypatch) == 2


def test_a_command_does_what_its_script_does(monkeypatch, capsys, tmp_path):
    """A mistake that costs no time: the same sentence and exit code."""
    assert called(monkeypatch, "status", "nothing", "--storage", str(tmp_path)) == 2
    said = capsys.readouterr().err
    script = [sys.executable, ROOT / "jobs/status.py", "nothing", "--storage", tmp_path]
    done = subprocess.run(script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, said) and "there is no run at" in said


def test_configs_come_with_the_package():
    from raysed.config import CONFIGS, find_config, load_config

    assert load_config(find_config("quickstart")).run == "quickstart"
    assert CONFIGS.parent == Path(cli.__file__).parent

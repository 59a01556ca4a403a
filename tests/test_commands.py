"""The command `raysed`: its commands are those of the scripts in jobs/."""

import importlib
import re
import shutil
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
    known = "init, run, distill, evaluate, status, completion"
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


# -- completion ------------------------------------------------------------------------------------------------------


def options() -> dict[str, set[str]]:
    """Those of each command."""
    parsers = {name: importlib.import_module(f"raysed.commands.{name}").parser() for name in cli.COMMANDS}
    return {name: {o for action in p._actions for o in action.option_strings} for name, p in parsers.items()}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_completion_script_names_every_command_and_option(monkeypatch, capsys, shell):
    assert called(monkeypatch, "completion", shell) == 0
    script = capsys.readouterr().out
    for name, own in options().items():
        (block,) = re.findall(rf"^_shtab_raysed_{name}_(?:options|option_strings)=\((.*?)\)$", script, re.M | re.S)
        listed = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", re.sub(r"\[.*?\]", "", block)))
        assert listed == own, name
        assert re.search(rf"^ +{name}:'|^_shtab_raysed_subparsers=\(.*\b{name}\b", script, re.M)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_configs_and_files(monkeypatch, capsys, tmp_path):
    assert called(monkeypatch, "completion", "bash") == 0
    (tmp_path / "raysed.bash").write_text(capsys.readouterr().out)
    (tmp_path / "tickets.txt").touch()
    lines = ["", "run --", "run --config mini", "run --config tick", "init tick", "init --pairs a tick", "completion "]
    calls = [f"COMP_WORDS=(raysed {line}); complete_now '{line}'" for line in lines]
    function = """complete_now() {
        [[ "$1" == "" || "$1" == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _shtab_raysed; echo "${COMPREPLY[*]}"
    }"""
    program = "\n".join(["source ./raysed.bash", "complete -p raysed", function, *calls])
    done = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True)
    registered, *found = (set(line.split()) for line in done.stdout.splitlines())
    assert {"-F", "raysed"} <= registered and not done.stderr
    assert found[0] == set(cli.COMMANDS) and found[1] == options()["run"] - {"-h"}
    assert found[2:] == [{"minilm3-cpu"}, {"tickets.txt"}, {"tickets.txt"}, {"tickets.txt"}, {"bash", "zsh"}]


def test_completion_costs_other_commands_nothing():
    code = "import sys; from raysed import cli; sys.argv = ['raysed', 'status', '--storage', '/no']; cli.main()"
    said = subprocess.run(
        [sys.executable, "-c", f"{code}; print('shtab' in sys.modules)"], capture_output=True, text=True
    )
    assert said.stdout == "False\n" and "there are no runs" in said.stderr

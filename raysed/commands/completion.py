"""Prints a script that lets bash or zsh complete commands, options, names of configs and files at the Tab key.

    raysed completion bash > ~/.local/share/bash-completion/completions/raysed
    raysed completion zsh > ~/.zfunc/_raysed          # with fpath+=~/.zfunc before compinit in ~/.zshrc

New shells have it then. Make it again after an update of raysed: the script knows the options of the version that wrote
it, so that the Tab key starts no Python.
"""

import argparse
import importlib

from raysed.commands import parser_of

SHELLS = ("bash", "zsh")
AFTER_STOP = "nothing was written"
_FILES = ("corpus", "teachers", "pairs", "encoder", "learner", "dev", "models", "tasks", "output")
"""Options and arguments that take a file, or a name that may be one."""
_DIRECTORIES = ("storage", "data")
_PREAMBLE = {
    "bash": '_raysed_configs() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}',
    "zsh": "_raysed_configs() {{ _alternative 'configs:config:({names})' 'files:file:_files' }}",
}
"""What a config can be: a name, or a file."""


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    result = parser_of(__doc__)
    result.add_argument("shell", choices=SHELLS, help="the shell that is to read it")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Print the script."""
    import shtab

    from raysed.config import CONFIGS

    names = " ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
    preamble = {shell: text.format(names=names) for shell, text in _PREAMBLE.items()}
    print(shtab.complete(_all_commands(), arguments.shell, preamble=preamble))


def _all_commands() -> argparse.ArgumentParser:
    """The parsers of all commands as one; each command is imported alone otherwise."""
    import shtab

    from raysed.cli import COMMANDS

    result = argparse.ArgumentParser(prog="raysed")
    commands = result.add_subparsers()
    for name, what in COMMANDS.items():
        own = importlib.import_module(f"raysed.commands.{name}").parser()
        command = commands.add_parser(name, parents=[own], add_help=False, help=what, description=what)
        for action in command._actions:
            if action.dest in _FILES:
                action.complete = shtab.FILE
            elif action.dest in _DIRECTORIES:
                action.complete = shtab.DIRECTORY
            elif action.dest == "config":
                action.complete = dict.fromkeys(SHELLS, "_raysed_configs")
    return result

"""The command `raysed`, and what all commands share: error messages and exit codes."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from raysed import interrupts
from raysed.errors import RunFailed, UserError, first_line
from raysed.store import systems
from raysed.store.metrics import notes_shown
from raysed.store.text import printable
from raysed.uris import half_character_in

if TYPE_CHECKING:
    from raysed.api import Result

COMMANDS = {
    "run": "train, distil, calibrate, evaluate and export",
    "distill": "distil one or more models into one small model",
    "evaluate": "score any models side by side, alone and together",
    "status": "show the progress of runs",
    "table": "print the scores of several runs as one table",
}
"""Help by command, whose name is also that of its module in `raysed.commands`."""
_AFTER_STOP = "Run the same command again to continue."
_NO_MODEL = 3


def code_of(result: Result) -> int:
    """Return the exit code of a complete run: 3 if raysed refused to export its model, see `export.allow_worse`."""
    return _NO_MODEL if result.path is None else 0


def main() -> int:
    """Run `raysed COMMAND …`; return the exit code."""
    lines = "\n".join(f"  {name:10} {what}" for name, what in COMMANDS.items())
    options = "  --help     show this, or a command's options: raysed COMMAND --help\n  --version  show the version"
    usage = f"raysed COMMAND ...\n\ncommands:\n{lines}\n\noptions:\n{options}"
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(f"usage: {usage}")
        return 0 if len(sys.argv) > 1 else 2
    if name == "--version":
        from raysed import __version__

        print(f"raysed {__version__}")
        return 0
    if name not in COMMANDS:
        print(f"error: {name!r} is not a command; the commands are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    command = importlib.import_module(f"raysed.commands.{name}")
    parser = command.parser()
    parser.prog = f"raysed {name}"
    return main_of(command.job, parser, getattr(command, "AFTER_STOP", _AFTER_STOP), sys.argv[2:])


def main_of(
    job: Callable[[argparse.Namespace], int | None],
    parser: argparse.ArgumentParser,
    after_stop: str = _AFTER_STOP,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run a job; return 0 or the job's own code (see `code_of`), 1 for a failed run, 2 for a user's mistake.

    Ctrl-C gives 130, SIGTERM 143 and a closed terminal 129. `after_stop` tells the user how to go on.
    """
    if hasattr(sys.stdout, "reconfigure"):  # print a question mark for what the terminal's encoding lacks
        sys.stdout.reconfigure(errors="replace")
    parsed = parser.parse_args(arguments)

    if getattr(parsed, "address", None):
        os.environ["RAY_ADDRESS"] = parsed.address
    level = logging.DEBUG if getattr(parsed, "verbose", False) else logging.INFO
    interrupts.listen()
    atexit.register(gc.freeze)  # or Python spends a second or two at exit collecting torch's objects
    try:
        with notes_shown(level=level), interrupts.errors_are_stops():
            _check_values(parsed)
            return job(parsed) or 0
    except (UserError, RunFailed, MemoryError) as error:
        is_mistake = isinstance(error, UserError)
        # `UserError` tells the user what to do without memory. A message may quote several lines of a library.
        text = str(UserError(first_line(error)) if isinstance(error, MemoryError) else error)
        print(f"{'error' if is_mistake else 'failed'}: {printable(' '.join(text.split()))}", file=sys.stderr)
        if systems.are_unanswered():
            print(end="", flush=True)
            atexit.register(os._exit, 2 if is_mistake else 1)
        return 2 if is_mistake else 1
    except KeyboardInterrupt as error:
        interrupts.acknowledge()
        code = 128 + (interrupts.received_signal() or next(iter(error.args), signal.SIGINT))
        atexit.register(os._exit, code)  # skip libraries' exit handlers: after an interrupt they may hang or crash
        with suppress(OSError):  # the terminal may be closed
            print(f"\nStopped. {after_stop}", file=sys.stderr)
            print(end="", flush=True)
        return code


def _check_values(parsed: argparse.Namespace) -> None:
    """Refuse empty values, which would silently mean the default, and names that are not UTF-8."""
    for name, value in vars(parsed).items():
        for text in value if isinstance(value, list) else [value]:
            option = {"tasks": "--task", "overrides": "--set"}.get(name, f"--{name.replace('_', '-')}")
            if text == "":
                raise UserError(f"{option} is empty; leave it out, or name something")
            if half_character_in(str(text)):
                raise UserError(f"{option} {str(text)!r} is not UTF-8; rename it")


def check_output(path: Path) -> None:
    """Raise `UserError` if `--output` cannot be written, before any work is done for it."""
    try:
        is_new = not path.exists()
        if not (is_new or path.is_file()):
            raise OSError
        path.open("a").close()
        if is_new:
            path.unlink()
    except OSError:
        raise UserError(f"--output {path}: cannot write a file there; name one in an existing directory") from None


def write_output(path: Path, text: str) -> None:
    """Write the file that `--output` names."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--output {path} cannot be written: {error.strerror}") from None

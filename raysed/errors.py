"""The errors that end a job with one sentence: `UserError` (exit code 2) and `RunFailed` (exit code 1)."""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote, urlsplit

_NO_MEMORY = ("allocate memory", "out of memory", "_STATUS_ALLOC_FAILED", "bad_alloc")
"""From torch's CPU allocator and the system, CUDA's runtime, CUDA libraries such as cuBLAS, and C++."""


class UserError(ValueError):
    """A mistake that the user can fix: one sentence that says what would be right, and its place.

    If it is raised because memory ran out, the sentence says so and names no setting or file.

    >>> error = UserError("there is no such file", setting="corpus.source")
    >>> str(error), str(error.at("flow.fit_on"))
    ('corpus.source: there is no such file', 'flow.fit_on: there is no such file')
    >>> str(UserError("expected three columns", file="pairs.tsv", line=7))
    'pairs.tsv, line 7: expected three columns'
    """

    def __init__(
        self, problem: str, setting: str | None = None, file: str | os.PathLike | None = None, line: int | None = None
    ):
        if is_out_of_memory(sys.exc_info()[1]) and "not enough memory" not in problem:
            problem = f"there is not enough memory; free some, or use a machine with more ({problem})"
            setting, file, line = None, None, None
        super().__init__(problem, setting, file, line)  # pickle recreates it from these
        self.problem, self.setting, self.file, self.line = problem, setting, file, line

    def __str__(self) -> str:
        file = "" if self.file is None else f"{os.fspath(self.file)}{f', line {self.line}' if self.line else ''}"
        return ": ".join(filter(None, [self.setting, file, self.problem]))

    def at(self, setting: str) -> "UserError":
        return UserError(self.problem, setting, self.file, self.line)


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether a library's error means that the machine or a GPU ran out of memory."""
    is_named = type(error).__name__.endswith("MemoryError")  # Python's, torch's, numpy's and Arrow's
    return not isinstance(error, UserError) and (is_named or any(words in str(error) for words in _NO_MEMORY))


def need(library: str, what: str, extra: str) -> None:
    """Raise `UserError` if the library of an extra is not installed.

    >>> need("json", "this example", "all")
    """
    if find_spec(library) is None:
        raise UserError(f"{what} needs {library}, which is not installed: run {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of this package, from the checkout or repository it came from."""
    origin: dict[str, Any] = {}
    with suppress(PackageNotFoundError, ValueError):  # run from a checkout that is not installed
        origin = json.loads(distribution("raysed").read_text("direct_url.json") or "{}")
    url = urlsplit(origin.get("url", ""))
    if url.scheme == "file":
        wanted = f"{unquote(url.path) if os.path.exists(unquote(url.path)) else '.'}[{extra}]"
    else:
        at = f" @ {origin['vcs_info']['vcs']}+{origin['url']}" if "vcs_info" in origin else ""
        wanted = f"raysed[{extra}]{at}"
    return f"pip install {shlex.quote(wanted)}"


class RunFailed(RuntimeError):
    """A run that cannot continue although its settings are right; jobs print it and exit with code 1."""


def call_library(call: Callable[[list[str]], Any], texts: list[str], name: str) -> Any:
    """Return `call(texts)`; turn any error into a `UserError` that quotes a text that fails.

    >>> call_library(lambda texts: [int(text) for text in texts], ["1", "a", "2"], "Python")
    Traceback (most recent call last):
    raysed.errors.UserError: Python fails on the text 'a': invalid literal for int() with base 10: 'a'
    """
    try:
        return call(texts)
    except Exception as error:  # libraries raise anything
        reason = first_line(error)
        if is_out_of_memory(error):
            raise UserError(f"{name}: {reason}") from None
    half = len(texts) // 2
    for some in (texts[:half], texts[half:]) if half else ():
        call_library(call, some, name)
    which = f"{len(texts)} texts" if half else f"the text {texts[0][:60]!r}"
    raise UserError(f"{name} fails on {which}: {reason}")


def first_line(error: BaseException) -> str:
    r"""Return the first line of an error's message, or its name if it has none.

    >>> first_line(ValueError("no such file\nat line 3")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    return _lines(error)[0]


def last_line(error: BaseException) -> str:
    r"""Return the last line of an error's message, such as a traceback, or its name.

    >>> last_line(RuntimeError("Traceback\n  File ...\nValueError: no loss\n")), last_line(KeyError())
    ('ValueError: no loss', 'KeyError')
    """
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def public(text: str) -> str:
    """Remove user, password and query from URIs in a text: they may hold keys, and messages end up in logs.

    >>> public("s3://key:secret@bucket/a.tsv?token=1 does not exist")
    's3://bucket/a.tsv does not exist'
    """
    return re.sub(r"(\w://)(?:[^\s@:]*:[^\s@]*@|[^\s@/]*@)?([^\s?']*)(?:\?[^\s']*)?", r"\1\2", text)

"""The one exception for mistakes a user can mend: jobs print it as a sentence and exit with code 2."""

import re


class UserError(ValueError):
    """A wrong setting or input; the message names it and says what would be right, in one sentence."""


class RunFailed(RuntimeError):
    """A run that cannot go on although its settings are right; jobs print it and exit with code 1."""


def first_line(error: BaseException) -> str:
    r"""Returns what a message of several lines begins with, or the error's name where it has none.

    >>> first_line(ValueError("no such file\nat line 3")), first_line(KeyError())
    ('no such file', 'KeyError')
    """
    return _lines(error)[0]


def last_line(error: BaseException) -> str:
    r"""Returns what a message of several lines, such as a worker's traceback, ends with, or the error's name.

    >>> last_line(RuntimeError("Traceback\n  File ...\nValueError: no loss\n")), last_line(KeyError())
    ('ValueError: no loss', 'KeyError')
    """
    return _lines(error)[-1]


def _lines(error: BaseException) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]


def public(text: str) -> str:
    """Takes user, password and query, which may hold keys, out of the URIs in a text: messages end up in logs.

    >>> public("s3://key:secret@bucket/a.tsv?token=1 does not exist")
    's3://bucket/a.tsv does not exist'
    """
    return re.sub(r"(\w://)(?:[^\s@]*:[^\s@]*@|[^\s@/]*@)?([^\s?']*)(?:\?[^\s']*)?", r"\1\2", text)

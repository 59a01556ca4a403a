"""The one exception for mistakes a user can mend: jobs print it as a sentence and exit with code 2."""

import re


class UserError(ValueError):
    """A wrong setting or input; the message names it and says what would be right, in one sentence."""


class RunFailed(RuntimeError):
    """A run that cannot go on although its settings are right; jobs print it and exit with code 1."""


def public(text: str) -> str:
    """Takes user, password and query, which may hold keys, out of the URIs in a text: messages end up in logs.

    >>> public("nothing is at s3://key:secret@bucket/a.tsv?token=1")
    'nothing is at s3://bucket/a.tsv'
    """
    return re.sub(r"(\w://)(?:[^\s@]*:[^\s@]*@|[^\s@/]*@)?([^\s?']*)(?:\?[^\s']*)?", r"\1\2", text)

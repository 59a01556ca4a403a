"""Find secrets in URIs, which would end up in configs, reports and checkpoints."""

import re
from typing import Any
from urllib.parse import parse_qsl

from raysed.errors import UserError

_REMEDY = (
    "remove it, because settings are written into the run directory; credentials come from the environment, as the "
    "provider's own tools find them"
)
_SECRET = re.compile(
    r"passw|pwd|secret|token(?!izer|_id)|signature|authorization|credentials?$|(access|account|api|private)_?key|(^|_)(sig|sas|key)$"
)
"""Parameter names in lower case: those of S3, Google and Azure, and common ones of other tools."""

_LONGEST = 2_000


def refuse_secret(uri: str, setting: str) -> None:
    """Raise `UserError` for a path or URI with credentials, without repeating them."""
    if problem := secret_in(uri):
        raise UserError(problem, setting)


def secret_in(value: Any) -> str | None:
    """Return the problem with a value that holds a URI with credentials, also in nested lists and mappings; else None.

    A user name alone is not a secret, as in `abfs://container@account…` and `hdfs://user@host`.

    >>> secret_in("s3://key:word@bucket/a.tsv").partition(";")[0]
    'the URI contains a password'
    >>> secret_in(["a.tsv", "s3://bucket/a.tsv?region=eu-west-1&session_token=x"]).partition(";")[0]
    'the URI contains the parameter session_token'
    >>> secret_in("hdfs://user@host:8020/b@c.tsv")
    """
    if isinstance(value, str):
        zero = "it contains a zero byte, which no name may contain" if "\0" in value else None
        return zero or half_character_in(value) or _secret_in_uri(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next(filter(None, map(secret_in, parts)), None)


def half_character_in(text: str) -> str | None:
    """Return the problem with a text that UTF-8 cannot encode, such as a file name in Latin-1; else None."""
    is_half = not text.isascii() and re.search("[\ud800-\udfff]", text)
    return r"it contains half a surrogate pair (\ud800 to \udfff), which is not valid text" if is_half else None


def names_secret(name: str) -> bool:
    """Return whether a parameter of this name is likely to hold a secret."""
    # To snake case, for names such as `X-Amz-Signature` and `AWSAccessKeyId`.
    return bool(_SECRET.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name).lower()))


def _secret_in_uri(text: str) -> str | None:
    _, separator, rest = text.partition("://")
    if not separator:
        return None
    if len(text) > _LONGEST:
        return f"a URI has at most {_LONGEST:,} characters"
    if _has_password(rest):
        return f"the URI contains a password; {_REMEDY}"
    for name, value in parse_qsl(rest.partition("?")[2], keep_blank_values=True):
        if names_secret(name):
            return f"the URI contains the parameter {name}; {_REMEDY}"
        if problem := _secret_in_uri(value):  # such as S3's endpoint_override
            return problem
    return None


def _has_password(rest: str) -> bool:
    """Return whether a URI has a password, even one with a `/`, as in S3 keys, which ends the authority too early."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, _ = authority.rpartition("@")
    if at:
        return ":" in user
    port = authority.rpartition(":")[2] if ":" in authority and not authority.endswith("]") else ""
    return "@" in rest and bool(port) and not port.isdigit()

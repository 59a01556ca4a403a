"""An OpenAI-compatible endpoint whose language model writes queries. The key stays in the environment and headers."""

import json
import os
import re
import threading
import time
from http.client import HTTPException
from urllib.error import URLError
from urllib.request import HTTPHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request

from raysed.config import EndpointConfig
from raysed.errors import UserError, last_line

_TRIES = 4
_BACKOFF_S = 1.0
"""Pause before the second try; it doubles with each further one."""
_LIMITED_S, _LONGEST_PAUSE_S = 5.0, 60.0
"""First pause after 429 (too many requests), and the longest one that a server can ask for."""
_LARGEST_ANSWER = 2**20
_SHOWN = 200  # characters of an answer in a message
_LEAST, _MOST = 3, 200  # characters of a query
_NO_ANSWER, _OK, _LIMITED = 0, 200, 429
_OF_THE_TEXT = (400, 413, 422)
"""Refusals that may concern a single text, such as one that is too long or filtered."""

_REASONING_BEGINS, _REASONING_ENDS = (re.compile(f"<{end}think(?:ing)?>", re.IGNORECASE) for end in ("", "/"))
_BEFORE_A_QUERY = re.compile(
    r"(?:[-*•–—>#]+\s+|\(?\d{1,3}[.):]\s+|(?:search )?quer(?:y|ies)(?: ?\d+)?\s*[:.)]\s*)+", re.IGNORECASE
)
_QUOTED = re.compile(r"""(["'`“„«‘])(.*)["'`”“»’][.,;]?""")


def queries_in(answer: str, most: int) -> list[str]:
    r"""Return at most `most` queries of an answer, without reasoning, numbers, bullets, quotes and introductions.

    >>> queries_in('<think>Hm.</think>Here are two:\n1. "cats on mats"\n\n- **Query 2:** 3.5 mm jack\n3) more', 2)
    ['cats on mats', '3.5 mm jack']
    """
    found = []
    said = _REASONING_BEGINS.split(_REASONING_ENDS.split(answer)[-1])[0]  # either mark may be missing
    for line in said.replace("**", "").splitlines():
        query = line.strip()
        if match := _BEFORE_A_QUERY.match(query):
            query = query[match.end() :]
        if (match := _QUOTED.fullmatch(query)) and match[1] not in match[2]:
            query = match[2].strip()
        is_said = any(map(str.isalnum, query)) and query[-1] not in ":：" and query[:3] != "```"
        if is_said and _LEAST <= len(query) <= _MOST:
            found.append(query)
    return list(dict.fromkeys(found))[:most]


class Endpoint:
    """Ask a language model for queries, from any number of threads.

    Attributes:
        stopped: set it to end all waiting between tries.
    """

    def __init__(self, config: EndpointConfig):
        self._config, self.stopped = config, threading.Event()
        self._url = f"{config.url.rstrip('/')}/chat/completions"
        self._key = os.environ.get(config.key_variable, "").strip()
        if not (self._key.isascii() and self._key.isprintable()):  # the HTTP client would repeat it in an error
            raise UserError(f"{config.key_variable} holds characters that no key has", "search.endpoint.key_variable")
        self._headers = {"Content-Type": "application/json", "User-Agent": "raysed"}  # some refuse urllib's own name
        self._headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._opener = OpenerDirector()  # follows no redirect, which would take the key elsewhere
        for handler in (ProxyHandler(), HTTPHandler(), HTTPSHandler()):
            self._opener.add_handler(handler)

    def queries_for(self, text: str) -> tuple[list[str], str]:
        """Return queries for a text, if any answer is usable, and the beginning of the last answer.

        Raises:
            UserError: the endpoint refuses to work, or is not there after four tries.
        """
        prompt = self._config.prompt.replace("{queries}", str(self._config.queries)).replace("{text}", text)
        body = json.dumps({"model": self._config.model, "messages": [{"role": "user", "content": prompt}]}).encode()
        for attempt in range(_TRIES):
            status, answer, pause = self._post(body)
            seen = " ".join(answer.replace(self._key or "\0", "***").split())[:_SHOWN]
            queries = queries_in(_content(answer), self._config.queries) if status == _OK else []
            if queries or status in _OF_THE_TEXT:
                return queries, f"{status} {seen}"
            is_passing = status in (_NO_ANSWER, _OK, 408, _LIMITED) or status >= 500
            if not is_passing or attempt + 1 == _TRIES:
                break
            first = {_OK: 0.0, _LIMITED: _LIMITED_S}.get(status, 1.0) * _BACKOFF_S
            if self.stopped.wait(max(first * 2**attempt, min(pause, _LONGEST_PAUSE_S))):
                break
        if status == _OK:
            return [], seen
        what = f"answers {status} ({seen})" if status else f"gives no answer ({seen})"
        remedy = "correct it or start its server"
        if status in (401, 403):
            is_set = "which is refused" if self._key else "which is not set"
            remedy = f"the key is read from {self._config.key_variable}, {is_set}"
        problem = f"{self._url} {what}; {remedy}; then the same command continues with what is missing"
        raise UserError(problem, setting="search.endpoint.url")

    def _post(self, body: bytes) -> tuple[int, str, float]:
        """Return the status, the answer (or why there is none), and the seconds that the server asks to wait."""
        seconds, answer = self._config.timeout_seconds, b""
        deadline = time.monotonic() + seconds
        try:
            with self._opener.open(Request(self._url, body, self._headers), timeout=seconds) as response:
                while len(answer) < _LARGEST_ANSWER and (part := response.read1(_LARGEST_ANSWER)):
                    answer += part
                    if time.monotonic() > deadline:  # the timeout of sockets is for each part
                        raise TimeoutError(f"it was not complete after {seconds:g} seconds")
                asked = response.headers.get("Retry-After", "")
                return response.status, answer.decode(errors="replace"), float(asked) if asked.isdecimal() else 0.0
        except (OSError, HTTPException, UnicodeError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            return _NO_ANSWER, getattr(reason, "strerror", None) or last_line(reason), 0.0


def _content(answer: str) -> str:
    """Return what the model has written, or nothing if the answer is not in the format."""
    try:
        content = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return (
        content.encode(errors="replace").decode() if isinstance(content, str) else ""
    )  # JSON can hold half characters

"""Queries for the texts of a corpus, made from them or given by users."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa

from raysed.config import Role, SearchConfig
from raysed.data.rows import Schema, rows
from raysed.data.sources import File, Hub, find
from raysed.errors import UserError

OWN = "own"
"""Kind of users' queries, in addition to `config.QueryKind`."""
UNKNOWN = -1
"""Stands for a query's text if none is known."""

_SETTING = "search.source"
_ROWS = 4096
_IN_MEMORY = 1 << 20  # characters to hold before a file is used
SENTENCE_END = re.compile(r"""[.!?…][)\]"'”’»]*(?= |$)|[。！？]""")
_LEAST_WORDS, _MOST_WORDS = 4, 12
"""Words of a crop, which is at most half of its text."""
_EDGES = "()[]{}\"'“”‘’«»,;:.!?…-–— "


class Queries:
    """Queries for the texts of a corpus, kept in a file until all texts have been read."""

    def __init__(self, search: SearchConfig):
        self._search = search
        self._file = SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8")

    def __enter__(self) -> "Queries":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, text: str, id_: int, title: str, own: Sequence[str], is_passage: bool) -> None:
        """Add users' `own` queries for a text, and those made from it. Only a crop certainly belongs to its passage."""
        of_line = UNKNOWN if is_passage else id_
        for query in own:
            self.add_one(OWN, query, of_line)
        for kind, query in queries_of(self._search, text, title):
            self.add_one(kind, query, id_ if kind == "crops" else of_line)

    def add_one(self, kind: str, query: str, of: int) -> None:
        self._file.write(f"{json.dumps([kind, query, of])}\n")

    def blocks(self) -> Iterator[list[tuple[str, str, int]]]:
        """Yield each query's kind, words and text id in blocks of some thousand; those of `search.source` come last."""
        self._file.seek(0)
        while lines := list(islice(self._file, _ROWS)):
            yield [tuple(json.loads(line)) for line in lines]
        for block in own_queries(self._search):
            yield [(OWN, query or "", UNKNOWN) for query in block]


def queries_of(search: SearchConfig, text: str, title: str = "") -> Iterator[tuple[str, str]]:
    """Yield the kind and words of each query made from a text; a crop depends on the text only.

    >>> dict(queries_of(SearchConfig(queries=["titles", "crops"]), "A cat sleeps.", "Cats"))
    {'titles': 'Cats'}
    """
    for kind in search.queries:
        query = title if kind == "titles" else _crop(text)
        if query and query != text:
            yield kind, query


def _crop(text: str) -> str:
    """Return random words of a text, always the same; none of a short text."""
    words, draws = text.split(), random.Random(text)
    if len(words) < 2 * _LEAST_WORDS:
        return ""
    count = draws.randint(_LEAST_WORDS, min(_MOST_WORDS, len(words) // 2))
    start = draws.randrange(len(words) - count + 1)
    return " ".join(words[start : start + count]).strip(_EDGES)


def own_queries(search: SearchConfig) -> Iterator[list[str | None]]:
    """Yield the queries of `search.source` in blocks of some thousand."""
    field = ("query",)
    wanted = {field: [("query",), ("text",), ("sentence",)]}
    schema = Schema(_SETTING, "queries", wanted, "query or text", text=field, bare=field)
    for source in _sources(search):
        yield from (block.columns["query"] for block in rows(source, schema))


def queries_fingerprint(search: SearchConfig) -> dict[str, Any]:
    """Return what identifies users' own queries; UserError if `search.source` has none."""
    found = [source.identity() for source in _sources(search)]
    if found and next(own_queries(search), None) is None:
        raise UserError("it has no queries; name a file with queries", setting=_SETTING)
    return {"queries": found} if found else {}


def _sources(search: SearchConfig) -> list[File | Hub]:
    if search.source is None:
        return []
    return find(search.source, _SETTING, "queries", Hub(search.source, None, "train", streaming=True))


def queries_in_cell(value: object, where: str) -> list[str]:
    """Return the queries in a cell: null, a text, or a list of texts."""
    found = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(found, list) or not all(isinstance(query, str) for query in found):
        kind = type(value).__name__
        raise UserError(f"{where}: search.column must hold a text or a list of texts, not {kind}")
    return found


def roles_in(table: pa.Table) -> list[Role]:
    """Return each row's role; in a table without queries, none."""
    if "of" not in table.column_names:
        return [""] * len(table)
    return roles_of(table["id"].to_numpy(), table["of"].to_numpy())


def roles_of(ids: np.ndarray, of: np.ndarray) -> list[Role]:
    """Return each row's role in a table with queries: a text is a row whose `of` is its own id."""
    return ["document" if is_text else "query" for is_text in ids == of]

"""Unlabelled sentences from files or the hub, as one clean stream with stable ids."""

import heapq
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from raysed import bundled
from raysed.config import CorpusConfig, SearchConfig
from raysed.data.queries import OWN, SENTENCE_END, UNKNOWN, Queries, queries_in_cell
from raysed.data.rows import Rows, Schema, rows
from raysed.data.sources import File, Hub, find
from raysed.errors import UserError

BUNDLED = "bundled:generated-text"
COLUMNS = ("sentence", "text")
"""Default columns, in order of preference."""

_SETTING = "corpus.source"
_ROWS = 4096
_MAX_COMPOSED = 4
"""NFC composes at most this many characters into one (Unicode Standard Annex 15, table 12)."""
_LEAST_QUERY = 2  # characters
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Source = File | Hub


class _Text(NamedTuple):
    """A clean text, and material for its queries."""

    text: str
    title: str = ""
    own: Sequence[str] = ()
    """Users' own queries."""
    is_passage: bool = False
    """Whether its line was cut: title and own queries may belong to another passage."""


@dataclass
class CorpusReport:
    """Number of lines (or records) by outcome; `kept` may be a draw from the `usable`.

    A line that was cut (`split`) counts once per passage.
    """

    lines: int = 0
    empty: int = 0
    too_short: int = 0
    too_long: int = 0
    duplicates: int = 0
    usable: int = 0
    kept: int = 0
    split: int = 0
    queries: dict[str, int] = field(default_factory=dict)
    """Queries for the kept texts, by kind."""

    def summary(self) -> str:
        """Return the counts as one line.

        >>> CorpusReport(lines=1200, empty=3, usable=1197, kept=1000).summary()
        '1,200 lines: 3 empty, 0 too short, 0 too long, 0 duplicates, 1,197 usable, 1,000 kept'
        """
        counts = {"empty": self.empty, "too short": self.too_short, "too long": self.too_long}
        counts |= {"duplicates": self.duplicates, "usable": self.usable, "kept": self.kept}
        counts |= {"cut into passages": self.split} if self.split else {}
        queries = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in self.queries.items())
        listed = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        return f"{self.lines:,} lines: {listed}" + (
            f"; {sum(self.queries.values()):,} queries: {queries}" if queries else ""
        )


def check_corpus(config: CorpusConfig, search: SearchConfig | None = None) -> None:
    """Read every source's first block; UserError if it is broken or no source has text."""
    sources = find_sources(config)
    if not any([next(_blocks(source, config, search or SearchConfig()), None) is not None for source in sources]):
        raise UserError(f"no sentences in {_names(sources)}; name a source with text", setting=_SETTING)


def sentence_chunks(config: CorpusConfig, seed: int, report: CorpusReport) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield ids, int64 [B] counted from 0, and B sentences, cleaned and without duplicates.

    All sentences come in reading order, or `config.sentences` are drawn uniformly. A draw depends on the seed and the
    set of sentences, not on their order or files. It comes in random order, after everything has been read. `report`
    must be fresh, and is complete when the iterator ends.

    Equal 8-byte hashes mark duplicates: 100 million sentences lose one to a shared hash with probability 0.03 %.
    Memory: 8 MB per million distinct sentences, three times that during merges, and a draw's sentences.
    """
    return ((ids, sentences) for ids, sentences, _ in text_chunks(config, seed, report))


def text_chunks(
    config: CorpusConfig, seed: int, report: CorpusReport, search: SearchConfig | None = None
) -> Iterator[tuple[np.ndarray, list[str], np.ndarray]]:
    """Yield what `sentence_chunks` does, and then queries for these texts.

    Texts come first, so other queries leave their blocks unchanged. The third part, int64 [B], is the id of a query's
    text (or `UNKNOWN`), or a text's own id. Repeated queries count for their first text. UserError if a search has one
    text or no queries.
    """
    search, first = search or SearchConfig(), 0
    with Queries(search) as queries:
        chunks = _usable_chunks(config, seed, report, search, queries)
        count = config.sentences
        for texts in (texts for _, texts in chunks) if count is None else _draw(chunks, count, report):
            ids, first = np.arange(first, first + len(texts)), first + len(texts)
            report.kept += len(texts)
            yield ids, [text.text for text in texts], ids
            for id_, text in zip(ids.tolist(), texts):
                queries.add(text.text, id_, text.title, text.own, text.is_passage)
        seen = _SeenHashes()
        for block in queries.blocks():
            # Titles and users' queries may contain half characters.
            known = [(kind, query.encode(errors="replace").decode(), of) for kind, query, of in block]
            cleaned = [(kind, clean(query, config.max_characters), of) for kind, query, of in known]
            usable = [each for each in cleaned if _LEAST_QUERY <= len(each[1]) <= config.max_characters]
            fresh = [usable[row] for row in seen.add(_hashes([query for _, query, _ in usable], b""))]
            if fresh:
                report.queries = dict(Counter(report.queries) + Counter(kind for kind, _, _ in fresh))
                ids, first = np.arange(first, first + len(fresh)), first + len(fresh)
                yield ids, [query for _, query, _ in fresh], np.array([of for _, _, of in fresh])
    if not search.enabled:
        return
    names = _names(find_sources(config))
    if report.kept < 2:
        raise UserError(f"{names} has only one text; training for search needs several", setting=_SETTING)
    if not report.queries:
        raise UserError(
            f"no query could be made from the {report.kept:,} texts of {names}; add crops to search.queries, or name "
            "users' queries in search.source"
        )


def corpus_fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Return what identifies the sources."""
    return {"sources": [source.identity() for source in find_sources(config)]}


def clean(text: str, max_characters: int = sys.maxsize) -> str:
    r"""Normalise to NFC; replace runs of blanks, control characters and line separators by one blank, and strip.

    Text that exceeds `max_characters` even when composed is not normalised. NFC is quadratic in runs of combining
    characters: a million would take minutes.

    >>> clean(" Caf\u0065\u0301\u2028au\tlait ")
    'Café au lait'
    """
    text = _on_one_line(text)
    return unicodedata.normalize("NFC", text) if len(text) <= _MAX_COMPOSED * max_characters else text


def _on_one_line(text: str) -> str:
    return " ".join((text if text.isprintable() else _CONTROL.sub(" ", text)).split())


def passages(text: str, most: int) -> list[str]:
    """Cut a text without repeated blanks into passages of at most `most` characters.

    Each is as long as possible and ends with a sentence, or with a word if the sentence is too long.

    >>> passages("It rains. The cat sleeps, and so does the dog. Why?", 25)
    ['It rains.', 'The cat sleeps, and so', 'does the dog. Why?']
    """
    found, start = [], 0
    while len(text) - start > most:
        ends = [match.end() for match in SENTENCE_END.finditer(text, start, start + most + 1)]
        blank = text.rfind(" ", start + 1, start + most + 1)
        end = max([end for end in ends if end <= start + most], default=blank if blank > 0 else start + most)
        found.append(text[start:end])
        start = end + (text[end] == " ")
    return [*found, text[start:]] if text[start:] else found


def _texts_of(block: Rows, config: CorpusConfig, search: SearchConfig, report: CorpusReport) -> list[_Text]:
    """Clean texts and cut them into passages; the first passage gets users' own queries."""
    found: list[_Text] = []
    for row, text in enumerate(block.texts("sentence")):
        if config.passage_characters is None:
            parts = [clean(text, config.max_characters)]
        else:
            cut = passages(_on_one_line(text), config.passage_characters) or [""]
            parts = [unicodedata.normalize("NFC", part) for part in cut]
            report.split += len(parts) > 1
        title = str(block.columns["title"][row] or "") if search.enabled else ""
        own = queries_in_cell(block.columns["queries"][row], block.where(row)) if search.column else ()
        found += [_Text(part, title, () if number else own, len(parts) > 1) for number, part in enumerate(parts)]
    return found


def _hashes(texts: Sequence[str], salt: bytes) -> np.ndarray:
    digests = b"".join(blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in texts)
    return np.frombuffer(digests, "<u8")


def _usable_chunks(
    config: CorpusConfig, seed: int, report: CorpusReport, search: SearchConfig, queries: Queries
) -> Iterator[tuple[np.ndarray, list[_Text]]]:
    """Yield seeded hashes, uint64 [B], and B distinct texts; keep users' queries of duplicates."""
    sources, seen = find_sources(config), _SeenHashes()
    salt = blake2b(str(seed).encode(), digest_size=16).digest()
    for block in (block for source in sources for block in _blocks(source, config, search)):
        texts = _texts_of(block, config, search, report)
        lengths = np.array([len(text.text) for text in texts])
        short, long = lengths < config.min_characters, lengths > config.max_characters
        usable = [texts[row] for row in np.flatnonzero(~(short | long))]
        keys = _hashes([text.text for text in usable], salt)
        fresh, empty = seen.add(keys), int((lengths == 0).sum())
        report.lines += len(texts)
        report.empty += empty
        report.too_short += int(short.sum()) - empty
        report.too_long += int(long.sum())
        report.usable += len(fresh)
        report.duplicates += len(usable) - len(fresh)
        for row in np.setdiff1d(np.arange(len(usable)), fresh):  # a text may be repeated for each query
            for query in usable[row].own:
                queries.add_one(OWN, query, UNKNOWN)
        if len(fresh):
            yield keys[fresh], [usable[row] for row in fresh]
    if not report.usable:
        problem = f"no usable sentence in {_names(sources)} ({report.summary()})"
        wanted = f"a row should be a sentence of {config.min_characters:,} to {config.max_characters:,} characters"
        raise UserError(f"{problem}; {wanted}", setting=_SETTING)


class _SeenHashes:
    """A set of 64-bit hashes in sorted arrays, each at most half its predecessor: a tenth of a Python set's size."""

    def __init__(self) -> None:
        self._levels: list[np.ndarray] = []

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Add keys; return the sorted first positions of new ones."""
        unique, first = np.unique(keys, return_index=True)
        new = np.ones(len(unique), bool)
        for level in self._levels:
            places = np.searchsorted(level, unique).clip(max=len(level) - 1)
            new &= level[places] != unique
        if new.any():
            self._levels.append(unique[new])
        while len(self._levels) > 1 and len(self._levels[-2]) < 2 * len(self._levels[-1]):
            merged = np.concatenate([self._levels.pop(-2), self._levels.pop()])
            merged.sort(kind="stable")  # recognises the two sorted halves
            self._levels.append(merged)
        return np.sort(first[new])


def _draw(chunks: Iterator[tuple[np.ndarray, list[_Text]]], count: int, report: CorpusReport) -> Iterator[list[_Text]]:
    """Yield the `count` texts of smallest seeded hash: a uniform draw, whatever the reading order."""
    hashed = ((key, text) for keys, texts in chunks for key, text in zip(keys.tolist(), texts))
    drawn = [text for _, text in heapq.nsmallest(count, hashed)]
    if len(drawn) < count:
        raise UserError(
            f"{count:,} sentences are needed, but corpus.source has only {report.usable:,} usable ones "
            f"({report.summary()}); lower corpus.sentences and sed.sentences, or add text"
        )
    for start in range(0, count, _ROWS):
        yield drawn[start : start + _ROWS]


def find_sources(config: CorpusConfig) -> list[Source]:
    """Return `corpus.source` as files (sorted within a directory) and hub datasets."""
    items = [config.source] if isinstance(config.source, str) else config.source
    if not items or "" in items:
        raise UserError(f"it is empty; name a file, a directory, a hub dataset or {BUNDLED}", setting=_SETTING)
    found: dict[str, Source] = {}
    for item in items:
        if item.startswith("bundled:") and item != BUNDLED:
            raise UserError(f"{item} is unknown; the bundled corpus is {BUNDLED}", setting=_SETTING)
        hub = Hub(item, config.config_name, config.split, streaming=True)
        named = find(str(bundled.CORPUS) if item == BUNDLED else item, _SETTING, "sentences", hub, several=True)
        if item == BUNDLED:
            named = [replace(named[0], name=BUNDLED)]
        found |= {source.name: source for source in named}
    return list(found.values())


def _blocks(source: Source, config: CorpusConfig, search: SearchConfig) -> Iterator[Rows]:
    """Yield rows in blocks, with titles and queries for search."""
    names, text = [config.column] if config.column else COLUMNS, ("sentence",)
    wanted, remedy = {text: [(name,) for name in names]}, "; name another column in corpus.column"
    optional = {"title": "title"} if search.enabled else {}
    if search.column:
        wanted[("queries",)] = [(search.column,)]
        remedy += " or search.column"
    needed = " or ".join(names) + (f", and {search.column}," if len(wanted) > 1 else "")
    return rows(source, Schema(_SETTING, "sentences", wanted, needed, optional, text=text, remedy=remedy, bare=text))


def _names(sources: list[Source]) -> str:
    more = f" and {len(sources) - 3:,} more" if len(sources) > 3 else ""
    return ", ".join(source.name for source in sources[:3]) + more

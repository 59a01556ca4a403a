"""Unlabelled sentences from files or the hub, as one clean stream with stable ids."""

import heapq
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np

from raysed import bundled
from raysed.config import CorpusConfig
from raysed.data.rows import Rows, Schema, rows
from raysed.data.sources import File, Hub, find
from raysed.errors import UserError

BUNDLED = "bundled:generated-text"
COLUMNS = ("sentence", "text")
"""Default columns, in order of preference."""

_ROWS = 4096
LEAST_CHARACTERS, MOST_CHARACTERS = 2, 2000
"""Shorter and longer lines are skipped, the longer ones unless they are cut into passages."""
_MAX_COMPOSED = 4
"""NFC composes at most this many characters into one (Unicode Standard Annex 15, table 12)."""
_SENTENCE_END = re.compile(r"""[.!?…][)\]"'”’»]*(?= |$)|[。！？]""")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Source = File | Hub
Columns = list[list[str]]
"""B sentences, and their translations in each language; empty text if one is missing or unusable."""


@dataclass(frozen=True)
class _Kind:
    """What a source holds: the setting that names it, a word for messages, and columns in order of preference."""

    setting: str
    word: str
    columns: Sequence[str]


_SENTENCES = _Kind("corpus.source", "sentence", COLUMNS)
_QUERIES = _Kind("corpus.queries", "query", ("query", "text"))


@dataclass
class CorpusReport:
    """Number of lines (or records) by outcome; `kept` may be a draw from the `usable`.

    A line that was cut (`split`) counts once per passage. `untranslated`: translations that kept sentences lack.
    """

    lines: int = 0
    empty: int = 0
    too_short: int = 0
    too_long: int = 0
    duplicates: int = 0
    usable: int = 0
    kept: int = 0
    split: int = 0
    untranslated: int = 0

    def summary(self) -> str:
        """Return the counts as one line.

        >>> CorpusReport(lines=1200, empty=3, usable=1197, kept=1000).summary()
        '1,200 lines: 3 empty, 0 too short, 0 too long, 0 duplicates, 1,197 usable, 1,000 kept'
        """
        counts = {"empty": self.empty, "too short": self.too_short, "too long": self.too_long}
        counts |= {"duplicates": self.duplicates, "usable": self.usable, "kept": self.kept}
        counts |= {"cut into passages": self.split} if self.split else {}
        counts |= {"translations missing or unusable": self.untranslated} if self.untranslated else {}
        return f"{self.lines:,} lines: {', '.join(f'{count:,} {what}' for what, count in counts.items())}"


def check_corpus(config: CorpusConfig) -> None:
    """Read the first block of every source and of the queries; UserError if one is broken or there is no text."""
    sources = find_sources(config)
    if not any([next(_blocks(source, config, _SENTENCES), None) is not None for source in sources]):
        raise UserError(f"no sentences in {_names(sources)}; name a source with text", setting=_SENTENCES.setting)
    for source in _query_sources(config):
        if next(_blocks(source, config, _QUERIES), None) is None:
            raise UserError(f"no queries in {source.name}; name a file with queries", setting=_QUERIES.setting)


def sentence_chunks(config: CorpusConfig, seed: int, report: CorpusReport) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield ids, int64 [B] counted from 0, and the B sentences of `column_chunks`."""
    first = 0
    for sentences, *_ in column_chunks(config, seed, report):
        ids, first = np.arange(first, first + len(sentences)), first + len(sentences)
        yield ids, sentences


def column_chunks(config: CorpusConfig, seed: int, report: CorpusReport) -> Iterator[Columns]:
    """Yield B sentences and their translations, cleaned and without duplicates.

    All sentences come in reading order, or `config.sentences` are drawn uniformly. A draw depends on the seed and the
    set of sentences, not on their order or files. It comes in random order, after everything has been read. `report`
    must be fresh, and is complete when the iterator ends.

    Of rows with the same sentence, the first stays, whatever the translations. Equal 8-byte hashes mark duplicates: 100
    million sentences lose one to a shared hash with probability 0.03 %.
    Memory: 8 MB per million distinct sentences, three times that during merges, and a draw's sentences.
    """
    chunks = _usable_chunks(find_sources(config), config, _SENTENCES, seed, report)
    count = config.sentences
    for columns in (columns for _, columns in chunks) if count is None else _draw(chunks, count, report):
        report.kept += len(columns[0])
        report.untranslated += sum(column.count("") for column in columns)
        yield columns


def query_chunks(config: CorpusConfig, report: CorpusReport) -> Iterator[list[str]]:
    """Yield the queries of `corpus.queries` in reading order, cleaned as sentences are, without duplicates, uncut."""
    whole = config.model_copy(update={"passage_characters": None, "translations": []})
    for _, (queries,) in _usable_chunks(_query_sources(config), whole, _QUERIES, 0, report):
        report.kept += len(queries)
        yield queries


def corpus_fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Return what identifies the sources."""
    return {"sources": [source.identity() for source in find_sources(config)]}


def queries_fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Return what identifies `corpus.queries`."""
    return {"queries": [source.identity() for source in _query_sources(config)]}


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
        ends = [match.end() for match in _SENTENCE_END.finditer(text, start, start + most + 1)]
        blank = text.rfind(" ", start + 1, start + most + 1)
        end = max([end for end in ends if end <= start + most], default=blank if blank > 0 else start + most)
        found.append(text[start:end])
        start = end + (text[end] == " ")
    return [*found, text[start:]] if text[start:] else found


def _texts_of(block: Rows, config: CorpusConfig, report: CorpusReport) -> list[str]:
    """Clean texts and cut them into passages."""
    if config.passage_characters is None:
        return [clean(text, MOST_CHARACTERS) for text in block.texts("sentence")]
    found: list[str] = []
    for text in block.texts("sentence"):
        parts = passages(_on_one_line(text), config.passage_characters) or [""]
        report.split += len(parts) > 1
        found += [unicodedata.normalize("NFC", part) for part in parts]
    return found


def _translations(block: Rows, column: str) -> list[str]:
    texts = (clean(text, MOST_CHARACTERS) for text in block.texts(f"in {column}"))
    return [text if LEAST_CHARACTERS <= len(text) <= MOST_CHARACTERS else "" for text in texts]


def _hashes(texts: Sequence[str], salt: bytes) -> np.ndarray:
    digests = b"".join(blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in texts)
    return np.frombuffer(digests, "<u8")


def _usable_chunks(
    sources: Sequence[Source], config: CorpusConfig, kind: _Kind, seed: int, report: CorpusReport
) -> Iterator[tuple[np.ndarray, Columns]]:
    """Yield seeded hashes, uint64 [B], and B distinct texts with their translations."""
    seen, salt = _SeenHashes(), blake2b(str(seed).encode(), digest_size=16).digest()
    most = config.passage_characters or MOST_CHARACTERS
    for block in (block for source in sources for block in _blocks(source, config, kind)):
        texts = _texts_of(block, config, report)
        columns = [texts, *(_translations(block, column) for column in config.translations)]
        lengths = np.array([len(text) for text in texts])
        short, long = lengths < LEAST_CHARACTERS, lengths > most
        usable = np.flatnonzero(~(short | long))
        keys = _hashes([texts[row] for row in usable], salt)
        fresh, empty = seen.add(keys), int((lengths == 0).sum())
        report.lines += len(texts)
        report.empty += empty
        report.too_short += int(short.sum()) - empty
        report.too_long += int(long.sum())
        report.usable += len(fresh)
        report.duplicates += len(usable) - len(fresh)
        if len(fresh):
            yield keys[fresh], [[column[row] for row in usable[fresh]] for column in columns]
    if not report.usable:
        problem = f"no usable {kind.word} in {_names(sources)} ({report.summary()})"
        wanted = f"a row should be a {kind.word} of {LEAST_CHARACTERS} to {most:,} characters"
        raise UserError(f"{problem}; {wanted}", setting=kind.setting)


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


def _draw(chunks: Iterator[tuple[np.ndarray, Columns]], count: int, report: CorpusReport) -> Iterator[Columns]:
    """Yield the `count` rows of smallest seeded hash: a uniform draw, whatever the reading order."""
    hashed = (row for keys, columns in chunks for row in zip(keys.tolist(), *columns))
    drawn = [row for _, *row in heapq.nsmallest(count, hashed)]
    if len(drawn) < count:
        raise UserError(
            f"{count:,} sentences are needed, but corpus.source has only {report.usable:,} usable ones "
            f"({report.summary()}); lower corpus.sentences and sed.sentences, or add text"
        )
    for start in range(0, count, _ROWS):
        yield [list(column) for column in zip(*drawn[start : start + _ROWS])]


def find_sources(config: CorpusConfig) -> list[Source]:
    """Return `corpus.source` as files (sorted within a directory) and hub datasets."""
    items = [config.source] if isinstance(config.source, str) else config.source
    if not items:
        raise UserError(
            f"it is empty; name a file, a directory, a hub dataset or {BUNDLED}", setting=_SENTENCES.setting
        )
    found: dict[str, Source] = {}
    for item in items:
        if item.startswith("bundled:") and item != BUNDLED:
            raise UserError(f"{item} is unknown; the bundled corpus is {BUNDLED}", setting=_SENTENCES.setting)
        hub = Hub(item, config.config_name, config.split, streaming=True)
        named = find(
            str(bundled.CORPUS) if item == BUNDLED else item, _SENTENCES.setting, "sentences", hub, several=True
        )
        if item == BUNDLED:
            named = [replace(named[0], name=BUNDLED)]
        found |= {source.name: source for source in named}
    return list(found.values())


def _query_sources(config: CorpusConfig) -> list[Source]:
    if config.queries is None:
        return []
    hub = Hub(config.queries, None, "train", streaming=True)
    return find(config.queries, _QUERIES.setting, "queries", hub)


def _blocks(source: Source, config: CorpusConfig, kind: _Kind) -> Iterator[Rows]:
    """Yield rows in blocks, with the texts as `sentence`."""
    names = [config.column] if config.column and kind is _SENTENCES else kind.columns
    remedy = "; name another column in corpus.column" if kind is _SENTENCES else ""
    others = config.translations if kind is _SENTENCES else []
    text, needed = ("sentence",), ", ".join([" or ".join(names), *others])
    wanted = {text: [(name,) for name in names], **{(f"in {name}",): [(name,)] for name in others}}
    options = {"text": [*chain(*wanted)], "remedy": remedy + " or corpus.translations" * bool(others)}
    return rows(source, Schema(kind.setting, "sentences", wanted, needed, bare=() if others else text, **options))


def _names(sources: list[Source]) -> str:
    more = f" and {len(sources) - 3:,} more" if len(sources) > 3 else ""
    return ", ".join(source.name for source in sources[:3]) + more

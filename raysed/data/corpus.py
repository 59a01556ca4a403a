"""Unlabelled sentences from files or the hub, as one clean stream with stable ids."""

import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np

from raysed import bundled
from raysed.config import CorpusConfig
from raysed.data.rows import Schema, rows
from raysed.data.sources import File, Hub, find
from raysed.errors import UserError

BUNDLED = "bundled:everyday"
COLUMNS = ("sentence", "text")
"""Names to look for, in this order, if `corpus.column` is not given."""

_SETTING = "corpus.source"
_ROWS = 4096
_MAX_COMPOSED = 4
"""NFC composes at most this many characters into one (Unicode Standard Annex 15, table 12)."""
_SENTENCE_END = re.compile(r"""[.!?…][)\]"'”’»]*(?= )|[。！？]""")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Source = File | Hub
_Chunk = tuple[np.ndarray, list[str]]
"""Hashes, uint64 [B], and their B clean sentences."""


@dataclass
class CorpusReport:
    """What became of the `lines` (or records): one of the counts up to `usable`; `kept` may be a draw from those.

    Lines that were cut into passages (`split`) count as often as they have passages.
    """

    lines: int = 0
    empty: int = 0
    too_short: int = 0
    too_long: int = 0
    duplicates: int = 0
    usable: int = 0
    kept: int = 0
    split: int = 0

    def summary(self) -> str:
        """Return the counts as one line.

        >>> CorpusReport(lines=1200, empty=3, usable=1197, kept=1000).summary()
        '1,200 lines: 3 empty, 0 too short, 0 too long, 0 duplicates, 1,197 usable, 1,000 kept'
        """
        counts = {"empty": self.empty, "too short": self.too_short, "too long": self.too_long}
        counts |= {"duplicates": self.duplicates, "usable": self.usable, "kept": self.kept}
        counts |= {"cut into passages": self.split} if self.split else {}
        return f"{self.lines:,} lines: " + ", ".join(f"{count:,} {what}" for what, count in counts.items())


def check_corpus(config: CorpusConfig) -> None:
    """Read the first block of every source; UserError if none has text, or if data is broken so far."""
    sources = find_sources(config)
    if not any([next(_blocks(source, config), None) is not None for source in sources]):
        raise UserError(f"no sentences in {_names(sources)}; name text that has some", setting=_SETTING)


def sentence_chunks(config: CorpusConfig, seed: int, report: CorpusReport) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Yield ids, int64 [B] counted from 0, and B sentences, cleaned and without duplicates.

    All are kept in reading order (files sorted within a directory), or `config.sentences` are drawn uniformly without
    replacement. A draw depends on the seed and the set of sentences, not on their order or files; it comes in random
    order, after everything has been read. `report` must be fresh, and is complete when the iterator ends.

    Duplicates are recognised by 8-byte hashes; the probability that two of 100 million sentences share one, so that one
    of them is lost, is below 0.03 %. Memory: 8 MB per million distinct sentences, three times that while hashes are
    merged, and 1.25 k sentences for a draw of k.
    """
    chunks = _usable_chunks(config, seed, report)
    if config.sentences is not None:
        chunks = _draw(chunks, config.sentences, report)
    for _, sentences in chunks:
        yield np.arange(report.kept, report.kept + len(sentences)), sentences
        report.kept += len(sentences)


def corpus_fingerprint(config: CorpusConfig) -> dict[str, Any]:
    """Return what identifies the inputs, to detect outdated results; see `File.identity` and `Hub.identity`."""
    return {"sources": [source.identity() for source in find_sources(config)]}


def clean(text: str, max_characters: int = sys.maxsize) -> str:
    r"""Normalise to NFC; replace runs of blanks, control characters and line separators by one blank, and strip.

    Text too long for `max_characters` even if composed is not normalised: NFC is quadratic in a run of combining
    characters, and a line of a million of them would take minutes.

    >>> clean(" Caf\u0065\u0301\u2028au\tlait ")
    'Café au lait'
    """
    text = _on_one_line(text)
    return unicodedata.normalize("NFC", text) if len(text) <= _MAX_COMPOSED * max_characters else text


def _on_one_line(text: str) -> str:
    return " ".join((text if text.isprintable() else _CONTROL.sub(" ", text)).split())


def passages(text: str, most: int) -> list[str]:
    """Cut a text without repeated blanks into passages of at most `most` characters.

    Each is as long as possible and ends with a sentence, or with a word if a sentence is longer than `most`.

    >>> passages("It rains. The cat sleeps, and so does the dog. Why?", 25)
    ['It rains.', 'The cat sleeps, and so', 'does the dog. Why?']
    """
    found = []
    while len(text) > most:
        ends = [match.end() for match in _SENTENCE_END.finditer(text, 0, most + 1)]
        end = max([end for end in ends if end <= most], default=text.rfind(" ", 1, most + 1))
        end = end if end > 0 else most
        found.append(text[:end])
        text = text[end:].lstrip()
    return [*found, text] if text else found


def _passages_of(block: Sequence[str | None], config: CorpusConfig, report: CorpusReport) -> list[str]:
    """Return the clean texts of a block, long ones in passages."""
    if config.passage_characters is None:
        return [clean(text, config.max_characters) if text else "" for text in block]
    found: list[str] = []
    for text in block:
        parts = passages(_on_one_line(text or ""), config.passage_characters) or [""]
        report.split += len(parts) > 1
        found += [unicodedata.normalize("NFC", part) for part in parts]
    return found


def _usable_chunks(config: CorpusConfig, seed: int, report: CorpusReport) -> Iterator[_Chunk]:
    """Yield every usable sentence, each one once, with its seeded hash (uint64)."""
    sources, seen = find_sources(config), _SeenHashes()
    salt = blake2b(str(seed).encode(), digest_size=16).digest()
    for block in (block for source in sources for block in _blocks(source, config)):
        cleaned = _passages_of(block, config, report)
        lengths = np.fromiter(map(len, cleaned), np.int64, count=len(cleaned))
        short, long = lengths < config.min_characters, lengths > config.max_characters
        sentences = [cleaned[row] for row in np.flatnonzero(~(short | long))]
        digests = b"".join(blake2b(text.encode(), digest_size=8, salt=salt).digest() for text in sentences)
        keys = np.frombuffer(digests, "<u8")
        fresh, empty = seen.add(keys), int((lengths == 0).sum())
        report.lines += len(cleaned)
        report.empty += empty
        report.too_short += int(short.sum()) - empty
        report.too_long += int(long.sum())
        report.usable += len(fresh)
        report.duplicates += len(sentences) - len(fresh)
        if len(fresh):
            yield keys[fresh], [sentences[row] for row in fresh]
    if not report.usable:
        problem = f"no usable sentence in {_names(sources)} ({report.summary()})"
        wanted = f"a row should be a sentence of {config.min_characters:,} to {config.max_characters:,} characters"
        raise UserError(f"{problem}; {wanted}", setting=_SETTING)


class _SeenHashes:
    """A set of 64-bit hashes, a tenth of a Python set's size: sorted arrays, each at most half its predecessor."""

    def __init__(self) -> None:
        self._levels: list[np.ndarray] = []

    def add(self, keys: np.ndarray) -> np.ndarray:
        """Add keys; return the sorted positions where new ones first occur."""
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


def _draw(chunks: Iterator[_Chunk], count: int, report: CorpusReport) -> Iterator[_Chunk]:
    """Yield the sentences with the smallest seeded hashes: a uniform draw, whatever the reading order."""
    keys, sentences, ceiling = [np.empty(0, np.uint64)], [], np.iinfo(np.uint64).max
    for new_keys, new_sentences in chunks:
        rows = np.flatnonzero(new_keys <= ceiling)
        keys.append(new_keys[rows])
        sentences += [new_sentences[row] for row in rows]
        if len(sentences) > count + max(count // 4, _ROWS):
            smallest, sentences = _smallest(keys, sentences, count)
            keys, ceiling = [smallest], smallest[-1]
    if len(sentences) < count:
        raise UserError(
            f"{count:,} sentences are to be drawn, but corpus.source has only {len(sentences):,} usable ones "
            f"({report.summary()}); lower corpus.sentences and sed.sentences, or add text"
        )
    smallest, sentences = _smallest(keys, sentences, count)
    for start in range(0, count, _ROWS):
        yield smallest[start : start + _ROWS], sentences[start : start + _ROWS]


def _smallest(keys: Sequence[np.ndarray], sentences: list[str], count: int) -> _Chunk:
    joined = np.concatenate(keys)
    order = np.argsort(joined)[:count]
    return joined[order], [sentences[row] for row in order]


def find_sources(config: CorpusConfig) -> list[Source]:
    """Return the sources of `corpus.source`: files, sorted within a directory, hub datasets, the bundled corpus."""
    items = [config.source] if isinstance(config.source, str) else config.source
    if not items or "" in items:
        raise UserError(f"it is empty; name a file, a directory, a hub dataset or {BUNDLED}", setting=_SETTING)
    found: dict[str, Source] = {}
    for item in items:
        if item.startswith("bundled:") and item != BUNDLED:
            raise UserError(f"{item} is unknown; the bundled corpus is {BUNDLED}", setting=_SETTING)
        hub = Hub(item, config.name, config.split, streaming=True)
        named = find(str(bundled.CORPUS) if item == BUNDLED else item, _SETTING, "sentences", hub, several=True)
        if item == BUNDLED:
            named = [replace(named[0], name=BUNDLED)]
        found |= {source.name: source for source in named}
    return list(found.values())


def _blocks(source: Source, config: CorpusConfig) -> Iterator[list[str | None]]:
    """Yield texts in non-empty blocks of some thousand; null is None."""
    names, field = [config.column] if config.column else COLUMNS, ("sentence",)
    wanted, remedy = {field: [(name,) for name in names]}, "; name another column in corpus.column"
    schema = Schema(_SETTING, "sentences", wanted, " or ".join(names), text=field, remedy=remedy, bare=field)
    return (block.columns["sentence"] for block in rows(source, schema))


def _names(sources: list[Source]) -> str:
    more = f" and {len(sources) - 3:,} more" if len(sources) > 3 else ""
    return ", ".join(source.name for source in sources[:3]) + more

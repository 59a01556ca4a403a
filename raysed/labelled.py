"""Sentence pairs with a label: read, checked, tokenised once, and cut into batches.

`load_nli` reads pairs with a class (SBERT's natural language inference), `load_graded` pairs with a score (STS);
both become a `PairTable`, which `PairBatches` serves step by step.
"""

import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedTokenizerBase

from raysed.config import NliConfig, NliSource, StsConfig
from raysed.errors import UserError, public
from raysed.evaluation.sts import StsTask, load_task
from raysed.objectives.masked_lm import EpochOrder
from raysed.objectives.siamese_nli import CLASSES, LabelledBatch
from raysed.sources import ending, first_line, is_hub_id, readable
from raysed.tokens import LengthReport, TokenTable, pack, tokenize

PAIR_FILE = "part-00000.parquet"

_SENTENCE_COLUMNS = (
    ("premise", "hypothesis"),
    ("sentence1", "sentence2"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
)
_LABEL_COLUMNS = ("label", "gold_label", "entailment_label")
_HUB_ORDER = ("entailment", "neutral", "contradiction")
"""What 0, 1 and 2 mean in the hub's SNLI, MultiNLI and AllNLI."""
_UNLABELLED = ("", "-", "-1")
_SURROGATE = re.compile("[\ud800-\udfff]")
_BUFFER_BYTES = 1 << 20
_TOKENIZED_AT_ONCE = 1 << 16


# Rows: pairs as text ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NliRows:
    """P pairs of sentences with a class.

    Attributes:
        premises: first sentences.
        hypotheses: second sentences.
        labels: class ids, int64 [P], see `objectives.siamese_nli.CLASSES`.
        unlabelled: rows left out because annotators did not agree, or because nobody labelled them.
        empty: rows left out because a sentence is empty.
    """

    premises: list[str]
    hypotheses: list[str]
    labels: np.ndarray
    unlabelled: int = 0
    empty: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def columns(self) -> tuple[list[str], list[str], np.ndarray]:
        """Both sides and what is learnt from them."""
        return self.premises, self.hypotheses, self.labels

    @property
    def counts(self) -> dict[str, int]:
        """Pairs per class."""
        return dict(zip(CLASSES, np.bincount(self.labels, minlength=len(CLASSES)).tolist()))

    def summary(self) -> str:
        """Returns the counts as one line.

        >>> NliRows(["A man runs."] * 2, ["He moves.", "He is late."], np.array([1, 2]), unlabelled=1).summary()
        '2 pairs: 0 contradiction, 1 entailment, 1 neutral; left out: 1 without a label, 0 with an empty sentence'
        """
        counts = ", ".join(f"{count:,} {name}" for name, count in self.counts.items())
        left_out = f"{self.unlabelled:,} without a label, {self.empty:,} with an empty sentence"
        return f"{len(self):,} pairs: {counts}; left out: {left_out}"


@dataclass(frozen=True)
class GradedRows:
    """P pairs of sentences with a score.

    Attributes:
        first: first sentences.
        second: second sentences.
        scores: 0 (lowest of the source's range) to 1 (highest), float64 [P].
        dropped: pairs left out because their score is blank.
    """

    first: list[str]
    second: list[str]
    scores: np.ndarray
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def columns(self) -> tuple[list[str], list[str], np.ndarray]:
        """Both sides and what is learnt from them."""
        return self.first, self.second, self.scores

    def summary(self) -> str:
        """Returns the counts as one line.

        >>> GradedRows(["A man runs."], ["He moves."], np.array([0.8])).summary()
        '1 pairs, mean score 0.80 of 1; left out: 0 without a score'
        """
        return (
            f"{len(self):,} pairs, mean score {self.scores.mean():.2f} of 1; left out: {self.dropped:,} without a score"
        )


def load_nli(config: NliConfig) -> NliRows:
    """Reads all of `nli.train` and puts it together.

    A source is a file (or its URI) of tab-separated text without quoting (.tsv, .txt), of JSON lines (.jsonl), both
    also with .gz, or of Parquet; or a dataset of the hub. Sentences stand in premise and hypothesis, sentence1 and
    sentence2, text1 and text2, or sentence_A and sentence_B; the class in label, gold_label or entailment_label; the
    letters' case does not matter. A class is a name or the id of the hub (0 entailment, 1 neutral, 2 contradiction);
    where a dataset names its ids, these names count. Rows without a class ('-', -1, blank, null) or with an empty
    sentence are left out.

    Raises:
        UserError: nothing to read, a column or a split that is not there, an unknown class, broken data, or no pair.
    """
    if not config.train:
        raise UserError("nli.train is empty; name at least one file or hub dataset of labelled sentence pairs")
    parts = [_labelled(_read(source)) for source in config.train]
    rows = NliRows(
        [text for part in parts for text in part.premises],
        [text for part in parts for text in part.hypotheses],
        np.concatenate([part.labels for part in parts]),
        sum(part.unlabelled for part in parts),
        sum(part.empty for part in parts),
    )
    if not len(rows):
        names = ", ".join(public(source.source) for source in config.train)
        raise UserError(f"nli.train: {names} has no pair to learn from ({rows.summary()})")
    return rows


def load_graded(config: StsConfig) -> GradedRows:
    """Reads all of `sts.train` (see `evaluation.sts.load_task`) and scales scores by each source's range.

    For the range 0 to 5 this is SBERT's score / 5.

    Raises:
        UserError: nothing to read, or what `load_task` says; it calls the first source `sts.train[0]`.
    """
    if not config.train:
        raise UserError("sts.train is empty; name at least one file or hub dataset of graded sentence pairs")
    tasks = [load_task(f"sts.train[{place}]", source) for place, source in enumerate(config.train)]
    scores = [_scaled(task, *source.score_range) for task, source in zip(tasks, config.train)]
    subsets = [subset for task in tasks for subset in task.subsets.values()]
    first, second = ([text for subset in subsets for text in subset[side]] for side in (0, 1))
    return GradedRows(first, second, np.concatenate(scores), sum(task.dropped for task in tasks))


def _scaled(task: StsTask, low: float, high: float) -> np.ndarray:
    return (np.concatenate([gold for _, _, gold in task.subsets.values()]) - low) / (high - low)


def identity(rows: NliRows | GradedRows) -> str:
    """Returns 16 hex digits that depend on the pairs, their order and their labels, and on nothing else.

    >>> a, b = (GradedRows(["a", first], [second, "c"], np.zeros(2)) for first, second in (("bb", ""), ("b", "b")))
    >>> identity(a) == identity(a) != identity(b)
    True
    """
    digest = blake2b(digest_size=8)
    for column in rows.columns:
        if isinstance(column, np.ndarray):
            digest.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
        else:
            digest.update(np.fromiter(map(len, column), "<i8", count=len(column)).tobytes())
            digest.update("".join(column).encode())
    return digest.hexdigest()


# Pairs as tokens --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairTable:
    """P tokenised pairs with a label; the ids of both sides are the pairs'.

    Attributes:
        first: P sentences.
        second: P sentences.
        labels: class ids, int64 [P], or scores of 0 to 1, float64 [P].
    """

    first: TokenTable
    second: TokenTable
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> "PairTable":
        """Returns the pairs at `rows` (positions, not ids), in that order."""
        return PairTable(self.first.take(rows), self.second.take(rows), self.labels[rows])


def tokenize_pairs(
    tokenizer: PreTrainedTokenizerBase,
    first: Sequence[str],
    second: Sequence[str],
    labels: np.ndarray,
    max_length: int,
    report: LengthReport | None = None,
) -> PairTable:
    """Turns P pairs into token ids, see `tokens.tokenize`.

    Args:
        tokenizer: the encoder's tokenizer.
        first: P texts.
        second: P texts.
        labels: [P].
        max_length: tokens per sentence, special tokens included.
        report: counts of the 2 P sentences are added to it.
    """
    sides = (_tokenize(tokenizer, sentences, max_length, report) for sentences in (first, second))
    return PairTable(*sides, labels)


def write_pairs(table: PairTable, directory: Path) -> None:
    """Writes one Parquet file with the columns id, input_ids1, input_ids2 and label into a directory."""
    columns = {
        "id": pa.array(table.first.ids),
        "input_ids1": _lists(table.first),
        "input_ids2": _lists(table.second),
        "label": pa.array(table.labels),
    }
    pq.write_table(pa.table(columns), Path(directory) / PAIR_FILE)


def read_pairs(directory: Path) -> PairTable:
    """Reads what `write_pairs` wrote."""
    table = pq.read_table(Path(directory) / PAIR_FILE)
    sides = (
        table.select(["id", column]).rename_columns(["id", "input_ids"]) for column in ("input_ids1", "input_ids2")
    )
    return PairTable(*map(TokenTable.from_arrow, sides), table.column("label").to_numpy())


class PairBatches(EpochOrder):
    """Batches of a shuffled table of pairs: each pair once per epoch, order by (seed, epoch), any step at once.

    Args:
        table: P pairs.
        batch_size: pairs per batch; the last, partial one of an epoch is dropped.
        seed: of the order.
    """

    def __init__(self, table: PairTable, batch_size: int, seed: int):
        super().__init__(len(table), batch_size, seed)
        self.table = table

    def __call__(self, step: int) -> LabelledBatch:
        """Returns the batch of a step."""
        pairs = self.table.take(self.rows(step))
        tokens = pack(TokenTable.concatenate([pairs.first, pairs.second]))
        return LabelledBatch(tokens, torch.from_numpy(pairs.labels), pairs.first.ids)


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_length: int, report: LengthReport | None
) -> TokenTable:
    """In parts, because the lists of Python numbers in between take ten times the memory of the table."""
    parts = [
        tokenize(tokenizer, sentences[start : start + _TOKENIZED_AT_ONCE], max_length, report=report)
        for start in range(0, len(sentences), _TOKENIZED_AT_ONCE)
    ]
    table = TokenTable.concatenate(parts)
    return TokenTable(np.arange(len(sentences)), table.input_ids, table.offsets)


def _lists(table: TokenTable) -> pa.Array:
    # Large lists: the offsets of ordinary ones end at 2**31 tokens.
    return pa.LargeListArray.from_arrays(pa.array(table.offsets, pa.int64()), pa.array(table.input_ids, pa.int32()))


# Labels -----------------------------------------------------------------------------------------------------


_Row = tuple[Any, ...]
"""First sentence, second sentence, label and, where there is one, split, as they stand in the source."""


class _Columns(NamedTuple):
    """What a source calls the columns of a row; None where it has no split."""

    first: str
    second: str
    label: str
    split: str | None


@dataclass(frozen=True)
class _Source:
    """A file or dataset that has been read.

    Attributes:
        name: as shown to the user.
        unit: `line` or `row`.
        numbers: lines or rows as the user counts them, one for each of `rows`.
        rows: see `_Row`.
        has_splits: whether there is a column `split`.
        classes: names of the class ids, by id.
    """

    name: str
    unit: str
    numbers: Sequence[int]
    rows: list[_Row]
    has_splits: bool = False
    classes: Sequence[str] = _HUB_ORDER

    def where(self, place: int) -> str:
        return f"{self.name}, {self.unit} {self.numbers[place]}"


def _in_split(source: _Source, split: str) -> _Source:
    if not source.has_splits:
        raise UserError(f"nli.train: {source.name} has no column split, so leave the split {split!r} out")
    places = [place for place, row in enumerate(source.rows) if row[3] == split]
    if not places:
        known = ", ".join(sorted({repr(row[3]) for row in source.rows}))
        raise UserError(
            f"nli.train: {source.name} has no rows of the split {split!r}; its splits are {known or 'none'}"
        )
    numbers, rows = ([values[place] for place in places] for values in (source.numbers, source.rows))
    return replace(source, numbers=numbers, rows=rows)


def _labelled(source: _Source) -> NliRows:
    """Takes the rows that have a class and two sentences."""
    _check_texts(source)
    labelled = [(row, id_) for row, id_ in zip(source.rows, _class_ids(source)) if id_ is not None]
    stripped = [((row[0] or "").strip(), (row[1] or "").strip(), id_) for row, id_ in labelled]
    kept = [pair for pair in stripped if pair[0] and pair[1]]
    labels = np.array([id_ for *_, id_ in kept], np.int64)
    unlabelled, empty = len(source.rows) - len(labelled), len(labelled) - len(kept)
    return NliRows([pair[0] for pair in kept], [pair[1] for pair in kept], labels, unlabelled, empty)


def _check_texts(source: _Source) -> None:
    for place, row in enumerate(source.rows):
        for text in row[:2]:
            if text is not None and not isinstance(text, str):
                raise UserError(f"{source.where(place)}: a sentence is a {type(text).__name__} where text is needed")
            if text and not text.isascii() and _SURROGATE.search(text):
                raise UserError(f"{source.where(place)}: half a surrogate pair (\\ud800 to \\udfff) is no text")


def _class_ids(source: _Source) -> list[int | None]:
    """Class ids of all rows, None where there is none."""
    named = {name: id_ for id_, name in enumerate(CLASSES)}
    numbered = {str(i): named[name.lower()] for i, name in enumerate(source.classes) if name.lower() in named}
    known = {**named, **numbered, **dict.fromkeys(_UNLABELLED)}
    labels = ["" if row[2] is None else str(row[2]).strip().lower() for row in source.rows]
    unknown = next((place for place, label in enumerate(labels) if label not in known), None)
    if unknown is not None:
        meanings = ", ".join(f"{label} ({CLASSES[id_]})" for label, id_ in numbered.items())
        raise UserError(
            f"{source.where(unknown)}: label {source.rows[unknown][2]!r} is unknown; known are {', '.join(CLASSES)}, "
            f"{meanings + ', ' if meanings else ''}and '-' or -1 for none"
        )
    return [known[label] for label in labels]


# Where pairs come from --------------------------------------------------------------------------------------


class _File(NamedTuple):
    name: str
    filesystem: pafs.FileSystem
    path: str


def _read(config: NliSource) -> _Source:
    """Reads a source, of a file the rows of the split."""
    file = _find_file(config.source)
    if file is not None:
        source = _READERS[ending(file.path)](file)
        return source if config.split is None else _in_split(source, config.split)
    if is_hub_id(config.source):
        return _read_hub(config)
    raise UserError(f"nli.train: nothing is at {public(config.source)}; name an existing file or a hub dataset")


def _find_file(item: str) -> _File | None:
    """The file that a path or URI names, None where nothing is there."""
    name = public(item)
    with readable(f"nli.train: {name}"):
        filesystem, path = pafs.FileSystem.from_uri(item) if "://" in item else (pafs.LocalFileSystem(), item)
        path = os.path.expanduser(path)
        kind = filesystem.get_file_info(path).type
    if kind == pafs.FileType.NotFound:
        return None
    if kind == pafs.FileType.Directory or ending(path) not in _READERS:
        raise UserError(
            f"nli.train: {name} is no file of labelled pairs; the endings known are {', '.join(_READERS)}, "
            "and .gz after those of text"
        )
    return _File(name, filesystem, path)


def _columns(names: Iterable[str], where: str) -> _Columns:
    """Finds the columns, whatever the case of their letters."""
    names = list(names)
    found = {name.strip().lower(): name for name in names}
    sentences = next((pair for pair in _SENTENCE_COLUMNS if found.keys() >= set(pair)), None)
    label = next((name for name in _LABEL_COLUMNS if name in found), None)
    if sentences is None or label is None:
        raise UserError(
            f"{where}: columns premise and hypothesis (or sentence1 and sentence2) and label (or gold_label) are "
            f"needed, found {', '.join(names) or 'none'}"
        )
    return _Columns(found[sentences[0]], found[sentences[1]], found[label], found.get("split"))


def _read_tsv(file: _File) -> _Source:
    lines = _lines(file)
    header = next(lines, (1, ""))[1].split("\t")
    columns = _columns(header, f"{file.name}, line 1")
    places = [header.index(column) for column in columns if column is not None]
    numbers, rows = [], []
    for number, line in lines:
        cells = line.split("\t")
        if not max(places) < len(cells) <= len(header):
            raise UserError(
                f"{file.name}, line {number}: {len(cells)} tab-separated columns where the header has {len(header)}"
            )
        numbers.append(number)
        rows.append(tuple(cells[place] for place in places))
    return _Source(file.name, "line", numbers, rows, columns.split is not None)


def _read_jsonl(file: _File) -> _Source:
    columns: _Columns | None = None
    numbers, rows = [], []
    for number, line in _lines(file):
        record = _record(line, f"{file.name}, line {number}")
        columns = columns or _columns(record, f"{file.name}, line {number}")
        missing = [column for column in columns if column is not None and column not in record]
        if missing:
            raise UserError(f"{file.name}, line {number}: no field {missing[0]!r} among {', '.join(record) or 'none'}")
        numbers.append(number)
        rows.append(tuple(record[column] for column in columns if column is not None))
    return _Source(file.name, "line", numbers, rows, columns is not None and columns.split is not None)


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None
    if not isinstance(record, dict):
        raise UserError(f"{where}: an object {{...}} is needed, not a {type(record).__name__}")
    return record


def _read_parquet(file: _File) -> _Source:
    with readable(file.name), file.filesystem.open_input_file(file.path) as raw:
        table = pq.ParquetFile(raw)
        columns = _columns(table.schema_arrow.names, file.name)
        wanted = [column for column in columns if column is not None]
        data = table.read(wanted)
        rows = list(zip(*(data.column(column).to_pylist() for column in wanted)))
    classes = _classes_in(table.schema_arrow.metadata or {}, columns.label)
    return _Source(file.name, "row", range(1, len(rows) + 1), rows, columns.split is not None, classes)


def _classes_in(metadata: dict[bytes, bytes], label: str) -> Sequence[str]:
    """The names of class ids that the hub writes into its Parquet files."""
    features = json.loads(metadata.get(b"huggingface", b"{}")).get("info", {}).get("features", {})
    return features.get(label, {}).get("names", _HUB_ORDER)


def _read_hub(config: NliSource) -> _Source:
    name, split = f"dataset {config.source}", config.split or "train"
    try:
        import datasets  # heavy, and needed by this kind of source only

        table = datasets.load_dataset(config.source, config.name, split=split)
    except Exception as error:  # the hub's libraries raise a dozen unrelated kinds
        raise UserError(
            f"nli.train: {config.source!r} is no file here, and as a hub dataset (name {config.name!r}, split "
            f"{split!r}) it cannot be read: {first_line(error)}"
        ) from None
    columns = _columns(table.column_names, name)._replace(split=None)
    wanted = list(columns[:3])
    data = table.select_columns(wanted)[:]
    classes = getattr(table.features[columns.label], "names", _HUB_ORDER)
    return _Source(name, "row", range(1, len(table) + 1), list(zip(*map(data.get, wanted))), classes=classes)


def _lines(file: _File) -> Iterator[tuple[int, str]]:
    r"""Yields number (from 1) and text of every line that is not blank; only \n ends a line."""
    opened = partial(file.filesystem.open_input_stream, file.path, buffer_size=_BUFFER_BYTES)
    with readable(file.name), opened() as stream:
        for number, line in enumerate(io.BufferedReader(stream, _BUFFER_BYTES), 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise UserError(f"{file.name}, line {number}: not valid UTF-8; save the file as UTF-8") from None
            if text.strip():
                yield number, text


_READERS: dict[str, Callable[[_File], _Source]] = {
    ".tsv": _read_tsv,
    ".txt": _read_tsv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}

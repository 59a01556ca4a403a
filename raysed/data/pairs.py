"""Sentence pairs with a class (NLI), with a score (STS), or as two views; as text and as tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from raysed.config import PairSource, TaskConfig, ViewsConfig
from raysed.data.batches import EpochBatches
from raysed.data.graded import PAIR, SENTENCE_COLUMNS, read_graded
from raysed.data.parquet import open_table
from raysed.data.rows import Rows, Schema, read_source
from raysed.data.tokens import LengthReport, PackedTokens, Tokenizer, TokenTable, pack
from raysed.errors import UserError, public

CLASSES = ("contradiction", "entailment", "neutral")
"""Names by class id, in the order of sentence-transformers."""
_HUB_ORDER = ("entailment", "neutral", "contradiction")
"""Meaning of 0, 1 and 2 in the hub's SNLI, MultiNLI and AllNLI."""
_UNLABELLED = ("", "-", "-1")

_AT_ONCE = 1 << 16
"""Sentences per call of the tokenizer: Python's lists take ten times the memory of the table."""
_FILE = "part-00000.parquet"
_TEXT = ("sentence1", "sentence2")
_TOKENS = ("input_ids1", "input_ids2")

_NLI = Schema(
    setting="nli.train",
    kind="labelled pairs",
    wanted={PAIR: SENTENCE_COLUMNS, ("label",): [("label",), ("gold_label",), ("entailment_label",)]},
    needed="premise and hypothesis (or sentence1 and sentence2) and label (or gold_label)",
    text=PAIR,
)
_MORE_VIEWS = (("english", "non_english"), ("anchor", "positive"), ("source", "target"))
_VIEWS = Schema(
    setting="views.files",
    kind="pairs of views",
    wanted={PAIR: [("view1", "view2"), *SENTENCE_COLUMNS, *_MORE_VIEWS]},
    needed="view1 and view2 (or sentence1 and sentence2, or two that the source's `columns` name)",
    text=PAIR,
    bare=PAIR,
    loose=True,
)


@dataclass(frozen=True)
class PairRows:
    """P pairs of sentences, such as premise and hypothesis or two views."""

    first: list[str]
    second: list[str]
    labels: np.ndarray | None = None
    """Class ids, int64 [P] (see `CLASSES`), or scores from 0 to 1, float64 [P]; None for views."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of excluded pairs by reason."""

    def __len__(self) -> int:
        return len(self.first)

    def summary(self) -> str:
        """Return the counts as one line.

        >>> PairRows(["A man runs."], ["He moves."], np.array([1]), {"without a label": 1}).summary()
        '1 pairs: 0 contradiction, 1 entailment, 0 neutral; left out: 1 without a label'
        >>> PairRows(["A man runs."], ["He moves."], np.array([0.8])).summary()
        '1 pairs, mean score 0.80 of 1'
        """
        parts = [f"{len(self):,} pairs"]
        if self.labels is not None and self.labels.dtype.kind == "i":
            counts = np.bincount(self.labels, minlength=len(CLASSES))
            parts[0] += ": " + ", ".join(f"{count:,} {name}" for count, name in zip(counts, CLASSES))
        elif self.labels is not None:
            parts[0] += f", mean score {self.labels.mean():.2f} of 1"
        if self.left_out:
            parts.append("left out: " + ", ".join(f"{count:,} {why}" for why, count in self.left_out.items()))
        return "; ".join(parts)

    def identity(self) -> str:
        """Return a digest of the pairs, their order and their labels.

        >>> PairRows(["ab"], ["c"]).identity() == PairRows(["a"], ["bc"]).identity()
        False
        """
        digest = blake2b(digest_size=8)
        for column in (self.first, self.second):
            digest.update(np.fromiter(map(len, column), "<i8", count=len(column)).tobytes())
            digest.update("".join(column).encode())
        if self.labels is not None:
            digest.update(self.labels.astype(self.labels.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()


def load_nli(sources: Sequence[PairSource]) -> PairRows:
    """Read all of `nli.train`.

    Classes are names, or ids: 0 entailment, 1 neutral, 2 contradiction, as on the hub, unless a dataset names them.
    Rows without a class ('-', -1, blank, null) or with an empty sentence are left out.
    """
    found: list[tuple[str, str, int]] = []
    left_out = {"without a label": 0, "with an empty sentence": 0}
    for source in sources:
        table = read_source(source, _NLI)
        for first, second, label in zip(table.texts("first"), table.texts("second"), _class_ids(table)):
            if label is None:
                left_out["without a label"] += 1
            elif not (first.strip() and second.strip()):
                left_out["with an empty sentence"] += 1
            else:
                found.append((first.strip(), second.strip(), label))
    firsts, seconds, labels = map(list, zip(*found)) if found else ([], [], [])
    rows = PairRows(firsts, seconds, np.array(labels, np.int64), left_out)
    if not found:
        names = ", ".join(public(source.source) for source in sources)
        raise UserError(f"{names} has no usable pair ({rows.summary()})", setting="nli.train")
    return rows


def _class_ids(source: Rows) -> list[int | None]:
    """Return each row's class id, or None; UserError for an unknown label."""
    named = {name: id_ for id_, name in enumerate(CLASSES)}
    numbered = {str(i): named[name] for i, name in enumerate(_HUB_ORDER)}
    known = {**named, **numbered, **dict.fromkeys(_UNLABELLED)}
    given = ["" if label is None else str(label) for label in source.columns["label"]]
    labels = [label.strip().lower().removesuffix(".0") for label in given]  # a column with gaps has floats
    unknown = next((place for place, label in enumerate(labels) if label not in known), None)
    if unknown is not None:
        meanings = ", ".join(f"{label} ({CLASSES[id_]})" for label, id_ in numbered.items())
        raise UserError(
            f"{source.where(unknown)}: label {source.columns['label'][unknown]!r} is unknown; use one of "
            f"{', '.join(CLASSES)}, {meanings}, or '-' or -1 for none"
        )
    return [known[label] for label in labels]


def load_graded(sources: Sequence[TaskConfig]) -> PairRows:
    """Read all of `sts.train`, with each source's scores scaled to 0 to 1."""
    first, second, scores, dropped = [], [], [], 0
    for place, source in enumerate(sources):
        setting = f"sts.train[{place}]"
        if source.score_range is None:
            problem = "it is null; targets need the lowest and the highest score, such as [0, 5]"
            raise UserError(problem, setting=f"{setting}.score_range")
        task, (low, high) = read_graded(setting, source, setting, split="train"), source.score_range
        for firsts, seconds, gold_P in task.subsets.values():
            first += firsts
            second += seconds
            scores.append((gold_P - low) / (high - low))
        dropped += task.dropped
    return PairRows(first, second, np.concatenate(scores), {"without a score": dropped})


def load_views(config: ViewsConfig) -> PairRows:
    """Read all of `views.files`; two tab-separated columns need no header, like BSL's `back_translated_nli.txt`."""
    first, second = [], []
    for source in config.files:
        schema = _VIEWS
        if source.columns:
            one, other = source.columns
            names = [source.columns, (one.strip().lower(), other.strip().lower())]
            needed = f"{one!r} and {other!r} (`columns` of views.files)"
            schema = replace(_VIEWS, wanted={PAIR: names}, needed=needed, bare=(), loose=False)
        table = read_source(source, schema)
        if not len(table):
            raise UserError(f"{table.name} has no pairs of views", setting="views.files")
        first += table.texts("first")
        second += table.texts("second")
    names = ", ".join(public(source.source) for source in config.files)
    return usable(first, second, f"views.files ({names})")


def entailment(rows: PairRows) -> PairRows:
    """Return premise and hypothesis of each entailment as two views (BSL section 4.4)."""
    places = np.flatnonzero(rows.labels == CLASSES.index("entailment"))
    first, second = ([side[place] for place in places] for side in (rows.first, rows.second))
    return usable(first, second, "nli.train (pairs labelled entailment)")


def usable(first: Sequence[str], second: Sequence[str], what: str) -> PairRows:
    """Strip views and drop empty and identical ones; UserError if these are more than half.

    >>> usable(["Hi. ", "", "Yes.", "It rains."], ["Hi.", "No.", "Right.", "Rain falls."], "views").summary()
    '2 pairs; left out: 1 with an empty view, 1 with two identical views'
    """
    pairs = [(one.strip(), other.strip()) for one, other in zip(first, second, strict=True)]
    if not pairs:
        raise UserError(f"{what} has no pairs to learn from; add some")
    filled = [pair for pair in pairs if pair[0] and pair[1]]
    kept = [pair for pair in filled if pair[0] != pair[1]]
    empty, identical = len(pairs) - len(filled), len(filled) - len(kept)
    if 2 * len(kept) < len(pairs):
        raise UserError(
            f"{what}: {empty + identical:,} of {len(pairs):,} pairs are unusable, {empty:,} with an empty view and "
            f"{identical:,} with two identical views; fix the views, because at least half must be usable"
        )
    left_out = {"with an empty view": empty, "with two identical views": identical}
    return PairRows([one for one, _ in kept], [other for _, other in kept], left_out=left_out)


# -- tokens ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairTable:
    """P tokenised pairs; both sides have the pairs' ids."""

    first: TokenTable
    second: TokenTable
    labels: np.ndarray | None = None
    """Class ids, int64 [P], or scores from 0 to 1, float64 [P]; None for views."""

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: np.ndarray) -> PairTable:
        labels = None if self.labels is None else self.labels[rows]
        return PairTable(self.first.take(rows), self.second.take(rows), labels)

    @classmethod
    def concatenate(cls, tables: Sequence[PairTable]) -> PairTable:
        """Concatenate tables of views, with new, unique ids 0..P-1."""
        sides = [TokenTable.concatenate(side) for side in zip(*((table.first, table.second) for table in tables))]
        return cls(*(TokenTable(np.arange(len(side)), side.input_ids, side.offsets) for side in sides))


def write_pairs(rows: PairRows, tokenizer: Tokenizer, directory: Path, report: LengthReport | None = None) -> None:
    """Write P pairs to a Parquet file: id, texts, tokens, labels if any. `report` counts 2 P sentences."""
    fields = [("id", pa.int64()), *((name, pa.string()) for name in _TEXT)]
    fields += [(name, pa.large_list(pa.int32())) for name in _TOKENS]
    if rows.labels is not None:
        fields.append(("label", pa.from_numpy_dtype(rows.labels.dtype)))
    schema = pa.schema(fields)
    with pq.ParquetWriter(Path(directory) / _FILE, schema) as writer:
        for start in range(0, len(rows), _AT_ONCE):
            group = slice(start, start + _AT_ONCE)
            sides = [rows.first[group], rows.second[group]]
            tables = [tokenizer(side, report=report) for side in sides]
            tokens = [pa.LargeListArray.from_arrays(table.offsets, table.input_ids) for table in tables]
            columns = [np.arange(start, start + len(sides[0])), *sides, *tokens]
            columns += [] if rows.labels is None else [rows.labels[group]]
            writer.write_table(pa.table(columns, schema=schema))


def read_pairs(directory: Path) -> PairTable:
    """Read what `write_pairs` wrote, without the texts."""
    file = open_table(Path(directory) / _FILE)
    table = file.read([name for name in file.schema_arrow.names if name not in _TEXT])
    labels = table.column("label").to_numpy() if "label" in table.column_names else None
    return PairTable(*(TokenTable.from_arrow(table, name) for name in _TOKENS), labels)


class LabelledBatch(NamedTuple):
    """B pairs with class ids, int64 [B], or scores, float [B]; `tokens` has all first, then all second texts."""

    tokens: PackedTokens
    labels: torch.Tensor
    ids: np.ndarray


class PairBatches(EpochBatches):
    """Batches of a shuffled `PairTable`."""

    def batch(self, rows: PairTable) -> LabelledBatch | PackedTokens:
        """Pack all first, then all second sentences; add labels if any."""
        tokens = pack(TokenTable.concatenate([rows.first, rows.second]), few_shapes=self.few_shapes)
        return tokens if rows.labels is None else LabelledBatch(tokens, torch.from_numpy(rows.labels), rows.first.ids)

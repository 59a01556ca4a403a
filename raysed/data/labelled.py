"""Sentence pairs with a label: read, checked, tokenised once, and cut into batches.

`load_nli` reads pairs with a class (SBERT's natural language inference), `load_graded` pairs with a score (STS);
both become a `PairTable`, which `PairBatches` serves step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import PreTrainedTokenizerBase

from raysed.config import NliConfig, StsConfig
from raysed.data.batches import EpochBatches
from raysed.data.graded import PAIR, SENTENCE_COLUMNS, StsTask, read_graded
from raysed.data.parquet import read_table
from raysed.data.rows import Rows, Schema, read_source
from raysed.data.tokens import LengthReport, PackedTokens, TokenTable, pack, tokenized_parts
from raysed.errors import UserError, public

CLASSES = ("contradiction", "entailment", "neutral")
"""By class id, the order of sentence-transformers."""

PAIR_FILE = "part-00000.parquet"

_NLI = Schema(
    setting="nli.train",
    kind="labelled pairs",
    wanted={PAIR: SENTENCE_COLUMNS, ("label",): [("label",), ("gold_label",), ("entailment_label",)]},
    needed="premise and hypothesis (or sentence1 and sentence2) and label (or gold_label)",
    text=PAIR,
)
_HUB_ORDER = ("entailment", "neutral", "contradiction")
"""What 0, 1 and 2 mean in the hub's SNLI, MultiNLI and AllNLI."""
_UNLABELLED = ("", "-", "-1")


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

    A source is a file of any kind that `rows` reads, or a dataset of the hub. Sentences stand in the first of
    `SENTENCE_COLUMNS` that are there, the class in label, gold_label or entailment_label. A class is a name or the id
    of the hub (0 entailment, 1 neutral, 2 contradiction); where a dataset names its ids, these names count. Rows
    without a class ('-', -1, blank, null) or with an empty sentence are left out.

    Raises:
        UserError: nothing to read, a column or a split that is not there, an unknown class, broken data, or no pair.
    """
    if not config.train:
        raise UserError("nli.train is empty; name at least one file or hub dataset of labelled sentence pairs")
    parts = [_labelled(read_source(source, _NLI)) for source in config.train]
    rows = NliRows(
        [text for part in parts for text in part.premises],
        [text for part in parts for text in part.hypotheses],
        np.concatenate([part.labels for part in parts]),
        sum(part.unlabelled for part in parts),
        sum(part.empty for part in parts),
    )
    if not len(rows):
        names = ", ".join(public(source.source) for source in config.train)
        raise UserError(f"nli.train: {names} has no usable pair ({rows.summary()})")
    return rows


def load_graded(config: StsConfig) -> GradedRows:
    """Reads all of `sts.train` (see `graded.read_graded`) and scales scores by each source's range.

    For the range 0 to 5 this is SBERT's score / 5.

    Raises:
        UserError: nothing to read, or what `read_graded` says; it calls the first source `sts.train[0]`.
    """
    if not config.train:
        raise UserError("sts.train is empty; name at least one file or hub dataset of graded sentence pairs")
    names = [f"sts.train[{place}]" for place in range(len(config.train))]
    for name, source in zip(names, config.train):
        if source.score_range is None:
            raise UserError(
                f"{name}.score_range is null; targets need the lowest and the highest score, such as [0, 5]"
            )
    tasks = [read_graded(name, source, name, split="train") for name, source in zip(names, config.train)]
    scores = [_scaled(task, *source.score_range) for task, source in zip(tasks, config.train)]
    subsets = [subset for task in tasks for subset in task.subsets.values()]
    first, second = ([text for subset in subsets for text in subset[side]] for side in (0, 1))
    return GradedRows(first, second, np.concatenate(scores), sum(task.dropped for task in tasks))


def _scaled(task: StsTask, low: float, high: float) -> np.ndarray:
    return (np.concatenate([gold for _, _, gold in task.subsets.values()]) - low) / (high - low)


class PairRows(Protocol):
    """P pairs of sentences, with or without a label."""

    @property
    def columns(self) -> tuple[list[str] | np.ndarray, ...]:
        """Both sides and, where there is one, the label; [P] each."""


def identity(rows: PairRows) -> str:
    """Returns 16 hex digits that depend on the pairs, their order and their labels (if any), and on nothing else.

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
        labels: [P].
        max_length: tokens per sentence, special tokens included.
        report: counts of the 2 P sentences are added to it.
    """
    sides = (_tokenize(tokenizer, sentences, max_length, report) for sentences in (first, second))
    return PairTable(*sides, labels)


def write_pairs(table: PairTable, directory: Path) -> None:
    """Writes one Parquet file with the columns id, input_ids1, input_ids2 and label."""
    columns = {
        "id": pa.array(table.first.ids),
        "input_ids1": table.first.to_arrow(),
        "input_ids2": table.second.to_arrow(),
        "label": pa.array(table.labels),
    }
    pq.write_table(pa.table(columns), Path(directory) / PAIR_FILE)


def read_pairs(directory: Path) -> PairTable:
    """Reads what `write_pairs` wrote."""
    table = read_table(Path(directory) / PAIR_FILE)
    sides = (TokenTable.from_arrow(table, name) for name in ("input_ids1", "input_ids2"))
    return PairTable(*sides, table.column("label").to_numpy())


class LabelledBatch(NamedTuple):
    """B labelled pairs.

    Attributes:
        tokens: 2 B sentences, the B first ones of the pairs and then the B second ones: one forward is enough.
        labels: class ids, int64 [B], or scores, float [B].
        ids: the pairs' ids, [B].
    """

    tokens: PackedTokens
    labels: torch.Tensor
    ids: np.ndarray


class PairBatches(EpochBatches):
    """Batches of a shuffled `PairTable`, as `LabelledBatch`."""

    def batch(self, rows: PairTable) -> LabelledBatch:
        """Returns B pairs: the B first sentences and then the B second ones, with the labels."""
        tokens = pack(TokenTable.concatenate([rows.first, rows.second]))
        return LabelledBatch(tokens, torch.from_numpy(rows.labels), rows.first.ids)


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_length: int, report: LengthReport | None
) -> TokenTable:
    return TokenTable.concatenate(list(tokenized_parts(tokenizer, sentences, max_length, report)))


# Labels -----------------------------------------------------------------------------------------------------


def _labelled(source: Rows) -> NliRows:
    """Takes the rows that have a class and two sentences."""
    rows = zip(source.texts("first"), source.texts("second"), _class_ids(source))
    labelled = [(first.strip(), second.strip(), id_) for first, second, id_ in rows if id_ is not None]
    kept = [pair for pair in labelled if pair[0] and pair[1]]
    labels = np.array([id_ for *_, id_ in kept], np.int64)
    unlabelled, empty = len(source) - len(labelled), len(labelled) - len(kept)
    return NliRows([pair[0] for pair in kept], [pair[1] for pair in kept], labels, unlabelled, empty)


def _class_ids(source: Rows) -> list[int | None]:
    """Class ids of all rows, None where there is none."""
    named = {name: id_ for id_, name in enumerate(CLASSES)}
    classes = source.classes.get("label", _HUB_ORDER)
    numbered = {str(i): named[name.lower()] for i, name in enumerate(classes) if name.lower() in named}
    known = {**named, **numbered, **dict.fromkeys(_UNLABELLED)}
    labels = ["" if label is None else str(label).strip().lower() for label in source.columns["label"]]
    unknown = next((place for place, label in enumerate(labels) if label not in known), None)
    if unknown is not None:
        meanings = ", ".join(f"{label} ({CLASSES[id_]})" for label, id_ in numbered.items())
        raise UserError(
            f"{source.where(unknown)}: label {source.columns['label'][unknown]!r} is unknown; use one of "
            f"{', '.join(CLASSES)}, {meanings + ', ' if meanings else ''}or '-' or -1 for none"
        )
    return [known[label] for label in labels]

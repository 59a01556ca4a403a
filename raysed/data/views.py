"""Two views of the same meaning, as text and as tokens: what `bsl` and `contrastive` learn from.

Views of the kind `files` are read by `load_files` (back-translations, translations, paraphrases), those of the kind
`entailment` are taken from labelled pairs by `entailment` (BSL section 4.4); views made by augmentation pass through
`usable` like these. `write_views` tokenises them into one table per kind, `read_views` reads it, and
`ViewBatches` serves them step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from raysed.config import ViewsConfig, ViewSource
from raysed.data.batches import EpochBatches
from raysed.data.graded import PAIR, SENTENCE_COLUMNS
from raysed.data.labelled import CLASSES, PAIR_FILE, NliRows
from raysed.data.parquet import read_table
from raysed.data.rows import Schema, read_source
from raysed.data.tokens import LengthReport, PackedTokens, TokenTable, pack, tokenized_parts
from raysed.errors import UserError, public

VIEW_SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("sentence1", pa.string()),
        ("sentence2", pa.string()),
        ("input_ids1", pa.large_list(pa.int32())),
        ("input_ids2", pa.large_list(pa.int32())),
    ]
)

_VIEWS = Schema(
    setting="views.files",
    kind="pairs of views",
    wanted={
        PAIR: [
            ("view1", "view2"),
            *SENTENCE_COLUMNS,
            ("english", "non_english"),
            ("anchor", "positive"),
            ("source", "target"),
        ]
    },
    needed="view1 and view2 (or sentence1 and sentence2, or two that the source's `columns` name)",
    text=PAIR,
    bare=PAIR,
    loose=True,
)


# Rows: views as text ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ViewRows:
    """P pairs of texts that mean the same.

    Attributes:
        first: first views.
        second: second views.
        empty: pairs left out because a view is empty.
        identical: pairs left out because both views are the same text.
    """

    first: list[str]
    second: list[str]
    empty: int = 0
    identical: int = 0

    def __len__(self) -> int:
        return len(self.first)

    @property
    def columns(self) -> tuple[list[str], list[str]]:
        """Both views."""
        return self.first, self.second

    def summary(self) -> str:
        """Returns the counts as one line.

        >>> ViewRows(["A man runs."] * 6, ["A man is running."] * 6, empty=0, identical=2).summary()
        '6 pairs of views; left out: 0 (0.0 %) with an empty view, 2 (25.0 %) with two identical views'
        """
        share = 100 / max(len(self) + self.empty + self.identical, 1)
        return (
            f"{len(self):,} pairs of views; left out: {self.empty:,} ({share * self.empty:.1f} %) with an empty view, "
            f"{self.identical:,} ({share * self.identical:.1f} %) with two identical views"
        )


def usable(first: Sequence[str], second: Sequence[str], what: str, max_unusable: float) -> ViewRows:
    """Takes the pairs that something can be learnt from: two views that are not empty and differ.

    Blanks at the ends of a view go, and do not make views differ.

    Args:
        second: second views, as many.
        max_unusable: largest share of the pairs that may be left out, see `views.max_unusable`.

    Raises:
        UserError: more are left out, or there is no pair.

    >>> usable(["Hi. ", "", "Yes."], ["Hi.", "No.", "Right."], "views", max_unusable=0.7)
    ViewRows(first=['Yes.'], second=['Right.'], empty=1, identical=1)
    """
    pairs = [(one.strip(), other.strip()) for one, other in zip(first, second, strict=True)]
    if not pairs:
        raise UserError(f"{what}: there are no pairs of views to learn from")
    filled = [pair for pair in pairs if pair[0] and pair[1]]
    kept = [pair for pair in filled if pair[0] != pair[1]]
    empty, identical = len(pairs) - len(filled), len(filled) - len(kept)
    if (empty + identical) / len(pairs) > max_unusable:
        raise UserError(
            f"{what}: {empty + identical:,} of {len(pairs):,} pairs are unusable, {empty:,} with an empty view and "
            f"{identical:,} with two identical views, which is more than views.max_unusable ({max_unusable:g}) allows; "
            "fix the views, or raise it"
        )
    return ViewRows([one for one, _ in kept], [other for _, other in kept], empty, identical)


def load_files(config: ViewsConfig) -> ViewRows:
    """Reads all of `views.files` and puts it together.

    A source is a file of any kind that `rows` reads, or a dataset of the hub. The two columns are those that its
    `columns` name, or the first of `_VIEWS.wanted` that are there. Tab-separated text of two columns needs no header: a
    first line without such names is a pair like the others, as in the released `back_translated_nli.txt` of BSL.

    Raises:
        UserError: nothing to read, what `rows.read_source` says, a source without a pair, or too many unusable
            pairs (see `usable`).
    """
    if not config.files:
        raise UserError("views.files is empty; name at least one file or hub dataset of pairs of views")
    sources = [read_source(source, _schema(source)) for source in config.files]
    for source in sources:
        if not len(source):
            raise UserError(f"views.files: {source.name} has no pairs of views")
    first, second = ([text for source in sources for text in source.texts(side)] for side in PAIR)
    names = ", ".join(public(source.source) for source in config.files)
    return usable(first, second, f"views.files ({names})", config.max_unusable)


def _schema(source: ViewSource) -> Schema:
    if source.columns is None:
        return _VIEWS
    one, other = source.columns
    names = [source.columns, (one.strip().lower(), other.strip().lower())]
    needed = f"{one!r} and {other!r} (`columns` of views.files)"
    return replace(_VIEWS, wanted={PAIR: names}, needed=needed, bare=(), loose=False)


def entailment(rows: NliRows, max_unusable: float) -> ViewRows:
    """Takes the pairs labelled entailment: premise and hypothesis are the two views (BSL section 4.4).

    Args:
        max_unusable: see `usable`.

    Raises:
        UserError: no pair has this label, or too many are unusable (see `usable`).
    """
    places = np.flatnonzero(rows.labels == CLASSES.index("entailment"))
    premises, hypotheses = ([side[place] for place in places] for side in (rows.premises, rows.hypotheses))
    return usable(premises, hypotheses, "nli.train (pairs labelled entailment)", max_unusable)


# Views as tokens --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ViewTable:
    """P tokenised pairs of views; the ids of both sides are the pairs'.

    Attributes:
        first: P sentences.
        second: P sentences.
    """

    first: TokenTable
    second: TokenTable

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: np.ndarray) -> "ViewTable":
        """Returns the pairs at `rows` (positions, not ids), in that order."""
        return ViewTable(self.first.take(rows), self.second.take(rows))

    @classmethod
    def concatenate(cls, tables: Sequence["ViewTable"]) -> "ViewTable":
        """Returns the pairs of all tables, one table after the other, with new ids 0..P-1 that are unique."""
        sides = (TokenTable.concatenate(side) for side in zip(*((table.first, table.second) for table in tables)))
        return cls(*(replace(side, ids=np.arange(len(side))) for side in sides))


def same_twice(table: TokenTable) -> ViewTable:
    """Returns each sentence as both of its views, which dropout tells apart (SimCSE)."""
    return ViewTable(table, table)


def write_views(
    rows: ViewRows,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    directory: Path,
    report: LengthReport | None = None,
) -> None:
    """Tokenises P pairs and writes them into a directory: one Parquet file with the columns of `VIEW_SCHEMA`.

    Row group by row group, so that the tokens of one group at a time are in memory.

    Args:
        tokenizer: the encoder's tokenizer.
        max_length: tokens per sentence, special tokens included.
        report: counts of the 2 P sentences are added to it.
    """
    sides = (tokenized_parts(tokenizer, side, max_length, report) for side in rows.columns)
    with pq.ParquetWriter(Path(directory) / PAIR_FILE, VIEW_SCHEMA) as writer:
        for first, second in zip(*sides):
            group = slice(first.ids[0], first.ids[-1] + 1)
            columns = [first.ids, rows.first[group], rows.second[group], first.to_arrow(), second.to_arrow()]
            writer.write_table(pa.table(columns, schema=VIEW_SCHEMA))


def read_views(directory: Path) -> ViewTable:
    """Reads the tokens of what `write_views` wrote."""
    names = ("input_ids1", "input_ids2")
    table = read_table(directory, columns=["id", *names])
    return ViewTable(*(TokenTable.from_arrow(table, name) for name in names))


class ViewBatches(EpochBatches):
    """Batches of a shuffled `ViewTable`, as packed sentences."""

    def batch(self, rows: ViewTable) -> PackedTokens:
        """Returns 2 B sentences, the B first views and then the B second ones."""
        return pack(TokenTable.concatenate([rows.first, rows.second]))

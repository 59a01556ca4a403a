"""Sentences as token ids: tokenised once, kept as flat arrays, packed without padding.

A batch is a few rows of equal length. A row holds several whole sentences; position ids restart at each, and attention
never crosses their boundaries. On Wikipedia, padding to the longest sentence takes about twice the arithmetic.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.nn import functional as F

from raysed.config import Role
from raysed.errors import UserError, call_library

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROW_TOKENS = 128
"""Usual limit of tokens per row; attention is quadratic in them."""
_SENTENCES_PER_ROW = 4
"""Fills rows to 95 %; more would only cost more in attention and its dropout."""
_ROW_STEP = 8
"""Few distinct row lengths let oneDNN reuse its programs, and GPUs want multiples of eight."""
_TRIED_COUNTS = 3
"""How many numbers of rows to try per training batch."""
_COUNTS_PER_OCTAVE = 4
"""How many numbers of rows batches of few shapes may have between powers of two."""
SAMPLE_TEXTS = ["A sentence.", "Ünïcode ☂ 漢字 🙂 zq9"]
"""Texts that any model must take; few vocabularies have the second one's characters."""

_FLAT = {"_ids.i64": "<i8", "_tokens.i32": "<i4", "_offsets.i64": "<i8"}
"""Files of `FlatTokens`, in the order of `TokenTable`, with their number types."""

SENTENCE_SCHEMA = pa.schema([("id", pa.int64()), ("sentence", pa.string()), ("input_ids", pa.list_(pa.int32()))])


@dataclass(frozen=True)
class TokenTable:
    """N tokenised sentences in flat arrays.

    Attributes:
        ids: int64 [N].
        input_ids: tokens of all sentences in order, special ones included, int32 [T].
        offsets: start of each sentence, int64 [N + 1].
    """

    ids: np.ndarray
    input_ids: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens per sentence, int64 [N]."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> TokenTable:
        """Return the sentences at `rows` (positions, not ids), in that order."""
        starts = self.offsets[:-1][rows]
        lengths = self.offsets[1:][rows] - starts  # `self.lengths[rows]` would touch the whole table
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - starts, lengths)
        return TokenTable(self.ids[rows], self.input_ids[places], offsets)

    @classmethod
    def concatenate(cls, tables: Sequence[TokenTable]) -> TokenTable:
        """Concatenate tables, ids included."""
        ids, input_ids, lengths = (
            np.concatenate([getattr(table, name) for table in tables]) for name in ("ids", "input_ids", "lengths")
        )
        return cls(ids, input_ids, np.concatenate([[0], np.cumsum(lengths)]))

    @classmethod
    def from_lists(cls, token_lists: Sequence[Sequence[int]], ids: np.ndarray | None = None) -> TokenTable:
        """Build a table from each sentence's list of token ids; `ids` default to 0..N-1."""
        offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in token_lists])]).astype(np.int64)
        flat = np.fromiter((t for tokens in token_lists for t in tokens), np.int32, count=offsets[-1])
        return cls(np.arange(len(token_lists)) if ids is None else ids, flat, offsets)

    @classmethod
    def from_arrow(cls, table: pa.Table, column: str = "input_ids") -> TokenTable:
        """Build a table from the column `id` and a column of token lists."""
        # Not as one array of lists, which is limited to 2**31 tokens.
        lists = table.column(column)
        lengths = pc.list_value_length(lists).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        return cls(table.column("id").to_numpy(), pc.list_flatten(lists).to_numpy(), offsets)


class PartOfTable:
    """Some rows of a table, without copying them."""

    def __init__(self, table: TokenTable, rows: np.ndarray):
        self._table, self._rows = table, rows

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, rows: np.ndarray) -> TokenTable:
        return self._table.take(self._rows[rows])


@dataclass
class LengthReport:
    """Counts of sentences and tokens, and of those that a maximum length cuts."""

    max_length: int
    sentences: int = 0
    tokens: int = 0
    truncated_sentences: int = 0
    lost_tokens: int = 0
    unknown: int = 0

    def __str__(self) -> str:
        mean = self.tokens / max(self.sentences, 1)
        unknown = f", {self.unknown:,} unknown" if self.unknown else ""
        text = f"{self.sentences:,} sentences, {self.tokens:,} tokens (mean {mean:.1f}{unknown}); "
        if not self.truncated_sentences:
            return f"{text}none cut at {self.max_length} tokens"
        share = 100 * self.truncated_sentences / self.sentences
        lost = 100 * self.lost_tokens / (self.tokens + self.lost_tokens)
        return f"{text}cut at {self.max_length} tokens: {share:.2f} % of the sentences, {lost:.2f} % of the tokens"


def tokenize(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    max_length: int,
    ids: np.ndarray | None = None,
    report: LengthReport | None = None,
) -> TokenTable:
    """Tokenise sentences, cut to `max_length` tokens, special ones included; `ids` default to 0..N-1."""
    options: dict[str, Any] = dict(return_attention_mask=False, return_token_type_ids=False, verbose=False)
    backend, name = getattr(tokenizer, "backend_tokenizer", None), f"the tokenizer of {tokenizer.name_or_path!r}"

    def tokens_of(texts: list[str]) -> list[list[int]]:
        if backend is None:  # written in Python
            return tokenizer(texts, **options)["input_ids"] if texts else []
        # Without offsets in the text, which would take a quarter of the time.
        backend.no_truncation()
        backend.no_padding()
        return [tokens.ids for tokens in backend.encode_batch_fast(texts)]

    token_lists = call_library(tokens_of, list(sentences), name)
    report = report or LengthReport(max_length)
    long = [i for i, tokens in enumerate(token_lists) if len(tokens) > max_length]
    if long:
        # The tokenizer cuts, because it keeps the closing special token.
        options |= {"truncation": True, "max_length": max_length}
        cut = call_library(lambda texts: tokenizer(texts, **options)["input_ids"], [sentences[i] for i in long], name)
        if not 0 < len(cut[0]) <= max_length:
            raise UserError(f"{name} cannot cut a text to {max_length} tokens; allow more")
        for i, tokens in zip(long, cut):
            report.lost_tokens += len(token_lists[i]) - len(tokens)
            token_lists[i] = tokens
    table = TokenTable.from_lists(token_lists, ids)
    report.sentences += len(table)
    report.tokens += len(table.input_ids)
    report.truncated_sentences += len(long)
    report.unknown += int(np.sum(table.input_ids == tokenizer.unk_token_id))
    return table


def with_prompts(texts: Iterable[str], roles: Iterable[Role], prompts: Mapping[Role, str]) -> list[str]:
    """Prepend the prompt of its role to each text.

    >>> with_prompts(["What is rain?", "Water."], ["query", ""], {"query": "query: "})
    ['query: What is rain?', 'Water.']
    """
    return [f"{prompts.get(role, '')}{text}" for text, role in zip(texts, roles)]


@dataclass(frozen=True)
class Tokenizer:
    """A model's tokenizer, prompts and maximum number of tokens, special ones included."""

    pretrained: PreTrainedTokenizerBase
    max_length: int
    prompts: Mapping[Role, str] = field(default_factory=dict)

    def __call__(
        self,
        texts: Sequence[str],
        roles: Iterable[Role] = repeat(""),
        ids: np.ndarray | None = None,
        report: LengthReport | None = None,
    ) -> TokenTable:
        """Tokenise texts with the prompts of their roles, see `tokenize`."""
        return tokenize(self.pretrained, with_prompts(texts, roles, self.prompts), self.max_length, ids, report)


@dataclass(frozen=True)
class PackedTokens:
    """B sentences in R rows of L tokens.

    Attributes:
        input_ids: [R, L], zero in empty slots.
        position_ids: place of a token in its sentence, [R, L].
        segments: sentence (0..B-1) of a token, [R, L]; B in empty slots.
        lengths: tokens per sentence, [B].
        ids: sentence ids for messages, numpy [B].
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    segments: torch.Tensor
    lengths: torch.Tensor
    ids: np.ndarray = field(repr=False)

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str) -> PackedTokens:
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return replace(self, **{name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()})

    def with_rows(self, count: int) -> PackedTokens:
        """Append empty rows, up to `count` rows."""
        missing = (0, 0, 0, count - len(self.input_ids))
        input_ids, positions = F.pad(self.input_ids, missing), F.pad(self.position_ids, missing)
        segments = F.pad(self.segments, missing, value=len(self))
        return replace(self, input_ids=input_ids, position_ids=positions, segments=segments)


def same_sentence(segments: torch.Tensor) -> torch.Tensor:
    """Return the attention mask, [R, 1, L, L]: true within sentences and, for softmax, among empty slots."""
    return (segments[:, :, None] == segments[:, None, :])[:, None]


def pack(table: TokenTable, row_tokens: int | None = None, few_shapes: bool = False) -> PackedTokens:
    """Pack sentences into few rows of about equal length; sentence b of the batch is row b of `table`.

    Rows hold at most `row_tokens`, or one longer sentence. None: four sentences of mean length, at most `ROW_TOKENS`,
    then rounded up to a multiple of eight.

    With `few_shapes`, batches of as many sentences have two to five shapes, so a GPU can replay recorded kernels. Rows
    have `ROW_TOKENS`, doubled until the longest sentence fits, and their number is rounded. A tenth to a fifth of the
    slots stay empty.

    >>> pack(TokenTable.from_lists([[7, 8, 9], [5], [6, 4]]), row_tokens=4).input_ids.tolist()
    [[7, 8, 9], [6, 4, 5]]
    """
    lengths = table.lengths
    step, tried = (_ROW_STEP, _TRIED_COUNTS) if row_tokens is None else (1, 1)
    if few_shapes:
        doublings = ((int(lengths.max(initial=1)) - 1) // ROW_TOKENS).bit_length()
        row_tokens, step, tried = ROW_TOKENS << doublings, 1, 1
    elif row_tokens is None:
        row_tokens = min(ROW_TOKENS, _SENTENCES_PER_ROW * len(table.input_ids) // max(len(table), 1))
    rows, columns, row_length = _places(lengths, max(row_tokens, int(lengths.max(initial=1))), step, tried)
    count = int(rows.max()) + 1 if len(rows) else 0
    if few_shapes:
        multiple = max(1, (1 << count.bit_length()) // (2 * _COUNTS_PER_OCTAVE))
        count, row_length = -(-count // multiple) * multiple, row_tokens
    shape = (count, max(1, row_length)) if count else (0, 0)
    within = np.arange(len(table.input_ids)) - np.repeat(table.offsets[:-1], lengths)
    flat = np.repeat(rows * row_length + columns, lengths) + within
    input_ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    segments = np.full(shape, len(lengths), np.int64)
    input_ids.reshape(-1)[flat] = table.input_ids
    positions.reshape(-1)[flat] = within
    segments.reshape(-1)[flat] = np.repeat(np.arange(len(lengths)), lengths)
    tensors = map(torch.from_numpy, (input_ids, positions, segments, np.ascontiguousarray(lengths)))
    return PackedTokens(*tensors, ids=table.ids)


def _places(lengths: np.ndarray, capacity: int, step: int, tried: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Put sentences in rows of at most `capacity`, rounded up to a multiple of `step`.

    Try `tried` numbers of rows, from the lowest that fits, and take the one with the fewest empty slots. Return rows,
    columns of first tokens, and the row length.
    """
    limit, order = -(-capacity // step) * step, np.argsort(-lengths, kind="stable")
    count, most = max(1, -(-int(lengths.sum()) // limit)), max(1, len(lengths))
    found: list[tuple] = []
    while len(found) < tried and count <= most:
        rows, columns, longest = _balanced(lengths, order, count)
        row_length = -(-longest // step) * step
        if row_length <= limit:
            found.append((count * row_length, rows, columns, row_length))
            count += 1
        else:
            count = min(count + 1 + count // 16, most)  # larger steps for larger batches
    return min(found, key=itemgetter(0, 3))[1:]


def _balanced(lengths: np.ndarray, order: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Put each sentence in the emptiest row; return rows, columns of first tokens, and the longest row."""
    rows, columns = np.zeros((2, len(lengths)), np.int64)
    loads = [(0, row) for row in range(count)]
    for i in order:
        load, row = loads[0]
        rows[i], columns[i] = row, load
        heapq.heapreplace(loads, (load + int(lengths[i]), row))
    return rows, columns, max(load for load, _ in loads)


def batches_by_tokens(lengths: np.ndarray, token_budget: int) -> Iterator[np.ndarray]:
    """Yield row positions, longest first, in batches of at most `token_budget` tokens (or one sentence).

    >>> [rows.tolist() for rows in batches_by_tokens(np.array([2, 5, 3, 1]), 6)]
    [[1], [2, 0, 3]]
    """
    order = np.argsort(-lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    start = 0
    while start < len(order):
        spent = ends[start - 1] if start else 0
        stop = max(int(np.searchsorted(ends, spent + token_budget, side="right")), start + 1)
        yield order[start:stop]
        start = stop


class FlatTokens:
    """Write the arrays of a `TokenTable` as flat little-endian files, which processes can share in memory."""

    def __init__(self, directory: Path):
        self._files = [open(directory / name, "wb") for name in _FLAT]
        self._files[-1].write(bytes(8))  # the first sentence starts at 0
        self._tokens = 0

    def add(self, table: TokenTable) -> None:
        arrays = table.ids, table.input_ids, table.offsets[1:] + self._tokens
        for file, kind, values in zip(self._files, _FLAT.values(), arrays):
            file.write(np.ascontiguousarray(values, kind).tobytes())
        self._tokens += len(table.input_ids)

    def close(self) -> None:
        for file in self._files:
            file.close()


def read_tokens(directory: Path) -> TokenTable:
    """Map the files of `FlatTokens` into memory: processes share pages, and read only those they use."""
    arrays = []
    for name, kind in _FLAT.items():
        path = directory / name
        arrays.append(np.asarray(np.memmap(path, kind, mode="r")) if path.stat().st_size else np.empty(0, kind))
    return TokenTable(*arrays)

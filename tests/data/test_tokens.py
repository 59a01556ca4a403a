"""Tokens: tables against lists of lists, and packing against what it must never do."""

import tracemalloc
from contextlib import closing

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models

from raysed.data.tokens import (
    ROW_TOKENS,
    SENTENCE_SCHEMA,
    FlatTokens,
    LengthReport,
    TokenTable,
    batches_by_tokens,
    pack,
    read_tokens,
    same_sentence,
    tokenize,
)
from raysed.errors import UserError

SENTENCE = st.lists(st.integers(1, 59), min_size=1, max_size=30)
SENTENCES = st.lists(SENTENCE, max_size=40)


def lists_of(table: TokenTable) -> list[list[int]]:
    return [table.input_ids[a:b].tolist() for a, b in zip(table.offsets[:-1], table.offsets[1:])]


def arrow_of(sentences: list[list[int]], first_id: int = 0) -> pa.Table:
    ids = np.arange(first_id, first_id + len(sentences))
    columns = [ids, [f"text {i}" for i in ids], [np.array(tokens, np.int32) for tokens in sentences]]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SENTENCE_SCHEMA)], schema=SENTENCE_SCHEMA)


@given(st.lists(SENTENCE, min_size=1, max_size=20), st.data())
def test_a_table_holds_its_lists_and_take_is_indexing(sentences, data):
    """In any order, with repetitions, and of nothing."""
    rows = data.draw(st.lists(st.integers(0, len(sentences) - 1), max_size=30))
    ids = 100 + 3 * np.arange(len(sentences))
    table = TokenTable.from_lists(sentences, ids)
    assert lists_of(table) == sentences and table.lengths.tolist() == [*map(len, sentences)]
    assert (table.input_ids.dtype, table.offsets.dtype, len(table)) == (np.int32, np.int64, len(sentences))
    assert TokenTable.from_lists(sentences).ids.tolist() == [*range(len(sentences))]
    taken = table.take(np.array(rows, np.int64))
    assert lists_of(taken) == [sentences[row] for row in rows]
    assert taken.ids.tolist() == [ids[row] for row in rows]


@given(st.lists(SENTENCES, max_size=4), st.integers(0, 50), st.integers(0, 50))
def test_arrow_columns_may_be_chunked_and_sliced(chunks, start, length):
    """Also of no chunk at all, and of empty chunks."""
    tables = [arrow_of(chunk, 1000 * i) for i, chunk in enumerate(chunks)]
    whole = pa.concat_tables(tables) if tables else SENTENCE_SCHEMA.empty_table()
    part = whole.slice(start, length)
    table = TokenTable.from_arrow(part)
    assert lists_of(table) == part["input_ids"].to_pylist()
    assert table.ids.tolist() == part["id"].to_pylist()
    assert table.offsets[0] == 0 and table.offsets[-1] == len(table.input_ids)


# -- packing ---------------------------------------------------------------------------------------------------------


@given(SENTENCES, st.integers(1, 64))
def test_packing_places_every_token_once(sentences, row_tokens):
    """Each sentence in one row, whole, in one piece, counted from 0; b-th of the batch is b-th of the table."""
    ids = 7 + 2 * np.arange(len(sentences))
    packed = pack(TokenTable.from_lists(sentences, ids), row_tokens)
    assert packed.lengths.tolist() == [len(tokens) for tokens in sentences]
    assert packed.ids.tolist() == ids.tolist() and len(packed) == len(sentences)
    for number, tokens in enumerate(sentences):
        rows, columns = torch.where(packed.segments == number)
        assert len(set(rows.tolist())) == 1
        assert columns.tolist() == list(range(columns[0], columns[0] + len(tokens)))
        assert packed.input_ids[rows, columns].tolist() == tokens
        assert packed.position_ids[rows, columns].tolist() == list(range(len(tokens)))
    empty = packed.segments == len(sentences)
    assert int((~empty).sum()) == sum(map(len, sentences))
    assert not packed.input_ids[empty].any() and not packed.position_ids[empty].any()
    # Rows are no longer than asked, unless one sentence is; no column is empty; there are about twice as many at most.
    rows, length = packed.segments.shape
    fill = (packed.segments < len(sentences)).sum(1)
    limit = max([row_tokens, *map(len, sentences)])
    assert length == max(fill.tolist(), default=0) <= limit
    assert (fill > 0).all()
    assert rows <= 1 + 2 * sum(map(len, sentences)) / limit
    # Places see each other where they are of one sentence, or both empty: no row of the softmax is empty.
    mask, segments = same_sentence(packed.segments), packed.segments.tolist()
    assert mask.dtype == torch.bool and mask.shape[1:2] == (1,)
    assert mask[:, 0].tolist() == [[[a == b for b in row] for a in row] for row in segments]
    assert mask.any(-1).all()


def test_little_is_left_empty(make_table):
    """Sentences of 2 to 50 tokens leave at most 5 % of rows as long as the longest empty; 8 divides the length."""
    for seed in range(10):
        table = make_table(64 + 40 * seed, seed, longest=50)
        packed = pack(table)
        rows, row_length = packed.segments.shape
        assert row_length <= ROW_TOKENS and row_length % 8 == 0
        longest = int((packed.segments < len(table)).sum(1).max())
        assert row_length - longest < 8
        assert len(table.input_ids) > 0.95 * rows * longest


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 200))
def test_batches_by_tokens_cover_all_within_the_budget(lengths, budget):
    """Longest first; a sentence beyond the budget stands alone, and no batch could take the next sentence too."""
    lengths = np.array(lengths, np.int64)
    batches = list(batches_by_tokens(lengths, budget))
    order = [row for batch in batches for row in batch.tolist()]
    assert sorted(order) == list(range(len(lengths)))
    assert (np.diff(lengths[order]) <= 0).all()
    for batch, following in zip(batches, [*batches[1:], None]):
        assert lengths[batch].sum() <= budget or len(batch) == 1
        if following is not None:
            assert lengths[batch].sum() + lengths[following[0]] > budget


# -- tokenising ------------------------------------------------------------------------------------------------------


def test_truncation_keeps_the_closing_token_and_counts_what_is_lost(tiny_tokenizer, make_sentences):
    """The counts of several calls add up, and options of earlier calls of the tokenizer do not reach the table."""
    sentences, report = make_sentences(200), LengthReport(8)
    full = [tiny_tokenizer(sentence)["input_ids"] for sentence in sentences]
    tables = [tokenize(tiny_tokenizer, sentences[:75], 8, report=report)]
    tiny_tokenizer(sentences, padding="max_length", truncation=True, max_length=4)
    tables.append(tokenize(tiny_tokenizer, sentences[75:], 8, report=report))
    tokens = [tokens for table in tables for tokens in lists_of(table)]
    cls, sep = tiny_tokenizer.cls_token_id, tiny_tokenizer.sep_token_id
    assert tokens == [t if len(t) <= 8 else [*t[:7], sep] for t in full]
    assert all(t[0] == cls and t[-1] == sep for t in tokens)
    assert (report.sentences, report.tokens) == (200, sum(map(len, tokens)))
    assert report.truncated_sentences == sum(len(t) > 8 for t in full) > 0
    assert report.lost_tokens == sum(max(len(t) - 8, 0) for t in full)
    assert "; cut at 8 tokens: " in str(report)
    assert str(LengthReport(8, 2, 8)).endswith("(mean 4.0); none cut at 8 tokens")


def test_ids_are_kept_and_nothing_is_a_table_too(tiny_tokenizer):
    table = tokenize(tiny_tokenizer, ["a cat", "a dog ran"], 10, ids=np.array([42, 7]))
    assert table.ids.tolist() == [42, 7]
    assert pack(TokenTable.from_lists([[], []])).input_ids.tolist() == [[0]]  # a row, for models to compute
    nothing = tokenize(tiny_tokenizer, [], 10)
    assert len(nothing) == 0 and pack(nothing).input_ids.numel() == 0
    assert list(batches_by_tokens(nothing.lengths, 10)) == []


def test_a_tokenizer_that_fails_is_an_error_that_names_the_text(tiny_tokenizer, make_sentences):
    """One text of many, by whatever the library raises; and a length that leaves no token of a text."""
    tiny_tokenizer.name_or_path = "some/model"
    tiny_tokenizer.backend_tokenizer.model = models.WordPiece({"cat": 0, "a": 1}, unk_token="[UNK]")
    with pytest.raises(UserError, match=r"^the tokenizer of 'some/model' fails on the text 'a dog': .*\[UNK\]"):
        tokenize(tiny_tokenizer, [*["a cat"] * 50, "a dog", *["a cat"] * 50], 10)
    for length in (-5, 0, 1):
        with pytest.raises(UserError, match=r"^the tokenizer of 'some/model' (fails on the text|cannot cut a text to)"):
            tokenize(tiny_tokenizer, ["a cat"], length)


# -- flat files ------------------------------------------------------------------------------------------------------


@given(lists=st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=12), cut=st.integers(1, 5))
def test_flat_files_hold_the_table(lists, cut, tmp_path_factory):
    directory = tmp_path_factory.mktemp("flat")
    table = TokenTable.from_lists(lists, np.arange(len(lists)) + 7)
    with closing(FlatTokens(directory)) as flat:
        for start in range(0, len(table), cut):
            flat.add(table.take(np.arange(start, min(start + cut, len(table)))))
    found = read_tokens(directory)
    for name in ("ids", "input_ids", "offsets"):
        assert getattr(found, name).tolist() == getattr(table, name).tolist()
    if len(lists):
        rows = np.array([len(lists) - 1, 0])
        assert lists_of(found.take(rows)) == [lists[-1], lists[0]]


def test_flat_files_are_mapped_and_a_batch_reads_its_own_part(tmp_path):
    """The arrays are pages of the file, which every process of the machine shares; none is copied to take a batch."""
    table = TokenTable.from_lists([[row, row] for row in range(1000)])
    with closing(FlatTokens(tmp_path)) as flat:
        flat.add(table)
    found = read_tokens(tmp_path)
    assert all(isinstance(getattr(found, name).base, np.memmap) for name in ("ids", "input_ids", "offsets"))
    tracemalloc.start()
    assert lists_of(found.take(np.array([999, 3]))) == [[999, 999], [3, 3]]
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4000  # the offsets alone have 8,008 bytes
    with pytest.raises(ValueError, match="read-only"):
        found.input_ids[0] = 1

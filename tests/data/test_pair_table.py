"""Tokenised pairs: the file, and batches."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.data.pairs import PairBatches, PairRows, PairTable, read_pairs, write_pairs
from raysed.data.tokens import LengthReport, Tokenizer, tokenize

LABELS = [None, np.arange(30) % 3, np.linspace(0, 1, 30)]


@pytest.fixture
def pairs(make_table) -> PairTable:
    return PairTable(make_table(53, seed=1), make_table(53, seed=2), np.arange(53) % 3)


def tokens_of(table, row) -> list[int]:
    return table.input_ids[table.offsets[row] : table.offsets[row + 1]].tolist()


def token_pairs(table: PairTable) -> list[tuple[list[int], list[int]]]:
    return [(tokens_of(table.first, row), tokens_of(table.second, row)) for row in range(len(table))]


@pytest.mark.parametrize("at_once", [7, 1000])
@pytest.mark.parametrize("labels", LABELS, ids=["views", "classes", "scores"])
def test_pairs_come_back_from_their_file(tiny_tokenizer, make_sentences, tmp_path, monkeypatch, labels, at_once):
    """Row group by row group; both sides are counted, and cut; labels keep their type."""
    monkeypatch.setattr("raysed.data.pairs._AT_ONCE", at_once)
    rows, report = PairRows(make_sentences(30, 1), make_sentences(30, 2), labels), LengthReport(8)
    write_pairs(rows, Tokenizer(tiny_tokenizer, 8), tmp_path, report)
    expected = [tokenize(tiny_tokenizer, side, 8) for side in (rows.first, rows.second)]
    table = read_pairs(tmp_path)
    assert token_pairs(table) == token_pairs(PairTable(*expected)) and len(table) == 30
    assert table.first.ids.tolist() == table.second.ids.tolist() == list(range(30))
    assert table.first.input_ids.dtype == np.int32 and table.first.lengths.max() == 8
    if labels is None:
        assert table.labels is None
    else:
        assert table.labels.dtype == labels.dtype and table.labels.tolist() == labels.tolist()
    assert report.sentences == 60 and report.tokens == sum(len(side.input_ids) for side in expected)
    (path,) = tmp_path.iterdir()
    file = pq.ParquetFile(path)
    names = ["id", "sentence1", "sentence2", "input_ids1", "input_ids2", *([] if labels is None else ["label"])]
    assert file.schema_arrow.names == names and file.num_row_groups == -(-30 // at_once)
    written = file.read().to_pydict()
    assert (written["id"], written["sentence1"], written["sentence2"]) == (list(range(30)), rows.first, rows.second)


def test_several_tables_are_one(make_table):
    """In the order given, with ids of their own; a sentence may be both of its views."""
    same = make_table(9)
    parts = [PairTable(same, same), PairTable(make_table(3, seed=1), make_table(3, seed=2))]
    both = PairTable.concatenate(parts)
    assert token_pairs(both) == [pair for part in parts for pair in token_pairs(part)]
    assert both.first.ids.tolist() == both.second.ids.tolist() == list(range(12)) and same.ids[0] == 1000


def test_a_batch_has_the_first_sentences_and_then_the_second(pairs):
    batch = PairBatches(pairs, 8, seed=3)(4)
    rows = [pairs.first.ids.tolist().index(id_) for id_ in batch.ids]
    assert len(batch.tokens) == 16 and batch.labels.tolist() == pairs.labels[rows].tolist()
    expected = [tokens_of(side, row) for side in (pairs.first, pairs.second) for row in rows]
    for place, tokens in enumerate(expected):
        here = batch.tokens.segments == place
        assert batch.tokens.input_ids[here][batch.tokens.position_ids[here].argsort()].tolist() == tokens
    views = PairBatches(PairTable(pairs.first, pairs.second), 8, seed=3)(4)
    assert views.input_ids.equal(batch.tokens.input_ids) and views.ids.tolist() == batch.ids.tolist() * 2


@given(st.integers(1, 60), st.integers(0, 3))
def test_an_epoch_has_each_pair_at_most_once_and_its_own_order(make_table, batch_size, seed):
    """The last, partial batch is left out; a table smaller than a batch is one batch."""
    batches = PairBatches(PairTable(make_table(41, seed=1), make_table(41, seed=2), np.arange(41)), batch_size, seed)
    size = min(batch_size, 41)
    assert batches.per_epoch == 41 // size
    epochs = []
    for epoch in range(3):
        steps = range(epoch * batches.per_epoch, (epoch + 1) * batches.per_epoch)
        epochs.append(np.concatenate([batches(step).ids for step in steps]).tolist())
        assert len(set(epochs[-1])) == len(epochs[-1]) == size * batches.per_epoch
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_any_step_is_reached_at_once(pairs):
    """What continuing in the middle of an epoch needs: a batch is a function of seed and step."""
    forward = PairBatches(pairs, 8, seed=1)
    ids = [forward(step).ids.tolist() for step in range(20)]
    for step in (19, 0, 7, 6):
        assert PairBatches(pairs, 8, seed=1)(step).ids.tolist() == forward(step).ids.tolist() == ids[step]
    assert PairBatches(pairs, 8, seed=2)(0).ids.tolist() != ids[0]

"""Blocks that are known by their text: what is there is found by the workers, which alone read the corpus."""

from functools import partial
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from raysed.cluster import blocks
from raysed.cluster.blocks import Stream, make_missing, publish_here
from raysed.cluster.local import _make_blocks
from raysed.cluster.work import Work
from raysed.data.tokens import SENTENCE_SCHEMA
from raysed.graph import Task
from raysed.store.progress import listening
from raysed.store.storage import Storage


class Lengths:
    """Adds how long sentences are."""

    columns = ("id", "sentence")
    asked: ClassVar[list[str]] = []

    def __init__(self, inputs, settings, work):
        pass

    def __call__(self, table: pa.Table) -> pa.Table:
        self.asked.extend(table["sentence"].to_pylist())
        return table.append_column("length", pa.array(map(len, table["sentence"].to_pylist())))

    def blocks(self, table: pa.Table) -> list[tuple[pa.Table, dict]]:
        return [(table, {})]


def save_corpus(storage: Storage, sentences: list[str]) -> None:
    tokens = [[1]] * len(sentences)
    table = pa.Table.from_pydict(
        {"id": range(len(sentences)), "sentence": sentences, "input_ids": tokens}, SENTENCE_SCHEMA
    )
    storage.commit("corpus", lambda path: pq.write_table(table, path / "part-00000.parquet"), {"text": sentences})


def made(storage: Storage, sentences: list[str]) -> tuple[list[str], int]:
    """Returns the sentences that the model was asked for, and how many the run was told of."""
    save_corpus(storage, sentences)
    task = Task("rows/a", "rows", lambda: None, {"teacher": "a", "corpus": str(sentences)}, {}, {})
    stream = Stream("rows", [task], [(Lengths, task, Work(), "rows")], range(0, len(sentences), 3), keyed=True)
    facts: list[dict] = []
    Lengths.asked.clear()
    with listening(facts.append):
        make_missing(stream, storage, "here", partial(publish_here, stream, storage))
    (told,) = [each["sentences"] for each in facts if "sentences" in each]
    return list(Lengths.asked), told


def test_only_blocks_with_new_text_are_made_and_counted(tmp_path):
    storage = Storage(str(tmp_path), "run")
    text = [f"sentence {index}" for index in range(8)]
    assert made(storage, text) == (text, 8)
    assert made(storage, text) == ([], 0)
    longer = [*text, "one more", "and another"]
    assert made(storage, longer) == (longer[6:], 4)
    changed = ["changed", *longer[1:]]
    assert made(storage, changed) == (changed[:3], 3)
    assert pq.read_table(blocks.block_file(storage, "rows/a/000000"))["length"].to_pylist() == [7, 10, 10]


def test_what_a_lost_process_has_made_is_not_made_again(tmp_path):
    storage, text, told = Storage(str(tmp_path), "run"), [f"sentence {index}" for index in range(8)], []
    save_corpus(storage, text)
    task = Task("mean", "mean", lambda: None, {}, {}, {})
    stream = Stream("mean", [task], [(Lengths, task, Work(), "mean")], range(0, 8, 3))
    places = [{"start": start, "stop": min(start + 3, 8)} for start in stream.starts]
    publish_here(stream, storage, places[1:2], told.append)
    Lengths.asked.clear()
    _make_blocks(stream, storage, torch.get_num_threads(), places, told.append)
    assert Lengths.asked == [*text[:3], *text[6:]]
    assert [rows["id"].to_pylist() for rows in told] == [[3, 4, 5], [0, 1, 2], [6, 7]]


def test_what_is_missing_is_found_without_the_corpus(tmp_path, monkeypatch):
    storage, given = Storage(str(tmp_path), "run"), []
    monkeypatch.setattr(blocks, "SentenceTable", lambda path: pytest.fail("the corpus was read"))
    task = Task("rows/a", "rows", lambda: None, {}, {}, {})

    def publish(places, on_block):
        given.extend(places)

    for keyed in (True, False):
        stream = Stream("rows", [task], [(Lengths, task, Work(), "rows")], range(0, 7, 3), keyed)
        make_missing(stream, storage, "here", publish)
    assert given == 2 * [{"start": 0, "stop": 3}, {"start": 3, "stop": 6}, {"start": 6, "stop": 7}]

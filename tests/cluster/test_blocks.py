"""Blocks of the corpus: which are made, by whom, and what a block must not be."""

import os
import queue
import sys
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray.util.queue import Queue

from raysed.cluster import blocks, streaming
from raysed.cluster.blocks import BlockTables, Stream, block_size, make_blocks_here
from raysed.cluster.streaming import BlockSink, make_blocks
from raysed.context import Context
from raysed.data.parquet import SentenceTable, with_column
from raysed.data.tokens import SENTENCE_SCHEMA
from raysed.errors import RunFailed, UserError
from raysed.made import Step, block_name
from raysed.resources import Share
from raysed.store.storage import Storage

SIZE, TEXT = 3, [f"sentence {index}" for index in range(8)]


class Lengths:
    """Embeds sentences as their lengths; notes which, and fails as its settings say."""

    columns, kept = ("id", "sentence"), ("id", "target")

    def __init__(self, inputs, settings, context):
        self._settings = settings

    def __call__(self, rows: pa.Table) -> pa.Table:
        marks, ids = Path(self._settings["marks"]), rows["id"].to_pylist()
        with marks.open("a") as file:
            file.write(f"{ids[0]} ")
        behaves = self._settings.get(ids[0])
        if behaves == "wrong":
            raise UserError(f"{rows['sentence'][0]} cannot be embedded", setting="teachers")
        if behaves == "lost" and marks.read_text().split().count(str(ids[0])) == 1:
            os._exit(1)
        if behaves == "late":
            time.sleep(3)
        lengths = [[len(sentence), -len(sentence)] for sentence in rows["sentence"].to_pylist()]
        return with_column(rows, "target", np.array(lengths, np.float32))


def save_corpus(storage: Storage, sentences: list[str]) -> None:
    tokens = [[1]] * len(sentences)
    columns = {"id": range(len(sentences)), "sentence": sentences, "input_ids": tokens}
    table = pa.Table.from_pydict(columns, SENTENCE_SCHEMA)
    storage.commit("corpus", lambda path: pq.write_table(table, path / "part-00000.parquet"), {"text": sentences})


def tables_of(sentences: list[str], is_keyed: bool = False, kept: tuple = Lengths.kept) -> BlockTables:
    depends = {"rows": {"teacher": "a", "corpus": str(sentences)}}
    return BlockTables("rows", "corpus", depends, Lengths.columns, kept, len(sentences), SIZE, is_keyed)


def stream_of(storage: Storage, marks: Path, tables: BlockTables, **behaves: str) -> Stream:
    settings = {"marks": str(marks), **{int(first): what for first, what in behaves.items()}}
    task = Step("rows", "rows", Lengths, {}, settings, {})
    return Stream(tables, tables.missing(storage), [(task, "the teacher a")], Lengths, Context())


@pytest.fixture
def storage(tmp_path) -> Storage:
    storage = Storage(str(tmp_path), "run")
    save_corpus(storage, TEXT)
    return storage


def on_ray(stream: Stream, storage: Storage, on_event, gpus: float = 0.0) -> None:
    """Makes blocks with Ray's actors, which hold all of its CPUs."""
    events = Queue(actor_options={"num_cpus": 0})
    make_blocks(stream, storage, Share(2, 1, gpus, 1), events, on_event)


@pytest.fixture
def make(tmp_path, storage):
    """Makes what is missing of a table; returns the first rows of the blocks that were made, and what was reported."""
    marks = tmp_path / "marks"

    def run(sentences: list[str], is_keyed: bool) -> tuple[list[int], int, int]:
        save_corpus(storage, sentences)
        marks.write_text("")
        events: list[tuple[int, int]] = []
        stream = stream_of(storage, marks, tables_of(sentences, is_keyed))
        if stream.places:  # otherwise none is asked for
            make_blocks_here(stream, storage, lambda _, event: events.append((event["rows"], event["made"])))
        made = sorted(map(int, marks.read_text().split()))
        return made, sum(rows for rows, _ in events), sum(count for _, count in events)

    return run


@pytest.fixture(autouse=True)
def by_value():
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


def read(storage: Storage, count: int = 3) -> list[dict]:
    return [pq.read_table(storage.fetch(block_name("rows", i)) / "block.parquet").to_pydict() for i in range(count)]


def test_only_blocks_with_new_text_are_made(make, storage):
    """Workers find what exists, and they alone read the corpus."""
    assert make(TEXT, True) == ([0, 3, 6], 8, 8)
    assert read(storage)[2] == {"id": [6, 7], "target": [[10, -10], [10, -10]]}
    longer = ["changed", *TEXT[1:], "one more", "and another"]
    assert make(longer, True) == ([0, 6, 9], 10, 7)
    assert read(storage, 4)[0]["target"] == [[7, -7], [10, -10], [10, -10]]


def test_a_block_that_exists_is_not_made_again(make, storage):
    BlockSink(tables_of(TEXT), storage, queue.SimpleQueue()).write([block([3, 4, 5])], None)
    assert make(TEXT, False) == ([0, 6], 5, 5)
    assert make(TEXT, False) == ([], 0, 0)
    assert [each["id"] for each in read(storage)] == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_lost_actor_is_replaced_and_an_error_ends_the_stream_with_what_it_says(ray_cluster, tmp_path, storage):
    marks, tables = tmp_path / "marks", tables_of(TEXT)
    context, before = ray.data.DataContext.get_current(), ray.data.DataContext.get_current().copy()
    with pytest.raises(UserError, match=r"^teachers: sentence 3 cannot be embedded$") as caught:
        on_ray(stream_of(storage, marks, tables, **{"3": "wrong"}), storage, print)
    for _ in range(100):
        if ray.available_resources().get("CPU") == 2:
            break
        time.sleep(0.2)
    else:
        pytest.fail(f"actors still hold CPUs while {caught.value} is handled")
    assert context.target_max_block_size == before.target_max_block_size is not None, "a notebook's own datasets"
    marks.write_text("")
    on_ray(stream_of(storage, marks, tables, **{"3": "lost"}), storage, print)
    assert marks.read_text().split().count("3") == 2 and not tables.missing(storage)
    assert "MakeBlocks" in (tmp_path / "run/logs/data/rows.txt").read_text(), "where time was spent is kept"
    assert not list(storage.names("checkpoints")), "what counts the losses of a block is gone with the stream"


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_actors_copy_the_vectors_of_text_that_other_blocks_have(ray_cluster, tmp_path, storage):
    copy_what_is_known(tmp_path, storage)


def copy_what_is_known(tmp_path: Path, storage: Storage, gpus: float = 0.0) -> None:
    """Some blocks have only new text, some only known text, and some both; the sink counts what was embedded."""
    marks, counts = tmp_path / "marks", []
    on_ray(stream_of(storage, marks, tables_of(TEXT, is_keyed=True)), storage, print, gpus)
    grown = ["new", "newer", "newest", TEXT[7], TEXT[2], "fresh", TEXT[0], TEXT[4]]
    save_corpus(storage, grown)
    marks.write_text("")
    tables = tables_of(grown, is_keyed=True)
    stream = replace(stream_of(storage, marks, tables), known=tables.known(storage))
    on_ray(stream, storage, lambda _, event: counts.append(event["made"]), gpus)
    assert sorted(counts) == [0, 1, 3] and len(marks.read_text().split()) == 2
    found = [row for each in read(storage) for row in each["target"]]
    assert found == [[len(text), -len(text)] for text in grown]


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_bytes(b"")], ids=["gone", "empty"])
@pytest.mark.parametrize("made", [[3, 0, 0], [3, 3, 2]], ids=["one", "all"])
def test_text_of_blocks_with_damaged_keys_is_embedded_again(storage, tmp_path, damage, made):
    marks, tables, counts = tmp_path / "marks", tables_of(TEXT, is_keyed=True), []
    make_blocks_here(stream_of(storage, marks, tables), storage, lambda *event: None)
    for number in np.flatnonzero(made):
        damage(storage.fetch(block_name("rows", number)) / "keys.npy")
    storage = Storage(storage.location, "run")  # of another process
    stream = replace(stream_of(storage, marks, tables), known=tables.known(storage))
    make_blocks_here(stream, storage, lambda _, event: counts.append(event["made"]))
    assert counts == made
    assert [row[0] for each in read(storage) for row in each["target"]] == [10] * 8


def test_a_job_that_was_killed_while_it_replaced_blocks_has_lost_no_vectors(storage, tmp_path):
    def job(texts: list[str], most: int = 9) -> list[int]:
        """Makes a table, but dies after so many blocks; returns how many texts were embedded for each."""
        storage, tables, counts = Storage(str(tmp_path), "run"), tables_of(texts, is_keyed=True), []

        def count(_: str, event: dict) -> None:
            counts.append(event["made"])
            if len(counts) == most:
                raise KeyboardInterrupt

        with suppress(KeyboardInterrupt), storage.lock():
            storage.forget("rows")
            save_corpus(storage, texts)
            stream = replace(stream_of(storage, tmp_path / "marks", tables), known=tables.known(storage))
            make_blocks_here(stream, storage, count)
            storage.commit("rows", lambda path: None, {})
        return counts

    assert job(TEXT) == [3, 3, 2]
    others = TEXT[::2] + TEXT[1::2]
    assert [job(others, most) for most in (1, 2, 9)] == [[0], [0, 0], [0, 0, 0]]
    assert [each["target"] for each in read(storage)] == [[[10, -10]] * 3] * 2 + [[[10, -10]] * 2]
    assert len(list((tmp_path / "run/rows").glob("*/attempt-*"))) == 3, "what was replaced is gone in the end"


def block(ids: list[int]) -> pa.Table:
    table = pa.table({"id": ids, "sentence": [f"sentence {i}" for i in ids]})
    return with_column(table, "target", np.full((len(ids), 2), 5, np.float32))


@pytest.mark.parametrize("ids", [[0, 1], [0, 1, 1], [0, 2, 1], [1, 2, 3], [0, 1, 2, 3], [6, 7, 8]], ids=str)
@pytest.mark.parametrize("is_keyed", [False, True])
def test_a_block_with_missing_or_repeated_rows_is_refused(storage, ids, is_keyed):
    with pytest.raises(RuntimeError, match=r"^rows: the rows from \d on are not a block of \d sentences$"):
        BlockSink(tables_of(TEXT, is_keyed), storage, queue.SimpleQueue()).write([block([3, 4, 5]), block(ids)], None)
    assert list(storage.names("rows")) == ["rows/000001"]


@pytest.mark.parametrize(("lost", "is_made"), [(0, True), (4, True), (5, False), (9, False)])
def test_a_block_that_takes_its_workers_down_ends_the_stream(storage, tmp_path, monkeypatch, lost, is_made):
    monkeypatch.setattr(streaming, "prepare_worker", lambda threads: None)
    stream = stream_of(storage, tmp_path / "marks", tables_of(TEXT))
    corpus = SentenceTable(storage.fetch("corpus"))
    worker = streaming.MakeBlocks(stream, 0, storage, Share(1, 1, 0.0, 1), "checkpoints/rows.blocks/0", "job")
    for _ in range(lost):  # each began the block, and was gone
        worker._tries(3)
    with nullcontext() if is_made else pytest.raises(RunFailed, match=rf"sentences 3 to 5 .*: {lost} workers in a row"):
        assert worker(corpus.rows(3, 6, Lengths.columns)).num_rows == 3


def test_blocks_of_another_size_are_made_again(storage):
    """Two tables that were begun on other machines are completed in one pass."""
    depends = {"a": {"members": "a"}, "b": {"members": "b"}}
    for name, size in (("a", SIZE), ("b", SIZE + 1)):
        begun = replace(tables_of(TEXT), depends={name: depends[name]}, size=size)
        begun.commit(storage, block([*range(size)]))
    both = replace(tables_of(TEXT), depends=depends)
    assert [place["start"] for place in both.missing(storage)] == [0, 3, 6]


def test_what_is_missing_is_found_without_the_corpus(storage, monkeypatch):
    monkeypatch.setattr(blocks, "SentenceTable", lambda path: pytest.fail("the corpus was read"))
    every = [{"start": 0, "stop": 3}, {"start": 3, "stop": 6}, {"start": 6, "stop": 8}]
    assert tables_of(TEXT).missing(storage) == tables_of(TEXT, is_keyed=True).missing(storage) == every


@pytest.mark.parametrize(
    ("rows", "workers", "size"),
    [(100, 1, 256), (10**5, 64, 256), (10**5, 8, 2048), (10**7, 64, 4096)],
)
def test_blocks_are_small_enough_for_all_workers(storage, rows, workers, size):
    assert block_size(storage, [Step("rows", "", Lengths, {}, {}, {})], rows, workers) == size


def test_blocks_that_exist_decide_the_size_for_those_that_follow(storage):
    task = Step("rows", "", Lengths, tables_of(TEXT).depends["rows"], {}, {})
    BlockSink(tables_of(TEXT), storage, queue.SimpleQueue()).write([block([0, 1, 2])], None)
    assert block_size(storage, [Step("other", "", Lengths, {}, {}, {}), task], 10**5, 64) == SIZE
    outdated = Step("rows", "", Lengths, {"make": "changed"}, {}, {})
    assert block_size(storage, [outdated], 10**5, 64) == 256

"""A table in blocks reads like the same table in one directory."""

import tempfile
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysed.cluster.blocks import KnownTexts, keys_of
from raysed.data import parquet
from raysed.data.parquet import ROWS_PER_GROUP, BlockFiles, SentenceTable
from raysed.data.targets import TARGET_FILE, TargetBatches, with_column
from raysed.made import BLOCK_FILE, Made, block_name, resolve_input
from raysed.store import cache, files
from raysed.store.storage import Storage

MOST = 2 * ROWS_PER_GROUP + 1
SIZES = [256, 512, 1024, 2048, 4096]
COLUMNS = ("id", "input_ids", "target")


def table(rows: int) -> pa.Table:
    tokens = pa.array([[index % 50, index % 7] for index in range(rows)], pa.list_(pa.int32()))
    targets_ND = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    return with_column(pa.table({"id": np.arange(rows), "input_ids": tokens}), "target", targets_ND)


def in_directory(rows: pa.Table, place: Path) -> Path:
    pq.write_table(rows, place / TARGET_FILE, row_group_size=ROWS_PER_GROUP)
    return place


def in_blocks(rows: pa.Table, place: Path, size: int) -> BlockFiles:
    paths = []
    for start in range(0, len(rows), size):
        paths.append(place / f"{start}.block")
        pq.write_table(rows.slice(start, size), paths[-1])
    return BlockFiles(place, [partial(nullcontext, path) for path in paths], [], size, len(rows))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return lambda: tmp_path_factory.mktemp("table")


@settings(max_examples=30)
@given(st.sampled_from(SIZES), st.integers(0, 16), st.integers(-1, 1), st.data())
def test_rows_and_row_groups_do_not_depend_on_the_size_of_blocks(places, size, blocks, more, data):
    count = min(max(blocks * size + more, 1), MOST)
    rows = table(count)
    one, cut = in_directory(rows, places()), in_blocks(rows, places(), size)
    assert cut.shape == {"blocks": -(-count // size), "size": size, "rows": count}
    found, plain = SentenceTable(cut), SentenceTable(one)
    assert found.sizes.tolist() == plain.sizes.tolist()
    assert set(found.sizes[:-1]) <= {ROWS_PER_GROUP}
    for group in range(len(found.sizes)):
        assert found.row_group(group, COLUMNS) == plain.row_group(group, COLUMNS)

    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, min(count, start + 5000)))
    assert len(found) == len(plain) == count
    assert found.rows(start, stop, COLUMNS) == plain.rows(start, stop, COLUMNS) == rows.slice(start, stop - start)
    assert np.array_equal(found.column("id"), np.arange(count)) and found.column("of") is None


def test_only_blocks_with_wanted_rows_are_fetched(places):
    fetched, blocks = [], in_blocks(table(1000), places(), 256)

    def lend(number: int) -> AbstractContextManager[Path]:
        fetched.append(number)
        return blocks.files[number]()

    lenders = [partial(lend, number) for number in range(len(blocks.files))]
    assert len(BlockFiles(None, lenders, [], 256, 1000).read(256, 700)) == 512
    assert fetched == [1, 2]


@pytest.fixture
def remote(tmp_path, monkeypatch) -> Storage:
    """A run on an object store, whose local copies fill the disk of this machine."""
    (tmp_path / "bucket").mkdir()
    fs = pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem())
    monkeypatch.setattr(files, "filesystem", lambda location: (fs, "runs"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: SimpleNamespace(total=1000, free=0))
    return Storage("mock://bucket/runs", "run")


def write_block(rows: pa.Table, directory: Path) -> None:
    pq.write_table(rows, directory / BLOCK_FILE)


@pytest.mark.parametrize("reads_ahead", [False, True])
def test_a_learner_keeps_the_blocks_of_at_most_two_windows_on_a_full_disk(remote, monkeypatch, reads_ahead):
    """Two epochs of ten windows, each of four blocks."""
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 20)
    for number in range(40):
        block = table(10).set_column(0, "id", pa.array(range(10 * number, 10 * number + 10)))
        remote.commit(block_name("targets", number), partial(write_block, block), {})
    remote.commit("targets", lambda path: (path / "mean").touch(), {}, {"blocks": 40, "size": 10, "rows": 400})
    batches, kept = TargetBatches(resolve_input(Made("targets"), remote), 8, seed=3, window=2), []
    batches.reads_ahead = reads_ahead
    for step in range(2 * batches.per_epoch):
        assert len(batches(step).ids) == 8
        kept.append(len([path for path in cache.directory().glob("[!.]*") if path.suffix != ".half"]))
    batches._reader.shutdown()
    assert 1 <= max(kept) <= 8 + 1, "the mean's directory stays"


def test_blocks_in_which_text_is_looked_up_do_not_stay_on_a_full_disk(remote):
    def write(keys: np.ndarray, vectors: pa.Table, directory: Path) -> None:
        write_block(vectors, directory)
        np.save(directory / "keys.npy", keys)

    texts, vectors = [pa.table({"sentence": [f"{number}"]}) for number in range(9)], table(1)
    entries = [
        remote.commit(block_name("rows", number), partial(write, keys_of(text), vectors), {})
        for number, text in enumerate(texts)
    ]
    known = KnownTexts.of(entries, remote)
    for text in texts:
        assert [*known.find(keys_of(text), remote)] == [0]
    assert len(list(cache.directory().glob("[!.]*"))) == 1

"""Batches of target tables."""

from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import write_targets

from raysed.data import targets
from raysed.data.parquet import SentenceTable
from raysed.data.targets import TARGET_FILE, TargetBatches, held_out_batches, with_column, with_targets
from raysed.errors import UserError


@pytest.mark.parametrize("window", [1, 2, 16])
def test_every_epoch_has_every_row_once_with_its_own_target(tmp_path, window):
    """Over windows that cut batches, and in another order each epoch."""
    write_targets(tmp_path, 96, 20)
    batches, table, epochs = (
        TargetBatches(tmp_path, 8, seed=3, window=window),
        pq.read_table(tmp_path / TARGET_FILE),
        [],
    )
    for epoch in (0, 1):
        parts = [batches(step) for step in range(epoch * 12, (epoch + 1) * 12)]
        epochs.append([int(row) for part in parts for row in part.ids])
        assert sorted(epochs[-1]) == list(range(96))
    assert epochs[0] != epochs[1]
    for place, row in enumerate(parts[-1].ids):
        assert parts[-1].targets[place].tolist() == table["target"][int(row)].as_py()
        real = parts[-1].tokens.segments == place
        assert parts[-1].tokens.input_ids[real].tolist() == table["input_ids"][int(row)].as_py()


def test_batches_are_a_function_of_the_step(tmp_path):
    """A continued run and a run with more workers see the same batches."""
    write_targets(tmp_path, 96, 20)
    forward = TargetBatches(tmp_path, 8, seed=3, window=2)
    whole = {step: forward(step) for step in range(30)}
    for step in (29, 3, 17):
        fresh = TargetBatches(tmp_path, 8, seed=3, window=2)(step)
        assert list(fresh.ids) == list(whole[step].ids)
        assert torch.equal(fresh.targets, whole[step].targets)
        for world in (3, 4):
            parts = [TargetBatches(tmp_path, 8, 3, rank, world, window=2)(step) for rank in range(world)]
            assert list(np.concatenate([part.ids for part in parts])) == list(whole[step].ids)
            assert torch.equal(torch.cat([part.targets for part in parts]), whole[step].targets)


def test_batches_have_the_plain_order_for_any_number_of_workers(tmp_path):
    """Row groups in a random order, then the rows of two groups at a time; workers share a batch about equally."""
    write_targets(tmp_path, 96, 20)
    groups = [np.arange(start, min(start + 20, 96)) for start in range(0, 96, 20)]
    order = np.random.default_rng([3, 1]).permutation(5)
    windows = [np.concatenate([groups[group] for group in order[at : at + 2]]) for at in (0, 2, 4)]
    plain = [rows[np.random.default_rng([3, 1, at + 1]).permutation(len(rows))] for at, rows in enumerate(windows)]
    steps, parts = np.concatenate(plain)[:91].reshape(13, 7), {1: [7], 2: [3, 4], 3: [2, 2, 3], 4: [1, 2, 2, 2]}
    for world, sizes in parts.items():
        for rank, own in enumerate(np.split(steps, np.cumsum(sizes)[:-1], axis=1)):
            batches = TargetBatches(tmp_path, 7, 3, rank, world, window=2)
            assert [list(batches(step).ids) for step in range(13, 26)] == own.tolist()
            assert len(batches._loaded[1].tokens) <= 40 * sizes[rank] / 7 + 7, "others' rows are not kept"


def test_windows_that_are_read_ahead_are_those_that_are_not(tmp_path):
    """Over windows that cut batches, into the next epoch, and after a jump; each window is read once."""
    write_targets(tmp_path, 96, 20)
    plain, ahead = (TargetBatches(tmp_path, 8, seed=3, window=2) for _ in range(2))
    ahead.reads_ahead = True
    with mock.patch.object(ahead, "_load", wraps=ahead._load) as load:
        for step in (*range(26), 3):
            assert torch.equal(ahead(step).targets, plain(step).targets)
        ahead._reader.shutdown()
    read = [call.args for call in load.call_args_list]
    once = [(0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1)]
    assert sorted(read) == [(0, 0), (0, 0), (0, 1), (0, 1), *once]  # twice after the jump


def test_a_table_of_several_files_has_the_batches_of_one(tmp_path, monkeypatch):
    """Of 110 rows in groups of 20, two groups a file."""
    monkeypatch.setattr(targets, "ROWS_PER_GROUP", 20)
    made = {}
    for per_file, files in ((6, 1), (2, 3)):
        directory = tmp_path / str(per_file)
        directory.mkdir()
        rng, groups = np.random.default_rng(0), []
        for start in range(0, 110, 20):
            ids = np.arange(start, min(start + 20, 110))
            tokens = pa.array([rng.integers(1, 9, 4).tolist() for _ in ids], pa.list_(pa.int32()))
            rows = pa.table({"id": ids, "input_ids": tokens})
            groups.append(with_column(rows, "target", rng.normal(size=(len(ids), 3)).astype(np.float32)))
        for file in range(files):
            of_file = pa.concat_tables(groups[file * per_file : (file + 1) * per_file])
            pq.write_table(of_file, directory / f"{file}.parquet", row_group_size=20)
        assert len(SentenceTable(directory)) == 110
        count = TargetBatches(directory, 8, seed=3, held_out=True).count
        assert count == targets.rows_to_learn(110)  # what plans count
        batches, held_out = TargetBatches(directory, 8, seed=3, window=2, held_out=True), held_out_batches(directory, 8)
        made[per_file] = [*(batches(step) for step in range(20)), *held_out]
    for one, several in zip(made[6], made[2], strict=True):
        assert list(one.ids) == list(several.ids) and torch.equal(one.targets, several.targets)


def test_targets_in_fp16_take_half_the_room_and_are_rounded_once(tmp_path):
    """Batches are in fp32."""
    rng, rows, width, sizes = np.random.default_rng(0), 600, 64, {}
    targets_ND = rng.normal(size=(rows, width)).astype(np.float32)
    for precision in ("fp32", "fp16"):
        directory = tmp_path / precision
        directory.mkdir()
        table = pa.table({"id": np.arange(rows), "input_ids": pa.array([[1, 2]] * rows, pa.list_(pa.int32()))})
        pq.write_table(with_targets(table, targets_ND, precision), directory / TARGET_FILE)
        sizes[precision] = (directory / TARGET_FILE).stat().st_size
    assert sizes["fp16"] < 0.55 * sizes["fp32"]
    rounded_ND = targets_ND.astype(np.float16).astype(np.float32)
    assert np.abs(rounded_ND - targets_ND).max() <= np.abs(targets_ND).max() / 2048
    for offset in (0.0, rounded_ND.mean(0)):
        expected_ND = rounded_ND - np.asarray(offset, np.float32)
        learnt = TargetBatches(tmp_path / "fp16", 10, 0, offset=offset, held_out=True)(3)
        held_out = held_out_batches(tmp_path / "fp16", 10, offset)[0]
        for batch in (learnt, held_out):
            assert batch.targets.dtype == torch.float32
            assert np.array_equal(batch.targets.numpy(), expected_ND[batch.ids])


def test_a_target_too_large_for_fp16_names_its_sentence_and_the_setting():
    rows = pa.table({"id": [7, 8], "input_ids": pa.array([[1, 2]] * 2, pa.list_(pa.int32()))})
    targets_ND = np.array([[1.0], [70_000.0]], np.float32)
    with pytest.raises(UserError, match=r"sentence ids 8 in fp16, whose largest number is 65,504; set sed"):
        with_targets(rows, targets_ND, "fp16")
    assert with_targets(rows, targets_ND, "fp32").column("target").to_pylist() == [[1.0], [70_000.0]]


def test_a_large_table_holds_out_a_part_of_all_of_it_and_one_row_is_too_few(tmp_path):
    held = targets._held_out_rows(np.full(4000, 4096))
    assert held.sum() == 2000 and held.max() == 1 and np.ptp(held.reshape(40, 100).sum(1)) <= 1
    write_targets(tmp_path, 1, 1)
    with pytest.raises(UserError, match=r"^one sentence is too few to hold some out; add text, or set sed\.checkpoint"):
        TargetBatches(tmp_path, 1, seed=0, held_out=True)


@settings(max_examples=40)
@given(rows=st.integers(2, 130), group=st.integers(1, 50), batch=st.integers(1, 9))
def test_rows_are_learnt_from_or_held_out(tmp_path_factory, rows, group, batch):
    """Each exactly once in an epoch, and with its own target."""
    directory = tmp_path_factory.mktemp("targets")
    write_targets(directory, rows, group)
    batches = TargetBatches(directory, batch, seed=3, window=2, held_out=True)
    learnt = np.concatenate([batches(step).ids for step in range(batches.per_epoch)])
    held_out = held_out_batches(directory, batch)
    ids = np.concatenate([part.ids for part in held_out])
    assert len(set(learnt)) == len(learnt) and not set(learnt) & set(ids)
    assert len(learnt) + len(ids) > rows - batches.batch_size and 1 <= len(ids) <= max(1, rows // 20)
    table = pq.read_table(directory / TARGET_FILE)
    for part in held_out:
        assert part.targets.tolist() == [table["target"][int(row)].as_py() for row in part.ids]

"""The streamed mean of teachers against the plain one."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray.data
import torch
from transformers import AutoModel, BertConfig, BertModel

from raysed.cluster import streaming
from raysed.cluster.blocks import Stream, blocks_of, make_missing, publish_here, stream_of
from raysed.cluster.resources import Share
from raysed.cluster.streaming import make_blocks
from raysed.cluster.work import Work
from raysed.config import EncoderConfig
from raysed.data.targets import ROWS_PER_GROUP, TARGET_FILE, TargetWriter, with_column
from raysed.data.tokens import SENTENCE_SCHEMA
from raysed.errors import RunFailed, UserError
from raysed.graph import Ref, Task
from raysed.make.targets import MeanBlocks, block_rows, mean_targets, verify_targets
from raysed.store.storage import Storage

VOCABULARY, WIDTH = 50, 16
CONFIG = BertConfig(
    vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)
ON_RAY, BY_ONE = Share(2, 0.3, 0.0, 1), Share(1, 0.3, 0.0, 1)


def save_teachers(storage: Storage, count: int) -> list[str]:
    names = [f"ct/members/{index:02d}" for index in range(count)]
    for seed, name in enumerate(names):
        torch.manual_seed(seed)
        storage.commit(name, BertModel(CONFIG).save_pretrained, {"seed": seed})
    return names


def save_corpus(storage: Storage, rows: int, row_group: int = 100) -> None:
    rng = np.random.default_rng(rows)
    tokens = [rng.integers(1, VOCABULARY, rng.integers(2, 12)).astype(np.int32) for _ in range(rows)]
    table = pa.Table.from_arrays(
        [pa.array(np.arange(rows)), pa.array([f"sentence {i}" for i in range(rows)]), pa.array(tokens)],
        schema=SENTENCE_SCHEMA,
    )
    storage.commit(
        "corpus", lambda path: pq.write_table(table, path / "part-00000.parquet", row_group_size=row_group), {}
    )


def run_with(tmp_path: Path, teachers: int, sentences: int) -> tuple[Storage, list[str]]:
    """Returns a run that has what a mean is made of, and the names of its teachers."""
    storage = Storage(str(tmp_path), "run")
    names = save_teachers(storage, teachers)
    save_corpus(storage, sentences)
    return storage, names


def plain_mean(storage: Storage, names: list[str]) -> np.ndarray:
    """One sentence and one teacher at a time, through the public forward of transformers."""
    tokens = pq.read_table(storage.fetch("corpus"))["input_ids"].to_pylist()
    models = [AutoModel.from_pretrained(storage.fetch(name)).eval() for name in names]
    with torch.no_grad():
        rows = [
            sum(model(torch.tensor([row])).last_hidden_state[0].mean(0).double() for model in models) / len(models)
            for row in tokens
        ]
    return torch.stack(rows).numpy()


def mean(storage: Storage, name: str, teachers: list[str], precision: str = "fp32") -> Task:
    inputs = {"corpus": Ref("corpus"), "teachers": [Ref(teacher) for teacher in teachers], "encoder": EncoderConfig()}
    settings = {"precision": "fp32", "target_precision": precision}
    return Task(name, name, mean_targets, {"teachers": teachers}, settings, inputs)


def stream(storage: Storage, tasks: list[Task], worker: type = MeanBlocks, groups: int = 1) -> Stream:
    rows = pq.read_metadata(storage.fetch("corpus") / "part-00000.parquet").num_rows
    options = {"worker": worker, "title": "average"}
    return stream_of(tasks, options, range(0, rows, block_rows(rows)), Work(token_budget=512), groups)


def average(storage: Storage, tasks: list[Task], worker: type = MeanBlocks, on_ray: Share | None = None) -> None:
    """Makes target tables, in this process or on Ray, there by as many groups of teachers as workers."""
    flow = stream(storage, tasks, worker, groups=on_ray.workers if on_ray else 1)
    if on_ray:
        make_blocks(flow, storage, on_ray, 300)
    else:
        make_missing(flow, storage, "", partial(publish_here, flow, storage))
    for task in tasks:
        inputs = {**task.inputs, "blocks": blocks_of(flow, task, storage)}
        Task(task.name, "", mean_targets, task.depends, task.settings, inputs).run(storage, Work())


def test_targets_are_verified_with_one_teacher_in_memory(tmp_path, request):
    storage, names = run_with(tmp_path, teachers=4, sentences=60)
    writer = TargetWriter(tmp_path)
    corpus = pq.read_table(storage.fetch("corpus"), columns=["id", "input_ids"])
    writer.add(with_column(corpus, "target", plain_mean(storage, names).astype(np.float32)))
    writer.close(60)
    most_alive = request.getfixturevalue("most_alive")  # from here on
    assert verify_targets(tmp_path, [storage.fetch(name) for name in names]) < 1e-5
    assert most_alive() == 1


@pytest.mark.parametrize(
    ("share", "kind", "most"),
    [(None, pa.float32(), 1e-6), pytest.param(ON_RAY, pa.float16(), 1e-3, marks=pytest.mark.cluster)],
    ids=["here", "on Ray"],
)
def test_the_streamed_mean_is_the_plain_mean(request, tmp_path, share, kind, most):
    """Two ensembles in one pass: every id once, in order, and the mean to the precision that targets are kept in."""
    if share:
        request.getfixturevalue("ray_cluster")
    storage, names = run_with(tmp_path, teachers=3, sentences=300)
    precision = "fp16" if share else "fp32"
    ensembles = {"all": names, "two": names[1:]}
    average(storage, [mean(storage, *of, precision) for of in ensembles.items()], on_ray=share)
    for name, teachers in ensembles.items():
        entry, directory = storage.finished(name, {"teachers": teachers}), storage.fetch(name)
        table = pq.read_table(directory / TARGET_FILE)
        assert table.column_names == ["id", "input_ids", "target"]
        assert (entry.meta["rows"], entry.meta["teachers"]) == (300, len(teachers))
        assert table["id"].to_pylist() == list(range(300))
        assert table["target"].type == pa.list_(kind, WIDTH)
        found = np.stack(table["target"].to_numpy())
        expected = plain_mean(storage, teachers)
        assert np.abs(found - expected).max() < most
        assert np.allclose(np.load(directory / "mean.npy"), expected.mean(0), atol=most)


def test_blocks_that_are_there_are_not_made_again(tmp_path):
    """Of 600 sentences in blocks of 256, one was made before the job was lost; its file tells whether it is used."""
    storage, names = run_with(tmp_path, teachers=1, sentences=600)
    task = mean(storage, "ct-sed/targets", names)
    block = stream(storage, [task]).block(task, 256)
    expected = plain_mean(storage, names).astype(np.float32)
    expected[256:512] = 7.0

    def write(path):
        corpus = pq.read_table(storage.fetch("corpus"), columns=["id", "input_ids"]).slice(256, 256)
        pq.write_table(with_column(corpus, "target", expected[256:512]), path / "block.parquet")

    storage.commit(block, write, task.depends)
    with pytest.raises(RuntimeError, match="is not the mean of its teachers"):  # so the block was taken as it was
        average(storage, [task])
    starts = [int(entry.name[-9:]) for entry in storage.entries("ct-sed/targets.blocks")]
    assert starts == [0, 256, 512]
    storage.remove(block)
    before = [entry.name for entry in storage.entries("ct-sed/targets.blocks")]
    average(storage, [task])
    found = np.stack(pq.read_table(storage.fetch("ct-sed/targets") / TARGET_FILE)["target"].to_numpy())
    assert np.abs(found - plain_mean(storage, names)).max() < 1e-6
    assert len(before) == 2


@pytest.mark.cluster
def test_sentences_that_end_their_worker_each_time_are_named(ray_cluster, tmp_path, monkeypatch):
    """Of 600 sentences, those of the second block of 256 take the process down; the others are kept.

    They have cost four workers of this job before, and now cost one more.
    """
    storage, names = run_with(tmp_path, teachers=2, sentences=600)
    monkeypatch.setattr(streaming, "uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex="this job")))
    for _ in range(4):
        storage.checkpoints("ct-sed/targets.blocks/0/256", {}).begin("this job")

    class Deadly(MeanBlocks):
        def __call__(self, table):
            if table.column("id")[0].as_py() == 256:
                os._exit(1)
            return super().__call__(table)

    which = "sentences 256 to 511 for the teachers ct/members/00 to ct/members/01"
    lost = "5 workers in a row were lost on them; they crash or run out of memory there"
    with pytest.raises(RunFailed, match=f"^{which}: {lost}$"):
        average(storage, [mean(storage, "ct-sed/targets", names)], Deadly, BY_ONE)
    assert "256" not in {entry.name[-3:] for entry in storage.entries("ct-sed/targets.blocks")}


@pytest.mark.cluster
def test_a_mistake_that_is_found_on_ray_is_said_as_it_is(ray_cluster, tmp_path):
    class Mistaken(MeanBlocks):
        def __call__(self, table):
            raise UserError("has no embedding of 30 sentences", file="vectors.parquet")

    storage, names = run_with(tmp_path, teachers=2, sentences=30)
    context, before = ray.data.DataContext.get_current(), ray.data.DataContext.get_current().copy()
    with pytest.raises(UserError, match=r"^vectors.parquet: has no embedding of 30 sentences$"):
        average(storage, [mean(storage, "ct-sed/targets", names)], Mistaken, BY_ONE)
    assert context.target_max_block_size == before.target_max_block_size is not None, "a notebook's own datasets"


def test_a_mean_that_is_not_finite_names_its_sentence_and_is_not_published(tmp_path):
    storage = Storage(str(tmp_path), "run")
    save_corpus(storage, 30)

    def broken(path):
        model = BertModel(CONFIG)
        torch.nn.init.constant_(model.embeddings.LayerNorm.weight, float("nan"))
        model.save_pretrained(path)

    storage.commit("ct/members/00", broken, {})
    with pytest.raises(
        UserError, match=r"^teacher embeddings are not finite for sentence ids 0, 1, 2, 3, 4, 5, 6, 7, 8, 9$"
    ):
        average(storage, [mean(storage, "ct-sed/targets", ["ct/members/00"])])
    assert storage.entries("ct-sed") == []


def test_row_groups_do_not_depend_on_how_blocks_are_cut(tmp_path):
    """The learner reads row groups, so its batches must not depend on the order of events in the cluster."""
    rows = ROWS_PER_GROUP + 500
    targets = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    contents = []
    for cut in (97, 1024, rows):
        directory = tmp_path / str(cut)
        directory.mkdir()
        writer = TargetWriter(directory)
        for start in range(0, rows, cut):
            writer.add(target_table(np.arange(start, min(start + cut, rows)), targets[start : start + cut]))
        writer.close(rows)
        meta = pq.ParquetFile(directory / TARGET_FILE).metadata
        assert [meta.row_group(i).num_rows for i in range(meta.num_row_groups)] == [ROWS_PER_GROUP, 500]
        contents.append((directory / TARGET_FILE).read_bytes())
    assert contents[0] == contents[1] == contents[2]


def target_table(ids: np.ndarray, targets: np.ndarray) -> pa.Table:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(targets.reshape(-1)), targets.shape[1])
    tokens = pa.array([[1, 2]] * len(ids), pa.list_(pa.int32()))
    return pa.table({"id": ids, "input_ids": tokens, "target": lists})


@pytest.mark.parametrize("ids", [[0, 1, 1], [0, 1]], ids=["repeated", "lost"])
def test_lost_and_repeated_rows_are_refused(tmp_path, ids):
    writer = TargetWriter(tmp_path)
    writer.add(target_table(np.array(ids), np.ones((len(ids), 2), np.float32)))
    with pytest.raises(RuntimeError, match="3 sentences were embedded"):
        writer.close(3)


def test_a_target_of_another_sentence_is_found(tmp_path):
    """Re-encoding rows must notice that two sentences' vectors were swapped."""
    storage, names = run_with(tmp_path, teachers=2, sentences=40)
    tokens = pq.read_table(storage.fetch("corpus"))
    right = plain_mean(storage, names).astype(np.float32)
    out = tmp_path / "out"
    out.mkdir()

    def write(targets: np.ndarray) -> None:
        table = tokens.select(["id", "input_ids"]).append_column(
            "target", pa.FixedSizeListArray.from_arrays(pa.array(targets.reshape(-1)), WIDTH)
        )
        pq.write_table(table, out / TARGET_FILE, row_group_size=ROWS_PER_GROUP)

    write(right)
    assert verify_targets(out, [storage.fetch(name) for name in names]) < 1e-5
    write(np.roll(right, 1, axis=0))
    with pytest.raises(RuntimeError, match="is not the mean of its teachers"):
        verify_targets(out, [storage.fetch(name) for name in names])

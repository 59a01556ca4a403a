"""The streamed mean of teachers against the plain one."""

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ray.util.queue import Queue
from transformers import AutoModel, BertConfig, BertModel

import raysed.make.targets
from raysed.cluster import streaming
from raysed.cluster.blocks import BlockTables, Stream, chain_of, make_blocks_here
from raysed.config import EncoderConfig
from raysed.context import Context, ignore
from raysed.data.parquet import ROWS_PER_GROUP, BlockFiles, SentenceTable, matrix, with_column
from raysed.data.targets import MEAN, TARGET_FILE, write_targets
from raysed.data.tokens import SENTENCE_SCHEMA, TokenTable
from raysed.errors import RunFailed, UserError
from raysed.graph import BlocksRef, Ref, Task, resolve_input
from raysed.make.targets import MeanBlocks, MeanOfMembers, mean_targets, teacher_sum, verify_targets
from raysed.resources import Share
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


SIZE = 256


def average(storage: Storage, tasks: list[Task], worker: type = MeanBlocks, on_ray: Share | None = None) -> None:
    """Makes target tables, in this process or on Ray, there by as many groups of teachers as workers."""
    rows, depends = len(SentenceTable(storage.fetch("corpus"))), {task.name: task.depends for task in tasks}
    tables = BlockTables("average", "corpus", depends, worker.columns, worker.kept, rows, SIZE)
    chain = chain_of(tasks, "average", on_ray.workers if on_ray else 1)
    stream = Stream(tables, tables.missing(storage), chain, worker, Context())
    if on_ray:
        streaming.make_blocks(stream, storage, on_ray, Queue(actor_options={"num_cpus": 0}), ignore)
    else:
        make_blocks_here(stream, storage, ignore)
    for task in tasks:
        inputs = {**task.inputs, "blocks": BlocksRef(task.name, tables.count, SIZE, rows)}
        Task(task.name, "", mean_targets, task.depends, task.settings, inputs).run(storage, Context())


def blocks_of(storage: Storage, name: str) -> BlockFiles:
    return resolve_input(Ref(name), storage)


def block_names(storage: Storage, name: str) -> list[str]:
    return [entry.name.rpartition("/")[2] for entry in storage.entries(name)]


def test_targets_are_verified_with_one_teacher_in_memory(tmp_path, request):
    storage, names = run_with(tmp_path, teachers=4, sentences=60)
    corpus = pq.read_table(storage.fetch("corpus"), columns=["id", "input_ids"])
    write_targets(tmp_path, [with_column(corpus, "target", plain_mean(storage, names).astype(np.float32))])
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
        blocks = blocks_of(storage, name)
        table = blocks.read(0, 300)
        assert table.column_names == ["id", "input_ids", "target"]
        assert storage.entry(name).meta["teachers"] == len(teachers)
        assert blocks.shape == {"blocks": 2, "size": SIZE, "rows": 300}
        assert table["id"].to_pylist() == list(range(300))
        assert table["target"].type == pa.list_(kind, WIDTH)
        expected = plain_mean(storage, teachers)
        assert np.abs(matrix(table["target"]) - expected).max() < most
        mean_D = np.load(blocks.directory / MEAN)
        assert np.allclose(mean_D, matrix(table["target"]).mean(0, dtype=np.float64), atol=1e-9)
        assert np.allclose(mean_D, expected.mean(0), atol=most)


def sentences(storage: Storage) -> pa.Table:
    return pq.read_table(storage.fetch("corpus"), columns=["id", "input_ids"])


def plain_sum(storage: Storage, names: list[str], at_once: int = 1024) -> np.ndarray:
    """One teacher after the other."""
    table = sentences(storage)
    parts = [TokenTable.from_arrow(table.slice(start, at_once)) for start in range(0, len(table), at_once)]
    sums_BD = 0
    for name in names:
        embed = teacher_sum([storage.fetch(name)])
        sums_BD = sums_BD + np.concatenate([embed(part) for part in parts])
    return sums_BD


@pytest.mark.parametrize("stages", [(4,), (2, 2), (1, 1, 1, 1), (4, 0)])
def test_any_chain_of_stages_gives_the_plain_sum_and_mean(tmp_path, monkeypatch, stages):
    """Bit for bit; the last stage may only divide."""
    monkeypatch.setitem(raysed.make.targets._SENTENCES_AT_ONCE, "cpu", 17)
    storage, names = run_with(tmp_path, teachers=4, sentences=50)
    paths, table = [storage.fetch(name) for name in names], sentences(storage)
    about = {"column": "target", "target_precision": "fp32", "device": "cpu", "precision": "fp32"}
    about |= {"trust_remote_code": False}
    for count in stages[:-1]:
        table = MeanOfMembers([paths.pop(0) for _ in range(count)], count=None, **about)(table)
    summed, divided = (MeanOfMembers(paths, count=count, **about)(table) for count in (None, 4))
    expected = plain_sum(storage, names, at_once=17)
    assert np.array_equal(matrix(summed["target"]), expected)
    assert np.array_equal(matrix(divided["target"]), expected / np.float32(4))


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_tables_of_one_pass_have_the_mean_that_each_has_alone(tmp_path, groups):
    storage, names = run_with(tmp_path, teachers=3, sentences=40)
    tasks = [mean(storage, "all", names), mean(storage, "two", names[1:])]
    table = sentences(storage)
    for task, _ in chain_of(tasks, "average", groups):
        table = MeanBlocks(task.resolve_inputs(storage), task.settings, Context())(table)
    for index, some in enumerate((names, names[1:])):
        expected = plain_sum(storage, some) / np.float32(len(some))
        assert np.array_equal(matrix(table[f"target-{index}"]), expected)


def test_blocks_that_are_there_are_not_made_again(tmp_path):
    """Of 600 sentences in blocks of 256, one was made before the job was lost; its file tells whether it is used."""
    storage, names = run_with(tmp_path, teachers=1, sentences=600)
    task, block = mean(storage, "ct-sed/targets", names), "ct-sed/targets/000001"
    meta = {"rows": 256, "size": SIZE, "sum": [7.0 * 256] * WIDTH}

    def write(path):
        sevens = np.full((256, WIDTH), 7.0, np.float32)
        pq.write_table(with_column(sentences(storage).slice(256, 256), "target", sevens), path / "block.parquet")

    storage.commit(block, write, task.depends, meta)
    with pytest.raises(RuntimeError, match="is not the mean of its teachers"):  # so the block was taken as it was
        average(storage, [task])
    assert block_names(storage, task.name) == ["000000", "000001", "000002"]
    storage.remove(block)
    assert block_names(storage, task.name) == ["000000", "000002"]
    average(storage, [task])
    found = matrix(blocks_of(storage, task.name).read(0, 600)["target"])
    assert np.abs(found - plain_mean(storage, names)).max() < 1e-6


def test_a_table_that_lacks_rows_is_refused(tmp_path):
    """Whatever blocks say of themselves is compared with the sentences of the corpus."""
    storage, names = run_with(tmp_path, teachers=1, sentences=60)
    meta = {"rows": 40, "size": SIZE, "sum": [0.0] * WIDTH}
    storage.commit("t/000000", lambda path: (path / "block.parquet").touch(), {}, meta)
    inputs = {**mean(storage, "t", names).inputs, "blocks": BlocksRef("t", 1, SIZE, 60)}
    with pytest.raises(RuntimeError, match="60 sentences were embedded, but the blocks have 40"):
        Task("t", "", mean_targets, {}, {"precision": "fp32"}, inputs).run(storage, Context())


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
    assert "000001" not in block_names(storage, "ct-sed/targets")


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

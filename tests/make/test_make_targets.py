"""The streamed mean of teachers against the plain one."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.linalg import orthogonal_procrustes
from transformers import AutoModel, BertConfig, BertModel

import raysed.make.targets
from raysed.cluster.blocks import BlockTables, Stream, chain_of, make_blocks_here
from raysed.config import CombinationConfig, EncoderConfig
from raysed.context import Context, ignore
from raysed.data.parquet import ROWS_PER_GROUP, BlockFiles, SentenceTable, matrix, with_column
from raysed.data.targets import MEAN, TARGET_FILE
from raysed.data.tokens import SENTENCE_SCHEMA, TokenTable
from raysed.errors import UserError
from raysed.made import BlockShape, Made, Step, resolve_input
from raysed.make.targets import (
    COMBINATION,
    CombinedBlocks,
    MeanBlocks,
    combination,
    mean_targets,
    teacher_products,
    teacher_sum,
    verify_targets,
)
from raysed.model.combination import Combination
from raysed.model.head import START
from raysed.store.storage import Storage
from raysed.train.stages.sed import SedConfig

VOCABULARY, WIDTH = 50, 16
CONFIG = BertConfig(
    vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)


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


def mean(storage: Storage, name: str, teachers: list[str], precision: str = "fp32") -> Step:
    inputs = {"corpus": Made("corpus"), "teachers": [Made(teacher) for teacher in teachers], "encoder": EncoderConfig()}
    settings = {"precision": "fp32", "target_precision": precision}
    return Step(name, name, mean_targets, {"teachers": teachers}, settings, inputs)


SIZE = 256


def average(storage: Storage, tasks: list[Step]) -> None:
    """Makes target tables in this process."""
    rows, depends = len(SentenceTable(storage.fetch("corpus"))), {task.name: task.depends for task in tasks}
    tables = BlockTables("average", "corpus", depends, MeanBlocks.columns, MeanBlocks.kept, rows, SIZE)
    chain = chain_of(tasks, "average", 1)
    make_blocks_here(Stream(tables, tables.missing(storage), chain, MeanBlocks, Context()), storage, ignore)
    for task in tasks:
        inputs = {**task.inputs, "blocks": BlockShape(task.name, -(-rows // SIZE), SIZE, rows)}
        Step(task.name, "", mean_targets, task.depends, task.settings, inputs).run(storage, Context())


def blocks_of(storage: Storage, name: str) -> BlockFiles:
    return resolve_input(Made(name), storage)


@pytest.mark.parametrize(("precision", "kind", "most"), [("fp32", pa.float32(), 1e-6), ("fp16", pa.float16(), 1e-3)])
def test_the_streamed_mean_is_the_plain_mean(tmp_path, precision, kind, most):
    """Two ensembles in one pass: every id once, in order, and the mean to the precision that targets are kept in."""
    storage, names = run_with(tmp_path, teachers=3, sentences=300)
    ensembles = {"all": names, "two": names[1:]}
    average(storage, [mean(storage, *of, precision) for of in ensembles.items()])
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


@pytest.mark.parametrize("stages", [(4,), (1, 1, 1, 1), (2, 2, 0)])
def test_any_chain_of_stages_gives_the_plain_sum_and_mean(tmp_path, monkeypatch, stages):
    """Bit for bit; the last stage may only divide."""
    monkeypatch.setitem(raysed.make.targets._SENTENCES_AT_ONCE, "cpu", 17)
    storage, names = run_with(tmp_path, teachers=4, sentences=50)
    paths, table = [storage.fetch(name) for name in names], sentences(storage)
    about = {"encoder": EncoderConfig()}

    def part(count: int, counts: list[int]) -> MeanBlocks:
        inputs = {**about, "part": [(0, path) for path in paths[:count]], "counts": counts}
        return MeanBlocks(inputs, {"target_precision": "fp32"}, Context())

    for count in stages[:-1]:
        table, paths = part(count, [])(table), paths[count:]
    summed, divided = (part(stages[-1], counts)(table) for counts in ([], [4]))
    expected = plain_sum(storage, names, at_once=17)
    assert np.array_equal(matrix(summed["target-0"]), expected)
    assert np.array_equal(matrix(divided["target-0"]), expected / np.float32(4))


@pytest.mark.parametrize("groups", [1, 5])
def test_tables_of_one_pass_have_the_mean_that_each_has_alone(tmp_path, groups):
    """However many groups of teachers there are."""
    storage, names = run_with(tmp_path, teachers=3, sentences=40)
    tasks = [mean(storage, "all", names), mean(storage, "two", names[1:])]
    table = sentences(storage)
    for task, _ in chain_of(tasks, "average", groups):
        table = MeanBlocks(task.resolve_inputs(storage), task.settings, Context())(table)
    for index, some in enumerate((names, names[1:])):
        expected = plain_sum(storage, some) / np.float32(len(some))
        assert np.array_equal(matrix(table[f"target-{index}"]), expected)


def test_a_table_that_lacks_rows_is_refused(tmp_path):
    """Whatever blocks say of themselves is compared with the sentences of the corpus."""
    storage, names = run_with(tmp_path, teachers=1, sentences=60)
    meta = {"rows": 40, "size": SIZE, "sum": [0.0] * WIDTH}
    storage.commit("t/000000", lambda path: (path / "block.parquet").touch(), {}, meta)
    inputs = {**mean(storage, "t", names).inputs, "blocks": BlockShape("t", 1, SIZE, 60)}
    with pytest.raises(RuntimeError, match="60 sentences were embedded, but the blocks have 40"):
        Step("t", "", mean_targets, {}, {"precision": "fp32"}, inputs).run(storage, Context())


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


def test_a_target_of_another_sentence_is_found(tmp_path, request):
    """Re-encoding rows, with one teacher in memory, must notice that two sentences' vectors were swapped."""
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
    most_alive = request.getfixturevalue("most_alive")  # from here on
    assert verify_targets(out, [storage.fetch(name) for name in names]) < 1e-5 and most_alive() == 1
    write(np.roll(right, 1, axis=0))
    with pytest.raises(RuntimeError, match="is not the mean of its teachers"):
        verify_targets(out, [storage.fetch(name) for name in names])


# -- external teachers -----------------------------------------------------------------------------------------------


def in_blocks(place: Path, x_ND: np.ndarray, size: int) -> BlockFiles:
    """Vectors as a teacher's blocks."""
    paths = []
    for start in range(0, len(x_ND), size):
        paths.append(place / f"{size}-{x_ND.shape[1]}-{start}.parquet")
        rows = pa.table({"id": np.arange(start, min(start + size, len(x_ND)))})
        pq.write_table(with_column(rows, "target", x_ND[start : start + size]), paths[-1])
    return BlockFiles(place, [partial(nullcontext, path) for path in paths], lambda: [], size, len(x_ND))


@pytest.mark.parametrize("head", [None, "keep"])
def test_targets_of_teachers_do_not_depend_on_the_size_of_blocks_and_are_the_plain_map(tmp_path, head):
    """Bit for bit, over more than one group of rows; products are summed in parts."""
    rows = ROWS_PER_GROUP + 700
    storage = Storage(str(tmp_path / "runs"), "run")
    save_corpus(storage, rows)
    rng, encoder, corpus = np.random.default_rng(1), EncoderConfig(), storage.fetch("corpus")
    vectors = [rng.normal(size=(rows, width)).astype(np.float32) for width in (200, 40)]
    about = {"combination": CombinationConfig(turn=True if head is None else None), "widths": [200, 40]}
    about |= {"sed": SedConfig(head=head), "target_precision": "fp32"}
    found = {}
    for size in (256, ROWS_PER_GROUP):
        place = tmp_path / str(size)
        place.mkdir()
        inputs = {f"teacher {index}": in_blocks(place, x_ND, size) for index, x_ND in enumerate(vectors)}
        parts = [place / "first", place / "second"]
        for part, (start, stop) in zip(parts, ((0, ROWS_PER_GROUP), (ROWS_PER_GROUP, 10**9))):
            part.mkdir()
            teacher_products(part, inputs, {**about, "start": start, "stop": stop}, Context())
        inputs |= {"products": [] if head else parts, "corpus": corpus, "encoder": encoder, "start": None}
        meta = combination(place, inputs, about, Context())
        blocks = CombinedBlocks({**inputs, "combination": place}, about, Context())
        tables = [blocks(sentences(storage).slice(start, size)) for start in range(0, rows, size)]
        found[size] = np.concatenate([matrix(table["target"]) for table in tables])
    assert np.array_equal(found[256], found[ROWS_PER_GROUP])
    assert (place / START).exists() == bool(head) and meta["teachers"] == 2

    unit = [x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True) for x_ND in vectors]
    plain = np.concatenate(unit, axis=1) / np.sqrt(2)
    if head:
        np.testing.assert_allclose(found[256], plain, atol=1e-6)
        return
    _, _, directions = np.linalg.svd(plain.astype(np.float64), full_matrices=False)
    projected = plain @ directions[: meta["width"]].T  # the best of this width, up to a turn
    assert meta["width"] == 192 < 240
    np.testing.assert_allclose(found[256][:300] @ found[256][:300].T, projected[:300] @ projected[:300].T, atol=1e-4)


def test_targets_turn_to_an_old_models_vectors_and_keep_their_cosines(tmp_path):
    storage, rng = Storage(str(tmp_path / "runs"), "run"), np.random.default_rng(2)
    save_corpus(storage, 300)
    x_ND = rng.normal(size=(300, 192)).astype(np.float32)
    old_ND = (x_ND @ np.linalg.qr(rng.normal(size=(192, 192)))[0] + rng.normal(size=(300, 192))).astype(np.float32)
    inputs = {"teacher 0": in_blocks(tmp_path, x_ND, 256), "products": [], "corpus": storage.fetch("corpus")}
    inputs |= {"encoder": EncoderConfig(), "start": None}
    (tmp_path / "old").mkdir()
    targets = {}
    for is_turned, more in ((False, {}), (True, {"old": in_blocks(tmp_path / "old", old_ND, 128)})):
        settings = {"combination": CombinationConfig(turn=is_turned), "widths": [192], "sed": SedConfig()}
        combination(tmp_path, {**inputs, **more}, settings, Context())
        targets[is_turned] = Combination.load(tmp_path / COMBINATION).target([x_ND]).astype(np.float64)
    np.testing.assert_allclose(targets[True] @ targets[True].T, targets[False] @ targets[False].T, atol=1e-6)
    unit_ND = old_ND / np.linalg.norm(old_ND, axis=1, keepdims=True)
    turn_DD = orthogonal_procrustes(targets[False], unit_ND.astype(np.float64))[0]
    np.testing.assert_allclose(targets[True], targets[False] @ turn_DD, atol=1e-6)
    before, after = ((targets[is_turned] * unit_ND).sum(1).mean() for is_turned in (False, True))
    assert after > 0.6 > 0.1 > before

"""A run with queries: roles in the table, prompts of teachers and learner, the export and the report."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer
from started_jobs import small_tasks

import raysed
from raysed import bundled
from raysed.config import make_config
from raysed.context import Context
from raysed.data.parquet import SentenceTable, Source
from raysed.made import Made, resolve_input
from raysed.make import fidelity as make_fidelity
from raysed.model.pretrained import text_tokenizer
from raysed.model.teacher import load_teacher
from raysed.store.storage import Storage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("blank_pictures")]

TASKS = dict(zip(("dev", "test"), small_tasks().values()))


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    directory = tmp_path_factory.mktemp("roles")
    texts = bundled.corpus()[:400]
    (directory / "texts.txt").write_text("\n".join(texts[:240]))
    (directory / "queries.txt").write_text("\n".join([*texts[240:], texts[0], texts[240]]))
    return {
        "run": "roles",
        "storage": str(directory / "runs"),
        "recipes": ["teachers-sed"],
        "teachers": [{"path": "bundled:encoder", "query_prompt": "ask: ", "document_prompt": "read: "}],
        "encoder": {
            "model_kwargs": {"num_hidden_layers": 1},
            "pool_layers": 1,
            "query_prompt": "Q ",
            "document_prompt": "D ",
        },
        "corpus": {"source": str(directory / "texts.txt"), "queries": str(directory / "queries.txt")},
        "evaluation": {"tasks": TASKS, "dev": "dev", "pool_layers": [1]},
        "sed": {"loss": "unit_mse", "learning_rate": 1e-3, "epochs": 0.3, "checkpoint": "best_on_held_out"},
        "export": {"allow_worse": True},
        "resources": {"encode_precision": "fp32", "engine": "local"},
    }


@pytest.fixture(scope="module")
def result(settings):
    return raysed.run(settings)


def made(settings, name: str) -> Source:
    return resolve_input(Made(name), Storage(settings["storage"], "roles"))


def rows_of(settings) -> pa.Table:
    return pq.read_table(made(settings, "corpus"))


def test_queries_follow_the_sentences_and_have_tokens_with_the_learners_prompts(result, settings):
    """A query may equal a sentence; of equal queries there is one."""
    rows, texts = rows_of(settings), bundled.corpus()[:400]
    assert rows["role"].to_pylist() == ["document"] * 240 + ["query"] * 161
    assert rows["sentence"].to_pylist() == [*texts, texts[0]] and rows["id"].to_pylist() == list(range(401))
    prompted = [f"{'D' if row < 240 else 'Q'} {text}" for row, text in enumerate(rows["sentence"].to_pylist())]
    expected = text_tokenizer(make_config(settings).encoder)(prompted).input_ids
    assert np.array_equal(np.concatenate(rows["input_ids"].to_numpy()), expected)


def test_teachers_embed_each_text_with_their_prompt_of_its_role(result, settings):
    rows, (block,) = rows_of(settings), make_config(settings).teachers
    teacher, texts = load_teacher(block), rows["sentence"].to_pylist()
    expected_ND = np.concatenate([teacher.embed(texts[:240], "document"), teacher.embed(texts[240:], "query")])
    targets = SentenceTable(made(settings, "teachers-sed/targets")).rows(0, 401, ("target",))["target"]
    found_ND = np.stack(targets.to_numpy())
    np.testing.assert_allclose(found_ND, expected_ND / np.linalg.norm(expected_ND, axis=1, keepdims=True), atol=1e-5)


def test_the_export_keeps_the_prompts_and_queries_search_in_the_report(result):
    model = SentenceTransformer(result.path)
    assert model.prompts == {"query": "Q ", "document": "D "}
    assert np.allclose(model.encode_query("why"), model.encode("Q why"), atol=1e-6)
    assert "161 queries search 240 texts" in str(result.report)
    assert "encode_query" in Path(result.path, "README.md").read_text()


def test_few_queries_are_compared_in_a_large_corpus(result, settings, monkeypatch, tmp_path):
    """Of which only parts are read: of texts and of queries, which come behind them."""
    monkeypatch.setattr(make_fidelity, "_DOCUMENTS", 100)
    inputs = {"corpus": made(settings, "corpus"), "targets": made(settings, "teachers-sed/targets")}
    inputs |= {"encoder": make_config(settings).encoder, "model": made(settings, "teachers-sed/learners/00")}
    found = make_fidelity.learner_fidelity(tmp_path, inputs, {"layers": 1}, Context())
    assert (found["documents"], found["queries"], found["asked_by"]) == (100, 100, "queries")

"""Training for search: queries made from texts, negatives that teachers agree on, prompts, and the report."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer
from started_jobs import artefact, small_tasks

import raysed
from raysed import bundled
from raysed.config import make_config
from raysed.context import Context
from raysed.data.candidates import CANDIDATES, NONE
from raysed.errors import UserError
from raysed.make import fidelity as make_fidelity
from raysed.model.teacher import load_teacher
from raysed.plan.consistency import check_settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("blank_pictures")]

TASKS = dict(zip(("dev", "test"), small_tasks().values()))
PROMPTS = {"query_prompt": "ask: ", "document_prompt": "read: "}
SEARCH = {"queries": ["titles", "crops"], "margin": 0.2, "query_prompt": "Q ", "document_prompt": "D "}


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    directory = tmp_path_factory.mktemp("search")
    texts = bundled.corpus()[:480]
    passages = [{"title": f"about {i}", "text": " ".join(texts[2 * i : 2 * i + 2])} for i in range(240)]
    (directory / "passages.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in passages))
    return {
        "run": "search",
        "storage": str(directory / "runs"),
        "recipes": ["teachers-sed"],
        "teachers": ["bundled:encoder", {"path": "bundled:raw", **PROMPTS}],
        "encoder": {"model_kwargs": {"num_hidden_layers": 1}, "layers": 1},
        "corpus": {"source": str(directory / "passages.jsonl")},
        "search": SEARCH,
        "evaluation": {"tasks": TASKS, "dev": "dev", "layers": [1]},
        "sed": {"loss": ["unit_mse", "scores"], "learning_rate": 1e-3, "epochs": 0.3, "keep": "best_on_held_out"},
        "export": {"allow_worse": True},
        "resources": {"encode_precision": "fp32", "engine": "local"},
    }


@pytest.fixture(scope="module")
def result(settings):
    return raysed.run(settings)


def run_of(settings) -> Path:
    return Path(settings["storage"], "search")


def corpus_of(settings) -> pa.Table:
    return pq.read_table(artefact(run_of(settings), "corpus"))


def test_candidates_are_what_the_teachers_say(result, settings):
    """Teachers embed by role; a negative is worse than the query's own text for both of them together."""
    table = corpus_of(settings)
    texts, ids, of = table["sentence"].to_pylist(), table["id"].to_numpy(), table["of"].to_numpy()
    vectors = []
    for block in make_config(settings).teachers:
        teacher = load_teacher(block)
        queries_ND, documents_ND = (teacher.embed(texts, role) for role in ("query", "document"))
        parts = np.where((ids == of)[:, None], documents_ND, queries_ND)
        vectors.append(parts / np.linalg.norm(parts, axis=1, keepdims=True))
    x = np.concatenate(vectors, axis=1) / np.sqrt(len(vectors))
    rows = np.load(artefact(run_of(settings), "teachers-sed/candidates") / CANDIDATES)
    asked = rows[of[rows[:, 0]] != rows[:, 0]]
    assert (of[asked[:, 0]] == asked[:, 1]).all() and len(asked) == (ids != of).sum() > 240
    for query, own, *negatives in asked[::7]:
        for negative in (row for row in negatives if row != NONE):
            assert of[negative] == negative
            assert x[query] @ x[negative] < (1 - SEARCH["margin"]) * (x[query] @ x[own]) + 2e-3
    assert (rows[:, 2:] != NONE).sum() > 100


def test_the_export_and_the_report_say_what_it_is_for(result, settings):
    model = SentenceTransformer(result.path)
    assert model.prompts == {"query": "Q ", "document": "D "}
    assert np.allclose(model.encode_query("why"), model.encode("Q why"), atol=1e-6)
    (about,) = result.report["fidelity"]
    assert about["asked_by"] == "queries" and about["documents"] == 240 and about["mined"]["queries"]
    assert "queries search 240 texts" in str(result.report)
    assert "encode_query" in Path(result.path, "README.md").read_text()


def test_few_queries_are_compared_in_a_large_corpus(result, settings, monkeypatch, tmp_path):
    """Of which only parts are read: of texts and of queries, which come behind them."""
    monkeypatch.setattr(make_fidelity, "_DOCUMENTS", 100)
    inputs = {name: artefact(run_of(settings), name) for name in ("corpus", "teachers-sed/targets")}
    inputs |= {"targets": inputs["teachers-sed/targets"], "encoder": make_config(settings).encoder}
    inputs["model"] = artefact(run_of(settings), "teachers-sed/learners/00")
    found = make_fidelity.learner_fidelity(tmp_path, inputs, {"layers": 1}, Context())
    assert (found["documents"], found["queries"], found["asked_by"]) == (100, 100, "queries")


def test_another_margin_asks_no_teacher_again(result, settings):
    """And trains anew; without queries the texts are embedded as they are."""
    rows = artefact(run_of(settings), "teachers-sed/targets")
    again = raysed.run({**settings, "search": {**SEARCH, "negatives": 1}})
    assert artefact(run_of(settings), "teachers-sed/targets") == rows
    mined = again.report["fidelity"][0]["mined"]
    assert mined["nearest"] == result.report["fidelity"][0]["mined"]["nearest"] / 2
    assert again.scores != result.scores


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"search": {"query_prompt": "ask: "}}, "search.query_prompt is set, but there are no queries"),
        ({"recipes": ["teachers-sed", "ct-sed"]}, "search works only with teachers-sed; remove ct-sed from recipes"),
        ({"search": {"queries": ["crops", "crops"]}}, "list each once"),
    ],
)
def test_settings_that_contradict_each_other(settings, changes, said):
    with pytest.raises(UserError, match=said):
        check_settings(make_config({**settings, **changes}))

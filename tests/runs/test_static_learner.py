"""A table of token vectors learns from a teacher, from the command to the exported model."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from started_jobs import artefact, small_tasks

import raysed
from raysed.model.load import load_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("blank_pictures")]

_MADE = ("encoder/start", "teachers-sed/learners/00")


def test_a_table_learns_and_is_exported(tmp_path, caplog):
    tasks = small_tasks()
    options = {
        "teachers": ["bundled:encoder"],
        "corpus": "bundled:generated-text",
        "static": True,
        "dev": tasks["generated-dev"],
        "tasks": [tasks["generated-test"]],
        "storage": str(tmp_path),
        "run": "distilled",
    }
    settings = {
        "recipes": ["teachers-sed", "teachers-sed-whiten"],
        "encoder": {"static": {"width": 32}},
        "corpus": {"sentences": 600},
        "sed": {"batch_size": 32, "epochs": 4},
        "export": {"recipe": "teachers-sed-whiten"},
    }
    first = raysed.distill(**options, settings=settings)
    directory = tmp_path / "distilled"
    weights = {name: (artefact(directory, name) / "model.safetensors").read_bytes() for name in _MADE}
    assert len(set(weights.values())) == len(_MADE)
    history = (artefact(directory, "teachers-sed/learners/00") / "history.jsonl").read_text().splitlines()
    assert sum('"dev"' in line for line in history) > 6, "a short training is evaluated, too"
    losses = [entry["loss"] for entry in map(json.loads, history) if "loss" in entry]
    assert losses[-1] < 0.7 * losses[0]

    assert load_model(first.path).embed(["A sentence."]).shape == (1, 32)
    scored = raysed.evaluate(first.path, [tasks["generated-test"]])["models"][0]["metrics"]["test"]["spearman"]
    assert scored == pytest.approx(first.scores["teachers-sed-whiten/learner"]["mean"], abs=0.05)
    modules = json.loads((Path(first.path) / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["StaticEmbedding", "Dense"]

    texts = pq.read_table(artefact(directory, "corpus"))["sentence"].to_pylist()
    expected, before = first.model.encode(texts), len(first.model.tokenizer.get_vocab())
    settings["encoder"]["vocabulary"] = "corpus"
    with caplog.at_level("INFO", "raysed"):
        second = raysed.distill(**options, settings=settings)
    assert weights == {name: (artefact(directory, name) / "model.safetensors").read_bytes() for name in _MADE}
    assert "Scores are those of the full vocabulary" in (directory / "report.md").read_text()
    after = len(second.model.tokenizer.get_vocab())
    assert after < before and f"vocabulary: {before:,} tokens become {after:,}, " in caplog.text
    np.testing.assert_allclose(second.model.encode(texts), expected, atol=1e-5)
    assert second.model[0].embedding.num_embeddings == after

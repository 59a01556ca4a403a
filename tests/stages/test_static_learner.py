"""A table of token vectors learns from a teacher, from the command to the exported model."""

import json
from pathlib import Path

import numpy as np
import pytest

import raysed
from raysed.model.load import load_model
from raysed.model.static import StaticVectors

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.mark.parametrize("width", [None, 12])
def test_a_table_learns_and_is_exported(ray_cluster, tiny_encoder_dir, tmp_path, width):
    options = {
        "teachers": ["bundled:encoder"],
        "corpus": "bundled:everyday",
        "learner": str(tiny_encoder_dir),
        "static": True,
        "dev": "bundled:dev",
        "tasks": ["bundled:test"],
        "storage": str(tmp_path),
        "settings": {
            "recipes": ["teachers-sed", "teachers-sed-whiten"],
            "encoder": {"static": {"width": width}},
            "corpus": {"sentences": 1500},
            "export": {"recipe": "teachers-sed-whiten" if width else "teachers-sed"},
        },
    }
    result = raysed.distill(**options)
    directory = tmp_path / "distilled"
    weights = {name: (directory / name / "model.safetensors").read_bytes() for name in _MADE}
    assert len(set(weights.values())) == len(_MADE)

    scores = result.scores
    assert scores["teachers-sed/learner"] > scores["base/base"] + 5  # whose rows are those of random weights
    model = load_model(result.model)
    assert isinstance(model.encoder.transformer, StaticVectors) and model.encoder.width == (width or 16)
    scored = raysed.evaluate(result.model, ["bundled:test"])["test"]["spearman"]
    exported = "teachers-sed-whiten/learner" if width else "teachers-sed/learner"
    assert scored == pytest.approx(scores[exported], abs=0.05)
    modules = json.loads((Path(result.model) / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["StaticEmbedding", "Dense"][: 1 + bool(width)]

    table = raysed.distill(**{**options, "settings": {**options["settings"], "sed": {"epochs": 4}}})
    assert table.scores["base/base"] == scores["base/base"]
    again = (directory / "encoder/start/model.safetensors").read_bytes()
    assert again == weights["encoder/start"], "what it starts from is not made again"
    assert np.isfinite(list(table.scores.values())).all()


_MADE = ("encoder/start", "teachers-sed/learners/00")

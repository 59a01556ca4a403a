"""Teachers that come with code: it runs if a setting allows it, and is part of what identifies them."""

import json
import shutil

import numpy as np
import pytest

from raysed.config import TeacherConfig
from raysed.errors import UserError
from raysed.model.teacher import load_teacher

CODE = """
from transformers import BertConfig, BertModel
class OwnConfig(BertConfig):
    model_type = "own"
class OwnModel(BertModel):
    config_class = OwnConfig
    def forward(self, *arguments, **named):
        found = super().forward(*arguments, **named)
        found.last_hidden_state = FACTOR * found.last_hidden_state
        return found
"""
SENTENCES = ["The cat sat.", "A dog ran under the tree."]


@pytest.fixture
def own(tiny_encoder_dir, tmp_path, monkeypatch):
    """A directory whose code doubles the vectors of the tokens, and the vectors of the model without it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    path = shutil.copytree(tiny_encoder_dir, tmp_path / "model")
    plain = load_teacher(TeacherConfig(path=str(path), max_length=16)).embed(SENTENCES)
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": auto_map}))
    (path / "own.py").write_text(CODE.replace("FACTOR", "2"))
    return path, plain


def trusted(path, **settings):
    return load_teacher(TeacherConfig(path=str(path), max_length=16, trust_remote_code=True, **settings))


def test_it_runs_only_if_trusted(own):
    path, plain = own
    with pytest.raises(
        UserError, match=r"custom code.*; set teachers\.trust_remote_code to run the code that comes with it$"
    ):
        load_teacher(TeacherConfig(path=str(path))).check()
    teacher = trusted(path)
    teacher.check()
    np.testing.assert_allclose(teacher.embed(SENTENCES), 2 * plain, atol=1e-5)
    with pytest.raises(UserError, match=r"layers is 2, but a model with trust_remote_code is pooled over its last"):
        trusted(path, layers=2).check()


def test_it_identifies_the_teacher(own):
    path, _ = own
    before, without = trusted(path).identity, load_teacher(TeacherConfig(path=str(path), max_length=16)).identity
    (path / "own.py").write_text(CODE.replace("FACTOR", "3"))
    assert len({before, without, trusted(path).identity}) == 3
    assert load_teacher(TeacherConfig(path=str(path), max_length=16)).identity == without

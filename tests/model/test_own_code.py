"""Models that come with code: it runs if a setting allows it, is part of what identifies them, and is exported."""

import json
import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from raysed.api import Result
from raysed.config import EncoderConfig, TeacherConfig
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.make.targets import teacher_sum
from raysed.model.encoding import encode
from raysed.model.library import export_model, parity
from raysed.model.pretrained import load_encoder, load_start, save_encoder
from raysed.model.teacher import load_teacher
from raysed.report.card import has_own_code
from raysed.store.storage import Storage

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
TRUSTING = {"trust_remote_code": True}


@pytest.fixture
def own(tiny_encoder_dir, tmp_path, monkeypatch):
    """A directory whose code doubles the vectors of the tokens, and the vectors of the model without it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    path = shutil.copytree(tiny_encoder_dir, tmp_path / "model")
    plain = load_teacher(TeacherConfig(path=str(path), max_length=16)).embed(SENTENCES)
    auto_map = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    config = json.loads((path / "config.json").read_text())
    own = {"model_type": "own", "architectures": ["OwnModel"], "auto_map": auto_map}
    (path / "config.json").write_text(json.dumps(config | own))
    (path / "own.py").write_text(CODE.replace("FACTOR", "2"))
    return path, plain


def trusted(path, **settings):
    return load_teacher(TeacherConfig(path=str(path), max_length=16, **TRUSTING, **settings))


def test_it_runs_only_if_trusted(own):
    path, plain = own
    with pytest.raises(
        UserError, match=r"custom code.*; set teachers\.trust_remote_code to run the code that comes with it$"
    ):
        load_teacher(TeacherConfig(path=str(path))).check()
    teacher = trusted(path)
    teacher.check()
    np.testing.assert_allclose(teacher.embed(SENTENCES), 2 * plain, atol=1e-5)
    with pytest.raises(UserError, match=r"pool_layers is 2, but trust_remote_code pools the last layer"):
        trusted(path, pool_layers=2).check()


def test_it_identifies_the_teacher(own):
    path, _ = own
    before, without = trusted(path).identity, load_teacher(TeacherConfig(path=str(path), max_length=16)).identity
    (path / "own.py").write_text(CODE.replace("FACTOR", "3"))
    assert len({before, without, trusted(path).identity}) == 3
    assert load_teacher(TeacherConfig(path=str(path), max_length=16)).identity == without


def test_an_encoder_keeps_it_as_an_artefact_of_a_run_and_as_an_exported_model(own, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "n")
    path, plain = own
    storage, model = Storage(str(tmp_path / "runs"), "run"), tmp_path / "exported"
    loaded = load_encoder(EncoderConfig(path=str(path), max_length=16, **TRUSTING))
    storage.commit("member", lambda place: save_encoder(*loaded, place), {})
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_start(EncoderConfig(), storage.fetch("member"))
    encoder, tokenizer = load_start(EncoderConfig(**TRUSTING), storage.fetch("member"))
    tokens = tokenize(tokenizer, SENTENCES, 16)
    np.testing.assert_allclose(encode(encoder, tokens)[0], 2 * plain, atol=1e-5)
    export_model(encoder, tokenizer, model, layers=1, max_length=16, calibration=None)
    assert (model / "own.py").exists() and has_own_code(model)
    assert parity(model, SENTENCES, 2 * plain, **TRUSTING) < 1e-5
    storage.commit("model", lambda place: shutil.copytree(model, place, dirs_exist_ok=True), {})
    for trusts in (True, False):
        says = {"config": {"encoder": {"trust_remote_code": not trusts}}}  # which others may write
        storage.write_text("report.json", json.dumps(says))
        with nullcontext() if trusts else pytest.raises(ValueError, match="trust_remote_code"):
            np.testing.assert_allclose(Result(storage, trusts).model.encode(SENTENCES), 2 * plain, atol=1e-5)
    sums = teacher_sum([storage.fetch("member")] * 2, **TRUSTING)
    np.testing.assert_allclose(sums(tokens), 4 * plain, atol=1e-5)

"""ONNX files as teachers: they give the vectors of the model they were made from, and what does not fit is refused."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from raysed.config import TeacherConfig
from raysed.errors import UserError
from raysed.model.formats import write_formats
from raysed.model.library import export_model
from raysed.model.teacher import Teacher, default_learner, kind_of, load_teacher

MAX_LENGTH = 12
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs pip install 'raysed[onnx]'",
)


def asked(path: Path, **settings) -> Teacher:
    teacher = load_teacher(TeacherConfig(path=str(path), **settings))
    teacher.check()
    return teacher


@pytest.fixture(scope="module")
def exported(make_encoder, tiny_encoder_dir, tmp_path_factory) -> Path:
    """A model of sentence-transformers with weights for torch, and the same transformer as ONNX."""
    path = tmp_path_factory.mktemp("exported")
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder_dir)
    export_model(make_encoder("bert", 2), tokenizer, path, layers=1, max_length=MAX_LENGTH, calibration=None)
    modules = json.loads((path / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (path / "modules.json").write_text(json.dumps(modules))
    write_formats(path, ["onnx", "int8"])
    return path


@pytest.fixture
def without_torch(exported, tmp_path) -> Path:
    copy = tmp_path / "onnx-only"
    shutil.copytree(exported, copy, ignore=shutil.ignore_patterns("*.safetensors", "model_qint8*"))
    return copy


def set_pooling(directory: Path, mode: str) -> None:
    path = directory / "1_Pooling" / "config.json"
    settings = {key: False for key in json.loads(path.read_text()) if key.startswith("pooling_mode_")}
    width = json.loads((directory / "config.json").read_text())["hidden_size"]
    path.write_text(json.dumps({**settings, "word_embedding_dimension": width, f"pooling_mode_{mode}": True}))


@needs_onnx
@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "max_tokens"])
def test_onnx_runtime_gives_the_vectors_of_torch(exported, without_torch, sentences, tmp_path, mode):
    """Pooling and normalisation as modules say; sentences of any lengths, in any order, cut at the same token."""
    shutil.copytree(exported, tmp_path / "torch")
    for directory in (tmp_path / "torch", without_torch):
        set_pooling(directory, mode)
    texts = [*sentences, " ".join(sentences[:8]), "cat"]
    expected_ND = asked(tmp_path / "torch", prompt="the big ").embed(texts)
    teacher = asked(without_torch, prompt="the big ")
    teacher.token_budget = 40  # several passes
    np.testing.assert_allclose(teacher.embed(texts), expected_ND, atol=1e-4 * np.abs(expected_ND).max())
    np.testing.assert_allclose(np.linalg.norm(expected_ND, axis=1), 1, rtol=1e-5)
    assert teacher.width == expected_ND.shape[1]


@needs_onnx
def test_weights_for_torch_come_first_and_a_file_can_be_named(exported, without_torch, sentences):
    assert kind_of(str(exported)).__name__ == "ModelTeacher"
    assert kind_of(str(without_torch)).__name__ == "OnnxModel"
    assert default_learner([str(without_torch), str(exported)])["path"] == str(exported)
    expected_ND = asked(exported).embed(sentences)
    plain, small = (asked(file).embed(sentences) for file in sorted((exported / "onnx").iterdir()))
    np.testing.assert_allclose(plain, expected_ND, atol=1e-5)
    assert 1e-5 < np.abs(small - expected_ND).max() < 0.1


@needs_onnx
def test_without_modules_it_is_the_mean_over_tokens(exported, without_torch, sentences, make_encoder, tmp_path):
    """Tokens are then counted by `max_length`; a pooling that is there all the same is followed."""
    for name in ("modules.json", "config_sentence_transformers.json", "config.json"):
        (without_torch / name).unlink()
    mean_ND = asked(without_torch, max_length=MAX_LENGTH).embed(sentences)
    shutil.rmtree(without_torch / "1_Pooling")
    np.testing.assert_allclose(asked(without_torch, max_length=MAX_LENGTH).embed(sentences), mean_ND, atol=1e-6)
    expected_ND = asked(exported).embed(sentences)
    np.testing.assert_allclose(mean_ND / np.linalg.norm(mean_ND, axis=1, keepdims=True), expected_ND, atol=1e-5)
    assert not np.allclose(asked(without_torch, max_length=4).embed(sentences), mean_ND)


@needs_onnx
def test_it_is_known_by_its_files_and_by_how_it_is_asked(without_torch):
    before = asked(without_torch).identity
    (without_torch / "README.md").write_text("words")
    shutil.copy(without_torch / "onnx" / "model.onnx", without_torch / "onnx" / "another.onnx")
    assert asked(without_torch, name="another name").identity == before
    identities = {before, asked(without_torch, prompt="the ").identity}
    set_pooling(without_torch, "cls_token")
    identities.add(asked(without_torch).identity)
    with (without_torch / "onnx" / "model.onnx").open("ab") as file:
        file.write(b"\x72\x01x")  # a field that no reader knows
    identities.add(load_teacher(TeacherConfig(path=str(without_torch))).identity)
    assert len(identities) == 4


def graph(file: Path, shape=("batch", "length"), outputs=("last_hidden_state",), inputs=("input_ids",), pooled=False):
    """Write a graph that looks up a vector for each token, of a table of three dimensions."""
    from onnx import TensorProto, helper, numpy_helper, save

    table = numpy_helper.from_array(np.arange(600, dtype=np.float32).reshape(200, 3), "table")
    nodes = [helper.make_node("Gather", ["table", inputs[0]], [outputs[0] if not pooled else "tokens"])]
    if pooled:
        nodes.append(helper.make_node("ReduceMax", ["tokens", "axes"], [outputs[0]], keepdims=0))
    axes = numpy_helper.from_array(np.array([1]), "axes")
    given = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in inputs]
    found = [helper.make_tensor_value_info(outputs[0], TensorProto.FLOAT, None)]
    body = helper.make_graph(nodes, "lookup", given, found, [table, axes])
    save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), file)


@pytest.fixture
def looked_up(tiny_tokenizer, tmp_path):
    def write(**about) -> Path:
        tiny_tokenizer.save_pretrained(tmp_path)
        graph(tmp_path / "model.onnx", **about)
        return tmp_path

    return write


@needs_onnx
def test_a_graph_that_pools_is_taken_at_its_word(looked_up, tiny_tokenizer):
    path = looked_up(outputs=["sentence_embedding"], pooled=True)
    found_ND = asked(path).embed(["the cat sat"])
    assert found_ND.tolist() == [[3 * max(tiny_tokenizer("the cat sat")["input_ids"]) + i for i in range(3)]]


@needs_onnx
@pytest.mark.parametrize(
    ("about", "problem"),
    [
        (
            {"outputs": ["logits"]},
            r"has the outputs logits; one must be called last_hidden_state, token_embed",
        ),
        (
            {"pooled": True},
            r"its output last_hidden_state has the shape \[2, 3\] for 2 sentences of up to 75 tokens",
        ),
        (
            {"outputs": ["sentence_embedding"]},
            r"its output sentence_embedding has the shape \[2, 75, 3\] .* \[2, w",
        ),
        ({"inputs": ["pixels"]}, r"needs the inputs pixels \(tensor\(int64\)\); it may have input_ids, attention_mask"),
        ({"shape": (1, "length")}, r"fails on two sentences of \d+ and 75 tokens \(.*\); export it for any number of "),
        ({"shape": ("batch", 32)}, r"fails on two sentences of \d+ and 75 tokens \(.*\); export it for any number of "),
    ],
)
def test_a_graph_that_does_not_fit_is_refused(looked_up, about, problem):
    path = looked_up(**about)
    with pytest.raises(UserError, match=r"^teachers: .*" + problem):
        asked(path)


@needs_onnx
def test_a_directory_that_lacks_something_is_refused(looked_up, without_torch):
    path = looked_up()
    with pytest.raises(UserError, match=r"gives its last layer only, but layers is 2; leave layers out"):
        asked(path, layers=2)
    (path / "model.onnx").rename(path / "a.onnx")
    shutil.copy(path / "a.onnx", path / "b.onnx")
    with pytest.raises(UserError, match=r"has several ONNX files; name one of them, such as .*a\.onnx"):
        asked(path)
    (path / "a.onnx").write_bytes(b"no graph")
    with pytest.raises(UserError, match=r"a\.onnx' cannot be loaded by ONNX Runtime: "):
        asked(path / "a.onnx")
    with pytest.raises(UserError, match=r"c\.onnx' is not a file"):
        asked(path / "c.onnx")
    for name in path.glob("token*.json"):
        name.unlink()
    with pytest.raises(UserError, match=r"has no tokenizer; add its files, such as tokenizer\.json, to "):
        asked(path / "b.onnx")
    (without_torch / "modules.json").write_text('[{"type": "own.Module", "path": ""}]')
    with pytest.raises(UserError, match=r"its module own\.Module is custom code, which is not run"):
        asked(without_torch)
    (without_torch / "modules.json").write_text("[")
    with pytest.raises(UserError, match=r"has modules that cannot be read: "):
        asked(without_torch)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").touch()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(UserError, match=r"^teachers: .* is run by ONNX Runtime, .*; run pip install 'raysed\[onnx\]'"):
        asked(tmp_path)

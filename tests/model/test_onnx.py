"""ONNX files, written beside an export and read as teachers: both give the vectors of the model."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import raysed.report.formats
from raysed.config import EncoderConfig, TeacherConfig
from raysed.data.graded import StsTask
from raysed.data.tokens import tokenize
from raysed.errors import RunFailed, UserError
from raysed.model.encoding import encode
from raysed.model.formats import FILES, check_formats, write_formats
from raysed.model.library import export_model
from raysed.model.load import load_model
from raysed.model.pretrained import save_encoder
from raysed.model.prompts import embed_by_role
from raysed.model.teacher import Teacher, default_learner, kind_of, load_teacher
from raysed.model.teachers import onnx
from raysed.report.formats import compare_formats
from raysed.report.sections.exported import formats_table
from raysed.score.kinds.pairs import Pairs
from raysed.score.kinds.retrieval import Retrieval
from raysed.store.storage import Storage

ALL = ["onnx", "int8", "int8_avx2"]
BLOCKS, MAX_LENGTH = 1, 12  # torch writes one block after the other, which takes seconds
Exported = tuple[Path, np.ndarray]
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs pip install 'raysed[onnx]'",
)


@pytest.fixture(scope="module")
def exported(make_encoder, tiny_encoder_dir, sentences, tmp_path_factory) -> Callable[[str, list[str]], Exported]:
    def export(architecture: str, formats: list[str]) -> Exported:
        """Writes a model in these formats; returns its directory and the vectors that they all should give."""
        path, encoder = tmp_path_factory.mktemp(architecture), make_encoder(architecture, BLOCKS)
        tokenizer = AutoTokenizer.from_pretrained(tiny_encoder_dir)
        export_model(encoder, tokenizer, path, layers=1, max_length=MAX_LENGTH, calibration=None)
        write_formats(path, formats)
        return path, encode(encoder, tokenize(tokenizer, sentences, MAX_LENGTH))[0]

    return export


@pytest.fixture(scope="module")
def bert(exported) -> Exported:
    return exported("bert", ALL)


# -- writing ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["roberta", "distilbert", "mpnet"])
def test_other_architectures_are_written(exported, sentences, architecture):
    """Sentences of all lengths, in batches of other sizes than the one that the file was written with."""
    path, expected_ND = exported(architecture, ["onnx"])
    _, row = compare_formats(path, ["onnx"], sentences, expected_ND, 1e-5, None)
    assert row["difference"] < 1e-5


def test_formats_are_measured_beside_the_one_of_torch(bert, sentences):
    path, expected_ND = bert
    gold = np.arange(len(sentences) - 1, dtype=float)
    dev = Pairs(StsTask("dev", {"all": (sentences[:-1], sentences[1:], gold)}), "all")
    rows = compare_formats(path, ALL, sentences, expected_ND, 1e-4, dev)
    assert [row["format"] for row in rows] == ["torch", *ALL]
    assert [row["bytes"] for row in rows] == [(path / row["file"]).stat().st_size for row in rows]
    by_text = dict(zip(sentences, expected_ND))
    score = dev.metrics(dev.outcome(np.array([by_text[text] for text in dev.sentences])))["spearman"]
    assert rows[0]["score"] == pytest.approx(score, abs=0.05) == rows[1]["score"]
    assert all(row["sentences_per_second"] > 0 and row["cosine"] > 0.98 for row in rows)
    assert rows[1]["difference"] < 1e-5 < rows[2]["difference"]
    lines = formats_table(rows, "dev").plain().splitlines()
    assert "onnx/model_qint8_avx512_vnni.onnx" in lines[4] and len(lines) == 6
    assert compare_formats(path, [], sentences, expected_ND, 1e-4, None) == []


def test_a_search_is_scored_with_the_prompts_of_the_learner(bert, sentences):
    path, expected_ND = bert
    ids, gains = [f"{row:02d}" for row in range(len(sentences))], [{row: 1.0} for row in range(20)]
    dev, prompts = Retrieval("dev", sentences[1:21], sentences, ids, gains), {"query": "the big ", "document": ""}
    model = replace(load_model(str(path)), prompts=prompts)
    x_UD = embed_by_role(model.embed, dev.sentences, dev.roles)
    rows = compare_formats(path, ["onnx"], sentences, expected_ND, 1e-4, dev, prompts)
    assert [row["score"] for row in rows] == [pytest.approx(dev.metrics(dev.outcome(x_UD))["ndcg@10"], abs=0.01)] * 2
    assert compare_formats(path, ["onnx"], sentences, expected_ND, 1e-4, dev)[0]["score"] != rows[0]["score"]


def test_eight_bits_are_eight_bits(bert):
    import onnx

    for name, kind in (("int8", onnx.TensorProto.INT8), ("int8_avx2", onnx.TensorProto.UINT8)):
        graph = onnx.load(bert[0] / FILES[name]).graph
        assert any(node.op_type == "MatMulInteger" for node in graph.node)
        matrices = [tensor for tensor in graph.initializer if tensor.data_type == kind and len(tensor.dims) == 2]
        assert len(matrices) >= BLOCKS * 6, "query, key, value, output and two of the feed-forward part in each block"


def test_a_file_that_says_something_else_is_refused(bert, sentences, tmp_path, monkeypatch):
    """8 bits under the name of all, and 8 bits of which more is asked than they can."""
    path, expected_ND = bert
    shutil.copytree(path, tmp_path / "model")
    shutil.copy(path / FILES["int8"], tmp_path / "model" / FILES["onnx"])
    with pytest.raises(RunFailed, match=r"vectors in format onnx differ .* than rounding; remove onnx from export"):
        compare_formats(tmp_path / "model", ["onnx"], sentences, expected_ND, 1e-4, None)
    monkeypatch.setitem(raysed.report.formats.LEAST_COSINES, "int8", 0.9999999)
    with pytest.raises(RunFailed, match=r"vectors in format int8 have a mean cosine of .*; remove int8 from export"):
        compare_formats(path, ["onnx", "int8"], sentences, expected_ND, 1e-4, None)


def test_an_encoder_that_cannot_be_written_is_refused_and_another_is_not(
    make_encoder, tiny_tokenizer, tmp_path, monkeypatch
):
    save_encoder(make_encoder("bert", BLOCKS), tiny_tokenizer, tmp_path)
    saved = EncoderConfig(path=str(tmp_path), pool_layers=1, max_length=MAX_LENGTH)
    check_formats([], saved)
    check_formats(["onnx", "int8"], saved)
    broken = "transformers.models.bert.modeling_bert.BertModel.forward"
    monkeypatch.setattr(broken, lambda *_, **__: torch.zeros(1).item().missing)
    with pytest.raises(UserError, match=r"^export\.formats: .* cannot be written as ONNX \(.*\); leave export\.form"):
        check_formats(["int8"], saved)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(described | {"auto_map": {"AutoModel": "own.OwnModel"}}))
    with pytest.raises(UserError, match=r"has custom code, which sentence-transformers' backends do not run"):
        check_formats(["onnx"], saved.model_copy(update={"trust_remote_code": True}))


# -- as teachers -----------------------------------------------------------------------------------------------------


def asked(path: Path, **settings) -> Teacher:
    teacher = load_teacher(TeacherConfig(path=str(path), **settings))
    teacher.check()
    return teacher


@pytest.fixture
def with_torch(bert, tmp_path) -> Path:
    """A model of sentence-transformers with weights for torch, the same transformer as ONNX, and a normalisation."""
    path = shutil.copytree(bert[0], tmp_path / "with-torch")
    modules = json.loads((path / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"})
    (path / "modules.json").write_text(json.dumps(modules))
    return path


@pytest.fixture
def without_torch(with_torch, tmp_path) -> Path:
    ignored = shutil.ignore_patterns("*.safetensors", "model_q*")
    return shutil.copytree(with_torch, tmp_path / "onnx-only", ignore=ignored)


def set_pooling(directory: Path, mode: str) -> None:
    path = directory / "1_Pooling" / "config.json"
    settings = {key: False for key in json.loads(path.read_text()) if key.startswith("pooling_mode_")}
    path.write_text(json.dumps({**settings, "word_embedding_dimension": 16, f"pooling_mode_{mode}": True}))


def test_onnx_runtime_gives_the_vectors_of_torch(with_torch, without_torch, sentences):
    """Pooling and normalisation as modules say; sentences of any lengths, in any order, cut at the same token."""
    for directory in (with_torch, without_torch):
        set_pooling(directory, "max_tokens")
    texts = [*sentences, " ".join(sentences[:8]), "cat"]
    expected_ND = asked(with_torch, prompt="the big ").embed(texts)
    teacher = asked(without_torch, prompt="the big ")
    teacher.token_budget = 40  # several passes
    np.testing.assert_allclose(teacher.embed(texts), expected_ND, atol=1e-4 * np.abs(expected_ND).max())
    np.testing.assert_allclose(np.linalg.norm(expected_ND, axis=1), 1, rtol=1e-5)
    assert teacher.width == expected_ND.shape[1]
    by_role = asked(without_torch, query_prompt="the big ").embed(texts, "query")
    np.testing.assert_allclose(by_role, expected_ND, atol=1e-4 * np.abs(expected_ND).max())


def test_weights_for_torch_come_first_and_a_file_can_be_named(with_torch, without_torch, sentences):
    assert kind_of(str(with_torch)).__name__ == "ModelTeacher"
    assert kind_of(str(without_torch)).__name__ == "OnnxModel"
    assert default_learner([str(without_torch), str(with_torch)])["path"] == str(with_torch)
    expected_ND = asked(with_torch).embed(sentences)
    plain, small = (asked(with_torch / FILES[name]).embed(sentences) for name in ("onnx", "int8"))
    np.testing.assert_allclose(plain, expected_ND, atol=1e-5)
    assert 1e-5 < np.abs(small - expected_ND).max() < 0.1


def test_without_modules_it_is_the_mean_over_tokens(bert, without_torch, sentences):
    """Tokens are then counted by `max_length`; a pooling that is there all the same is followed."""
    for name in ("modules.json", "config_sentence_transformers.json", "config.json"):
        (without_torch / name).unlink()
    followed_ND = asked(without_torch, max_length=MAX_LENGTH).embed(sentences)
    shutil.rmtree(without_torch / "1_Pooling")
    mean_ND = asked(without_torch, max_length=MAX_LENGTH).embed(sentences)
    for found_ND in (followed_ND, mean_ND):
        np.testing.assert_allclose(found_ND, bert[1], atol=1e-5 * np.abs(bert[1]).max())
    assert not np.allclose(asked(without_torch, max_length=4).embed(sentences), mean_ND)


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


@pytest.fixture
def looked_up(tiny_tokenizer, tmp_path) -> Callable[..., Path]:
    """Writes a tokenizer and a graph that looks up a vector of three dimensions for each token."""
    from onnx import TensorProto, helper, numpy_helper, save

    def write(shape=("batch", "length"), output="last_hidden_state", given="input_ids", pooled=False) -> Path:
        table = numpy_helper.from_array(np.arange(600, dtype=np.float32).reshape(200, 3), "table")
        axes = numpy_helper.from_array(np.array([1]), "axes")
        nodes = [helper.make_node("Gather", ["table", given], ["tokens" if pooled else output])]
        if pooled:
            nodes.append(helper.make_node("ReduceMax", ["tokens", "axes"], [output], keepdims=0))
        ends = [helper.make_tensor_value_info(given, TensorProto.INT64, shape)]
        ends += [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        body = helper.make_graph(nodes, "lookup", ends[:1], ends[1:], [table, axes])
        versions = {"opset_imports": [helper.make_opsetid("", 18)], "ir_version": 9}
        save(helper.make_model(body, **versions), tmp_path / "model.onnx")
        tiny_tokenizer.save_pretrained(tmp_path)
        return tmp_path

    return write


def test_a_graph_that_never_ends_is_refused_as_well(looked_up, monkeypatch):
    from onnx import TensorProto, helper, load, numpy_helper, save

    monkeypatch.setattr(onnx, "_MAX_TRY_S", 0.2)
    file = looked_up(output="found") / "model.onnx"
    model, kinds = load(file), {"turn": TensorProto.INT64, "goes_on": TensorProto.BOOL, "x": TensorProto.FLOAT}
    shapes = {"x": None}  # the others are numbers
    given = [helper.make_tensor_value_info(name, kind, shapes.get(name, [])) for name, kind in kinds.items()]
    passed_on = [helper.make_node("Identity", [name], [f"{name}_again"]) for name in ("goes_on", "x")]
    again = [
        helper.make_tensor_value_info(f"{name}_again", kinds[name], shapes.get(name, [])) for name in ("goes_on", "x")
    ]
    body = helper.make_graph(passed_on, "body", given, again)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "true"))
    model.graph.node.append(helper.make_node("Loop", ["", "true", "found"], ["last_hidden_state"], body=body))
    model.graph.output[0].name = "last_hidden_state"
    save(model, file)
    with pytest.raises(
        UserError, match=r"fails on 2 sentences of .*terminate.*take less than 0\.2 s for these, or low"
    ):
        asked(file.parent)


def test_runs_beside_a_model_are_no_part_of_it(without_torch):
    """Whether they have just begun or have made something."""
    before = asked(without_torch).identity
    storage = Storage(str(without_torch / "runs"), "mine")
    with storage.lock():
        assert load_teacher(TeacherConfig(path=str(without_torch))).identity == before
        storage.write_text("config.json", "{}")
    assert load_teacher(TeacherConfig(path=str(without_torch))).identity == before


def test_a_graph_that_pools_is_taken_at_its_word(looked_up, tiny_tokenizer):
    found_ND = asked(looked_up(output="sentence_embedding", pooled=True)).embed(["the cat sat"])
    assert found_ND.tolist() == [[3 * max(tiny_tokenizer("the cat sat")["input_ids"]) + i for i in range(3)]]


@pytest.mark.parametrize(
    ("about", "problem"),
    [
        ({"output": "logits"}, r"has the outputs logits; one must be called last_hidden_state, token_embed"),
        ({"pooled": True}, r"its output last_hidden_state has the shape \[2, 3\] for 2 sentences of up to 75 tokens"),
        ({"output": "sentence_embedding"}, r"its output sentence_embedding has the shape \[2, 75, 3\] .* \[2, w"),
        ({"given": "pixels"}, r"needs the inputs pixels \(tensor\(int64\)\); it may have input_ids, attention_mask"),
        ({"shape": (1, "length")}, r"fails on 2 sentences of up to 75 tokens \(.*\); export it for any number of "),
    ],
)
def test_a_graph_that_does_not_fit_is_refused(looked_up, about, problem):
    with pytest.raises(UserError, match=r"^teachers: .*" + problem):
        asked(looked_up(**about))


def test_a_directory_that_lacks_something_is_refused(looked_up, without_torch):
    path = looked_up()

    def refused(place: Path, problem: str, **settings) -> None:
        with pytest.raises(UserError, match=problem):
            asked(place, **settings)

    refused(path, r"gives its last layer only, but pool_layers is 2; leave it out", pool_layers=2)
    (path / "model.onnx").rename(path / "a.onnx")
    shutil.copy(path / "a.onnx", path / "b.onnx")
    refused(path, r"has several ONNX files; name one of them, such as .*a\.onnx")
    (path / "a.onnx").write_bytes(b"no graph")
    refused(path / "a.onnx", r"a\.onnx' cannot be loaded by ONNX Runtime: ")
    refused(path / "c.onnx", r"c\.onnx' is not a file")
    for name in path.glob("token*.json"):
        name.unlink()
    refused(path / "b.onnx", r"has no tokenizer; add its files, such as tokenizer\.json, to ")
    (without_torch / "modules.json").write_text('[{"type": "own.Module", "path": ""}]')
    refused(without_torch, r"its module own\.Module is custom code, which is not run")
    (without_torch / "modules.json").write_text("[")
    refused(without_torch, r"has modules that cannot be read: ")

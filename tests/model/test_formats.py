"""Further formats of an exported model: what ONNX Runtime makes of the files is what the trained model says."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import raysed.report.formats
from raysed.config import EncoderConfig
from raysed.data.graded import StsTask
from raysed.data.tokens import tokenize
from raysed.errors import RunFailed, UserError
from raysed.model.encoding import encode
from raysed.model.formats import FILES, check_formats, write_formats
from raysed.model.library import export_model
from raysed.model.pretrained import save_encoder
from raysed.report.formats import compare_formats
from raysed.report.sections.exported import formats_table
from raysed.score.kinds.pairs import Pairs

BLOCKS, MAX_LENGTH = 2, 12  # torch writes one block after the other, which takes seconds
Exported = tuple[Path, np.ndarray]
needs_onnx = pytest.mark.skipif(
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
    return exported("bert", list(FILES))


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet"])
def test_onnx_says_what_the_trained_model_says(bert, exported, sentences, architecture):
    """By onnxruntime alone: one sentence and many, short and long, with other sizes than it was written with."""
    import onnxruntime

    path, expected_ND = bert if architecture == "bert" else exported(architecture, ["onnx"])
    session = onnxruntime.InferenceSession(path / FILES["onnx"], providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["last_hidden_state"]
    tokenizer = AutoTokenizer.from_pretrained(path)
    for rows in (slice(0, 1), slice(3, 20), slice(None)):
        batch = dict(tokenizer(sentences[rows], padding=True, truncation=True, max_length=MAX_LENGTH))
        given = {name.name: np.array(batch[name.name]) for name in session.get_inputs()}
        (states_BLD,) = session.run(None, given)
        mask_BL1 = np.array(batch["attention_mask"])[:, :, None]
        found_BD = (states_BLD * mask_BL1).sum(1) / mask_BL1.sum(1)
        np.testing.assert_allclose(found_BD, expected_ND[rows], atol=1e-5 * np.abs(expected_ND).max())


@needs_onnx
def test_formats_are_measured_beside_the_one_of_torch(bert, sentences):
    path, expected_ND = bert
    gold = np.arange(len(sentences) - 1, dtype=float)
    dev = Pairs(StsTask("dev", {"all": (sentences[:-1], sentences[1:], gold)}), "all")
    rows = compare_formats(path, list(FILES), sentences, expected_ND, 1e-4, dev)
    assert [row["format"] for row in rows] == ["torch", "onnx", "int8", "int8_avx2"]
    assert [row["bytes"] for row in rows] == [(path / row["file"]).stat().st_size for row in rows]
    by_text = dict(zip(sentences, expected_ND))
    score = dev.metrics(dev.outcome(np.array([by_text[text] for text in dev.sentences])))["spearman"]
    assert rows[0]["score"] == pytest.approx(score, abs=0.05) == rows[1]["score"]
    assert all(row["sentences_per_second"] > 0 and row["cosine"] > 0.98 for row in rows)
    assert rows[1]["difference"] < 1e-5 < rows[2]["difference"]
    lines = formats_table(rows, "dev").plain().splitlines()
    assert "onnx/model_qint8_avx512_vnni.onnx" in lines[4] and len(lines) == 6
    assert compare_formats(path, [], sentences, expected_ND, 1e-4, None) == []


@needs_onnx
def test_eight_bits_are_eight_bits(bert):
    import onnx

    for name, kind in (("int8", onnx.TensorProto.INT8), ("int8_avx2", onnx.TensorProto.UINT8)):
        graph = onnx.load(bert[0] / FILES[name]).graph
        assert any(node.op_type == "MatMulInteger" for node in graph.node)
        matrices = [tensor for tensor in graph.initializer if tensor.data_type == kind and len(tensor.dims) == 2]
        assert len(matrices) >= BLOCKS * 6, "query, key, value, output and two of the feed-forward part in each block"


@needs_onnx
def test_a_file_that_says_something_else_is_refused(bert, sentences, tmp_path, monkeypatch):
    """8 bits under the name of all, and 8 bits of which more is asked than they can."""
    path, expected_ND = bert
    shutil.copytree(path, tmp_path / "model")
    shutil.copy(path / FILES["int8"], tmp_path / "model" / FILES["onnx"])
    with pytest.raises(RunFailed, match=r"vectors as onnx differ .* more than rounding; leave onnx out of export\.f"):
        compare_formats(tmp_path / "model", ["onnx"], sentences, expected_ND, 1e-4, None)
    monkeypatch.setattr(raysed.report.formats, "LEAST_COSINE", 0.9999999)
    with pytest.raises(RunFailed, match=r"vectors as int8 have a mean cosine of .*; leave int8 out of export\.formats"):
        compare_formats(path, ["onnx", "int8"], sentences, expected_ND, 1e-4, None)


@pytest.fixture
def saved(make_encoder, tiny_tokenizer, tmp_path) -> EncoderConfig:
    save_encoder(make_encoder("bert", BLOCKS), tiny_tokenizer, tmp_path)
    return EncoderConfig(path=str(tmp_path), layers=1, max_length=MAX_LENGTH)


def test_missing_packages_are_named_before_anything_is_trained(saved, monkeypatch):
    check_formats([], saved)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(UserError, match=r"^export\.formats needs .*onnxruntime: run pip install 'raysed\[onnx\]'"):
        check_formats(["onnx"], saved)


@needs_onnx
def test_an_encoder_that_torch_cannot_write_is_refused_and_another_is_not(saved, monkeypatch):
    check_formats(["onnx", "int8"], saved)
    broken = "transformers.models.bert.modeling_bert.BertModel.forward"
    monkeypatch.setattr(broken, lambda *_, **__: torch.zeros(1).item().missing)
    with pytest.raises(UserError, match=r"^export\.formats: .* cannot be written as ONNX \(.*\); leave export\.form"):
        check_formats(["int8"], saved)


@needs_onnx
def test_code_of_its_own_is_refused(saved):
    described = json.loads((Path(saved.path) / "config.json").read_text())
    described["auto_map"] = {"AutoModel": "own.OwnModel"}
    (Path(saved.path) / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"has code of its own, which sentence-transformers' ONNX backend does not run"):
        check_formats(["onnx"], saved.model_copy(update={"trust_remote_code": True}))

"""Further formats of an exported model: what ONNX Runtime makes of the files is what the trained model says."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from test_export import ARCHITECTURES, MAX_LENGTH, SENTENCES, make_encoder, vectors
from transformers import AutoTokenizer

import raysed.report.formats
from raysed.config import EncoderConfig
from raysed.data.graded import StsTask
from raysed.errors import RunFailed, UserError
from raysed.model.export import export_model
from raysed.model.formats import FILES, check_formats, write_formats
from raysed.model.pretrained import save_encoder
from raysed.report.formats import compare_formats
from raysed.report.sections.exported import formats_table
from raysed.score.kinds.pairs import Pairs

BLOCKS = 2  # torch writes one after the other, which takes seconds
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs pip install 'raysed[onnx]'",
)


def exported(path: Path, architecture: str, formats: list[str]) -> np.ndarray:
    """Writes a model in these formats; returns the vectors that they all should give."""
    encoder, tokenizer = make_encoder(architecture, BLOCKS)
    options = {"layers": 1, "max_length": MAX_LENGTH, "calibration": None}
    export_model(encoder, tokenizer, path, **options)
    write_formats(path, formats)
    return vectors(encoder, tokenizer, 1)


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> tuple[Path, np.ndarray]:
    path = tmp_path_factory.mktemp("bert")
    return path, exported(path, "bert", list(FILES))


def dev_task() -> Pairs:
    gold = np.arange(len(SENTENCES) - 1, dtype=float)
    return Pairs(StsTask("dev", {"all": (SENTENCES[:-1], SENTENCES[1:], gold)}), "all")


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_onnx_says_what_the_trained_model_says(bert, tmp_path, architecture):
    """By onnxruntime alone: one sentence and many, short and long, with other sizes than it was written with."""
    import onnxruntime

    path, expected_ND = bert if architecture == "bert" else (tmp_path, exported(tmp_path, architecture, ["onnx"]))
    session = onnxruntime.InferenceSession(path / FILES["onnx"], providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["last_hidden_state"]
    tokenizer = AutoTokenizer.from_pretrained(path)
    for rows in (slice(0, 1), slice(3, 20), slice(None)):
        batch = dict(tokenizer(SENTENCES[rows], padding=True, truncation=True, max_length=MAX_LENGTH))
        given = {name.name: np.array(batch[name.name]) for name in session.get_inputs()}
        (states_BLD,) = session.run(None, given)
        mask_BL1 = np.array(batch["attention_mask"])[:, :, None]
        found_BD = (states_BLD * mask_BL1).sum(1) / mask_BL1.sum(1)
        np.testing.assert_allclose(found_BD, expected_ND[rows], atol=1e-5 * np.abs(expected_ND).max())


@needs_onnx
def test_formats_are_measured_beside_the_one_of_torch(bert):
    path, expected_ND = bert
    dev = dev_task()
    rows = compare_formats(path, list(FILES), SENTENCES, expected_ND, 1e-4, dev)
    assert [row["format"] for row in rows] == ["torch", "onnx", "int8", "int8_avx2"]
    assert [row["bytes"] for row in rows] == [(path / row["file"]).stat().st_size for row in rows]
    by_text = dict(zip(SENTENCES, expected_ND))
    task = {"spearman": dev.metrics(dev.outcome(np.array([by_text[text] for text in dev.sentences])))["spearman"]}
    assert rows[0]["score"] == pytest.approx(task["spearman"], abs=0.05) == rows[1]["score"]
    assert all(row["sentences_per_second"] > 0 and row["cosine"] > 0.98 for row in rows)
    assert rows[1]["difference"] < 1e-5 < rows[2]["difference"]
    lines = formats_table(rows, "dev").plain().splitlines()
    assert "onnx/model_qint8_avx512_vnni.onnx" in lines[4] and len(lines) == 6
    assert compare_formats(path, [], SENTENCES, expected_ND, 1e-4, None) == []


@needs_onnx
def test_eight_bits_are_eight_bits(bert):
    import onnx

    for name, kind in (("int8", onnx.TensorProto.INT8), ("int8_avx2", onnx.TensorProto.UINT8)):
        graph = onnx.load(bert[0] / FILES[name]).graph
        assert any(node.op_type == "MatMulInteger" for node in graph.node)
        matrices = [tensor for tensor in graph.initializer if tensor.data_type == kind and len(tensor.dims) == 2]
        assert len(matrices) >= BLOCKS * 6, "query, key, value, output and two of the feed-forward part in each block"


@needs_onnx
def test_a_file_that_says_something_else_is_refused(bert, tmp_path, monkeypatch):
    """8 bits under the name of all, and 8 bits of which more is asked than they can."""
    path, expected_ND = bert
    shutil.copytree(path, tmp_path / "model")
    shutil.copy(path / FILES["int8"], tmp_path / "model" / FILES["onnx"])
    with pytest.raises(
        RunFailed, match=r"vectors as onnx differ .* more than rounding; leave onnx out of export\.form"
    ):
        compare_formats(tmp_path / "model", ["onnx"], SENTENCES, expected_ND, 1e-4, None)
    monkeypatch.setattr(raysed.report.formats, "LEAST_COSINE", 0.9999999)
    with pytest.raises(RunFailed, match=r"vectors as int8 have a mean cosine of .*; leave int8 out of export\.formats"):
        compare_formats(path, ["onnx", "int8"], SENTENCES, expected_ND, 1e-4, None)


def test_what_cannot_be_written_is_refused_before_anything_is_trained(tmp_path, monkeypatch):
    encoder, tokenizer = make_encoder("bert", BLOCKS)
    save_encoder(encoder, tokenizer, tmp_path)
    config = EncoderConfig(path=str(tmp_path), layers=1, max_length=MAX_LENGTH)
    check_formats([], config)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    with pytest.raises(UserError, match=r"^export\.formats needs .*onnxruntime: run pip install 'raysed\[onnx\]'"):
        check_formats(["onnx"], config)


@needs_onnx
def test_an_encoder_that_torch_cannot_write_is_refused_and_another_is_not(tmp_path, monkeypatch):
    encoder, tokenizer = make_encoder("bert", BLOCKS)
    save_encoder(encoder, tokenizer, tmp_path)
    config = EncoderConfig(path=str(tmp_path), layers=1, max_length=MAX_LENGTH)
    check_formats(["onnx", "int8"], config)
    monkeypatch.setattr(type(encoder.transformer), "forward", lambda *_, **__: torch.zeros(1).item().missing)
    with pytest.raises(
        UserError, match=r"^export\.formats: .* cannot be written as ONNX \(.*\); leave export\.formats"
    ):
        check_formats(["int8"], config)


@needs_onnx
def test_code_of_its_own_is_refused(tmp_path):
    encoder, tokenizer = make_encoder("bert", BLOCKS)
    save_encoder(encoder, tokenizer, tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    described["auto_map"] = {"AutoModel": "own.OwnModel"}
    (tmp_path / "config.json").write_text(json.dumps(described))
    config = EncoderConfig(path=str(tmp_path), layers=1, max_length=MAX_LENGTH, trust_remote_code=True)
    with pytest.raises(UserError, match=r"has code of its own, which sentence-transformers' ONNX backend does not run"):
        check_formats(["onnx"], config)


def test_the_tokenizer_has_a_name_that_releases_with_an_onnx_backend_know(tmp_path):
    exported(tmp_path, "bert", [])
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"

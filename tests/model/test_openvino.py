"""OpenVINO files, written beside an export, give the vectors of the model, also in sentence-transformers."""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from raysed.config import EncoderConfig
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.model.encoding import encode
from raysed.model.formats import FILES, OpenVinoTransformer, check_formats
from raysed.model.library import export_model
from raysed.model.pretrained import save_encoder
from raysed.report.formats import LEAST_COSINES, compare_formats
from raysed.report.sections.exported import formats_table

BLOCKS, MAX_LENGTH, BOTH = 1, 12, ["openvino", "openvino_int8"]
PACKAGES = ("onnx", "onnxscript", "openvino", "nncf")
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PACKAGES), reason="needs pip install 'raysed[openvino]'"
)
WRITER = """
import json, pathlib, sys
sys.modules["onnxruntime"] = None  # any import of it fails
from raysed.model.formats import write_formats
write_formats(pathlib.Path(sys.argv[1]), ["openvino", "openvino_int8"], json.loads(sys.argv[2]))
"""


class Exported(NamedTuple):
    path: Path
    expected_ND: np.ndarray
    home: Path
    printed: str


@pytest.fixture(scope="module")
def bert(make_encoder, tiny_encoder_dir, make_sentences, sentences, tmp_path_factory) -> Exported:
    """Written without ONNX Runtime, in a process with a home of its own, by sentences other than those of the tests."""
    path, encoder = tmp_path_factory.mktemp("bert"), make_encoder("bert", BLOCKS)
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder_dir)
    export_model(encoder, tokenizer, path, layers=1, max_length=MAX_LENGTH, calibration=None)
    home = tmp_path_factory.mktemp("home")
    environment = {key: value for key, value in os.environ.items() if key != "CI"} | {"HOME": str(home)}
    command = [sys.executable, "-c", WRITER, path, json.dumps(make_sentences(30, 1))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    expected_ND = encode(encoder, tokenize(tokenizer, sentences, MAX_LENGTH))[0]
    return Exported(path, expected_ND, home, done.stdout + done.stderr)


def cosines(found_ND: np.ndarray, expected_ND: np.ndarray) -> np.ndarray:
    lengths_N = np.linalg.norm(found_ND, axis=1) * np.linalg.norm(expected_ND, axis=1)
    return (found_ND * expected_ND).sum(1) / lengths_N


def test_nothing_is_printed_or_sent(bert):
    """OpenVINO's telemetry writes to ~/intel before it sends anything."""
    assert bert.printed == "" and not (bert.home / "intel").exists()


def stack_of_signals() -> int | None:
    """The address of the memory in which this thread's handlers of signals run; None: its own stack."""

    class Stack(ctypes.Structure):
        _fields_ = [("address", ctypes.c_size_t), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

    stack = Stack()
    assert ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack)) == 0
    return None if stack.flags & 2 else stack.address  # SS_DISABLE


def is_mapped(address: int) -> bool:
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


@pytest.mark.skipif(sys.platform != "linux", reason="OpenVINO leaves the stack alone elsewhere")
def test_a_signal_finds_its_stack_after_models_were_freed_in_any_order(bert):
    """Else Ctrl-C would end the process with a segmentation fault."""
    found = []

    def make_two_and_free_them() -> None:
        first, second = (OpenVinoTransformer(bert.path / FILES[name], None) for name in BOTH)
        del first
        del second
        found.append(stack_of_signals())

    thread = threading.Thread(target=make_two_and_free_them)  # with no such stack of anybody else
    thread.start()
    thread.join()
    assert found[0] is None or is_mapped(found[0])


def test_they_are_measured_beside_the_format_of_torch(bert, sentences):
    assert set(BOTH) < set(LEAST_COSINES), "as test_onnx.py tries with another format"
    rows = compare_formats(bert.path, BOTH, sentences, bert.expected_ND, 1e-5, None)
    assert [row["format"] for row in rows] == ["torch", *BOTH]
    for row, least in zip(rows[1:], (0.9999, 0.99)):
        weights = (bert.path / row["file"]).with_suffix(".bin")
        assert row["bytes"] == (bert.path / row["file"]).stat().st_size + weights.stat().st_size
        assert row["cosine"] > least and row["sentences_per_second"] > 0
    assert rows[2]["difference"] > 1e-3
    assert "openvino/openvino_model_qint8_quantized.xml" in formats_table(rows, "dev").plain().splitlines()[-1]


def test_weights_are_those_of_torch_or_of_eight_bits(bert):
    """Without AMX's bf16, the first format is exact."""
    import openvino

    core, model = openvino.Core(), SentenceTransformer(str(bert.path), device="cpu")
    given = model.tokenizer(["the big cat", "on"], padding=True, return_tensors="pt")
    exact = core.compile_model(bert.path / FILES["openvino"], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with torch.no_grad():
        expected_BLD = model[0].model(**given).last_hidden_state.numpy()
    found_BLD = exact({name: tensor.numpy() for name, tensor in given.items()})["last_hidden_state"]
    np.testing.assert_allclose(found_BLD, expected_BLD, atol=1e-5 * np.abs(expected_BLD).max())
    operations = core.read_model(bert.path / FILES["openvino_int8"]).get_ops()
    constants = [each for each in operations if each.get_type_name() == "Constant"]
    matrices = [each for each in constants if len(each.get_output_shape(0)) == 2]
    small = [each for each in matrices if each.get_element_type() in (openvino.Type.i8, openvino.Type.u8)]
    assert len(small) >= BLOCKS * 6, "query, key, value, output and two of the feed-forward part in each block"
    assert any(each.get_type_name() == "FakeQuantize" for each in operations), "activations, too"


@pytest.mark.parametrize("name", BOTH)
def test_the_backend_of_sentence_transformers_finds_them(bert, sentences, name):
    reason = "optimum-intel 2.2 needs transformers below 5.6: run this test in an environment of its own"
    pytest.importorskip("optimum.intel", reason=reason)
    options = {"file_name": Path(FILES[name]).name}
    model = SentenceTransformer(str(bert.path), backend="openvino", device="cpu", model_kwargs=options)
    assert cosines(model.encode(sentences, batch_size=7), bert.expected_ND).min() > 0.98


def test_what_is_missing_or_cannot_be_written_is_said(make_encoder, tiny_tokenizer, tmp_path, monkeypatch):
    """Each format needs its own packages only."""
    find, absent = importlib.util.find_spec, []
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in absent else find(name))
    save_encoder(make_encoder("bert", BLOCKS), tiny_tokenizer, tmp_path)
    saved = EncoderConfig(path=str(tmp_path), pool_layers=1, max_length=MAX_LENGTH)
    for package, name in (("openvino", "openvino"), ("nncf", "openvino_int8"), ("onnxruntime", "onnx")):
        absent[:] = [package]
        remedy = rf"run pip install '.*\[{name.partition('_')[0]}\]', or leave export\.formats out"
        with pytest.raises(UserError, match=rf"^export\.formats needs {package}: {remedy}"):
            check_formats([name], saved)
    check_formats(BOTH, saved)  # without ONNX Runtime
    monkeypatch.setattr("openvino.convert_model", lambda file: [][0])
    problem = r"^export\.formats: .* cannot be written as OpenVINO \(.*\); leave export\.formats out"
    with pytest.raises(UserError, match=problem):
        check_formats(["openvino"], saved)

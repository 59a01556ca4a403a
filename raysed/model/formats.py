"""Export the transformer as the ONNX files that sentence-transformers' `backend="onnx"` looks for.

That backend runs only the transformer in ONNX and returns only its last layer; pooling and calibration stay modules of
sentence-transformers. optimum-onnx, which the backend needs, does not work with transformers 5, so torch's exporter and
ONNX Runtime's quantization write the files.
"""

import importlib.util
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from raysed.config import EncoderConfig, Format
from raysed.errors import UserError, first_line
from raysed.store.hub import encoder_path

FILES: Mapping[Format, str] = {
    "onnx": "onnx/model.onnx",
    "int8": "onnx/model_qint8_avx512_vnni.onnx",
    "int8_avx2": "onnx/model_quint8_avx2.onnx",
}
"""File names as sentence-transformers' `export_dynamic_quantized_onnx_model` chooses them."""
_SIGNED = {"int8": True, "int8_avx2": False}
"""Whether weights are signed: sums of signed products may overflow on processors without VNNI."""
_OPSET = 18
"""Readable by ONNX Runtime 1.14 and later."""


def check_formats(formats: Sequence[Format], encoder: EncoderConfig) -> None:
    """Raise UserError if an encoder cannot be exported; tries the ONNX export with random weights."""
    if not formats:
        return
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
    if missing:
        packages = " and ".join(missing)
        raise UserError(f"export.formats needs {packages}: run pip install 'raysed[onnx]', or leave export.formats out")
    path = encoder_path(encoder)
    config = AutoConfig.from_pretrained(path, trust_remote_code=encoder.trust_remote_code, **encoder.model_kwargs)
    if encoder.trust_remote_code and getattr(config, "auto_map", None):
        problem = f"{encoder.path!r} has custom code, which sentence-transformers' ONNX backend does not run"
        raise UserError(f"{problem}; leave export.formats out", setting="export.formats")
    try:
        with tempfile.TemporaryDirectory() as folder:
            _write_onnx(AutoModel.from_config(config), AutoTokenizer.from_pretrained(path), Path(folder) / "model.onnx")
    except Exception as error:  # torch's exporter may raise anything
        problem = f"{encoder.path!r} cannot be written as ONNX ({first_line(error)}); leave export.formats out"
        raise UserError(problem, setting="export.formats") from None


def write_formats(path: Path, formats: Sequence[Format]) -> None:
    """Add further formats to an exported model's directory, from the files in it."""
    model = AutoModel.from_pretrained(path, use_safetensors=True, dtype=torch.float32)
    places = {name: path / FILES[name] for name in formats}
    for place in places.values():
        place.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plain = places.pop("onnx", Path(folder) / "model.onnx")
        _write_onnx(model, AutoTokenizer.from_pretrained(path), plain)
        for name, place in places.items():
            from onnxruntime.quantization import QuantType, quantize_dynamic

            # Weights get 8 bits and one scale per output channel; activations are quantized dynamically.
            kind, options = QuantType.QInt8 if _SIGNED[name] else QuantType.QUInt8, {"WeightSymmetric": True}
            with _quiet():
                quantize_dynamic(plain, place, per_channel=True, weight_type=kind, extra_options=options)


def load_format(path: Path, name: Format | None) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function that embeds sentences, float32 [N, D], with an exported model in a format (None: torch)."""
    from raysed.model import library  # takes seconds

    model = library.load(path)
    if name:
        model[0].model = OnnxTransformer(path / FILES[name], model[0].config)
    return lambda sentences: model.encode(list(sentences), show_progress_bar=False)


def has_own_code(path: Path) -> bool:
    """Return whether an exported model's directory contains custom code of its encoder."""
    config = path / "config.json"
    return config.is_file() and "auto_map" in json.loads(config.read_text(encoding="utf-8"))


def largest_difference(found_ND: np.ndarray, expected_ND: np.ndarray) -> float:
    """Return the largest difference of any coordinate over the largest expected magnitude; NaN if either has NaN."""
    return float(np.abs(found_ND - expected_ND).max() / np.abs(expected_ND).max())


def open_session(file: Path) -> Any:
    """Load an ONNX file on the CPU, with as many threads as torch uses."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    return InferenceSession(file, options, providers=["CPUExecutionProvider"])


class OnnxTransformer(torch.nn.Module):
    """A transformer in an ONNX file, called like the original."""

    def __init__(self, file: Path, config: PreTrainedConfig):
        super().__init__()
        self.config, self._session = config, open_session(file)
        self._inputs = [given.name for given in self._session.get_inputs()]

    def forward(self, **batch: torch.Tensor) -> BaseModelOutput:
        """Return `last_hidden_state`, float32 [B, L, D], and no other layer."""
        given = {name: batch[name].numpy() for name in self._inputs}
        (states_BLD,) = self._session.run(["last_hidden_state"], given)
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states_BLD))


class _LastStates(torch.nn.Module):
    """The output that the backend reads; leaves a pooler out of the file."""

    def __init__(self, transformer: torch.nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.transformer(**batch).last_hidden_state


def _write_onnx(transformer: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    batch = dict(tokenizer(["A man plays the guitar.", "It rains."], padding=True, return_tensors="pt"))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2)}
    options = {"input_names": list(batch), "output_names": ["last_hidden_state"], "opset_version": _OPSET}
    shapes = {"batch": {name: axes for name in batch}}
    with _quiet():
        model = _LastStates(transformer.eval())
        torch.onnx.export(
            model, kwargs={"batch": batch}, dynamic_shapes=shapes, dynamo=True, verbose=False, **options
        ).save(file)


@contextmanager
def _quiet() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)

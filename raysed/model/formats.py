"""Export the transformer as the files that sentence-transformers' `backend="onnx"` and `"openvino"` look for.

These backends run only the transformer and return only its last layer; pooling and calibration stay modules of
sentence-transformers. Their exporters, optimum-onnx and optimum-intel, do not work with this transformers release.
torch's exporter, ONNX Runtime's quantization, OpenVINO and NNCF write the files instead.
"""

import importlib.util
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import TIMEOUT_MAX, Timer
from typing import Any

import numpy as np
import rich
import torch
from transformers import AutoModel, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutput

from raysed.config import EncoderConfig, Format
from raysed.errors import UserError, first_line, install_command
from raysed.model.pretrained import configuration_of, load_tokenizer
from raysed.model.prompts import read_settings

FILES: Mapping[Format, str] = {
    "onnx": "onnx/model.onnx",
    "int8": "onnx/model_qint8_avx512_vnni.onnx",
    "int8_avx2": "onnx/model_quint8_avx2.onnx",
    "openvino": "openvino/openvino_model.xml",
    "openvino_int8": "openvino/openvino_model_qint8_quantized.xml",
}
"""Names of sentence-transformers' own exports. The folder names the backend and raysed's extra."""
_SIGNED = {"int8": True, "int8_avx2": False}
"""Whether weights are signed: sums of signed products may overflow on processors without VNNI."""
_OPSET = 18
"""Readable by ONNX Runtime 1.14 and later."""


def check_formats(formats: Sequence[Format], encoder: EncoderConfig) -> None:
    """Raise UserError if an encoder cannot be exported, tried with random weights."""
    if not formats:
        return
    for name in formats:
        check_packages(name, "export.formats", "leave export.formats out")
    config = configuration_of(encoder)
    if encoder.trust_remote_code and getattr(config, "auto_map", None):
        problem = f"{encoder.path!r} has custom code, which sentence-transformers' backends do not run"
        raise UserError(f"{problem}; leave export.formats out", setting="export.formats")
    kind = "ONNX"
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.onnx"
            write_onnx(AutoModel.from_config(config, trust_remote_code=False), load_tokenizer(encoder), file)
            if "openvino" in map(backend_of, formats):
                kind = "OpenVINO"
                _openvino().convert_model(file)
    except Exception as error:  # torch's exporter may raise anything
        problem = f"{encoder.path!r} cannot be written as {kind} ({first_line(error)}); leave export.formats out"
        raise UserError(problem, setting="export.formats") from None


def check_packages(name: Format, setting: str, remedy: str) -> None:
    """Raise UserError if a package that writes or runs a format is missing."""
    runtime = {"openvino": ["openvino"], "openvino_int8": ["openvino", "nncf"]}.get(name, ["onnxruntime"])
    missing = [package for package in ("onnx", "onnxscript", *runtime) if importlib.util.find_spec(package) is None]
    if missing:
        install = f"run {install_command(backend_of(name))}, or {remedy}"
        raise UserError(f"{setting} needs {' and '.join(missing)}: {install}")


def write_formats(path: Path, formats: Sequence[Format], sentences: Sequence[str] = ()) -> None:
    """Add formats to an exported model's directory.

    `openvino_int8` calibrates on `sentences`, which should resemble those to embed.
    """
    model = AutoModel.from_pretrained(path, trust_remote_code=False, use_safetensors=True, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    places = {name: path / FILES[name] for name in formats}
    for place in places.values():
        place.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        plain = places.pop("onnx", Path(folder) / "model.onnx")
        write_onnx(model, tokenizer, plain)
        for name, place in places.items():
            if backend_of(name) == "openvino":
                write_openvino(plain, place, tokenizer, sentences if name == "openvino_int8" else None)
                continue
            from onnxruntime.quantization import QuantType, quantize_dynamic

            kind, options = QuantType.QInt8 if _SIGNED[name] else QuantType.QUInt8, {"WeightSymmetric": True}
            with _quiet():
                quantize_dynamic(plain, place, per_channel=True, weight_type=kind, extra_options=options)


def write_onnx(transformer: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Write a transformer on the CPU; its only output is the last layer."""
    batch = dict(tokenizer(["A man plays the guitar.", "It rains."], padding=True, return_tensors="pt"))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", min=2)}
    options = {"input_names": list(batch), "output_names": ["last_hidden_state"], "opset_version": _OPSET}
    shapes = {"batch": {name: axes for name in batch}}
    with _quiet():
        model = _LastStates(transformer.eval())
        torch.onnx.export(
            model, kwargs={"batch": batch}, dynamic_shapes=shapes, dynamo=True, verbose=False, **options
        ).save(file)


def write_openvino(
    onnx: Path,
    file: Path,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str] | None = None,
    max_length: int | None = None,
) -> None:
    """Convert an ONNX file. With `sentences`, weights and activations get 8 bits (NNCF, with SmoothQuant).

    Sentences are cut at `max_length` tokens; None: the tokenizer's limit.
    """
    openvino = _openvino()
    model = openvino.convert_model(onnx)
    if sentences is not None:
        with _quiet():
            import nncf

            names = [port.any_name for port in model.inputs]
            options = {"truncation": True, "max_length": max_length, "return_tensors": "np"}
            batches = [tokenizer(text, **options) for text in sentences]
            dataset = nncf.Dataset([{name: batch[name] for name in names} for batch in batches])
            kind = nncf.ModelType.TRANSFORMER
            model = nncf.quantize(model, dataset, model_type=kind, subset_size=len(batches))
    openvino.save_model(model, file, compress_to_fp16=False)


def load_format(path: Path, name: Format | None) -> Callable[[Sequence[str]], np.ndarray]:
    """Return a function that embeds sentences, float32 [N, D], with an exported format (None: torch)."""
    from raysed.model import library  # takes seconds

    model = library.load(path)
    if name:
        kind = {"onnx": OnnxTransformer, "openvino": OpenVinoTransformer}[backend_of(name)]
        model[0].model = kind(path / FILES[name], model[0].config)
    return lambda sentences: model.encode(list(sentences), show_progress_bar=False)


def backend_of(name: Format) -> str:
    """Return the backend of a format: `onnx` or `openvino`."""
    return FILES[name].partition("/")[0]


def has_own_code(path: Path) -> bool:
    """Return whether an export contains custom code of its encoder."""
    return "auto_map" in read_settings(path / "config.json")


def largest_difference(found_ND: np.ndarray, expected_ND: np.ndarray) -> float:
    """Return the largest difference over the largest expected magnitude; NaN if either has NaN."""
    return float(np.abs(found_ND - expected_ND).max() / np.abs(expected_ND).max())


def cosines(found_ND: np.ndarray, expected_ND: np.ndarray) -> np.ndarray:
    """Return the cosines of corresponding rows, [N]."""
    lengths_N = np.linalg.norm(found_ND, axis=1) * np.linalg.norm(expected_ND, axis=1)
    return (found_ND * expected_ND).sum(1) / lengths_N


class OnnxFile:
    """An ONNX file that ONNX Runtime runs on the CPU, with torch's number of threads; `inputs` are types by name."""

    def __init__(self, file: Path):
        from onnxruntime import InferenceSession, SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        self._session = InferenceSession(file, options, providers=["CPUExecutionProvider"])
        self.inputs = {each.name: each.type for each in self._session.get_inputs()}
        self.outputs = [each.name for each in self._session.get_outputs()]

    def run(self, output: str, batch: Mapping[str, np.ndarray], seconds: float = TIMEOUT_MAX) -> np.ndarray:
        """Compute one output; raise after `seconds`, since a file may have endless loops."""
        from onnxruntime import RunOptions

        options = RunOptions()
        options.log_severity_level = 4  # the exception repeats it
        timer = Timer(seconds, setattr, (options, "terminate", True))
        timer.start()
        try:
            (found,) = self._session.run([output], {name: batch[name] for name in self.inputs}, options)
        finally:
            timer.cancel()
        return found


class OnnxTransformer(torch.nn.Module):
    """A transformer in an ONNX file, called like the original."""

    def __init__(self, file: Path, config: PreTrainedConfig):
        super().__init__()
        self.config, self._file = config, OnnxFile(file)

    def forward(self, **batch: torch.Tensor) -> BaseModelOutput:
        """Return only `last_hidden_state`, float32 [B, L, D]."""
        states_BLD = self._file.run("last_hidden_state", {name: batch[name].numpy() for name in self._file.inputs})
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states_BLD))


class OpenVinoTransformer(torch.nn.Module):
    """A transformer in an OpenVINO file, called like the original, with as many threads as torch uses.

    Other options are OpenVINO's defaults: on CPUs with AMX it computes in bf16.
    """

    dtype = torch.float32

    def __init__(self, file: Path, config: PreTrainedConfig):
        super().__init__()
        options = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        self.config, self._compiled = config, _openvino_core().compile_model(file, "CPU", options)
        self.place = torch.nn.Parameter(torch.empty(0), requires_grad=False)  # says that it is on the CPU

    def forward(self, **batch: torch.Tensor) -> BaseModelOutput:
        batch = {"token_type_ids": torch.zeros_like(batch["input_ids"]), **batch}
        given = {port.any_name: batch[port.any_name].numpy() for port in self._compiled.inputs}
        return BaseModelOutput(last_hidden_state=torch.from_numpy(self._compiled(given)["last_hidden_state"]))


class _LastStates(torch.nn.Module):
    """Return only the last layer, which leaves a pooler out of the file."""

    def __init__(self, transformer: torch.nn.Module):
        super().__init__()
        self.transformer = transformer

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.transformer(**batch).last_hidden_state


def _openvino() -> Any:
    """Import OpenVINO without its telemetry, which sends usage data to Intel on import."""
    sys.modules.setdefault("openvino_telemetry", None)  # OpenVINO and NNCF take it for not installed
    import openvino

    return openvino


@cache
def _openvino_core() -> Any:
    """Return one core for all models of this process; it is never freed.

    Each core gives its thread a stack for signal handlers. Freeing cores in order of creation leaves the thread a freed
    stack, and the next signal, such as Ctrl-C, is a segmentation fault.
    """
    return _openvino().Core()


@contextmanager
def _quiet() -> Iterator[None]:
    console = rich.get_console()  # NNCF draws its progress there
    level, was_quiet = logging.root.manager.disable, console.quiet
    logging.disable(logging.WARNING)
    console.quiet = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        console.quiet = was_quiet

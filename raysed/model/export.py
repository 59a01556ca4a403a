"""The trained model as a directory that `SentenceTransformer(path)` loads.

Pooling over several layers and affine calibrations become modules that sentence-transformers has itself, so
nothing but a flow needs code of its own. That code is the file of the flow's network, copied as it is: plain
torch, and raysed need not be installed where the model is used.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from raysed.config import Layers
from raysed.data.tokens import tokenize
from raysed.errors import UserError
from raysed.model.affine import CalibrationMap
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.flow import Flow
from raysed.model.glow import FlowHead
from raysed.model.pretrained import save_encoder


def export_model(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    layers: Layers,
    max_length: int,
    calibration: CalibrationMap | None,
) -> None:
    """Writes a model directory that `SentenceTransformer(path)` loads.

    Its modules are the transformer, the mean over layers (where more than the last is pooled) and the mean over tokens,
    or `StaticEmbedding` of a table of vectors; then the encoder's head (a linear layer), and the calibration. That is a
    linear layer, or for a flow `raysed.model.glow.FlowHead`, with which the model is loaded by
    `SentenceTransformer(path, trust_remote_code=True)`, and so is an encoder that came with code of its own.
    The same arguments give the same bytes.

    Args:
        encoder: the trained encoder; left as it is.
        tokenizer: its tokenizer; left as it is.
        max_length: tokens per sentence, special tokens included.
        calibration: applied to the embeddings; None: none.

    Raises:
        UserError: `layers` is beyond the encoder, or the calibration is of another width.
    """
    if calibration is not None and calibration.width != encoder.width:
        raise UserError(f"a calibration of width {calibration.width} does not fit embeddings of width {encoder.width}")
    from raysed.model import library  # takes seconds

    tail = [library.linear(encoder.head_weight())] if encoder.head else []
    if isinstance(calibration, Flow):
        tail.append(FlowHead(calibration))
    elif calibration is not None:
        tail.append(library.linear(calibration.weight_DD, calibration.bias_D))
    path.mkdir(parents=True, exist_ok=True)
    if encoder.is_static:
        rows_VD = encoder.transformer.get_input_embeddings().weight.detach().cpu().clone()
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        library.write(path, library.table(rows_VD, backend, max_length), tail)
    else:
        count = encoder.transformer.config.num_hidden_layers
        try:
            pooling = library.layer_pooling(encoder.hidden_size, layers, count)
        except ValueError as error:
            raise UserError(str(error)) from None
        _write_transformer(encoder, tokenizer, path, layers, max_length)
        library.write(path, None, [*pooling, library.mean_pooling(encoder.hidden_size), *tail], max_length)


def _write_transformer(
    encoder: Encoder, tokenizer: PreTrainedTokenizerBase, path: Path, layers: Layers, max_length: int
) -> None:
    save_encoder(encoder, tokenizer, path, max_length)
    config = _read_json(path / "config.json")
    _write_json(path / "config.json", {**config, "output_hidden_states": layers != 1})
    tokenizer_config = _read_json(path / "tokenizer_config.json")
    if tokenizer_config["tokenizer_class"] == "TokenizersBackend":  # the name of transformers 5 only; ONNX needs 4
        _write_json(path / "tokenizer_config.json", {**tokenizer_config, "tokenizer_class": "PreTrainedTokenizerFast"})


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def has_own_code(path: Path) -> bool:
    """Whether an exported encoder came with code of its own, of which its directory has a copy."""
    config = path / "config.json"
    return config.is_file() and "auto_map" in _read_json(config)


def parity(
    path: Path,
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    *,
    layers: Layers,
    max_length: int,
    calibration: CalibrationMap | None,
) -> float:
    """Reads an exported directory back and compares it with the model in memory.

    Args:
        path: what `export_model` wrote for the same encoder, tokenizer, layers, max_length and calibration.
        encoder: as given to `export_model`.

    Returns:
        The largest difference of any coordinate, as a share of the largest coordinate: rounding gives 1e-6, and up
        to 1e-5 under a whitening that enlarges weak directions. NaN where either side has one.
    """
    expected_ND = encode(encoder, tokenize(tokenizer, sentences, max_length), (layers,))[0]
    if calibration is not None:
        expected_ND = calibration.transform(expected_ND)
    from raysed.model import library

    model = library.load(path, trust_remote_code=has_own_code(path))  # code that has run in this process already
    return largest_difference(library.embed(model, sentences), expected_ND)


def largest_difference(found_ND: np.ndarray, expected_ND: np.ndarray) -> float:
    """Return that of any coordinate, as a share of the largest coordinate."""
    return float(np.abs(found_ND - expected_ND).max() / np.abs(expected_ND).max())

"""The trained model as a directory that `SentenceTransformer(path)` loads.

Pooling over several layers and affine calibrations become modules that sentence-transformers has itself, so nothing
but a flow needs code of its own: the file of the flow's network, copied as it is.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from raysed.config import Layers
from raysed.errors import UserError
from raysed.model.affine import CalibrationMap
from raysed.model.encoder import Encoder
from raysed.model.flow import Flow
from raysed.model.glow import FlowHead


def export_model(
    encoder: Encoder,
    tokenizer: PreTrainedTokenizerBase,
    path: Path,
    *,
    layers: Layers,
    max_length: int,
    calibration: CalibrationMap | None,
) -> None:
    """Write a model directory that `SentenceTransformer(path)` loads; the same arguments give the same bytes.

    Its modules are the transformer, the mean over layers (where more than the last is pooled) and the mean over tokens,
    or `StaticEmbedding` of a table of vectors; then the encoder's head and the calibration, which are linear layers. A
    flow is `raysed.model.glow.FlowHead`: such a model needs `trust_remote_code=True`, like an encoder with own code.

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
        return
    try:
        pooling = library.pooling(encoder.hidden_size, layers, encoder.transformer.config.num_hidden_layers)
    except ValueError as error:
        raise UserError(str(error)) from None
    library.write_transformer(encoder, tokenizer, path, layers, max_length)
    library.write(path, None, [*pooling, *tail], max_length)


def has_own_code(path: Path) -> bool:
    """Whether an exported encoder came with code of its own, of which its directory has a copy."""
    config = path / "config.json"
    return config.is_file() and "auto_map" in json.loads(config.read_text(encoding="utf-8"))


def parity(path: Path, sentences: Sequence[str], expected_ND: np.ndarray) -> float:
    """Return the `largest_difference` of an exported model's vectors from those of the model in memory.

    Rounding gives 1e-6, and up to 1e-5 under a whitening that enlarges weak directions.
    """
    from raysed.model import library

    model = library.load(path, trust_remote_code=has_own_code(path))  # code that has run in this process already
    return largest_difference(model.encode(list(sentences), show_progress_bar=False), expected_ND)


def largest_difference(found_ND: np.ndarray, expected_ND: np.ndarray) -> float:
    """Return that of any coordinate, as a share of the largest coordinate; NaN where either side has one."""
    return float(np.abs(found_ND - expected_ND).max() / np.abs(expected_ND).max())

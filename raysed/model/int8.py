"""Teachers in 8 bits: OpenVINO quantizes a transformer on sample sentences and runs it on the CPU.

Vectors differ slightly from fp32; raysed measures by how much on other sentences.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysed.errors import first_line
from raysed.model.formats import OpenVinoTransformer, cosines, write_onnx, write_openvino
from raysed.model.load import LibraryModel, NativeModel

COMPARED = 100
"""Number of sentences to compare with fp32."""
_FILE = "model.xml"


def write_int8(model: NativeModel | LibraryModel, sentences: Sequence[str], out: Path) -> dict[str, Any]:
    """Quantize a model on all but the first `COMPARED` sentences.

    Returns the `mean` and `least` cosine with its fp32 vectors, or the `reason` why it cannot.
    """
    if isinstance(model, LibraryModel):
        return {"reason": model.reason}
    if model.encoder.is_static:
        return {"reason": "it is a static model"}
    if model.layers != 1:
        return {"reason": "it pools more than its last layer"}
    some = list(sentences[:COMPARED])
    exact_ND, transformer = model.embed(some), model.encoder.transformer
    try:
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "model.onnx"
            write_onnx(transformer, model.tokenizer, plain)
            write_openvino(plain, out / _FILE, model.tokenizer, sentences[COMPARED:], model.max_length)
    except Exception as error:  # torch's exporter may raise anything
        return {"reason": f"it cannot be written for OpenVINO ({first_line(error)})"}
    use_int8(model, out)
    cosines_N = cosines(model.embed(some), exact_ND)
    return {"mean": float(cosines_N.mean()), "least": float(cosines_N.min())}


def int8_summary(title: str, found: Mapping[str, Any]) -> str:
    """Describe what `write_int8` returned for a teacher."""
    if "reason" in found:
        return f"{title} cannot be quantized, so it embeds the corpus with encode_precision auto: {found['reason']}"
    near = f"{found['mean']:.3f} on average and {found['least']:.3f} at least"
    return f"{title} embeds the corpus in 8 bits: its vectors' cosine with fp32 is {near}, on {COMPARED} sentences"


def use_int8(model: NativeModel, directory: Path) -> bool:
    """Make a model embed with the files of `write_int8`; return False if it wrote none."""
    if not (directory / _FILE).exists():
        return False
    model.encoder.transformer = OpenVinoTransformer(directory / _FILE, model.encoder.transformer.config)
    model.encoder.position_offset = None  # padded rows
    return True

"""Compare the formats of an exported model: vectors, size, speed and dev score."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysed.config import Format, Role
from raysed.data.tokens import with_prompts
from raysed.errors import RunFailed
from raysed.model.formats import FILES, cosines, largest_difference, load_format
from raysed.score.tasks import EvaluationTask, main_score

LEAST_COSINES: dict[str, float] = {"openvino": 0.999, **dict.fromkeys(("int8", "int8_avx2", "openvino_int8"), 0.95)}
"""Least mean cosine with the trained vectors; all other formats differ by rounding in float32."""
_TIMED = 1000
"""Sentences for measuring speed."""
_MAX_SCORED = 20_000
"""Formats are not scored on a dev task with more texts."""


def compare_formats(
    path: Path,
    formats: Sequence[Format],
    sentences: Sequence[str],
    expected_ND: np.ndarray,
    tolerance: float,
    dev: EvaluationTask | None,
    prompts: Mapping[Role, str] = {},
) -> list[dict[str, Any]]:
    """Compare exported formats with the trained model, and measure them on this machine's CPU.

    Args:
        formats: formats besides torch; if empty, measure nothing.
        sentences: texts to compare and time; `expected_ND` are the trained vectors of the first N.
        tolerance: largest rounding difference, as a share of the largest coordinate.

    Raises:
        RunFailed: a format's vectors differ from the trained model's.
    """
    found = []
    for name in ["torch", *formats] if formats else []:
        file = FILES.get(name, "model.safetensors")
        embed = load_format(path, None if name == "torch" else name)
        x_ND = embed(sentences[: len(expected_ND)])
        cosine = float(cosines(x_ND, expected_ND).mean())
        difference = largest_difference(x_ND, expected_ND)
        if least := LEAST_COSINES.get(name):
            is_same = cosine >= least
            words = f"have a mean cosine of {cosine:.4f} with the trained model's, less than {least}"
        else:
            is_same = difference < tolerance
            words = f"differ from the trained model's by {difference:.2g} of the largest coordinate, more than rounding"
        if not is_same:  # also if NaN
            raise RunFailed(
                f"the exported model's vectors in format {name} {words}; remove {name} from export.formats and repeat "
                "the command, which trains nothing again"
            )
        began = time.monotonic()
        embed(sentences[:_TIMED])
        speed = len(sentences[:_TIMED]) / (time.monotonic() - began)
        is_scored = dev is not None and len(dev.sentences) <= _MAX_SCORED
        score = None
        if is_scored:
            score = main_score(dev.metrics(dev.outcome(embed(with_prompts(dev.sentences, dev.roles, prompts)))))
        parts = (path / file).parent.glob(f"{Path(file).stem}.*")  # OpenVINO's weights are in a .bin beside the .xml
        row = {"format": name, "file": file, "bytes": sum(part.stat().st_size for part in parts)}
        row |= {"cosine": cosine, "difference": difference, "sentences_per_second": speed, "score": score}
        found.append(row)
    return found

"""The formats of an exported model side by side: whether they say the same, their size, speed and dev score."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raysed.config import Format
from raysed.errors import RunFailed
from raysed.model.export import largest_difference
from raysed.model.formats import FILES, Embed, load_format
from raysed.score.tasks import Task, main_score

LEAST_COSINE = 0.95
"""Mean cosine of 8-bit and trained vectors; docs/distill.md says what real encoders have."""
_TIMED = 1000
"""Sentences on which speed is measured."""
_MOST_SCORED = 20_000
"""Texts of a dev task; a larger one is not embedded again by every format."""
_TORCH = "torch"


def compare_formats(
    path: Path,
    formats: Sequence[Format],
    sentences: Sequence[str],
    expected_ND: np.ndarray,
    tolerance: float,
    dev: Task | None,
) -> list[dict[str, Any]]:
    """Compare the formats of an exported model with the trained model, and measure them on this machine's CPU.

    Args:
        formats: those beside torch's; without any nothing is measured.
        sentences: N texts or more, to compare and to measure on.
        expected_ND: the trained model's vectors of the first N.
        tolerance: the largest difference that is rounding, as a share of the largest coordinate.

    Returns:
        The part `formats` of report.json, see docs/report.md; torch first.

    Raises:
        RunFailed: a format says something else than the trained model.
    """
    found = []
    for name in [_TORCH, *formats] if formats else []:
        file = FILES.get(name, "model.safetensors")
        embed = load_format(path, None if name == _TORCH else name)
        row = {"format": name, "file": file, "bytes": (path / file).stat().st_size}
        row |= _likeness(embed(sentences[: len(expected_ND)]), expected_ND)
        _refuse_other_vectors(row, tolerance)
        found.append({**row, "sentences_per_second": _speed(embed, sentences), "score": _score(embed, dev)})
    return found


def _likeness(found_ND: np.ndarray, expected_ND: np.ndarray) -> dict[str, float]:
    lengths_N = np.linalg.norm(found_ND, axis=1) * np.linalg.norm(expected_ND, axis=1)
    cosine = float(((found_ND * expected_ND).sum(1) / lengths_N).mean())
    return {"cosine": cosine, "difference": largest_difference(found_ND, expected_ND)}


def _refuse_other_vectors(row: Mapping[str, Any], tolerance: float) -> None:
    name = row["format"]
    if name in (_TORCH, "onnx"):
        problem = (
            f"differ from the trained model's by {row['difference']:.2g} of the largest coordinate, more than rounding"
        )
        is_same = row["difference"] < tolerance
    else:
        problem = f"have a mean cosine of {row['cosine']:.3f} with the trained model's, less than {LEAST_COSINE}"
        is_same = row["cosine"] >= LEAST_COSINE
    if not is_same:  # also where it is not a number
        raise RunFailed(
            f"the exported model's vectors as {name} {problem}; leave {name} out of export.formats, and the same "
            "command exports without training again"
        )


def _speed(embed: Embed, sentences: Sequence[str]) -> float:
    began = time.monotonic()
    embed(sentences[:_TIMED])
    return len(sentences[:_TIMED]) / (time.monotonic() - began)


def _score(embed: Embed, dev: Task | None) -> float | None:
    if dev is None or len(dev.sentences) > _MOST_SCORED:
        return None
    return main_score(dev.metrics(dev.outcome(embed(dev.sentences))))

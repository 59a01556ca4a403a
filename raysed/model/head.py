"""A learner's linear head, from the transformer's width H to that of the targets."""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

_FILE = "head.safetensors"
START = "head.npy"
"""File beside the targets: the learners' initial head [H, D]."""


def save_head(weight_HD: np.ndarray, directory: Path) -> None:
    """Write `head.safetensors`: the `weight` [D, H] of a linear layer."""
    save_file({"weight": np.ascontiguousarray(weight_HD.T)}, directory / _FILE)


def load_head(directory: Path) -> np.ndarray | None:
    """Load what `save_head` wrote, [H, D]; None if the directory has no head."""
    path = directory / _FILE
    return load_file(path)["weight"].T if path.is_file() else None

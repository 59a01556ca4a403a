"""A learner's linear head, from the transformer's width H to that of the targets.

It has no bias, so its matrix alone determines dot products and `fold` can shrink it.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from raysed.model.combination import with_fixed_signs

_FILE = "head.safetensors"
START = "head.npy"
"""File beside the targets: the learners' initial head [H, D]."""
VARIANCE = "variance.npy"
"""File beside the targets, if the head is dropped: mean squared error [D] of `START` per dimension."""


def save_head(weight_HD: np.ndarray, directory: Path) -> None:
    """Write `head.safetensors`: the `weight` [D, H] of a linear layer."""
    save_file({"weight": np.ascontiguousarray(weight_HD.T)}, directory / _FILE)


def load_head(directory: Path) -> np.ndarray | None:
    """Load what `save_head` wrote, [H, D]; None if the directory has no head."""
    path = directory / _FILE
    return load_file(path)["weight"].T if path.is_file() else None


def fold(weight_HE: np.ndarray) -> np.ndarray:
    """Return a head of at most H columns with the same dot products, in float32.

    With W = U S V', x W and x U S differ by V' only, which preserves dot products.

    >>> weight_HE, x_BH = np.random.default_rng(0).normal(size=(3, 7)), np.eye(3)
    >>> found_HD = fold(weight_HE)
    >>> found_HD.shape, np.allclose(x_BH @ weight_HE @ weight_HE.T @ x_BH.T, x_BH @ found_HD @ found_HD.T @ x_BH.T)
    ((3, 3), True)
    """
    left_HD, values_D, _ = np.linalg.svd(weight_HE.astype(np.float64), full_matrices=False)
    return (with_fixed_signs(left_HD) * values_D).astype(np.float32)

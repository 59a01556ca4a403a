"""A learner's linear head: from the transformer's width to that of the targets, where these differ.

It has no offset, so that dot products after it are determined by its matrix alone, which `fold` makes use of.
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from raysed.model.combination import with_fixed_signs

_FILE = "head.safetensors"
START = "head.npy"
"""Beside targets: the matrix [H, D] that learners start with."""
VARIANCE = "variance.npy"
"""Beside targets for heads that are dropped: by how much this start is off in each dimension [D], squared."""


def save_head(weight_HD: np.ndarray, directory: Path) -> None:
    """Write `head.safetensors`, the `weight` of a linear layer, beside the transformer."""
    save_file({"weight": np.ascontiguousarray(weight_HD.T)}, directory / _FILE)


def load_head(directory: Path) -> np.ndarray | None:
    """Return what `save_head` wrote; None where there is nothing."""
    path = directory / _FILE
    return load_file(path)["weight"].T if path.is_file() else None


def fold(weight_HE: np.ndarray) -> np.ndarray:
    """Return a head of at most H columns after which all dot products are the same, in float32.

    With W = U S V', the vectors x W and x U S differ by the turn V', which changes no dot product.

    >>> weight_HE, x_BH = np.random.default_rng(0).normal(size=(3, 7)), np.eye(3)
    >>> found_HD = fold(weight_HE)
    >>> found_HD.shape, np.allclose(x_BH @ weight_HE @ weight_HE.T @ x_BH.T, x_BH @ found_HD @ found_HD.T @ x_BH.T)
    ((3, 3), True)
    """
    left_HD, values_D, _ = np.linalg.svd(weight_HE.astype(np.float64), full_matrices=False)
    return (with_fixed_signs(left_HD) * values_D).astype(np.float32)

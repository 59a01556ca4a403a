"""Principal directions, with signs that do not depend on the library that found them."""

import numpy as np


def principal_directions(products_FF: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """Return the directions that keep most of the squared length of some rows, the most important first.

    Args:
        products_FF: the rows' second moments; not centred, the directions keep most of all dot products.

    Returns:
        Orthonormal columns [F, count], and the share of the squared length that they keep.
    """
    values_F, vectors_FF = np.linalg.eigh(products_FF)
    share = values_F[::-1][:count].sum() / values_F.sum() if count < len(values_F) else 1.0
    return with_fixed_signs(vectors_FF[:, ::-1][:, :count]), float(share)


def with_fixed_signs(directions_FG: np.ndarray) -> np.ndarray:
    """Return the same directions, each turned so that its largest coordinate is positive.

    >>> with_fixed_signs(np.array([[0.6, 0.8], [-0.8, 0.6]])).tolist()
    [[-0.6, 0.8], [0.8, 0.6]]
    """
    largest_G = np.abs(directions_FG).argmax(0)
    return directions_FG * np.sign(directions_FG[largest_G, np.arange(directions_FG.shape[1])])

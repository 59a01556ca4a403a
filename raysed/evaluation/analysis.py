"""The shape of an embedding space: whether the vectors fill it or crowd into a narrow cone.

The raw embeddings of a masked language model crowd together, and a cosine says little there; a normalizing
flow is meant to spread them out (BERT-flow section 2).
"""

import numpy as np


def random_pair_cosine(x_ND: np.ndarray, seed: int, pairs: int = 10_000) -> float:
    """Returns the mean cosine of random pairs of different rows.

    It is near 0 where directions are spread evenly and near 1 in a narrow cone.

    Args:
        x_ND: embeddings, at least two rows, none of them zero.
        seed: chooses the pairs.
        pairs: how many, drawn with replacement.
    """
    rng = np.random.default_rng(seed)
    a_P = rng.integers(len(x_ND), size=pairs)
    b_P = (a_P + rng.integers(1, len(x_ND), size=pairs)) % len(x_ND)
    x_ND = np.asarray(x_ND, dtype=np.float64)
    unit_ND = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    return float(np.einsum("pd,pd->p", unit_ND[a_P], unit_ND[b_P]).mean())


def singular_values(x_ND: np.ndarray) -> np.ndarray:
    """Returns the singular values of the raw matrix, largest first and divided by it, float64 [min(N, D)].

    The matrix is not centred: the common offset of all embeddings, which makes them crowd together, then
    shows as a first value far above the rest. Centring would hide just that.

    >>> singular_values(np.diag([1.0, 4.0, 2.0])).tolist()
    [1.0, 0.5, 0.25]
    """
    values = np.linalg.svd(np.asarray(x_ND, dtype=np.float64), compute_uv=False)
    return values / values[0] if values[0] > 0 else values


def effective_rank(singular_values_K: np.ndarray) -> float:
    """Returns how many directions carry the embeddings: the exponential of the singular values' entropy.

    K equal values give K, a single one that is not zero gives 1 (Roy and Vetterli 2007).

    >>> round(effective_rank(np.ones(8)), 6)
    8.0
    """
    share_K = singular_values_K / singular_values_K.sum()
    share_K = share_K[share_K > 0]
    return float(np.exp(-(share_K * np.log(share_K)).sum()))

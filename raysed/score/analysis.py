"""The shape of an embedding space, and what similarity follows besides meaning (BERT-flow sections 2.2 and 4.4)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from raysed.score.metrics import pair_cosines, spearman

FREQUENCY_BINS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000))
"""Ranks of word frequency (BERT-flow table 1, whose last bin is printed as 5K to 1K)."""
NEIGHBOURS = (3, 5, 7)
_WORD = re.compile(r"\w+|[^\w\s]")
_BLOCK_ROWS = 1024
_RANDOM_PAIRS = 10_000


def isotropy(x_ND: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Return how evenly embeddings fill their space; nothing is centred, see `singular_values`.

    `cosine` is the mean over random pairs of different rows: near 0 for even directions, near 1 in a narrow cone.
    `first_direction` is the share of the squared lengths that lies along the first singular direction.
    """
    values_K, rng = singular_values(x_ND), np.random.default_rng(seed)
    a_P = rng.integers(len(x_ND), size=_RANDOM_PAIRS)
    b_P = (a_P + rng.integers(1, len(x_ND), size=_RANDOM_PAIRS)) % len(x_ND)
    return {
        "cosine": float(pair_cosines(x_ND, x_ND, np.stack([a_P, b_P], axis=1)).mean()),
        "effective_rank": effective_rank(values_K),
        "first_direction": float(values_K[0] ** 2 / (values_K**2).sum()),
    }


def singular_values(x_ND: np.ndarray) -> np.ndarray:
    """Return the singular values of the raw matrix, largest first and divided by it, float64 [min(N, D)].

    Not centred, so that the common offset shows, which makes embeddings crowd together.

    >>> singular_values(np.diag([1.0, 4.0, 2.0])).tolist()
    [1.0, 0.5, 0.25]
    """
    values = np.linalg.svd(np.asarray(x_ND, dtype=np.float64), compute_uv=False)
    return values / values[0] if values[0] > 0 else values


def effective_rank(singular_values_K: np.ndarray) -> float:
    """Return how many directions carry the embeddings: the exponential of the singular values' entropy.

    K equal values give K, a single one that is not zero gives 1 (Roy and Vetterli 2007).
    """
    share_K = singular_values_K / singular_values_K.sum()
    share_K = share_K[share_K > 0]
    return float(np.exp(-(share_K * np.log(share_K)).sum()))


def edit_distance(a: Sequence, b: Sequence) -> int:
    """Return how many insertions, deletions and replacements of symbols turn `a` into `b` (Levenshtein 1966)."""
    symbols = {symbol: i for i, symbol in enumerate({*a, *b})}
    b_M, place_M = np.array([symbols[symbol] for symbol in b], np.int64), np.arange(len(b) + 1)
    row_M = place_M
    for i, symbol in enumerate(a, start=1):
        kept_M = np.minimum(row_M[1:] + 1, row_M[:-1] + (b_M != symbols[symbol]))
        # An insertion costs 1 per place, so the cheapest place to come from is the least of cost less place.
        row_M = np.minimum.accumulate(np.append(i, kept_M) - place_M) + place_M
    return int(row_M[-1])


def edit_distances(first: Sequence[str], second: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the edit distance of every pair of sentences in `characters` and in `words`, int64 [P] each.

    Words are in lower case, and a punctuation mark is a word: so counted, the gold scores of STS-B's dev pairs
    correlate with the distance at -24.0, in characters at -20.2; BERT-flow has -24.6 and does not say what it counts.
    """
    units = {"characters": str, "words": lambda sentence: _WORD.findall(sentence.lower())}
    return {
        unit: np.array([edit_distance(cut(a), cut(b)) for a, b in zip(first, second)], dtype=np.int64)
        for unit, cut in units.items()
    }


def edit_distance_table(
    distances: Mapping[str, np.ndarray], gold_P: np.ndarray, similarities: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Return how much similarity, and the gold score, follow edit distance: Spearman x100 (BERT-flow table 6)."""
    sides = {**distances, "gold": gold_P}
    return {
        name: {side: 100 * spearman(similarity_P, values_P) for side, values_P in sides.items()}
        for name, similarity_P in {"gold": gold_P, **similarities}.items()
    }


def frequency_table(embeddings_VD: np.ndarray, counts_V: np.ndarray) -> list[dict[str, Any]]:
    """Return where word embeddings lie by how frequent the words are (BERT-flow table 1).

    Words with the count 0, such as special tokens, are neither ranked nor neighbours.

    Returns:
        For every bin of ranks that the words fill: `ranks` (from, below), mean l2 `norm`, and by number of neighbours
        the mean `distance` to the nearest other words and the mean of the largest `dot` products with them.
    """
    used = np.flatnonzero(counts_V)
    x_VD = torch.from_numpy(np.asarray(embeddings_VD[used[np.argsort(-counts_V[used], kind="stable")]], np.float32))
    bins = [(start, stop) for start, stop in FREQUENCY_BINS if stop <= len(x_VD)]
    if not bins or len(x_VD) <= max(NEIGHBOURS):
        return []
    nearest, largest = [], []
    for start in range(0, bins[-1][1], _BLOCK_ROWS):
        block_BD = x_VD[start : min(start + _BLOCK_ROWS, bins[-1][1])]
        for values_BV, found, best in ((-torch.cdist(block_BD, x_VD), nearest, -1), (block_BD @ x_VD.T, largest, 1)):
            values_BV.diagonal(start).fill_(-torch.inf)
            found.append(best * values_BV.topk(max(NEIGHBOURS)).values)
    nearest_NK, largest_NK, norm_V = torch.cat(nearest), torch.cat(largest), x_VD.norm(dim=1)
    return [
        {
            "ranks": [start, stop],
            "norm": float(norm_V[start:stop].mean()),
            "distance": {k: float(nearest_NK[start:stop, :k].mean()) for k in NEIGHBOURS},
            "dot": {k: float(largest_NK[start:stop, :k].mean()) for k in NEIGHBOURS},
        }
        for start, stop in bins
    ]

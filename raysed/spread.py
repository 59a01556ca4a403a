"""How far embeddings are spread, and whether a training has lost it: the watch for collapse.

Learning to agree has a trivial solution, the same vector for every sentence. A run on its way there shows a falling
loss and nothing else, so the spread of the training's own embeddings is logged beside it, and judged in the end.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

COLLAPSED = "collapsed"
"""How the reason begins for which a member is left out."""
_LEFT = 0.25
"""Of its spread at the start, a model that has not more than this left counts as collapsed."""
_LAST = 5
"""Logged updates that are averaged for the spread at the end."""


def spread_of(emb_BD: torch.Tensor) -> dict[str, float]:
    """Measures B embeddings of different sentences.

    Returns:
        `spread`, the standard deviation of the normalised embeddings, mean over dimensions, times the root of D: near 1
        for directions that are spread evenly, 0 for a single one; and `cosine`, the mean over all pairs.

    >>> {name: round(value, 3) for name, value in spread_of(torch.ones(4, 3)).items()}
    {'spread': 0.0, 'cosine': 1.0}
    >>> {name: round(value, 3) for name, value in spread_of(torch.eye(3) - 1 / 3).items()}
    {'spread': 1.0, 'cosine': -0.5}
    """
    count, width = emb_BD.shape
    unit_BD = F.normalize(emb_BD.float(), dim=-1)
    spread = unit_BD.std(dim=0, correction=0).mean() * width**0.5
    cosine = (unit_BD.sum(0).square().sum() - count) / (count * (count - 1))
    return {"spread": spread.item(), "cosine": cosine.item()}


def collapse(history: Iterable[Mapping[str, Any]]) -> str | None:
    """Returns why a training has collapsed, from its history; None where it has not, or is not watched.

    Args:
        history: entries with `spread` and `cosine`, the first one of untouched weights.
    """
    watched = [entry for entry in history if "spread" in entry]
    if not watched:
        return None
    start, end, cosine = watched[0]["spread"], _end(watched, "spread"), _end(watched, "cosine")
    if end > _LEFT * start:
        return None
    return (
        f"{COLLAPSED}: different sentences have a mean cosine of {cosine:.3f}, and the spread of their embeddings fell "
        f"from {start:.2f} to {end:.2f}"
    )


def _end(entries: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(entry[name] for entry in entries[-_LAST:])

"""Detect collapse: the loss falls while all embeddings become equal or fall onto a line."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F

COLLAPSED = "collapsed"
"""First word of the reason why a collapsed member is left out."""
_LEFT = 0.25
"""A model has collapsed if a measure falls to this share of its value at the first update."""
_LAST = 5
"""Logged updates averaged for the final value."""
_WATCHED = {"spread": "the spread", "directions": "the number of directions"}
"""Measures that must not fall, with their names in messages."""


def spread_of(emb_BD: torch.Tensor) -> dict[str, float]:
    """Measure B embeddings of different sentences.

    `spread` is the standard deviation of the normalised embeddings, averaged over dimensions, times the root of D: near
    1 if directions are spread evenly, 0 for a single one. `directions` counts those that carry it (participation ratio
    of the principal components, at most B - 1). `cosine` is the mean over all pairs.

    >>> {name: round(value, 3) for name, value in spread_of(torch.ones(4, 3)).items()}
    {'spread': 0.0, 'directions': 0.0, 'cosine': 1.0}
    >>> {name: round(value, 3) for name, value in spread_of(torch.eye(3) - 1 / 3).items()}
    {'spread': 1.0, 'directions': 2.0, 'cosine': -0.5}
    """
    count, width = emb_BD.shape
    unit_BD = F.normalize(emb_BD.float(), dim=-1)
    centred_BD = unit_BD - unit_BD.mean(0)
    spread = centred_BD.square().mean(0).sqrt().mean() * width**0.5
    gram_BB = centred_BD @ centred_BD.T
    # In single precision, equal rows leave a residue of about 1e-14, whose directions mean nothing.
    directions = gram_BB.trace() ** 2 / gram_BB.square().sum().clamp(min=1e-16)
    cosine = (unit_BD.sum(0).square().sum() - count) / (count * (count - 1))
    return {"spread": spread.item(), "directions": directions.item(), "cosine": cosine.item()}


def collapse(history: Iterable[Mapping[str, Any]]) -> str | None:
    """Return why a training has collapsed, or None. Its history starts with the untrained weights."""
    watched = [entry for entry in history if "spread" in entry]
    for name, words in _WATCHED.items() if watched else ():
        start, end = watched[0][name], _end(watched, name)
        if end <= _LEFT * start:
            cosine = f"mean cosine of different sentences: {_end(watched, 'cosine'):.3f}"
            return f"{COLLAPSED}: {words} of the embeddings fell from {start:.2f} to {end:.2f} ({cosine})"
    return None


def _end(entries: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(entry[name] for entry in entries[-_LAST:])

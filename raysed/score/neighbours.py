"""Nearest neighbours of some sentences, which need no labels."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysed.score.metrics import unit

MOST_SENTENCES = 1000
_SHOWN, _NEAREST = 5, 2
_LONGEST = 200
"""Characters shown of a sentence."""

Embed = Callable[[Sequence[str]], np.ndarray]
"""Sentences to embeddings [B, D]."""


def nearest_neighbours(sentences: Sequence[str], embed: Embed, seed: int = 0) -> dict[str, Any]:
    """Find the nearest sentences of a few among at most `MOST_SENTENCES` distinct sentences.

    Returns:
        `sentences`: how many were used. `neighbours`: a few of them, each with its nearest ones and their cosines.
    """
    generator = np.random.default_rng(seed)
    if len(sentences) > MOST_SENTENCES:
        sentences = [sentences[i] for i in np.sort(generator.choice(len(sentences), MOST_SENTENCES, replace=False))]
    x_ND, neighbours = unit(np.asarray(embed(sentences), np.float64)), []
    shown = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in sentences]
    for row in generator.choice(len(sentences), min(_SHOWN, len(sentences)), replace=False).tolist():
        cosine_N = x_ND @ x_ND[row]
        nearest = [i for i in np.argsort(-cosine_N, kind="stable").tolist() if i != row][:_NEAREST]
        near = [{"sentence": shown[i], "cosine": float(cosine_N[i])} for i in nearest]
        neighbours.append({"sentence": shown[row], "nearest": near})
    return {"sentences": len(sentences), "neighbours": neighbours}

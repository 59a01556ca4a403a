"""Scores without labels: the shape of the embedding space, near-duplicates, and a sanity list of generated triples.

They reveal broken models, but do not rank good ones. Source: Wang and Isola, "Understanding Contrastive Representation
Learning through Alignment and Uniformity", 2020.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from raysed.data.rows import read_lines
from raysed.score.lexical import tf_idf_vectors, word_cosines
from raysed.score.metrics import pair_cosines, unit

MOST_SENTENCES = 1000
"""Fewer do not show the shape of a space of 768 dimensions."""
MOST_CHANGED = 400
"""The standard error of `found` is then at most 2.5 points."""
LABELS_ADVICE = (
    "Without labels, nothing shows whether sentences that the model finds similar are similar to you. To find out, "
    "grade a few hundred pairs of your own sentences, or list which documents answer a few dozen queries."
)
_SHOWN, _NEAREST = 5, 2
_RANDOM_PAIRS = 10_000
_LONGEST = 200
"""Characters shown of a sentence."""
_TRIPLES = Path(__file__).parents[1] / "bundled" / "generated-triples.tsv"

Embed = Callable[[Sequence[str]], np.ndarray]
"""Sentences to embeddings [B, D]."""


def isotropy(x_ND: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Return how evenly embeddings fill their space; they are not centred, see `singular_values`.

    `cosine` is the mean over random pairs of different rows: near 0 for even directions, near 1 for a narrow cone.
    `first_direction` is the share of the squared lengths along the first singular direction.
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
    """Return the singular values of the raw matrix divided by the largest, descending, float64 [min(N, D)].

    The matrix is not centred: a common offset, which crowds embeddings together, must show.

    >>> singular_values(np.diag([1.0, 4.0, 2.0])).tolist()
    [1.0, 0.5, 0.25]
    """
    values = np.linalg.svd(np.asarray(x_ND, dtype=np.float64), compute_uv=False)
    return values / values[0] if values[0] > 0 else values


def effective_rank(singular_values_K: np.ndarray) -> float:
    """Return the exponential of the singular values' entropy: K for K equal ones (Roy and Vetterli 2007)."""
    share_K = singular_values_K / singular_values_K.sum()
    share_K = share_K[share_K > 0]
    return float(np.exp(-(share_K * np.log(share_K)).sum()))


def near_duplicates(sentences: Sequence[str], seed: int = 0) -> list[str]:
    """Return each sentence with one small change that keeps its meaning.

    It swaps two letters, lower-cases, repeats a word, or removes or adds the full stop.

    >>> near_duplicates(["It rains."] * 4, seed=1)
    ['it rains.', 'It rains', 'It raisn.', 'It rains']
    """
    generator = np.random.default_rng(seed)
    return [_change(sentence, generator) for sentence in sentences]


def _change(sentence: str, generator: np.random.Generator) -> str:
    kind, words = int(generator.integers(4)), sentence.split()
    place = int(generator.integers(len(words))) if words else 0
    long = [i for i, word in enumerate(words) if len(word) >= 5]
    if kind == 0 and long:
        row = long[place % len(long)]
        word = words[row]
        at = 1 + int(generator.integers(len(word) - 3))
        swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        return " ".join([*words[:row], swapped, *words[row + 1 :]])
    if kind == 1 and sentence != sentence.lower():
        return sentence.lower()
    if kind == 2 and words:
        return " ".join([*words[:place], words[place], *words[place:]])
    return sentence[:-1] if sentence.endswith(".") else f"{sentence}."


def unlabelled_scores(sentences: Sequence[str], embed: Embed, seed: int = 0) -> dict[str, Any]:
    """Score one model on at most `MOST_SENTENCES` distinct sentences without labels.

    Returns:
        `sentences`: how many were used. `found`: the percentage of near-duplicates whose nearest sentence is their
        original. `alignment`: the mean squared distance of a sentence and its near-duplicate. `uniformity`: the
        logarithm of the mean of exp(-2 d^2) over all pairs. (Both are on the unit sphere, and lower is better.)
        `cosine` and `effective_rank`: see `isotropy`. `neighbours`: the nearest sentences of a few.
    """
    generator = np.random.default_rng(seed)
    if len(sentences) > MOST_SENTENCES:
        sentences = [sentences[i] for i in np.sort(generator.choice(len(sentences), MOST_SENTENCES, replace=False))]
    of_C = np.sort(np.random.default_rng((seed, 1)).permutation(len(sentences))[:MOST_CHANGED])
    changed = near_duplicates([sentences[row] for row in of_C], seed)
    x_ND, near_CD = (unit(np.asarray(embed(texts), np.float64)) for texts in (sentences, changed))
    cosine_NN = x_ND @ x_ND.T
    others, shape, neighbours = ~np.eye(len(sentences), dtype=bool), isotropy(x_ND, seed), []
    shown = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…" for text in sentences]
    for row in generator.choice(len(sentences), min(_SHOWN, len(sentences)), replace=False).tolist():
        nearest = [i for i in np.argsort(-cosine_NN[row], kind="stable").tolist() if i != row][:_NEAREST]
        near = [{"sentence": shown[i], "cosine": float(cosine_NN[row, i])} for i in nearest]
        neighbours.append({"sentence": shown[row], "nearest": near})
    return {
        "sentences": len(sentences),
        "found": 100 * float(np.mean((near_CD @ x_ND.T).argmax(1) == of_C)),
        "alignment": float(np.square(x_ND[of_C] - near_CD).sum(1).mean()),
        "uniformity": float(np.log(np.exp(-2 * (2 - 2 * cosine_NN[others])).mean())),
        "cosine": shape["cosine"],
        "effective_rank": shape["effective_rank"],
        "neighbours": neighbours,
    }


@lru_cache
def triples() -> tuple[tuple[str, str, str], ...]:
    """Return triples (sentence, closer, farther); in a third of them the farther one shares more words.

    >>> len(triples()), triples()[0]
    (50, ('A man plays the guitar.', 'Someone is making music.', 'It rains.'))
    """
    return tuple(tuple(line.split("\t")) for line in read_lines(_TRIPLES)[1:])


def correct_triples(embed: Embed) -> int:
    """Return how many triples a model answers correctly by cosine; a tie counts as wrong."""
    x_ND, near_ND, far_ND = (unit(np.asarray(embed(side), np.float64)) for side in zip(*triples()))
    return int(((x_ND * near_ND).sum(1).round(12) > (x_ND * far_ND).sum(1).round(12)).sum())


def correct_triples_of_tf_idf() -> int:
    """Return how many triples TF-IDF answers correctly, with frequencies from the list itself."""
    sentences, closer, farther = zip(*triples())
    near_N, far_N = np.split(word_cosines(tf_idf_vectors, [*sentences, *sentences], [*closer, *farther]), 2)
    return int((near_N > far_N).sum())

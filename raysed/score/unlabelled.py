"""What can be told of a model without labels: the shape of its space, and whether small changes of a sentence matter.

None of it says whether the model knows what its user means by "similar": a model that ignores the second half of every
sentence can pass. It shows what is broken, not what is good.

Sources: Wang and Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity", 2020.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysed.score.analysis import isotropy
from raysed.score.metrics import unit

MOST_SENTENCES = 1000
"""A sample of so many is enough for every number here: a space of 768 directions shows in no fewer."""
MOST_CHANGED = 400
"""So many of them are changed: the share that is found is then off by at most 2.5 %, its standard error."""
CANNOT_BE_TOLD = (
    "Without labels nobody can tell whether sentences that the model finds similar are similar to you. For that, "
    "grade some hundred pairs of your own sentences, or list which documents answer some dozen queries."
)
_SHOWN, _NEAREST = 5, 2
_LONGEST = 200
"""Characters of a sentence that are shown."""
_TEMPERATURE = 2.0

Embed = Callable[[Sequence[str]], np.ndarray]


def near_duplicates(sentences: Sequence[str], seed: int = 0) -> list[str]:
    """Return each sentence with one small change that leaves its meaning: what a careless writer would do.

    Two letters of a word are swapped, the case is changed, a word is written twice, or the end loses or gets its full
    stop.

    Args:
        seed: chooses the change, and where it is made.

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
        word = words[long[place % len(long)]]
        at = 1 + int(generator.integers(len(word) - 3))
        swapped = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        return " ".join([*words[: long[place % len(long)]], swapped, *words[long[place % len(long)] + 1 :]])
    if kind == 1 and sentence != sentence.lower():
        return sentence.lower()
    if kind == 2 and words:
        return " ".join([*words[:place], words[place], *words[place:]])
    return sentence[:-1] if sentence.endswith(".") else f"{sentence}."


def unlabelled_scores(sentences: Sequence[str], embed: Embed, seed: int = 0) -> dict[str, Any]:
    """Return what can be told of one model on sentences without labels.

    Args:
        sentences: distinct; of more than `MOST_SENTENCES` so many are drawn.
        embed: sentences to embeddings [B, D].
        seed: of the draw and of the changes.

    Returns:
        `sentences`, how many there are; `found`, the share in % of near-duplicates (of `MOST_CHANGED` sentences at
        most, see `near_duplicates`) whose nearest of all sentences is the one that they were made of; `alignment`, the
        mean squared distance of a sentence and its near-duplicate, and `uniformity`, the logarithm of the mean of
        exp(-2 d^2) over all pairs, both on the unit sphere and better the lower they are; `cosine` and
        `effective_rank`, see `analysis.isotropy`; and `neighbours`, for some sentences the nearest others with their
        cosines, 200 characters of each.
    """
    generator = np.random.default_rng(seed)
    if len(sentences) > MOST_SENTENCES:
        sentences = [sentences[i] for i in np.sort(generator.choice(len(sentences), MOST_SENTENCES, replace=False))]
    of_C = np.sort(np.random.default_rng((seed, 1)).permutation(len(sentences))[:MOST_CHANGED])
    changed = near_duplicates([sentences[row] for row in of_C], seed)
    x_ND, near_CD = (unit(np.asarray(embed(texts), np.float64)) for texts in (sentences, changed))
    cosine_NN = x_ND @ x_ND.T
    others = ~np.eye(len(sentences), dtype=bool)
    squared = 2 - 2 * cosine_NN[others]
    shape = isotropy(x_ND, seed)
    return {
        "sentences": len(sentences),
        "found": 100 * float(np.mean((near_CD @ x_ND.T).argmax(1) == of_C)),
        "alignment": float(np.square(x_ND[of_C] - near_CD).sum(1).mean()),
        "uniformity": float(np.log(np.exp(-_TEMPERATURE * squared).mean())),
        "cosine": shape["cosine"],
        "effective_rank": shape["effective_rank"],
        "neighbours": _neighbours(sentences, np.where(others, cosine_NN, -np.inf), generator),
    }


def _neighbours(sentences: Sequence[str], cosine_NN: np.ndarray, generator: np.random.Generator) -> list[dict]:
    shown = generator.choice(len(sentences), min(_SHOWN, len(sentences)), replace=False)
    found = []
    for row in shown.tolist():
        nearest = np.argsort(-cosine_NN[row], kind="stable")[:_NEAREST]
        near = [{"sentence": _shown(sentences[i]), "cosine": float(cosine_NN[row, i])} for i in nearest.tolist()]
        found.append({"sentence": _shown(sentences[row]), "nearest": near})
    return found


def _shown(sentence: str) -> str:
    return sentence if len(sentence) <= _LONGEST else f"{sentence[: _LONGEST - 1]}…"

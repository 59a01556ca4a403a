"""The shape of an embedding space, and what similarity follows besides meaning.

The raw embeddings of a masked language model crowd into a narrow cone, where a cosine says little; they follow the
words of a sentence more than its meaning, and rare words lie far out (BERT-flow sections 2.2 and 4.4). The functions
here put numbers on each of these. All work on arrays and text; only a hub dataset is fetched.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.config import NliSource
from raysed.data.rows import Schema, read_source
from raysed.errors import UserError
from raysed.score.similarity import ranks, spearman

FREQUENCY_BINS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000))
"""Ranks of word frequency (BERT-flow table 1, whose last bin is printed as 5K to 1K)."""
NEIGHBOURS = (3, 5, 7)
_QNLI = Schema(
    setting="evaluation.analysis.qnli",
    kind="questions and sentences",
    wanted={("question", "sentence", "label"): [("question", "sentence", "label")]},
    needed="question, sentence and label",
    text=("question", "sentence"),
)
_QNLI_LABELS = {"entailment": 1, "not_entailment": 0}
_WORD = re.compile(r"\w+|[^\w\s]")
_BLOCK_ROWS = 1024


# -- isotropy ----------------------------------------------------------------------------------------------------------


def isotropy(x_ND: np.ndarray, seed: int = 0) -> dict[str, float]:
    """Returns how evenly embeddings fill their space.

    Returns:
        `cosine`, see `random_pair_cosine`; `effective_rank`; `first_direction`, the share of the squared lengths that
        lies along the first singular direction. Nothing is centred, see `singular_values`.

    >>> {name: round(value, 6) for name, value in isotropy(np.ones((4, 3))).items()}
    {'cosine': 1.0, 'effective_rank': 1.0, 'first_direction': 1.0}
    """
    values_K = singular_values(x_ND)
    return {
        "cosine": random_pair_cosine(x_ND, seed),
        "effective_rank": effective_rank(values_K),
        "first_direction": float(values_K[0] ** 2 / (values_K**2).sum()),
    }


def random_pair_cosine(x_ND: np.ndarray, seed: int, pairs: int = 10_000) -> float:
    """Returns the mean cosine of random pairs of different rows.

    It is near 0 where directions are spread evenly and near 1 in a narrow cone.

    Args:
        x_ND: embeddings, at least two rows, none of them zero.
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


# -- lexical similarity ------------------------------------------------------------------------------------------------


def edit_distance(a: Sequence, b: Sequence) -> int:
    """Returns how many insertions, deletions and replacements turn `a` into `b` (Levenshtein 1966).

    Works on strings, character by character, and on lists of words.

    >>> edit_distance("kitten", "sitting"), edit_distance("I like it".split(), "I dislike it".split())
    (3, 1)
    """
    if not a:
        return len(b)
    # The textbook's table has a cell for every pair of symbols, which is slow in Python. A cell differs from the one
    # above it by -1, 0 or 1, so a column is kept as two whole numbers: the bits of `up` are the +1s, those of `down`
    # the -1s, and a symbol of `b` costs a dozen operations on whole numbers (Myers 1999, in the form of Hyyrö 2003).
    # Check: test_equals_the_table in tests/score/test_analysis.py, which compares it with that table.
    everything, last = (1 << len(a)) - 1, 1 << (len(a) - 1)
    places: dict[Any, int] = {}
    for i, symbol in enumerate(a):
        places[symbol] = places.get(symbol, 0) | 1 << i
    up, down, distance = everything, 0, len(a)
    for symbol in b:
        equal = places.get(symbol, 0)
        vertical = equal | down
        horizontal = (((equal & up) + up) ^ up) | equal
        right_up, right_down = down | ~(horizontal | up) & everything, up & horizontal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up = right_up << 1 | 1
        up, down = (right_down << 1 | ~(vertical | right_up)) & everything, right_up & vertical & everything
    return distance


def edit_distances(first: Sequence[str], second: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the edit distance of every pair of sentences in `characters` and in `words`, int64 [P] each.

    Characters are taken as they stand. Words are in lower case, and a punctuation mark is a word: so counted, the gold
    scores of STS-B's dev pairs correlate with the distance at -24.0, in characters at -20.2; BERT-flow has -24.6.
    """
    units = {"characters": str, "words": lambda sentence: _WORD.findall(sentence.lower())}
    return {
        unit: np.array([edit_distance(cut(a), cut(b)) for a, b in zip(first, second)], dtype=np.int64)
        for unit, cut in units.items()
    }


def edit_distance_table(
    distances: Mapping[str, np.ndarray], gold_P: np.ndarray, similarities: Mapping[str, np.ndarray]
) -> dict[str, dict[str, float]]:
    """Returns how much similarity follows edit distance, and how much the gold score (BERT-flow table 6).

    The paper does not say whether it counts characters or words, so both are given.

    Args:
        distances: what `edit_distances` returns, [P] each.
        similarities: by model, e.g. cosines, [P] each.

    Returns:
        For `gold` and every model the Spearman correlation x100 of its similarity with the distance in `characters`
        and in `words`, and with the `gold` score.
    """
    return {
        name: {
            **{unit: 100 * spearman(similarity_P, distance_P) for unit, distance_P in distances.items()},
            "gold": 100 * spearman(similarity_P, gold_P),
        }
        for name, similarity_P in {"gold": gold_P, **similarities}.items()
    }


# -- question and answer -----------------------------------------------------------------------------------------------


def qnli_auc(scores_P: np.ndarray, labels_P: np.ndarray) -> float:
    """Returns how well scores tell two classes apart: the area under the ROC curve x100 (BERT-flow table 4).

    It is the share of pairs of one positive and one negative example in which the positive one has the higher score;
    equal scores count half.

    Args:
        labels_P: 1 and 0; both occur.

    >>> qnli_auc(np.array([0.9, 0.2, 0.5, 0.5]), np.array([1, 0, 1, 0]))
    87.5
    """
    positive_P = np.asarray(labels_P) == 1
    positives, negatives = int(positive_P.sum()), int((~positive_P).sum())
    if not positives or not negatives:
        raise ValueError("the area under the curve needs examples of both classes")
    above = ranks(scores_P)[positive_P].sum() - positives * (positives + 1) / 2
    return float(100 * above / (positives * negatives))


def load_qnli(source: str) -> tuple[list[str], list[str], np.ndarray]:
    """Reads GLUE's QNLI: does the sentence answer the question?

    Args:
        source: GLUE's dev.tsv or another file (columns question, sentence, label), or a hub dataset, of which the
            configuration `qnli` and the split `validation` are read.

    Returns:
        Questions, sentences, and labels as int64 [P]: 1 for `entailment`, 0 for `not_entailment`.

    Raises:
        UserError: names the source, in a file the line, and what is wrong.
    """
    table = read_source(NliSource(source=source, name="qnli"), _QNLI, "validation")
    names = table.classes.get("label")
    labels = [_qnli_label(value, names, table.where(place)) for place, value in enumerate(table.columns["label"])]
    if len(set(labels)) < 2:
        raise UserError(f"evaluation.analysis.qnli: {source} must have both entailment and not_entailment")
    return table.texts("question"), table.texts("sentence"), np.array(labels, dtype=np.int64)


def _qnli_label(value: Any, names: Sequence[str] | None, where: str) -> int:
    label = names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value
    if label not in _QNLI_LABELS:
        raise UserError(f"{where}: label {label!r} is neither entailment nor not_entailment")
    return _QNLI_LABELS[label]


# -- word frequency ----------------------------------------------------------------------------------------------------


def frequency_table(embeddings_VD: np.ndarray, counts_V: np.ndarray) -> list[dict[str, Any]]:
    """Returns where word embeddings lie by how frequent the words are (BERT-flow table 1).

    Args:
        counts_V: how often each occurs; words that are not to be counted, such as special tokens, have 0. Only words
            that occur are ranked, and only they are neighbours.

    Returns:
        For every bin of ranks that the words fill: `ranks` (from, below), mean l2 `norm`, and by number of neighbours
        (3, 5, 7) the mean `distance` to the nearest words and the mean `dot` product with the words for which it is
        largest; a word is not its own neighbour.
    """
    used = np.flatnonzero(counts_V)
    ranked = used[np.argsort(-counts_V[used], kind="stable")]
    x_VD = np.asarray(embeddings_VD[ranked], dtype=np.float32)
    bins = [(start, stop) for start, stop in FREQUENCY_BINS if stop <= len(x_VD)]
    if not bins or len(x_VD) <= max(NEIGHBOURS):
        return []
    nearest_NK, largest_NK = _neighbours(x_VD, bins[-1][1])
    norm_V = np.linalg.norm(x_VD, axis=1)
    return [
        {
            "ranks": [start, stop],
            "norm": float(norm_V[start:stop].mean()),
            "distance": {k: float(nearest_NK[start:stop, :k].mean()) for k in NEIGHBOURS},
            "dot": {k: float(largest_NK[start:stop, :k].mean()) for k in NEIGHBOURS},
        }
        for start, stop in bins
    ]


def _neighbours(x_VD: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Distances to the nearest words and the largest dot products of the first `rows` words, best first, [rows, K]."""
    most = max(NEIGHBOURS)
    squares_V = np.einsum("vd,vd->v", x_VD, x_VD)
    nearest_NK, largest_NK = np.empty((rows, most)), np.empty((rows, most))
    for start in range(0, rows, _BLOCK_ROWS):
        here = np.arange(start, min(start + _BLOCK_ROWS, rows))
        dot_BV = x_VD[here] @ x_VD.T
        square_BV = squares_V[here, None] + squares_V - 2 * dot_BV
        dot_BV[np.arange(len(here)), here] = -np.inf
        square_BV[np.arange(len(here)), here] = np.inf
        largest_NK[here] = -np.sort(np.partition(-dot_BV, most - 1)[:, :most])
        nearest_NK[here] = np.sqrt(np.maximum(np.sort(np.partition(square_BV, most - 1)[:, :most]), 0))
    return nearest_NK, largest_NK

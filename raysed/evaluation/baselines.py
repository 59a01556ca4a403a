"""What costs no model: the similarity of sentences by their words alone. A gain over nothing is no gain."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from raysed.evaluation.similarity import Evaluation

WORD_OVERLAP, TF_IDF = "word-overlap", "tf-idf"


def word_overlap(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Returns the cosine of the two sentences' word counts.

    Args:
        first: P sentences.
        second: P sentences.

    Returns:
        float64 [P], 0 to 1.

    >>> word_overlap(["The dog sees a cat."], ["A cat sees the dog."]).tolist()
    [1.0]
    """
    from sklearn.feature_extraction.text import CountVectorizer  # takes a second, and is not always needed

    return _cosines(CountVectorizer(token_pattern=r"[\w']+"), first, second)


def tf_idf(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Returns the cosine of TF-IDF vectors with logarithmic counts; arguments and result as for `word_overlap`.

    Frequencies are those of the sentences themselves, each counted once.

    Args:
        first: P sentences.
        second: P sentences.

    >>> tf_idf(["the dog sleeps", "the sun"], ["the dog sleeps", "a bird"]).tolist()
    [1.0, 0.0]
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    return _cosines(TfidfVectorizer(sublinear_tf=True), first, second)


_BASELINES: Mapping[str, Callable] = {WORD_OVERLAP: word_overlap, TF_IDF: tf_idf}


def baselines(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Returns every baseline's similarities in the order of `Evaluation.pair_rows`, by the name of its row."""
    return {name: similarity(*evaluation.pair_sentences()) for name, similarity in _BASELINES.items()}


def _cosines(vectorizer: Any, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """The cosine of every pair, 0 where a sentence has no words."""
    rows = {sentence: row for row, sentence in enumerate(dict.fromkeys([*first, *second]))}
    try:
        counts_UV = vectorizer.fit_transform(rows)
    except ValueError:  # not one word in all the sentences
        return np.zeros(len(first))
    a_PV, b_PV = (counts_UV[[rows[sentence] for sentence in side]] for side in (first, second))
    dots, *squares = [np.asarray(x.multiply(y).sum(1)).ravel() for x, y in ((a_PV, b_PV), (a_PV, a_PV), (b_PV, b_PV))]
    norms = np.sqrt(squares[0] * squares[1])
    # Equal word counts must tie: rounding noise has no rank.
    return np.divide(dots, norms, out=np.zeros(len(dots)), where=norms > 0).round(12)

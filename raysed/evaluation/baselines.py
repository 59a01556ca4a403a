"""What costs no model: the similarity of sentences by their words alone. A gain over nothing is no gain."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from raysed.evaluation.similarity import Evaluation
from raysed.evaluation.transfer import ProbeJob, TransferTask, combine, jobs, run_probe, sentences_of

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

    >>> tf_idf(["the dog sleeps", "the sun"], ["the dog sleeps", "a bird"]).tolist()
    [1.0, 0.0]
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    return _cosines(TfidfVectorizer(sublinear_tf=True), first, second)


_BASELINES: Mapping[str, Callable] = {WORD_OVERLAP: word_overlap, TF_IDF: tf_idf}


def baselines(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Returns every baseline's similarities in the order of `Evaluation.pair_rows`, by the name of its row."""
    return {name: similarity(*evaluation.pair_sentences()) for name, similarity in _BASELINES.items()}


def transfer_baselines(tasks: Sequence[TransferTask], seed: int = 1111) -> dict[str, dict[str, dict[str, Any]]]:
    """Scores TF-IDF as the features of transfer tasks: sparse, of length 1, with logarithmic counts, as in `tf_idf`.

    Words and their frequencies are those of the sentences that a probe is fitted on, each counted once; so every outer
    fold has its own. Other words are passed over.

    Args:
        tasks: what to score.
        seed: of folds and probes.

    Returns:
        By the name of the row, what `score_transfer` returns.
    """
    sentences_U = np.array(sentences_of(tasks), dtype=object)
    return {TF_IDF: combine(run_probe(job, _features(job, sentences_U)) for job in jobs(tasks, seed))}


def _features(job: ProbeJob, sentences_U: np.ndarray) -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, dtype=np.float32)
    try:
        vectorizer.fit(sentences_U[job.training_rows])
    except ValueError:  # not one word in all the sentences
        return csr_matrix((len(sentences_U), 1), dtype=np.float32)
    return vectorizer.transform(sentences_U).tocsr()


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

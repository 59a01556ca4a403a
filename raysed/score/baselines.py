"""What costs no model: words alone. A gain over nothing is no gain.

Word overlap and TF-IDF score tasks of every kind, BM25 retrieval. Frequencies are those of a task's own texts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from raysed.score.classes import Classification, Clustering
from raysed.score.retrieval import Retrieval
from raysed.score.similarity import Similarity
from raysed.score.tasks import Evaluation
from raysed.score.transfer import ProbeJob, TransferTask, combine, jobs, run_probe, sentences_of

WORD_OVERLAP, TF_IDF, BM25 = "word-overlap", "tf-idf", "bm25"


def word_overlap(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Returns the cosine of the two sentences' word counts.

    Returns:
        float64 [P], 0 to 1.

    >>> word_overlap(["The dog sees a cat."], ["A cat sees the dog."]).tolist()
    [1.0]
    """
    return _pair_cosines(_counts(), first, second)


def tf_idf(first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Returns the cosine of TF-IDF vectors with logarithmic counts; arguments and result as for `word_overlap`.

    Frequencies are those of the sentences themselves, each counted once.

    >>> tf_idf(["the dog sleeps", "the sun"], ["the dog sleeps", "a bird"]).tolist()
    [1.0, 0.0]
    """
    return _pair_cosines(_tf_idf(), first, second)


def baselines(evaluation: Evaluation, tasks: Iterable[str] | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Returns every baseline's outcomes by task, by the name of its row; one that fits no task is not there.

    Args:
        tasks: which; None: all.
    """
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in evaluation.tasks if tasks is None else tasks:
        task = evaluation.tasks[name]
        for baseline, outcome in _OF_KIND[task.kind].items():
            found.setdefault(baseline, {})[name] = outcome(task)
    return {name: found[name] for name in (WORD_OVERLAP, TF_IDF, BM25) if name in found}


def transfer_baselines(
    tasks: Sequence[TransferTask], seed: int = 1111, run: Callable[..., Iterable[dict[str, Any]]] = map
) -> dict[str, dict[str, dict[str, Any]]]:
    """Scores TF-IDF as the features of transfer tasks, see `run_word_probe`.

    Args:
        run: how the probes are carried out; anything that is called like `map`.

    Returns:
        By the name of the row, what `score_transfer` returns.
    """
    return {TF_IDF: combine(run(partial(run_word_probe, counts_UV=word_counts(tasks)), jobs(tasks, seed)))}


def word_counts(tasks: Sequence[TransferTask]) -> csr_matrix:
    """Returns how often each of `sentences_of(tasks)` has each word of all of them, float32 [U, V]."""
    from sklearn.feature_extraction.text import CountVectorizer

    sentences = sentences_of(tasks)
    try:
        return CountVectorizer(dtype=np.float32).fit_transform(sentences).tocsr()
    except ValueError:  # not one word in all the sentences
        return csr_matrix((len(sentences), 1), dtype=np.float32)


def run_word_probe(job: ProbeJob, counts_UV: csr_matrix) -> dict[str, Any]:
    """Trains and tests one probe on TF-IDF: sparse rows of length 1 with logarithmic counts, as in `tf_idf`.

    Words and their frequencies are those of the sentences that the probe is fitted on, each counted once; so every
    outer fold has its own. Other words are passed over.

    Args:
        job: one of `jobs(tasks)`.
        counts_UV: `word_counts(tasks)`.

    Returns:
        What `run_probe` returns.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    fitted_NV = counts_UV[job.training_rows]
    known = np.flatnonzero(fitted_NV.getnnz(axis=0))
    if not len(known):
        return run_probe(job, csr_matrix((counts_UV.shape[0], 1), dtype=np.float32))
    weights = TfidfTransformer(sublinear_tf=True).fit(fitted_NV[:, known])
    return run_probe(job, weights.transform(counts_UV[:, known]))


def _counts() -> Any:
    from sklearn.feature_extraction.text import CountVectorizer  # takes a second, and is not always needed

    return CountVectorizer(token_pattern=r"[\w']+")


def _tf_idf() -> Any:
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(sublinear_tf=True)


def _vectors(vectorizer: Any, texts: Sequence[str]) -> Any:
    """Sparse unit vectors [N, V] of texts; a zero vector where a text has no words."""
    from sklearn.preprocessing import normalize

    try:
        return normalize(vectorizer.fit_transform(texts))
    except ValueError:  # not one word in all the texts
        return csr_matrix((len(texts), 1))


def _of_pairs(similarity: Callable[[Sequence[str], Sequence[str]], np.ndarray]) -> Callable[[Similarity], np.ndarray]:
    return lambda task: similarity(task.first, task.second)


def _ranked_by(vectorizer: Callable[[], Any]) -> Callable[[Retrieval], np.ndarray]:
    def outcome(task: Retrieval) -> np.ndarray:
        queries, documents = task.task.queries, task.task.documents
        x_NV = _vectors(vectorizer(), [*documents, *queries])
        documents_VN, queries_QV = x_NV[: len(documents)].T.tocsr(), x_NV[len(documents) :]
        # Equal texts must tie: rounding noise has no rank.
        return task.outcome_of(lambda block: (queries_QV[block] @ documents_VN).toarray().round(12))

    return outcome


def _by_bm25(task: Retrieval) -> np.ndarray:
    """Lucene's BM25 with k1 1.5 and b 0.75, neither stop words nor stems: the language is not known."""
    import bm25s

    def words(texts: Sequence[str]) -> list[list[str]]:
        return bm25s.tokenize(list(texts), stopwords=[], return_ids=False, show_progress=False)

    index = bm25s.BM25()
    index.index(words(task.task.documents), show_progress=False)
    queries = words(task.task.queries)

    def scores(block: slice) -> np.ndarray:
        return np.stack([index.get_scores(query) for query in queries[block]])

    return task.outcome_of(scores)


def _classified_by(vectorizer: Callable[[], Any]) -> Callable[[Classification], np.ndarray]:
    def outcome(task: Classification) -> np.ndarray:
        return task.outcome_of(_vectors(vectorizer(), task.data.texts), _sparse_probe)

    return outcome


def _sparse_probe(train_NV: Any, labels_N: np.ndarray, test_NV: Any) -> np.ndarray:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    grid = [2.0**exponent for exponent in range(-2, 8, 2)]  # unit vectors need weaker regularisation than embeddings
    search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": grid}, cv=3)
    return search.fit(train_NV, labels_N).predict(test_NV)


def _clustered_by(vectorizer: Callable[[], Any]) -> Callable[[Clustering], np.ndarray]:
    return lambda task: task.outcome_of(_vectors(vectorizer(), task.data.texts))


_OF_KIND: Mapping[str, Mapping[str, Callable[[Any], np.ndarray]]] = {
    "pairs": {WORD_OVERLAP: _of_pairs(word_overlap), TF_IDF: _of_pairs(tf_idf)},
    "retrieval": {WORD_OVERLAP: _ranked_by(_counts), TF_IDF: _ranked_by(_tf_idf), BM25: _by_bm25},
    "classification": {WORD_OVERLAP: _classified_by(_counts), TF_IDF: _classified_by(_tf_idf)},
    "clustering": {WORD_OVERLAP: _clustered_by(_counts), TF_IDF: _clustered_by(_tf_idf)},
}


def _pair_cosines(vectorizer: Any, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
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

"""Lexical baselines: a model that does not beat counting words is not worth its cost.

Word overlap and TF-IDF score every kind of task, BM25 retrieval only. Document frequencies are those of a task's own
texts. Scikit-learn is imported inside functions: it takes a second, and most processes never need it.
"""

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

BASELINES = WORD_OVERLAP, TF_IDF, BM25 = "word-overlap", "tf-idf", "bm25"
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese have no spaces: each character counts as a word."""
_LETTER = rf"[^\W{_UNSPACED}]"
_WORD = rf"[{_UNSPACED}]|{_LETTER}{{2,}}"  # others have at least two letters, as in scikit-learn and bm25s
Vectors = Callable[[Sequence[str]], csr_matrix]
"""Maps N texts to sparse unit rows [N, V]; zero for a text without words."""


def key_of(item: Sequence[str]) -> tuple[str, ...]:
    """Return a key that ignores the order of texts, case, whitespace and Unicode forms.

    >>> key_of(["A man  runs.", "He moves."]) == key_of(["he moves.", "A man runs. "])
    True
    """
    return tuple(sorted(" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in item))


def count_vectors(texts: Sequence[str]) -> csr_matrix:
    """Return word counts scaled to unit length, [N, V]."""
    from sklearn.feature_extraction.text import CountVectorizer

    return _unit(CountVectorizer(token_pattern=rf"[{_UNSPACED}]|(?:{_LETTER}+|')+"), texts)


def tf_idf_vectors(texts: Sequence[str]) -> csr_matrix:
    """Return TF-IDF vectors with logarithmic counts, [N, V]; frequencies are those of `texts`."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return _unit(TfidfVectorizer(sublinear_tf=True, token_pattern=_WORD), texts)


LEXICAL: Mapping[str, Vectors] = {WORD_OVERLAP: count_vectors, TF_IDF: tf_idf_vectors}
"""Baselines that fit every kind of task, by row name."""


def _unit(vectorizer: Any, texts: Sequence[str]) -> csr_matrix:
    from sklearn.preprocessing import normalize

    try:
        return normalize(vectorizer.fit_transform(texts))
    except ValueError:  # no text has a word
        return csr_matrix((len(texts), 1), dtype=vectorizer.dtype)


def word_cosines(vectors: Vectors, first: Sequence[str], second: Sequence[str]) -> np.ndarray:
    """Return the cosine of each pair's vectors, float64 [P], 0 to 1; frequencies count each distinct sentence once.

    >>> word_cosines(count_vectors, ["The dog sees a cat."], ["A cat sees the dog."]).tolist()
    [1.0]
    >>> word_cosines(tf_idf_vectors, ["the dog sleeps", "the sun"], ["the dog sleeps", "a bird"]).tolist()
    [1.0, 0.0]
    """
    row = {sentence: i for i, sentence in enumerate(dict.fromkeys([*first, *second]))}
    return sparse_pair_cosines(vectors(list(row)), np.array([[row[a], row[b]] for a, b in zip(first, second)]))


def sparse_pair_cosines(x_UV: csr_matrix, rows_P2: np.ndarray) -> np.ndarray:
    """Return the dot product of each pair of rows, float64 [P], rounded because equal word counts must tie."""
    a_PV, b_PV = (x_UV[rows] for rows in rows_P2.T)
    return np.asarray(a_PV.multiply(b_PV).sum(1), np.float64).ravel().round(12)


def bm25_of(documents: Sequence[str]) -> Callable[[Sequence[str]], np.ndarray]:
    """Index documents; return a function that scores them for queries, [Q, N].

    Lucene's BM25 with k1 1.5 and b 0.75; no stop words or stemming, as the language is unknown.
    """
    import bm25s

    def words(texts: Sequence[str]) -> list[list[str]]:
        return bm25s.tokenize(list(texts), token_pattern=_WORD, stopwords=[], return_ids=False, show_progress=False)

    index, of_documents = bm25s.BM25(), words(documents)
    if not any(of_documents):
        return lambda queries: np.zeros((len(queries), len(documents)))
    index.index(of_documents, show_progress=False)
    zeros_N = np.zeros(len(documents), np.float32)
    return lambda queries: np.stack([index.get_scores(query) if query else zeros_N for query in words(queries)])

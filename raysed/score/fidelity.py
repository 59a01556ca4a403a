"""Fidelity: whether a model finds what its teachers find in the user's own text, without any judgements.

Each query is a text of the corpus that searches the others, or was made for one of them. What the teachers rank first
is right, in their order.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysed.score.intervals import interval
from raysed.score.kinds.retrieval import DEPTH, MEASURES, measures_of, ranks_among
from raysed.score.lexical import BM25, TF_IDF, bm25_of, tf_idf_vectors
from raysed.score.metrics import unit

_RESAMPLES = 2000
Stored = Mapping[str, tuple[np.ndarray, float]]
"""By name, how N documents can be kept: what is left of their vectors, [N, E], and bytes per document."""


def fidelity(
    teacher_ND: np.ndarray,
    learner_NE: np.ndarray,
    stored: Stored,
    texts: Sequence[str],
    queries_Q: np.ndarray,
    documents_P: np.ndarray,
) -> list[dict[str, Any]]:
    """Compare searches among some of N texts with that of the teachers, all by cosine; no query finds itself.

    Args:
        stored: how the documents' vectors are kept; queries stay as they are.
        queries_Q: rows of the texts that search.
        documents_P: rows of the texts that are searched, ascending.

    Returns:
        Per search, `name`, `recall` of the teachers' first ten with its 95 % `interval`, `ndcg` (of their first the
        gain is 10, of their tenth 1), all x100, and `bytes` per document; None for word counts.
    """
    same_QP = queries_Q[:, None] == documents_P

    def without_itself(scores_QP: np.ndarray) -> np.ndarray:
        return np.where(same_QP, -np.inf, scores_QP.astype(np.float64))

    teacher_QP = without_itself(unit(teacher_ND)[queries_Q] @ unit(teacher_ND)[documents_P].T)
    wanted_QK = np.argsort(-teacher_QP, axis=1, kind="stable")[:, :DEPTH]
    gain_K, place_P = np.arange(wanted_QK.shape[1], 0, -1.0), np.arange(len(documents_P))
    draws_RQ = np.random.default_rng(0).integers(len(queries_Q), size=(_RESAMPLES, len(queries_Q)))
    found = []
    for name, scores_QP, size in _searches(unit(learner_NE)[queries_Q], stored, texts, queries_Q, documents_P):
        ranked = zip(without_itself(scores_QP), wanted_QK)
        outcome_QM = [measures_of(ranks_among(scores_P, wanted_K, place_P), gain_K) for scores_P, wanted_K in ranked]
        recall_Q, ndcg_Q = (
            100 * np.array(outcome_QM)[:, MEASURES.index(measure)] for measure in ("recall@10", "ndcg@10")
        )
        ends = interval(recall_Q[draws_RQ].mean(1))
        means = {"recall": float(recall_Q.mean()), "interval": ends, "ndcg": float(ndcg_Q.mean())}
        found.append({"name": name, **means, "bytes": size})
    return found


def _searches(
    queries_QE: np.ndarray, stored: Stored, texts: Sequence[str], queries_Q: np.ndarray, documents_P: np.ndarray
) -> Iterator[tuple[str, np.ndarray, float | None]]:
    """Yield name, scores [Q, P] and bytes per document of every way to search."""
    for name, (kept_NE, size) in stored.items():
        yield name, queries_QE @ unit(kept_NE)[documents_P].T, size
    words_NV = tf_idf_vectors(texts)
    yield TF_IDF, (words_NV[queries_Q] @ words_NV[documents_P].T).toarray().round(12), None  # so that equal texts tie
    yield BM25, bm25_of([texts[row] for row in documents_P])([texts[row] for row in queries_Q]), None

"""Fidelity: how much of its teachers' search results a model finds in the user's own text, without judgements.

Each query is a text of the corpus, or was made for one. The texts that the teachers rank first count as relevant, in
their order.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from raysed.score.intervals import interval
from raysed.score.kinds.retrieval import DEPTH, MEASURES, Retrieval
from raysed.score.lexical import BM25, TF_IDF, bm25_of, tf_idf_vectors
from raysed.score.metrics import unit

_RESAMPLES = 2000


def fidelity(
    teacher_ND: np.ndarray,
    learner_NE: np.ndarray,
    texts: Sequence[str],
    queries_Q: np.ndarray,
    documents_P: np.ndarray,
    old_NE: np.ndarray | None = None,
) -> list[dict[str, Any]]:
    """Compare searches by cosine with the teachers' search; no query finds itself.

    Args:
        queries_Q: rows of the queries among N texts.
        documents_P: rows of the documents among the texts, ascending.
        old_NE: vectors of an old model, whose documents the learner's queries and its own search, too.

    Returns:
        Per search: `name`; `recall` of the teachers' first ten, with its 95 % `interval`, and `ndcg`, all x100. The
        gain in `ndcg` falls from 10 for the teachers' first to 1 for the tenth.
    """
    place = {row: index for index, row in enumerate(documents_P.tolist())}
    teacher_QP = (unit(teacher_ND)[queries_Q] @ unit(teacher_ND)[documents_P].T).astype(np.float64)
    teacher_QP[queries_Q[:, None] == documents_P] = -np.inf
    wanted_QK = np.argsort(-teacher_QP, axis=1, kind="stable")[:, :DEPTH]
    gains = [dict(zip(wanted_K.tolist(), np.arange(len(wanted_K), 0, -1.0))) for wanted_K in wanted_QK]
    queries, documents = [texts[row] for row in queries_Q], [texts[row] for row in documents_P]
    own, equal_ids = [place.get(row) for row in queries_Q.tolist()], [""] * len(documents)  # of ties, the first counts
    task = Retrieval("fidelity", queries, documents, equal_ids, gains, own=own)
    draws_RQ = np.random.default_rng(0).integers(len(queries_Q), size=(_RESAMPLES, len(queries_Q)))
    x_NE, words_NV = unit(learner_NE), tf_idf_vectors(texts)
    words_QP = (words_NV[queries_Q] @ words_NV[documents_P].T).toarray().round(12)  # equal texts must tie
    searches = {"learner": x_NE[queries_Q] @ x_NE[documents_P].T, TF_IDF: words_QP, BM25: bm25_of(documents)(queries)}
    if old_NE is not None:
        y_NE = unit(old_NE)
        searches["new model, old index"] = x_NE[queries_Q] @ y_NE[documents_P].T
        searches["old model, old index"] = y_NE[queries_Q] @ y_NE[documents_P].T
    rows = []
    for name, scores_QP in searches.items():
        outcome_QM = 100 * task.outcome_of(scores_QP.__getitem__)
        recall_Q, ndcg_Q = (outcome_QM[:, MEASURES.index(measure)] for measure in ("recall@10", "ndcg@10"))
        ends = interval(recall_Q[draws_RQ].mean(1))
        means = {"recall": float(recall_Q.mean()), "interval": ends, "ndcg": float(ndcg_Q.mean())}
        rows.append({"name": name, **means})
    return rows

"""Retrieval: how well embeddings find the documents that answer a query, by nDCG@10, MRR@10, MAP and recall.

Documents are ranked exactly, in blocks of queries that bound memory. The measures are those of trec_eval: nDCG with
linear gains (Järvelin and Kekäläinen 2002), ties broken by falling document id.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysed.config import TaskConfig
from raysed.data.retrieval import RetrievalTask, is_retrieval, load_retrieval
from raysed.score.kinds import Task
from raysed.score.lexical import BM25, Vectors
from raysed.score.metrics import unit

MEASURES = ("ndcg@10", "mrr@10", "map", "recall@10", "recall@100")
"""The columns of an outcome."""
_DEPTH = 10
_BLOCK_CELLS = 2**24


class Retrieval(Task):
    """Scores models on one retrieval task."""

    kind, main = "retrieval", "ndcg@10"
    measure = short_measure = "nDCG@10"

    def __init__(self, task: RetrievalTask):
        self.task, self.name = task, task.name
        without = f" ({task.left_out:,} more have no relevant document)" if task.left_out else ""
        self.size = f"{len(task.queries):,} queries{without}, {len(task.documents):,} documents"
        queries, documents = task.prompted
        self.sentences = list(dict.fromkeys([*queries, *documents]))
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self._query_rows = np.array([row[text] for text in queries])
        # Equal documents share one row, so that their scores tie exactly.
        self._texts, self._text_of = np.unique([row[text] for text in documents], return_inverse=True)

    @classmethod
    def recognises(cls, config: TaskConfig, setting: str) -> bool:
        return bool(config.queries or config.qrels) or is_retrieval(config.source)

    @classmethod
    def load(cls, name: str, config: TaskConfig, seed: int, aggregation: str) -> "Retrieval":
        return cls(load_retrieval(name, config))

    def content(self) -> list[Any]:
        task = self.task
        judged = [task.starts.tolist(), task.relevant.tolist(), task.gains.tolist()]
        return [self.kind, self.sentences, task.document_ids, *judged]

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return every measure for every query, float64 [Q, 5] of 0 to 1, columns as in `MEASURES`."""
        return self._outcome_between(x_UD, x_UD)

    def score_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> float:
        return self.metrics(self._outcome_between(x_UD, y_UD))[self.main]

    def _outcome_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> np.ndarray:
        x_UD, y_UD = (unit(np.asarray(embeddings, np.float32)) for embeddings in (x_UD, y_UD))
        queries_QD, texts_VD = x_UD[self._query_rows], y_UD[self._texts]
        return self.outcome_of(lambda block: (queries_QD[block] @ texts_VD.T)[:, self._text_of])

    def outcome_of(self, scores: Callable[[slice], np.ndarray]) -> np.ndarray:
        """Return the outcome of any scores [B, N] of some queries and all documents; higher is better."""
        task, found = self.task, []
        step = max(1, _BLOCK_CELLS // len(task.documents))
        for start in range(0, len(task.queries), step):
            for query, scores_N in enumerate(scores(slice(start, start + step)), start=start):
                mine = slice(task.starts[query], task.starts[query + 1])
                found.append(_measures(_ranks(scores_N, task.relevant[mine], task.places), task.gains[mine]))
        return np.array(found)

    def metrics(self, outcome_QM: np.ndarray) -> dict[str, float | int]:
        """Return the means over queries, x100, and the counts of queries, documents and what was left out."""
        means = dict(zip(MEASURES, (100 * outcome_QM.mean(0)).tolist()))
        counts = {"queries": len(self.task.queries), "documents": len(self.task.documents)}
        return {**means, **counts, **({"left_out": self.task.left_out} if self.task.left_out else {})}

    def strata(self) -> list[tuple[slice, float]]:
        return [(slice(0, len(self.task.queries)), 1.0)]

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        return 100 * np.stack([outcome_QM[:, 0] for outcome_QM in outcomes]) @ counts_PR / counts_PR.sum(0)

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        count, x_NV = len(self.task.documents), vectors([*self.task.documents, *self.task.queries])
        documents_VN, queries_QV = x_NV[:count].T.tocsr(), x_NV[count:]
        # Equal texts must tie: rounding noise has no rank.
        return self.outcome_of(lambda block: (queries_QV[block] @ documents_VN).toarray().round(12))

    def lexical(self) -> dict[str, list[Callable[[], np.ndarray]]]:
        return {**super().lexical(), BM25: [self._bm25]}

    def _bm25(self) -> np.ndarray:
        """Lucene's BM25 with k1 1.5 and b 0.75, neither stop words nor stems: the language is not known."""
        import bm25s

        def words(texts: Sequence[str]) -> list[list[str]]:
            return bm25s.tokenize(list(texts), stopwords=[], return_ids=False, show_progress=False)

        index, queries = bm25s.BM25(), words(self.task.queries)
        index.index(words(self.task.documents), show_progress=False)
        return self.outcome_of(lambda block: np.stack([index.get_scores(query) for query in queries[block]]))


def _ranks(scores_N: np.ndarray, relevant_J: np.ndarray, place_N: np.ndarray) -> np.ndarray:
    """The ranks of some documents among all, from 1; nothing is sorted, because only few of them are asked for."""
    ranks = []
    for row in relevant_J:
        level = scores_N == scores_N[row]
        ranks.append(1 + (scores_N > scores_N[row]).sum() + (place_N[level] < place_N[row]).sum())
    return np.array(ranks)


def _measures(rank_J: np.ndarray, gain_J: np.ndarray) -> tuple[float, ...]:
    """`MEASURES` of one query, from the ranks of its relevant documents."""
    order_J = np.argsort(rank_J)
    rank_J, gain_J = rank_J[order_J], gain_J[order_J]
    near_J = rank_J <= _DEPTH
    gained = (gain_J[near_J] / np.log2(1 + rank_J[near_J])).sum()
    best = np.sort(gain_J)[::-1][:_DEPTH]
    ideal = (best / np.log2(2 + np.arange(len(best)))).sum()
    reciprocal = 1 / rank_J[0] if near_J[0] else 0.0
    average_precision = (np.arange(1, len(rank_J) + 1) / rank_J).mean()
    return gained / ideal, reciprocal, average_precision, near_J.mean(), (rank_J <= 100).mean()

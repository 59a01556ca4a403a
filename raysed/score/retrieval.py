"""How well embeddings find the documents that answer a query: nDCG@10, MRR@10, MAP and recall, exactly.

Every document is ranked for every query by cosine, in blocks of queries, so memory is bounded by the documents'
embeddings and one block of scores. The measures are those of trec_eval: nDCG with linear gains, ties broken by falling
document id. Sources: Järvelin and Kekäläinen 2002 (nDCG); Thakur et al., "BEIR", 2021, which reports nDCG@10.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysed.data.retrieval import RetrievalTask

MEASURES = ("ndcg@10", "mrr@10", "map", "recall@10", "recall@100")
"""The columns of an outcome."""
_DEPTH = 10
_BLOCK_CELLS = 2**24

ScoreBlock = Callable[[slice], np.ndarray]
"""Some queries to the scores of all documents, [B, N]."""


class Retrieval:
    """Scores models on one retrieval task; see `evaluation.tasks.Task`."""

    kind, main = "retrieval", "ndcg@10"
    rises_when_resampled = False

    def __init__(self, task: RetrievalTask):
        self.task, self.name = task, task.name
        queries, documents = task.prompted
        self.sentences = list(dict.fromkeys([*queries, *documents]))
        """What a model has to embed: the U distinct texts, with their prompts."""
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self._query_rows = np.array([row[text] for text in queries])
        # Equal documents share one row, so that their scores tie exactly.
        self._texts, self._text_of = np.unique([row[text] for text in documents], return_inverse=True)

    @property
    def size(self) -> str:
        """What there is, in words."""
        return f"{len(self.task.queries):,} queries, {len(self.task.documents):,} documents"

    def content(self) -> list[Any]:
        """See `evaluation.tasks.Task`."""
        task = self.task
        judged = [task.starts.tolist(), task.relevant.tolist(), task.gains.tolist()]
        return [self.kind, self.sentences, task.document_ids, *judged]

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Returns every measure for every query, float64 [Q, 5] of 0 to 1, columns as in `MEASURES`.

        Args:
            x_UD: embeddings of `sentences`.
        """
        return self._outcome_between(x_UD, x_UD)

    def score_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> float:
        """Returns the score x100 where queries are embedded by one model and documents by another.

        Args:
            x_UD: embeddings of `sentences` by the model of the queries.
            y_UD: those by the model of the documents, in the same space.
        """
        return self.metrics(self._outcome_between(x_UD, y_UD))[self.main]

    def _outcome_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> np.ndarray:
        queries_QD, texts_VD = _unit(x_UD)[self._query_rows], _unit(y_UD)[self._texts]
        return self.outcome_of(lambda block: (queries_QD[block] @ texts_VD.T)[:, self._text_of])

    def outcome_of(self, scores: ScoreBlock) -> np.ndarray:
        """Returns what `outcome` does, of any scores: of word counts, say.

        Args:
            scores: gives the scores [B, N] of some queries; higher is better.
        """
        task, found = self.task, []
        step = max(1, _BLOCK_CELLS // len(task.documents))
        for start in range(0, len(task.queries), step):
            block = slice(start, min(start + step, len(task.queries)))
            for query, scores_N in zip(range(block.start, block.stop), scores(block)):
                mine = slice(task.starts[query], task.starts[query + 1])
                rank_J = _ranks(np.asarray(scores_N), task.relevant[mine], task.places)
                found.append(_measures(rank_J, task.gains[mine]))
        return np.array(found)

    def metrics(self, outcome_QM: np.ndarray) -> dict[str, float | int]:
        """Returns the means over queries, x100, and the counts of queries, documents and what was left out."""
        means = dict(zip(MEASURES, (100 * outcome_QM.mean(0)).tolist()))
        counts = {"queries": len(self.task.queries), "documents": len(self.task.documents)}
        return {**means, **counts, **({"left_out": self.task.left_out} if self.task.left_out else {})}

    def strata(self) -> list[tuple[slice, float]]:
        """See `evaluation.tasks.Task`."""
        return [(slice(0, len(self.task.queries)), 1.0)]

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_QR: np.ndarray) -> np.ndarray:
        """Returns nDCG@10 x100 of M models, [M, R]; arguments as for `evaluation.tasks.Task`."""
        return 100 * np.stack([outcome_QM[:, 0] for outcome_QM in outcomes]) @ counts_QR / counts_QR.sum(0)


def _unit(x_UD: np.ndarray) -> np.ndarray:
    x_UD = np.asarray(x_UD, np.float32)
    return x_UD / np.maximum(np.linalg.norm(x_UD, axis=1, keepdims=True), 1e-12)


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

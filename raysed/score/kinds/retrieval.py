"""Retrieval: how well embeddings find the documents that answer a query, by nDCG@10, MRR@10, MAP and recall.

Documents are ranked exactly, in blocks of queries that bound memory. The measures are those of trec_eval: nDCG with
linear gains (Järvelin and Kekäläinen 2002), ties broken by falling document id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysed.config import TaskConfig
from raysed.data.rows import Rows, Schema, read
from raysed.data.sources import Hub, find
from raysed.errors import UserError
from raysed.score.kinds import Task
from raysed.score.lexical import BM25, Vectors
from raysed.score.metrics import unit

MEASURES = ("ndcg@10", "mrr@10", "map", "recall@10", "recall@100")
"""The columns of an outcome."""
_DEPTH = 10
_BLOCK_CELLS = 2**24


@dataclass(frozen=True)
class RetrievalTask:
    """Q queries over N documents; a model embeds both with their prompts before them.

    Attributes:
        queries: texts, Q; each has at least one relevant document.
        document_ids: N ids; documents that score alike are ranked by them, the last one first (as trec_eval does).
        starts: int64 [Q + 1]; the relevant documents of query q are `relevant[starts[q]:starts[q + 1]]`.
        relevant: rows of `documents`, int64 [J].
        gains: how relevant they are, float64 [J], all above 0.
        left_out: queries without a relevant document.
    """

    name: str
    queries: list[str]
    documents: list[str]
    document_ids: list[str]
    starts: np.ndarray
    relevant: np.ndarray
    gains: np.ndarray
    left_out: int = 0
    query_prompt: str = ""
    document_prompt: str = ""


_ID = [("_id",), ("id",)]
_QUERY = [("query-id",), ("query_id",), ("query",)]
_DOCUMENT = [("corpus-id",), ("corpus_id",), ("document-id",), ("document_id",), ("document",)]
_COLUMNS = {
    "source": ("documents", {("id",): _ID, ("text",): [("text",)]}, {"title": "title"}, ("text", "title")),
    "queries": ("queries", {("id",): _ID, ("text",): [("text",), ("query",)]}, {}, ("text",)),
    "qrels": ("relevance judgements", {("query",): _QUERY, ("document",): _DOCUMENT}, {"score": "score"}, ()),
}
"""By the setting that names a file: what it holds, its columns, those that it may lack, and those that hold text."""


def is_retrieval(source: str) -> bool:
    """Return whether a source is a directory in BEIR's layout."""
    return any((Path(source).expanduser() / f"corpus.jsonl{end}").is_file() for end in ("", ".gz"))


def load_retrieval(name: str, config: TaskConfig) -> RetrievalTask:
    """Read a retrieval task: a directory in BEIR's layout, or three files.

    A directory has `corpus.jsonl` (_id, title, text), `queries.jsonl` (_id, text) and `qrels/SPLIT.tsv` (query-id,
    corpus-id, score). Three files, of any format that has names for its columns, are the documents (`source`), the
    `queries` and the judgements (`qrels`). A document's title stands before its text. A judgement of 0 or less says
    that a document is not relevant. Queries without a relevant document are left out and counted.
    """
    setting = f"evaluation.tasks.{name}"
    documents, queries, judgements = (
        _read(key, place, config, setting) for key, place in _places(config, setting).items()
    )
    document_of, query_of = _by_id(documents), _by_id(queries)
    if not document_of:
        raise UserError(f"{setting}: {documents.name} has no document; it must hold at least one")
    _check_ids(judgements, "query", query_of, queries.name)
    _check_ids(judgements, "document", document_of, documents.name)
    gains = judgements.numbers_of("score", "write 1 for relevant and 0 for not")
    relevant: dict[str, dict[int, float]] = {}
    for query, document, gain in zip(judgements.columns["query"], judgements.columns["document"], gains):
        if gain is None or gain > 0:  # of a pair that is judged twice the last counts
            relevant.setdefault(str(query), {})[document_of[str(document)]] = 1.0 if gain is None else gain
    kept = [query for query in query_of if query in relevant]
    if not kept:
        raise UserError(f"{setting}: {judgements.name} names no relevant document for any query of {queries.name}")
    titles, texts, query_texts = documents.texts("title"), documents.texts("text"), queries.texts("text")
    return RetrievalTask(
        name,
        [query_texts[query_of[query]] for query in kept],
        [f"{title} {text}".strip() for title, text in zip(titles, texts)],
        list(document_of),
        np.cumsum([0, *(len(relevant[query]) for query in kept)]),
        np.array([row for query in kept for row in relevant[query]], np.int64),
        np.array([gain for query in kept for gain in relevant[query].values()], np.float64),
        len(query_of) - len(kept),
        config.query_prompt,
        config.document_prompt,
    )


def _places(config: TaskConfig, setting: str) -> dict[str, str]:
    """Return the files by the settings that name them: documents, queries and judgements."""
    places = {"source": config.source, "queries": config.queries, "qrels": config.qrels}
    if is_retrieval(config.source):
        folder = Path(config.source).expanduser()
        places["source"] = _present(folder, "corpus.jsonl", setting)
        places["queries"] = config.queries or _present(folder, "queries.jsonl", setting)
        places["qrels"] = config.qrels or _judgements(folder / "qrels", config.split, setting)
    for key, place in places.items():
        if place is None:
            raise UserError(f"{setting}.{key} is missing; a retrieval task needs documents, queries and qrels")
    return {key: str(place) for key, place in places.items()}


def _present(folder: Path, name: str, setting: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UserError(f"{setting}: {folder} has no {name}; a directory in BEIR's layout has it beside corpus.jsonl")


def _judgements(folder: Path, split: str | None, setting: str) -> Path:
    """Return the file of the split that is asked for, or else of the test split, or of the only one there is."""
    splits = {path.name.removesuffix(".tsv"): path for path in sorted(folder.glob("*.tsv"))}
    wanted = split or ("test" if "test" in splits or len(splits) != 1 else next(iter(splits)))
    if wanted not in splits:
        known = f"there are {', '.join(splits)}" if splits else "there is none"
        raise UserError(f"{setting}: {folder} has no {wanted}.tsv; {known} (split names another)")
    return splits[wanted]


def _read(key: str, place: str, config: TaskConfig, setting: str) -> Rows:
    (kind, wanted, optional, text), name = _COLUMNS[key], setting if key == "source" else f"{setting}.{key}"
    needed = " and ".join(choices[0][0] for choices in wanted.values())
    (source,) = find(place, name, kind, Hub(place, config.name, config.split or "test"))
    return read(source, Schema(name, kind, wanted, needed, optional, text))


def _by_id(rows: Rows) -> dict[str, int]:
    """Return rows by id, which must differ."""
    found: dict[str, int] = {}
    for place, value in enumerate(rows.columns["id"]):
        if value is None or str(value) in found:
            problem = "an id is missing" if value is None else f"the id {str(value)!r} is there twice"
            raise UserError(f"{rows.where(place)}: {problem}; every text needs one of its own")
        found[str(value)] = place
    return found


def _check_ids(judgements: Rows, column: str, known: Mapping[str, int], file: str) -> None:
    for place, value in enumerate(judgements.columns[column]):
        if str(value) not in known:
            problem = f"the id {str(value)!r} is not in {file}; add it, or leave the line out"
            raise UserError(f"{judgements.where(place)}: {problem}")


class Retrieval(Task):
    """Scores models on one retrieval task."""

    kind, main = "retrieval", "ndcg@10"
    measure = "nDCG@10"

    def __init__(self, task: RetrievalTask):
        self.task, self.name = task, task.name
        without = f" ({task.left_out:,} more have no relevant document)" if task.left_out else ""
        self.size = f"{len(task.queries):,} queries{without}, {len(task.documents):,} documents"
        queries = [task.query_prompt + query for query in task.queries]
        documents = [task.document_prompt + document for document in task.documents]
        self.sentences = list(dict.fromkeys([*queries, *documents]))
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self._query_rows = np.array([row[text] for text in queries])
        # Equal documents share one row, so that their scores tie exactly.
        self._texts, self._text_of = np.unique([row[text] for text in documents], return_inverse=True)
        falling = sorted(range(len(documents)), key=task.document_ids.__getitem__, reverse=True)
        self._place_N = np.argsort(falling)  # which inverts a permutation

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
                found.append(_measures(_ranks(scores_N, task.relevant[mine], self._place_N), task.gains[mine]))
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

    def lexical(self) -> dict[str, Callable[[], np.ndarray]]:
        return {**super().lexical(), BM25: self._bm25}

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

"""Retrieval: how well embeddings find the documents that answer a query, by nDCG@10, MRR@10, MAP and recall.

Ranking is exact, in blocks of queries that bound memory. Measures are those of trec_eval: nDCG with linear gains
(Järvelin and Kekäläinen 2002), ties broken by descending document id.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from raysed.config import Role, TaskConfig
from raysed.data.rows import Rows, Schema, column_names, read
from raysed.data.sources import ENDINGS, File, Hub, ending, find
from raysed.errors import UserError
from raysed.score.kinds import BLOCK_CELLS, EvaluationTask
from raysed.score.lexical import BM25, Vectors, bm25_of
from raysed.score.metrics import unit
from raysed.store.files import visible

log = logging.getLogger(__name__)

MEASURES = ("ndcg@10", "mrr@10", "map", "recall@10", "recall@100")
"""Columns of an outcome."""
DEPTH = 10

_ID = [("_id",), ("id",)]
_QUERY = [("query-id",), ("query_id",), ("query",)]
_DOCUMENT = [("corpus-id",), ("corpus_id",), ("document-id",), ("document_id",), ("document",)]
_GAINS = ("score", "relevance", "label", "rel", "grade")
_TREC = ("query", "iteration", "document", "score")
_CONFIGURATIONS = {"source": ("corpus",), "queries": ("queries",), "qrels": ("qrels", "default")}
"""Of a dataset in the hub's layout, by setting: those of MTEB and NanoBEIR."""
_COLUMNS = {
    "source": ("documents", {("id",): _ID, ("text",): [("text",)]}, {"title": "title"}, ("text", "title"), ()),
    "queries": ("queries", {("id",): _ID, ("text",): [("text",), ("query",)]}, {}, ("text",), ()),
    "qrels": ("relevance judgements", {("query",): _QUERY, ("document",): _DOCUMENT}, {"score": "score"}, (), _TREC),
}
"""By setting that names a file: its content; required, optional and text columns; columns if it has no header."""


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if os.path.isfile(path)), None)


def _configurations(source: str) -> list[str]:
    """Return those of a dataset of the hub, or of a local clone, whose README.md lists them; else an empty list."""
    readme = Path(os.path.expanduser(source), "README.md")
    with suppress(Exception):  # the hub's libraries raise a dozen unrelated types; reading the task says why
        is_clone = readme.is_file() and "\nconfigs:" in readme.read_text("utf-8")
        if is_clone or ("://" not in source and isinstance(find(source, "", "", Hub(source, None, ""))[0], Hub)):
            import datasets  # heavy, and needed only here

            return datasets.get_dataset_config_names(source)
    return []


def _places(config: TaskConfig, setting: str) -> dict[str, str | Hub]:
    places: dict[str, Any] = {"source": config.source, "queries": config.queries, "qrels": config.qrels}
    folder, prefix = Path(os.path.expanduser(config.source)), f"{config.config_name}-" if config.config_name else ""
    if names := _configurations(config.source):
        for key in [key for key, place in places.items() if key == "source" or place is None]:
            wanted = [prefix + name for name in _CONFIGURATIONS[key]]
            if not (found := [name for name in wanted if name in names]):
                lacks = f"{config.source} has no configuration {' or '.join(wanted)}; it has {', '.join(names)}"
                raise UserError(f"{setting}.{key}: {lacks}; or set {key} to another dataset or file")
            is_asked = key == "qrels" and config.split  # texts are often one split for all judgements
            places[key] = Hub(config.source, found[0], config.split if is_asked else f"{config.split or 'test'}|*")
    if documents := _file(folder, "corpus.jsonl"):
        places["source"], places["queries"] = documents, config.queries or _file(folder, "queries.jsonl")
        if places["queries"] is None:
            raise UserError(f"{setting}: {folder} has no queries.jsonl; in BEIR's layout it is beside corpus.jsonl")
        if config.qrels is None:
            files = sorted(visible(folder / "qrels"), key=lambda path: (path.suffix == ".tsv", path))  # last counts
            splits = {Path(path.name.removesuffix(".gz")).stem: path for path in files if ending(path.name) in ENDINGS}
            wanted = config.split or ("test" if "test" in splits or len(splits) != 1 else next(iter(splits)))
            if wanted not in splits:
                known = f"it has {', '.join(sorted(splits))}" if splits else "it has no .tsv or .jsonl file"
                raise UserError(f"{setting}: {folder}/qrels has no {wanted}.tsv; {known} (split names another)")
            places["qrels"] = splits[wanted]
    for key, place in places.items():
        if place is None:
            raise UserError(f"{setting}.{key} is missing; a retrieval task needs documents, queries and qrels")
    return {key: place if isinstance(place, Hub) else str(place) for key, place in places.items()}


def _read(key: str, place: str | Hub, config: TaskConfig, setting: str) -> Rows:
    (kind, wanted, optional, text, bare), name = _COLUMNS[key], setting if key == "source" else f"{setting}.{key}"
    needed = " and ".join(choices[0][0] for choices in wanted.values())
    source = place
    if not isinstance(place, Hub):
        (source,) = find(place, name, kind, Hub(place, config.config_name, config.split or "test"))
    if key == "qrels" and isinstance(source, File):
        optional = {"score": _gain_column(column_names(source), config.columns.score, name)}
    layout = {"bare": bare, "loose": bool(bare), "blanks": bool(bare)}
    return read(source, Schema(name, kind, wanted, needed, optional, text, **layout))


def _gain_column(names: list[str], named: str | None, setting: str) -> str:
    """Return the column of judgements; UserError if it has another name, since all would count as relevant."""
    lower = [name.strip().lower() for name in names]
    ids = {name for (name,) in (*_QUERY, *_DOCUMENT)}
    found = named or next((name for name in _GAINS if name in lower), None)
    if set(lower) & ids and len(set(lower) - ids) and (found or "").lower() not in lower:
        problem = f"found the columns {', '.join(names)}, but none is named {named or ', '.join(_GAINS)}"
        remedy = "rename the column that says how relevant a document is, or name it in columns.score"
        raise UserError(f"{problem}; {remedy}", setting=setting)
    return found or _GAINS[0]


def _by_id(rows: Rows) -> dict[str, int]:
    """Return row numbers by id; raise `UserError` if an id is missing or repeated."""
    found: dict[str, int] = {}
    for place, value in enumerate(rows.columns["id"]):
        if value is None or str(value) in found:
            problem = "an id is missing" if value is None else f"the id {str(value)!r} appears twice"
            raise UserError(f"{rows.where(place)}: {problem}; every text needs its own id")
        found[str(value)] = place
    return found


class Retrieval(EvaluationTask):
    """Scores models by how they rank the documents that answer a query.

    If the task has a prompt, models add none of theirs. Lexical baselines get no prompts.

    Attributes:
        document_ids: break ties, the last id first (as in trec_eval).
        gains: for each query, the relevance of documents by index in `documents`; at least one, all above 0. Larger
            indices stand for judged documents that are missing: no model finds them (as in trec_eval).
        own: for each query, the document that is the query itself, or None; it is not ranked (as in BEIR).
    """

    kind, main = "retrieval", "ndcg@10"
    measure = "nDCG@10"

    def __init__(
        self,
        name: str,
        queries: Sequence[str],
        documents: Sequence[str],
        document_ids: Sequence[str],
        gains: Sequence[Mapping[int, float]],
        left_out: int = 0,
        query_prompt: str = "",
        document_prompt: str = "",
        own: Sequence[int | None] = (),
    ):
        self.own = own or [None] * len(queries)
        self.name, self.queries, self.documents, self.document_ids = name, queries, documents, document_ids
        self.gains, self.left_out, self._prompts = gains, left_out, (query_prompt, document_prompt)
        without = f" ({left_out:,} more have no relevant document)" if left_out else ""
        self.size = f"{len(queries):,} queries{without}, {len(documents):,} documents"
        has_prompts = query_prompt or document_prompt
        roles: tuple[Role, Role] = ("prompted query", "prompted document") if has_prompts else ("query", "document")
        query_keys = [(roles[0], query_prompt + query) for query in queries]
        document_keys = [(roles[1], document_prompt + text) for text in documents]
        row = {key: i for i, key in enumerate(dict.fromkeys([*query_keys, *document_keys]))}
        self.roles, self.sentences = map(list, zip(*row))
        self._query_rows = np.array([row[key] for key in query_keys])
        # Equal documents share a row, so their scores tie exactly.
        self._texts, self._text_of = np.unique([row[key] for key in document_keys], return_inverse=True)
        falling = sorted(range(len(documents)), key=document_ids.__getitem__, reverse=True)
        self._place_N = np.argsort(falling)  # inverse permutation

    @classmethod
    def recognises(cls, config: TaskConfig, setting: str) -> bool:
        documents = _file(Path(os.path.expanduser(config.source)), "corpus.jsonl")
        if config.queries or config.qrels or documents:
            return True
        prefix = f"{config.config_name}-" if config.config_name else ""
        return {f"{prefix}corpus", f"{prefix}queries"} <= {*_configurations(config.source)}

    @classmethod
    def load(cls, name: str, config: TaskConfig, split: str, aggregation: str) -> "Retrieval":
        """Read a directory in BEIR's layout, a dataset in the hub's, or three files.

        A document's title is prepended to its text. A judgement of 0 or less means not relevant. Queries without a
        relevant document are left out and counted. A document with the id of a query is the query itself, unless it is
        judged relevant.
        """
        setting = f"evaluation.tasks.{name}"
        documents, queries, judgements = (
            _read(key, place, config, setting) for key, place in _places(config, setting).items()
        )
        document_of, query_of = _by_id(documents), _by_id(queries)
        if not document_of:
            raise UserError(f"{setting}: {documents.name} has no documents; it must hold at least one")
        effects = (("query", query_of, "it is left out"), ("document", document_of, "it counts as never found"))
        for column, known, effect in effects:
            if lacking := [value for value in judgements.columns[column] if str(value) not in known]:
                facts = judgements.name, len(lacking), column, lacking[0], effect
                log.info("%s: %d judgements name a missing %s, such as %r; %s", *facts)
        scores = judgements.numbers_of("score", "write 1 for relevant and 0 for not")
        gains: dict[str, dict[int, float]] = {}
        place_of = dict(document_of)
        for query, document, gain in zip(judgements.columns["query"], judgements.columns["document"], scores):
            if gain is None or gain > 0:  # the last relevant judgement of a pair counts
                place = place_of.setdefault(str(document), len(place_of))
                gains.setdefault(str(query), {})[place] = 1.0 if gain is None else gain
        kept = [query for query in query_of if query in gains]
        if not any(min(gains[query]) < len(document_of) for query in kept):
            raise UserError(f"{setting}: no query of {queries.name} has a relevant document in {documents.name}")
        texts = [f"{title} {text}".strip() for title, text in zip(documents.texts("title"), documents.texts("text"))]
        asked = queries.texts("text")
        asked, judged = [asked[query_of[query]] for query in kept], [gains[query] for query in kept]
        left_out, prompts = len(query_of) - len(kept), (config.query_prompt, config.document_prompt)
        own = [None if document_of.get(query) in gains[query] else document_of.get(query) for query in kept]
        return cls(name, asked, texts, list(document_of), judged, left_out, *prompts, own)

    def content(self) -> list[Any]:
        judged = [list(gains.items()) for gains in self.gains]
        return [self.kind, self._prompts, self.queries, self.documents, self.document_ids, judged, self.own]

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return every measure for every query, float64 [Q, 5], 0 to 1, columns as in `MEASURES`."""
        return self._outcome_between(x_UD, x_UD)

    def score_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> float:
        return self.metrics(self._outcome_between(x_UD, y_UD))[self.main]

    def _outcome_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> np.ndarray:
        x_UD, y_UD = (unit(np.asarray(embeddings, np.float32)) for embeddings in (x_UD, y_UD))
        queries_QD, texts_VD = x_UD[self._query_rows], y_UD[self._texts]
        return self.outcome_of(lambda block: (queries_QD[block] @ texts_VD.T)[:, self._text_of])

    def outcome_of(self, scores: Callable[[slice], np.ndarray]) -> np.ndarray:
        """Return the outcome for scores [B, N] of a block of queries and all documents; higher is better."""
        step, found = max(1, BLOCK_CELLS // len(self.documents)), []
        for start in range(0, len(self.queries), step):
            block = slice(start, start + step)
            for gains, own, scores_N in zip(self.gains[block], self.own[block], scores(block)):
                if own is not None:
                    scores_N[own] = -np.inf
                rank_J = ranks_among(scores_N, list(gains), self._place_N)
                found.append(measures_of(rank_J, np.array(list(gains.values()))))
        return np.array(found)

    def metrics(self, outcome_QM: np.ndarray) -> dict[str, float | int]:
        """Return means over queries, x100, and counts of queries, documents and queries left out."""
        means = dict(zip(MEASURES, (100 * outcome_QM.mean(0)).tolist()))
        counts = {"queries": len(self.queries), "documents": len(self.documents)}
        return {**means, **counts, **({"left_out": self.left_out} if self.left_out else {})}

    def strata(self) -> list[tuple[slice, float]]:
        return [(slice(0, len(self.queries)), 1.0)]

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        return 100 * np.stack([outcome_QM[:, 0] for outcome_QM in outcomes]) @ counts_PR / counts_PR.sum(0)

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        count, x_NV = len(self.documents), vectors([*self.documents, *self.queries])
        documents_VN, queries_QV = x_NV[:count].T.tocsr(), x_NV[count:]
        # Rounded: equal texts must tie.
        return self.outcome_of(lambda block: (queries_QV[block] @ documents_VN).toarray().round(12))

    def lexical(self) -> dict[str, Callable[[], np.ndarray]]:
        def bm25() -> np.ndarray:
            score = bm25_of(self.documents)
            return self.outcome_of(lambda block: score(self.queries[block]))

        return {**super().lexical(), BM25: bm25}


def ranks_among(scores_N: np.ndarray, relevant: Sequence[int], place_N: np.ndarray) -> np.ndarray:
    """Return the ranks, from 1, of a few documents among all; with so few, counting beats sorting."""
    rank_J = np.full(len(relevant), np.inf)
    for place, row in enumerate(relevant):
        if row < len(scores_N):
            level = scores_N == scores_N[row]
            rank_J[place] = 1 + (scores_N > scores_N[row]).sum() + (place_N[level] < place_N[row]).sum()
    return rank_J


def measures_of(rank_J: np.ndarray, gain_J: np.ndarray) -> tuple[float, ...]:
    """Return `MEASURES` of one query, from the ranks and gains of its relevant documents."""
    order_J = np.argsort(rank_J)
    rank_J, gain_J = rank_J[order_J], gain_J[order_J]
    near_J = rank_J <= DEPTH
    gained = (gain_J[near_J] / np.log2(1 + rank_J[near_J])).sum()
    best = np.sort(gain_J)[::-1][:DEPTH]
    ideal = (best / np.log2(2 + np.arange(len(best)))).sum()
    reciprocal = 1 / rank_J[0] if near_J[0] else 0.0
    average_precision = (np.arange(1, len(rank_J) + 1) / rank_J).mean()
    return gained / ideal, reciprocal, average_precision, near_J.mean(), (rank_J <= 100).mean()

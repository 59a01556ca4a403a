"""Retrieval tasks: queries, documents, and which documents answer which query."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from raysed.config import TaskConfig
from raysed.data.rows import Rows, Schema, read
from raysed.data.sources import Hub, find
from raysed.errors import UserError


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

    @property
    def prompted(self) -> tuple[list[str], list[str]]:
        """Queries and documents as a model embeds them."""
        return [self.query_prompt + q for q in self.queries], [self.document_prompt + d for d in self.documents]

    @cached_property
    def places(self) -> np.ndarray:
        """The place of each document among documents that score alike, int64 [N]: ids falling."""
        falling = sorted(range(len(self.documents)), key=self.document_ids.__getitem__, reverse=True)
        return np.argsort(falling)  # which inverts a permutation


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

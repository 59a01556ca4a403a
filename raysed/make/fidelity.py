"""Compare a learner's searches in the corpus with its teachers'."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from raysed.context import Context
from raysed.data.parquet import ROLE, SentenceTable
from raysed.data.targets import matrix
from raysed.data.tokens import TokenTable
from raysed.make.inputs import Named
from raysed.model.encoding import encode
from raysed.model.pretrained import load_start
from raysed.score.fidelity import fidelity
from raysed.store.progress import emit

_DOCUMENTS, _QUERIES, _PARTS = 5000, 200, 20
_FEWEST = 100
"""Texts; of fewer, the ten best say little."""


def learner_fidelity(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Search a sample of the corpus, by the learner's vectors and by the teachers' targets.

    If targets were turned to the vectors `old` of another model, queries also search these. Without queries in the
    corpus, texts search the other texts. A corpus that is too small gives no facts.
    """
    targets, corpus = SentenceTable(inputs["targets"]), SentenceTable(inputs["corpus"])
    role_N = corpus.column(ROLE.name)
    count = len(corpus) if role_N is None else int((role_N == "document").sum())  # texts come before queries
    if count < _FEWEST:
        return {}
    of_texts, of_queries = _places(0, count), _places(count, len(targets))
    places = [*of_texts, *of_queries]

    def read(table: SentenceTable, *columns: str) -> pa.Table:
        return pa.concat_tables(table.rows(*place, columns) for place in places)

    rows, texts = read(targets, "id", "input_ids", "target"), read(corpus, "sentence")["sentence"].to_pylist()
    old_NE = matrix(read(SentenceTable(inputs["old"]), "target")["target"]) if "old" in inputs else None
    encoder, _ = load_start(inputs["encoder"], inputs["model"])
    tokens, layers = TokenTable.from_arrow(rows), (settings["layers"],)
    (x_NE,) = encode(encoder.to(context.device), tokens, layers)
    emit(sentences=len(texts))
    documents_P = np.arange(sum(stop - start for start, stop in of_texts))
    queries_Q = np.arange(len(documents_P), len(texts)) if of_queries else documents_P
    queries_Q = queries_Q[np.linspace(0, len(queries_Q) - 1, min(_QUERIES, len(queries_Q))).astype(int)]
    searches = fidelity(matrix(rows["target"]), x_NE, texts, queries_Q, documents_P, old_NE)
    counts = {"documents": len(documents_P), "queries": len(queries_Q)}
    return {**counts, "asked_by": "queries" if of_queries else "texts", "searches": searches}


def _places(first: int, stop: int) -> list[tuple[int, int]]:
    """Return the ranges of rows to read: all, or evenly spaced parts.

    >>> _places(0, 3000), _places(7, 7), _places(0, 10**6)[:2]
    ([(0, 3000)], [], [(0, 250), (50000, 50250)])
    """
    rows, size = stop - first, _DOCUMENTS // _PARTS
    if rows <= _DOCUMENTS:
        return [(first, stop)] if rows else []
    return [(at, at + size) for at in (first + rows * part // _PARTS for part in range(_PARTS))]

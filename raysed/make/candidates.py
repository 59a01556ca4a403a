"""The candidates that a learner ranks for each query: the text that answers it, and hard negatives."""

import tempfile
from pathlib import Path

import numpy as np

from raysed.context import Context
from raysed.data.candidates import CANDIDATES, NONE, VECTORS
from raysed.data.parquet import ROWS_PER_GROUP, SentenceTable
from raysed.data.queries import UNKNOWN
from raysed.data.targets import TARGET_TYPES, matrix
from raysed.make.inputs import Named
from raysed.model.negatives import mine
from raysed.score.metrics import unit
from raysed.store.progress import emit

_POOL = 50_000
"""Most texts to choose negatives from, evenly spaced: they are in memory."""


def candidates(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Write the corpus rows of each query, its own text and its negatives, and a file of all targets to map.

    A text without queries is also a query, because the learner should train on every text. Its own text is its nearest
    neighbour.
    """
    search, targets = settings["search"], SentenceTable(inputs["targets"])
    of_N = SentenceTable(inputs["corpus"]).column("of")
    rows_N = np.arange(len(of_N))
    texts_P = np.flatnonzero(of_N == rows_N)
    queries_Q = np.flatnonzero((of_N != rows_N) | ~np.isin(rows_N, of_N[of_N != rows_N]))
    own_Q = np.where(of_N[queries_Q] == queries_Q, UNKNOWN, of_N[queries_Q])
    shape = len(targets), matrix(targets.rows(0, 1, ("target",))["target"]).shape[1]
    vectors_ND = np.lib.format.open_memmap(out / VECTORS, "w+", TARGET_TYPES[settings["target_precision"]], shape)
    with tempfile.TemporaryDirectory() as scratch:
        # Half precision changes cosines by less than 0.001.
        x_ND = np.lib.format.open_memmap(Path(scratch) / "unit", "w+", np.float16, shape)
        for start in range(0, len(targets), ROWS_PER_GROUP):
            stop = min(start + ROWS_PER_GROUP, len(targets))
            rows_BD = matrix(targets.rows(start, stop, ("target",))["target"])
            vectors_ND[start:stop], x_ND[start:stop] = rows_BD, unit(rows_BD)
        pool_P = texts_P[np.linspace(0, len(texts_P) - 1, min(_POOL, len(texts_P))).astype(int)]
        mined = mine(x_ND, queries_Q, own_Q, pool_P, search.negatives, search.margin)
    vectors_ND.flush()
    np.save(out / CANDIDATES, np.column_stack([queries_Q, mined.own_Q, mined.negatives_QN]))
    emit(sentences=len(queries_Q))
    return {
        "texts": len(texts_P),
        "queries": int((of_N != rows_N).sum()),
        "negatives": int((mined.negatives_QN != NONE).sum()),
        "nearest": mined.negatives_QN.size,
        "spared": mined.spared,
    }

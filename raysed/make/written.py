"""Queries that an OpenAI-compatible endpoint writes for texts of the corpus, in blocks that outlive a stopped run."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.cluster.work import Work
from raysed.config import EndpointConfig
from raysed.data.corpus import CorpusReport, text_chunks
from raysed.data.endpoint import Endpoint
from raysed.data.parquet import open_table
from raysed.errors import UserError
from raysed.make.work import Named

TEXTS_PER_BLOCK = 50
"""Few are asked about again after a stop; and `search.endpoint.texts` is mostly a multiple, so that raising it leaves
the finished blocks as they are."""
_BYTES_PER_TOKEN, _TOKENS_PER_QUERY = 4, 20
_SUSPICIOUS = 5  # texts; if no answer about so many is usable, it is not because of the texts
_TEXTS = pa.schema([("id", pa.int64()), ("sentence", pa.string())])
_QUERIES = pa.schema([("sentence", pa.string()), ("queries", pa.list_(pa.string()))])


def texts_to_ask(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Draw the texts of the corpus that the endpoint is asked about."""
    rows = size = 0
    with pq.ParquetWriter(out / "part-00000.parquet", _TEXTS) as writer:
        chunks = text_chunks(settings["corpus"], settings["seed"], CorpusReport(), most=settings["texts"])
        for ids, texts, _ in chunks:
            writer.write_table(pa.Table.from_arrays([pa.array(ids), pa.array(texts, pa.string())], schema=_TEXTS))
            rows, size = rows + len(texts), size + sum(len(text.encode()) for text in texts)
    return {"rows": rows, "bytes": size}


def cost_of_queries(endpoint: EndpointConfig, texts: Named) -> str:
    """Say what the endpoint is about to be asked, roughly in tokens."""
    rows, read = texts["rows"], texts["bytes"] + texts["rows"] * len(endpoint.prompt.encode())
    return (
        f"search.endpoint: {endpoint.url} (model {endpoint.model}) is asked for {endpoint.queries} queries for each of "
        f"{rows:,} texts: about {read // _BYTES_PER_TOKEN:,} tokens to read and "
        f"{rows * endpoint.queries * _TOKENS_PER_QUERY:,} to write, or more if it reasons; unchanged blocks of "
        f"{TEXTS_PER_BLOCK} texts that are answered are not asked again"
    )


class QueryBlocks:
    """Let an endpoint write queries for blocks of texts, which are identified by text, address, model and prompt."""

    columns = ("id", "sentence")
    is_keyed = True

    def __init__(self, inputs: Named, settings: Named, work: Work):
        self._endpoint, self._at_once = Endpoint(settings["endpoint"]), settings["endpoint"].concurrency

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the queries for each text; UserError if no answer has any."""
        texts = table.column("sentence").to_pylist()
        with ThreadPoolExecutor(self._at_once) as pool:
            try:
                queries, answers = zip(*pool.map(self._endpoint.queries_for, texts))
            except BaseException:
                self._endpoint.stopped.set()  # otherwise the pool would wait for the tries of its other threads
                raise
        if len(texts) >= _SUSPICIOUS and not any(queries):
            problem = f"no answer about {len(texts)} texts has a query; the first one begins: {answers[0]}"
            raise UserError(f"{problem}; correct this address, the model or the prompt", setting="search.endpoint.url")
        return pa.Table.from_pydict({"sentence": texts, "queries": queries}, _QUERIES)

    def blocks(self, table: pa.Table) -> list[tuple[pa.Table, dict[str, Any]]]:
        """Return the block, with its numbers of texts and queries."""
        counts = [len(queries) for queries in table.column("queries").to_pylist()]
        return [(table, {"texts": len(counts), "queries": sum(counts), "without": counts.count(0)})]


def written_queries(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Count texts, queries, and texts without any, in blocks that are not copied."""
    metas = [meta for _, meta in inputs["blocks"]]
    counts = {name: sum(meta[name] for meta in metas) for name in ("texts", "queries", "without")}
    (out / "counts.json").write_text(json.dumps(counts))
    return counts


def queries_by_text(blocks: Iterable[tuple[Any, Named]]) -> dict[str, list[str]]:
    """Return the queries in some blocks by their text."""
    rows = (row for path, _ in blocks for row in open_table(path()).read().to_pylist())
    return {row["sentence"]: row["queries"] for row in rows}

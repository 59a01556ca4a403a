"""Text artefacts: the start of a static learner, the sentence table, labelled pairs and views of sentences."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysed.config import Role, ViewsConfig
from raysed.context import Context
from raysed.data.corpus import CorpusReport, query_chunks, sentence_chunks
from raysed.data.pairs import usable, write_pairs
from raysed.data.parquet import BlockFiles, SentenceTable, directory_of, open_table
from raysed.data.tokens import ROLE, SENTENCE_SCHEMA, FlatTokens, LengthReport
from raysed.graph import Artefact, Blocks, ExternalInput
from raysed.make.inputs import Named
from raysed.model.pretrained import text_tokenizer
from raysed.model.static_start import write_static
from raysed.model.views import filler_bytes, masked_views
from raysed.store.progress import Progress, emit
from raysed.train.stages.sed import STAGE, SedConfig

_FEW_SENTENCES, _FEW_STEPS = 1000, 150  # warn below these


def static_start(out: Path, inputs: Named, settings: Named, context: Context) -> None:
    """Write the token vectors that a static learner starts from."""
    write_static(inputs["encoder"], settings["corpus"], settings["seed"], out, context.token_budget)


def sentence_table(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Clean, draw and tokenise the corpus, a few thousand sentences at a time.

    With `corpus.queries`, queries follow all sentences, so other queries leave the sentences' blocks unchanged. The
    table then has the column `ROLE`.
    """
    block = settings["corpus"]
    tokenizer = text_tokenizer(inputs["encoder"], inputs["start"], settings.get("prompts", {}))
    report, queries, lengths = CorpusReport(), CorpusReport(), LengthReport(tokenizer.max_length)

    def texts_by_role() -> Iterator[tuple[Role, list[str]]]:
        for _, sentences in sentence_chunks(block, settings["seed"], report):
            yield "document" if block.queries else "", sentences
        for lines in query_chunks(block, queries) if block.queries else ():
            yield "query", lines

    progress = Progress("read corpus", block.sentences or 0)
    schema = SENTENCE_SCHEMA.append(ROLE) if block.queries else SENTENCE_SCHEMA
    with pq.ParquetWriter(out / "part-00000.parquet", schema) as writer, closing(FlatTokens(out)) as flat:
        for role, texts in texts_by_role():
            ids = np.arange(lengths.sentences, lengths.sentences + len(texts))
            table = tokenizer(texts, repeat(role), ids, lengths)
            tokens = pa.ListArray.from_arrays(pa.array(table.offsets, pa.int32()), pa.array(table.input_ids))
            columns = [pa.array(ids), pa.array(texts, pa.string()), tokens, pa.repeat(role, len(texts))]
            writer.write_table(pa.Table.from_arrays(columns[: len(schema)], schema=schema))
            flat.add(table)
            progress.update(lengths.sentences)
    emit(sentences=lengths.sentences)
    return {
        "report": asdict(report),
        "lengths": asdict(lengths),
        "rows": lengths.sentences,
        "summary": report.summary(),
        "length_summary": str(lengths),
        "query_summary": queries.summary() if block.queries else "",
    }


def small_corpus(sentences: int, is_trained_on: bool, sed: SedConfig | None) -> Iterator[str]:
    """Yield warnings about a corpus that is too small; `sed` is None without learners."""
    if sentences < _FEW_SENTENCES and is_trained_on:
        yield f"the corpus has only {sentences} sentences; training usually needs several thousand"
    if sed is None:
        return
    per_epoch = max(1, sentences // sed.batch_size)
    if (steps := STAGE.steps(sed, sentences)) < _FEW_STEPS:
        yield (
            f"a learner gets only {steps} training steps ({sentences:,} sentences, sed.batch_size {sed.batch_size}, "
            f"sed.epochs {sed.epochs:g}); set sed.epochs to {-(-_FEW_STEPS // per_epoch)} for {_FEW_STEPS} or more"
        )


def labelled_pairs(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Tokenise labelled sentence pairs."""
    rows = inputs["rows"]
    write_pairs(rows, text_tokenizer(inputs["encoder"]), out)
    return {"summary": rows.summary(), "rows": len(rows)}


def view_table(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Tokenise the two views of each sentence into a table that all members share."""
    tokenizer, rows, counts = text_tokenizer(inputs["encoder"]), inputs["rows"], ""
    if isinstance(rows, BlockFiles | Path):
        table, counts = SentenceTable(rows), f"; {(directory_of(rows) / 'counts.txt').read_text()}"
        columns = [column.to_pylist() for column in table.rows(0, len(table), ("first", "second")).columns]
        rows = usable(*columns, f"{settings['kind']} views", settings["max_unusable"])
    lengths = LengthReport(tokenizer.max_length)
    write_pairs(rows, tokenizer, out, lengths)
    return {"rows": len(rows), "summary": f"{rows.summary()}{counts}; {lengths}"}


class RewrittenViews(Artefact):
    """Two views of each sentence of the corpus, as text."""

    def __init__(
        self,
        kind: str,
        views: ViewsConfig,
        seed: int,
        encoder: ExternalInput,
        corpus: Artefact,
        source: ExternalInput,
    ):
        name, title = f"views/{kind}.text", f"rewritten sentences ({kind})"
        inputs, settings = {"corpus": corpus, "source": source, "encoder": encoder}, {"kind": kind, "seed": seed}
        super().__init__(
            name,
            title,
            "views",
            rewritten_views,
            inputs,
            settings,
            untracked={"views": ExternalInput(None, views)},
            execution=Blocks(corpus, ViewBlocks, title, partial(filler_bytes, views, encoder.value), name),
            is_intermediate=True,
        )


class ViewBlocks:
    """Rewrite blocks of the corpus; random choices depend only on the seed and the sentences' ids."""

    columns, kept = ("id", "sentence"), ("id", "first", "second", "chosen", "total")

    def __init__(self, inputs: Named, settings: Named, context: Context):
        self._make = masked_views(inputs["views"], inputs["encoder"], settings["seed"], context.device)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the two views of each sentence; the first row has the block's counts of rewritten tokens."""
        made = self._make(table.column("sentence").to_pylist(), table.column("id").to_numpy())
        first, second = zip(*made.pairs)
        others = [0] * (len(table) - 1)
        counts = {"chosen": [made.chosen, *others], "total": [made.total, *others]}
        return pa.table({"id": table.column("id"), "first": first, "second": second, **counts})


def rewritten_views(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Count the rewritten tokens of all blocks."""
    blocks: BlockFiles = inputs["blocks"]
    counted = [open_table(fetch()).read(["chosen", "total"]) for fetch in blocks.files]
    chosen, total = (sum(int(pc.sum(table.column(name)).as_py()) for table in counted) for name in ("chosen", "total"))
    counts = f"{chosen:,} of {total:,} tokens rewritten ({100 * chosen / max(total, 1):.1f} %)"
    (out / "counts.txt").write_text(counts)
    return {**blocks.shape, "counts": counts}

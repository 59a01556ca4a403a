"""Text artefacts: the start of a static learner, the sentence table, labelled pairs and views of sentences."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysed.cluster.work import Work
from raysed.data.corpus import CorpusReport, text_chunks
from raysed.data.pairs import usable, write_pairs
from raysed.data.parquet import open_table
from raysed.data.queries import roles_of
from raysed.data.tokens import SENTENCE_SCHEMA, FlatTokens, LengthReport, tokenize
from raysed.make.work import Named
from raysed.model.pretrained import load_tokenizer
from raysed.model.prompts import with_prompts
from raysed.model.static_start import write_static
from raysed.model.views import KINDS
from raysed.store.progress import Progress, emit
from raysed.train.stages.sed import STAGE, SedConfig

VIEWS_SCHEMA = pa.schema([("first", pa.string()), ("second", pa.string())])
VIEWS_FILE = "views.parquet"
_FEW_SENTENCES, _FEW_UPDATES = 1000, 150  # warn below these


def static_start(out: Path, inputs: Named, settings: Named, work: Work) -> None:
    """Write the table of token vectors that a static learner starts from."""
    write_static(inputs["encoder"], settings["corpus"], settings["seed"], out, work.token_budget)


def sentence_table(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Clean, draw and tokenise the corpus, a few thousand sentences at a time.

    With `search` there are queries for them, too, and a column `of`: the id of the text that a query is for or
    `UNKNOWN`, and a text's own id.
    """
    block, search, max_length = settings["corpus"], settings.get("search"), inputs["encoder"].max_length
    tokenizer, prompts = load_tokenizer(inputs["encoder"], inputs["start"]), settings.get("prompts", {})
    report, lengths = CorpusReport(), LengthReport(max_length)
    progress = Progress("read corpus", block.sentences or 0)
    schema = SENTENCE_SCHEMA.append(pa.field("of", pa.int64())) if search else SENTENCE_SCHEMA
    with pq.ParquetWriter(out / "part-00000.parquet", schema) as writer, closing(FlatTokens(out)) as flat:
        for ids, sentences, of in text_chunks(block, settings["seed"], report, search):
            asked = with_prompts(sentences, roles_of(ids, of), prompts)
            table = tokenize(tokenizer, asked, max_length, ids, lengths)
            tokens = pa.ListArray.from_arrays(pa.array(table.offsets, pa.int32()), pa.array(table.input_ids))
            columns = [pa.array(table.ids), pa.array(sentences, pa.string()), tokens, pa.array(of)]
            writer.write_table(pa.Table.from_arrays(columns[: len(schema)], schema=schema))
            flat.add(table)
            progress.update(report.kept)
    emit(sentences=lengths.sentences)
    about = {"report": asdict(report), "lengths": asdict(lengths), "rows": lengths.sentences}
    return {**about, "summary": report.summary(), "length_summary": str(lengths)}


def small_corpus(sentences: int, is_trained_on: bool, sed: SedConfig | None) -> Iterator[str]:
    """Yield warnings about a corpus too small to learn much from; `sed` is None without learners."""
    if sentences < _FEW_SENTENCES and is_trained_on:
        yield f"the corpus has only {sentences} sentences; training usually needs several thousand"
    if sed is None:
        return
    per_epoch = max(1, sentences // sed.batch_size)
    if (updates := STAGE.steps(sed, sentences)) < _FEW_UPDATES:
        yield (
            f"a learner gets only {updates} updates ({sentences:,} sentences, sed.batch_size {sed.batch_size}, "
            f"sed.epochs {sed.epochs:g}), but it needs a few hundred; set sed.epochs to "
            f"{-(-_FEW_UPDATES // per_epoch)} for {_FEW_UPDATES} updates"
        )


def labelled_pairs(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Tokenise labelled sentence pairs."""
    rows, encoder = inputs["rows"], inputs["encoder"]
    write_pairs(rows, load_tokenizer(encoder), encoder.max_length, out)
    return {"summary": rows.summary(), "rows": len(rows)}


def view_table(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Tokenise the two views of each sentence into a table that all members share."""
    encoder, rows, counts = inputs["encoder"], inputs["rows"], ""
    if isinstance(rows, Path):
        table, counts = open_table(rows / VIEWS_FILE).read(), f"; {(rows / 'counts.txt').read_text()}"
        columns = [table.column(name).to_pylist() for name in VIEWS_SCHEMA.names]
        rows = usable(*columns, f"{settings['kind']} views", settings["max_unusable"])
    lengths = LengthReport(encoder.max_length)
    write_pairs(rows, load_tokenizer(encoder), encoder.max_length, out, lengths)
    return {"rows": len(rows), "summary": f"{rows.summary()}{counts}; {lengths}"}


class ViewBlocks:
    """Rewrite blocks of the corpus; random choices depend only on the seed and the sentences' IDs."""

    columns = ("id", "sentence")

    def __init__(self, inputs: Named, settings: Named, work: Work):
        self._make = KINDS[settings["kind"]].maker(inputs["views"], inputs["encoder"], settings["seed"], work.device)

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the two views of each sentence."""
        made = self._make(table.column("sentence").to_pylist(), table.column("id").to_numpy())
        self._counts = {"chosen": made.chosen, "total": made.total}
        return pa.Table.from_arrays(list(zip(*made.pairs)), schema=VIEWS_SCHEMA)

    def blocks(self, made: pa.Table) -> list[tuple[pa.Table, dict[str, Any]]]:
        """Return the latest block, and how many of its sentences or tokens were rewritten."""
        return [(made, self._counts)]


def rewritten_views(out: Path, inputs: Named, settings: Named, work: Work) -> Named:
    """Join the blocks of rewritten sentences in corpus order."""
    blocks: Sequence[tuple[Any, Named]] = inputs["blocks"]
    chosen = total = 0
    with pq.ParquetWriter(out / VIEWS_FILE, VIEWS_SCHEMA) as writer:
        for path, meta in blocks:
            chosen, total = chosen + meta["chosen"], total + meta["total"]
            writer.write_table(open_table(path()).read())
    share, unit = 100 * chosen / max(total, 1), KINDS[settings["kind"]].UNIT
    counts = f"{chosen:,} of {total:,} {unit} rewritten ({share:.1f} %)"
    (out / "counts.txt").write_text(counts)
    return {"counts": counts}

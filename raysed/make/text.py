"""Text artefacts: the start of a static learner, the sentence table, labelled pairs and views of sentences."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from itertools import repeat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysed.config import Role
from raysed.context import Context
from raysed.data.corpus import MOST_CHARACTERS, Columns, CorpusReport, column_chunks, query_chunks
from raysed.data.pairs import write_pairs
from raysed.data.parquet import ROLE, TEXTS
from raysed.data.tokens import SENTENCE_SCHEMA, FlatTokens, LengthReport, TokenTable
from raysed.make.inputs import Named
from raysed.model.pretrained import text_tokenizer
from raysed.model.static_start import write_static
from raysed.store.progress import Progress, emit
from raysed.train.stages.sed import STAGE, SedConfig

_FEW_SENTENCES, _FEW_STEPS = 1000, 150  # warn below these


def static_start(out: Path, inputs: Named, settings: Named, context: Context) -> None:
    """Write the token vectors that a static learner starts from."""
    write_static(inputs["encoder"], settings["corpus"], settings["seed"], out)


def sentence_table(out: Path, inputs: Named, settings: Named, context: Context) -> Named:
    """Clean, draw and tokenise the corpus, a few thousand sentences at a time.

    With `corpus.queries`, queries follow all sentences, so other queries leave the sentences' blocks unchanged. The
    table then has the column `ROLE`, and with `corpus.translations` the column `TEXTS`.
    """
    block = settings["corpus"]
    tokenizer = text_tokenizer(inputs["encoder"], inputs["start"], settings.get("prompts", {}))
    report, queries, languages = CorpusReport(), CorpusReport(), len(block.translations)
    lengths, of_all = LengthReport(tokenizer.max_length), LengthReport(tokenizer.max_length)

    def texts_by_role() -> Iterator[tuple[Role, Columns]]:
        for columns in column_chunks(block, settings["seed"], report):
            yield "document" if block.queries else "", columns
        for lines in query_chunks(block, queries) if block.queries else ():
            yield "query", [lines] * (1 + languages)

    progress = Progress("read corpus", block.sentences or 0)
    schema = pa.schema([*SENTENCE_SCHEMA, *[ROLE] * bool(block.queries), *[TEXTS] * bool(languages)])
    with pq.ParquetWriter(out / "part-00000.parquet", schema) as writer, closing(FlatTokens(out)) as flat:
        for role, (texts, *others) in texts_by_role():
            ids = np.arange(lengths.sentences, lengths.sentences + len(texts))
            table = tokenizer(texts, repeat(role), ids, lengths)
            columns = {"id": ids, "sentence": pa.array(texts, pa.string()), "input_ids": _lists(table)}
            columns[ROLE.name] = pa.repeat(role, len(texts))
            if others:
                in_turn = [text or row[0] for row in zip(texts, *others) for text in row]
                starts = np.arange(len(texts) + 1, dtype=np.int32) * (1 + languages)
                inner = _lists(tokenizer(in_turn, repeat(role), None, of_all))
                columns[TEXTS.name] = pa.ListArray.from_arrays(starts, inner)
            writer.write_table(pa.table([columns[name] for name in schema.names], schema=schema))
            flat.add(table)
            progress.update(lengths.sentences)
    progress.close(f"{lengths.sentences:,} sentences")
    emit(sentences=lengths.sentences)
    return {
        "report": asdict(report),
        "lengths": asdict(lengths),
        "rows": lengths.sentences,
        "summary": report.summary(),
        "length_summary": str(lengths) + f"; with translations: {of_all}" * bool(languages),
        "query_summary": queries.summary() if block.queries else "",
    }


def _lists(table: TokenTable) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(table.offsets, pa.int32()), pa.array(table.input_ids))


def long_lines(count: int) -> Iterator[str]:
    """Yield a warning about lines that were skipped because they are too long."""
    if count:
        yield (
            f"{count:,} lines of the corpus have more than {MOST_CHARACTERS:,} characters and are skipped; set "
            "corpus.passage_characters to read them in passages"
        )


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
    tokenizer, rows = text_tokenizer(inputs["encoder"]), inputs["rows"]
    lengths = LengthReport(tokenizer.max_length)
    write_pairs(rows, tokenizer, out, lengths)
    return {"rows": len(rows), "summary": f"{rows.summary()}; {lengths}"}

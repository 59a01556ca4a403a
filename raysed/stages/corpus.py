"""The corpus: sentences as they are read -> the sentence table, with their tokens."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from raysed.config import Config
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.tokens import SENTENCE_SCHEMA, FlatTokens, LengthReport, TokenTable, tokenize
from raysed.recipe import SED, Recipe
from raysed.registry import stages
from raysed.store.progress import Progress, tell

_FEW_SENTENCES, _FEW_UPDATES = 1000, 150
"""Below these a warning says what to expect."""


def write_sentence_table(config: Config, tokenizer: PreTrainedTokenizerBase, directory: Path) -> dict[str, Any]:
    """Cleans, draws and tokenises the corpus, some thousand sentences at a time.

    Args:
        directory: empty; gets `part-00000.parquet` and the flat files of `FlatTokens`.

    Returns:
        What was read, and how long it is, for the manifest: `report`, `lengths`, `summary` and `length_summary`.
    """
    report, lengths = CorpusReport(), LengthReport(config.encoder.max_length)
    progress = Progress("read corpus", config.corpus.sentences or 0)
    with (
        pq.ParquetWriter(directory / "part-00000.parquet", SENTENCE_SCHEMA) as writer,
        closing(FlatTokens(directory)) as flat,
    ):
        for ids, sentences in sentence_chunks(config.corpus, config.seed, report):
            table = tokenize(tokenizer, sentences, config.encoder.max_length, ids, lengths)
            writer.write_table(_rows(table, sentences))
            flat.add(table)
            progress.update(int(ids[-1]) + 1)
    tell(sentences=lengths.sentences)
    return {
        "report": asdict(report),
        "lengths": asdict(lengths),
        "summary": report.summary(),
        "length_summary": str(lengths),
    }


def _rows(table: TokenTable, sentences: list[str]) -> pa.Table:
    tokens = pa.ListArray.from_arrays(pa.array(table.offsets, pa.int32()), pa.array(table.input_ids))
    return pa.Table.from_arrays([pa.array(table.ids), pa.array(sentences, pa.string()), tokens], schema=SENTENCE_SCHEMA)


def too_little(config: Config, recipes: Sequence[Recipe], sentences: int) -> Iterator[str]:
    """Yields what to say before training on a corpus from which little can be learnt."""
    if sentences < _FEW_SENTENCES and any(recipe.trains_on_corpus(config) for recipe in recipes):
        yield f"the corpus has only {sentences} sentences; training usually needs several thousand"
    per_epoch, epochs = max(1, sentences // config.sed.batch_size), config.sed.epochs
    updates = stages()[SED].steps(config.sed, sentences)
    if updates < _FEW_UPDATES and any(recipe.distils for recipe in recipes):
        yield (
            f"a learner gets only {updates} updates ({sentences:,} sentences, sed.batch_size {config.sed.batch_size}, "
            f"sed.epochs {epochs:g}), but it needs a few hundred; sed.epochs: {-(-_FEW_UPDATES // per_epoch)} "
            f"would give it {_FEW_UPDATES}"
        )

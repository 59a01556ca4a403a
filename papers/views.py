r"""Write two views of each sentence of a config's corpus, for `views.files` (BSL sections 3.2 and 4.4).

Synonyms:           python -m papers.views synonym --config bert-base-bsl --output data/views/nli-synonyms.parquet
Back-translations:  python -m papers.views back_translation --config bert-base-bsl \
                        --output data/views/nli-back-translations.parquet

The second views of `synonym` have a share of the words replaced by WordNet synonyms; those of `back_translation` are
translated into another language and back. Views depend on the config's corpus, seed and encoder.max_length.
"""

import argparse
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from raysed.cli import check_output, main_of
from raysed.config import derive_seed, find_config, load_config
from raysed.data.corpus import CorpusReport, check_corpus, sentence_chunks
from raysed.errors import UserError
from raysed.model.views import Maker
from raysed.store.progress import Progress

PIVOTS = (
    ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-de-en"),
    ("Helsinki-NLP/opus-mt-en-fr", "Helsinki-NLP/opus-mt-fr-en"),
)
_UNITS = {"synonym": "words", "back_translation": "sentences"}
_SCHEMA = pa.schema([("view1", pa.string()), ("view2", pa.string())])


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("kind", choices=("synonym", "back_translation"))
    result.add_argument("--config", help="config of the corpus: a name from raysed/configs/ or a YAML file")
    result.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a setting"
    )
    result.add_argument("--share", type=float, default=0.3, help="share of words to replace by synonyms")
    result.add_argument(
        "--pivot",
        dest="pivots",
        nargs=2,
        action="append",
        metavar=("THERE", "BACK"),
        help="translate by these two models; given twice, both views are translations (default: German and French)",
    )
    result.add_argument("--output", type=Path, required=True, help="Parquet file with the columns view1 and view2")
    return result


def job(arguments: argparse.Namespace) -> None:
    """Write the views."""
    check_output(arguments.output)
    pivots = arguments.pivots or PIVOTS
    if not 0 < arguments.share < 1 or len(pivots) > 2:
        raise UserError("--share must be between 0 and 1, and --pivot may be given at most twice")
    config = load_config(find_config(arguments.config) if arguments.config else None, arguments.overrides)
    check_corpus(config.corpus)
    if arguments.kind == "synonym":
        from papers.synonyms import synonym_views

        make: Maker = synonym_views(arguments.share, derive_seed(config.seed, "views", "synonym"))
    else:
        from papers.back_translation import back_translations

        make = back_translations(pivots, config.encoder.max_length, "cuda" if torch.cuda.is_available() else "cpu")
    unfinished, chosen, total = Path(f"{arguments.output}.part"), 0, 0
    report, progress = CorpusReport(), Progress("rewrite sentences", config.corpus.sentences or 0)
    with pq.ParquetWriter(unfinished, _SCHEMA) as writer:
        for ids, sentences in sentence_chunks(config.corpus, config.seed, report):
            made = make(sentences, ids)
            first, second = zip(*made.pairs)
            writer.write_table(pa.table({"view1": first, "view2": second}, _SCHEMA))
            chosen, total = chosen + made.chosen, total + made.total
            progress.update(report.kept)
    progress.close()
    os.replace(unfinished, arguments.output)
    print(f"{arguments.output}: {report.kept:,} pairs; {chosen:,} of {total:,} {_UNITS[arguments.kind]} rewritten")


if __name__ == "__main__":
    sys.exit(main_of(job, parser()))

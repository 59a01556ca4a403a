r"""Write two views of each sentence of a config's corpus, for `views.files` (BSL sections 3.2 and 4.4).

Masked tokens:      python -m papers.views mlm --config bert-base-bsl --model FacebookAI/roberta-base \
                        --output data/views/nli-masked.parquet
Synonyms:           python -m papers.views synonym --config bert-base-bsl --output data/views/nli-synonyms.parquet
Back-translations:  python -m papers.views back_translation --config bert-base-bsl \
                        --output data/views/nli-back-translations.parquet

The second views of `mlm` have a share of the tokens filled by a masked language model, those of `synonym` a share of
the words replaced by WordNet synonyms, and those of `back_translation` are translated into another language and back.
Views depend on the config's corpus, seed and encoder.max_length.
"""

import argparse
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from papers.masked import RATE, Maker, masked_views
from raysed.cli import check_output, main_of
from raysed.config import Config, EncoderConfig, derive_seed, find_config, load_config
from raysed.data.corpus import CorpusReport, check_corpus, sentence_chunks
from raysed.errors import UserError
from raysed.store.progress import Progress

PIVOTS = (
    ("Helsinki-NLP/opus-mt-en-de", "Helsinki-NLP/opus-mt-de-en"),
    ("Helsinki-NLP/opus-mt-en-fr", "Helsinki-NLP/opus-mt-fr-en"),
)
_UNITS = {"mlm": "tokens", "synonym": "words", "back_translation": "sentences"}
_SCHEMA = pa.schema([("view1", pa.string()), ("view2", pa.string())])


def parser() -> argparse.ArgumentParser:
    """Return the argument parser."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("kind", choices=tuple(_UNITS))
    result.add_argument("--config", help="config of the corpus: a name from raysed/configs/ or a YAML file")
    result.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="a.b=c", help="override a setting"
    )
    result.add_argument("--rate", type=float, default=RATE, help="share of tokens to mask and fill")
    result.add_argument("--model", help="masked language model; default: the config's encoder")
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
    if not (0 < arguments.share < 1 and 0 < arguments.rate < 1) or len(pivots) > 2:
        raise UserError("--rate and --share must be between 0 and 1, and --pivot may be given at most twice")
    config = load_config(find_config(arguments.config) if arguments.config else None, arguments.overrides)
    check_corpus(config.corpus)
    make: Maker
    if arguments.kind == "mlm":
        make = masked_maker(config, arguments.model, arguments.rate)
    elif arguments.kind == "synonym":
        from papers.synonyms import synonym_views

        make = synonym_views(arguments.share, derive_seed(config.seed, "views", "synonym"))
    else:
        from papers.back_translation import back_translations

        make = back_translations(pivots, config.encoder.max_length, _device())
    print(f"{arguments.output}: {write_views(make, config, arguments.output, _UNITS[arguments.kind])}")


def masked_maker(config: Config, model: str | None, rate: float = RATE) -> Maker:
    """Return the maker of masked views of a config's corpus; `model` None: filled by the config's encoder."""
    filler, setting = (EncoderConfig(path=model), "--model") if model else (config.encoder, "encoder.path")
    seed = derive_seed(config.seed, "views", "mlm")
    return masked_views(filler, setting, rate, config.encoder.max_length, seed, _device())


def write_views(make: Maker, config: Config, output: Path, units: str) -> str:
    """Write two views of each sentence of a config's corpus; return a summary."""
    unfinished, chosen, total = Path(f"{output}.part"), 0, 0
    report, progress = CorpusReport(), Progress("rewrite sentences", config.corpus.sentences or 0)
    with pq.ParquetWriter(unfinished, _SCHEMA) as writer:
        for ids, sentences in sentence_chunks(config.corpus, config.seed, report):
            made = make(sentences, ids)
            first, second = zip(*made.pairs)
            writer.write_table(pa.table({"view1": first, "view2": second}, _SCHEMA))
            chosen, total = chosen + made.chosen, total + made.total
            progress.update(report.kept)
    progress.close()
    os.replace(unfinished, output)
    return f"{report.kept:,} pairs; {chosen:,} of {total:,} {units} rewritten"


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    sys.exit(main_of(job, parser()))

"""The tables that a run trains on: which its recipes need, and how each is made."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from raysed.made import ExternalInput, Made, made
from raysed.make.text import labelled_pairs, long_lines, sentence_table, small_corpus, static_start, view_table
from raysed.plan.consistency import combination_warnings
from raysed.registry import stages

if TYPE_CHECKING:
    from raysed.config import Config, CorpusConfig
    from raysed.plan.check import Job
    from raysed.recipe import Recipe
    from raysed.store.storage import Entry

log = logging.getLogger(__name__)

CORPUS, MEMBERS_CORPUS = "corpus", "members-corpus"
"""Tables of sentences: for learners and calibrations; for members, if they read more."""


def view_kinds(recipe: Recipe, config: Config) -> list[str]:
    """Return the distinct kinds of views with a table that a recipe trains on."""
    return [name.removeprefix("views/") for name in _needed(recipe, config) if name.startswith("views/")]


def trains_on_corpus(recipe: Recipe, config: Config) -> bool:
    """Return whether a recipe trains on the corpus."""
    return recipe.distils or CORPUS in _needed(recipe, config)


def reads_corpus(recipe: Recipe, config: Config) -> bool:
    """Return whether a recipe trains on the corpus or fits its calibration on it."""
    return trains_on_corpus(recipe, config) or (bool(recipe.calibration) and config.flow.fit_on == "corpus")


def corpora(config: Config, recipes: Sequence[Recipe]) -> dict[str, CorpusConfig]:
    """Return the settings of each table of sentences."""
    drawn, whole = config.sed.sentences, config.corpus
    if drawn is None or not any(recipe.distils for recipe in recipes):
        return {CORPUS: whole}
    apart = any(CORPUS in _needed(recipe, config) for recipe in recipes)
    return {CORPUS: whole.model_copy(update={"sentences": drawn}), **({MEMBERS_CORPUS: whole} if apart else {})}


def known_rows(job: Job, corpus: int | None = None) -> dict[str, int]:
    """Return the sizes of the tables by name; a corpus of unknown size counts as a thousand sentences."""
    config = job.config
    whole = corpus or config.corpus.sentences or 1000
    names = corpora(config, job.recipes)
    sizes = {CORPUS: min(whole, names[CORPUS].sentences or whole), MEMBERS_CORPUS: whole}
    rows = {f"pairs/{kind}": len(pairs) for kind, pairs in job.pairs.items()}
    rows |= {f"views/{kind}": len(views) for kind, views in job.views.items()}
    return rows | ({name: sizes[name] for name in names} if job.needs_corpus else {})


def start_of_static(job: Job) -> Made | None:
    """Return the tokenizer and vectors that a static learner starts from; None for other learners."""
    if not job.config.encoder.static:
        return None
    inputs = {"encoder": job.encoder, "source": job.external("corpus"), "start": None}
    settings = {"corpus": job.config.corpus, "seed": job.config.seed}
    return made("encoder/start", "encoder", "encoder", static_start, inputs, settings)


def tables_of(job: Job, start: Made | None) -> dict[str, Made]:
    """Return the tables by name: `corpus`, `pairs/nli`, `views/files`, ..."""
    config, found = job.config, {}
    for name, block in corpora(config, job.recipes).items() if job.needs_corpus else ():
        settings = {"corpus": block, "seed": config.seed, **({"prompts": job.prompts} if block.queries else {})}
        inputs = {"encoder": job.encoder, "source": job.external("corpus"), "start": start}
        title, lines = name.replace("-", " "), partial(_corpus_lines, job, name)
        found[name] = made(name, title, "corpus", sentence_table, inputs, settings, lines=lines)
    for kind, rows in job.pairs.items():
        inputs = {"encoder": job.encoder, "rows": ExternalInput(job.inputs[kind], rows)}
        title, lines = f"labelled pairs ({kind})", partial(_summary_line, f"{kind} pairs")
        found[f"pairs/{kind}"] = made(f"pairs/{kind}", title, "pairs", labelled_pairs, inputs, lines=lines)
    for kind, rows in job.views.items():
        name, title, lines = f"views/{kind}", f"views ({kind})", partial(_summary_line, f"{kind} views")
        inputs = {"encoder": job.encoder, "rows": ExternalInput(job.inputs[name], rows)}
        found[name] = made(name, title, "views", view_table, inputs, lines=lines)
    return found


def _needed(recipe: Recipe, config: Config) -> list[str]:
    """Return the distinct tables that a recipe's members train on."""
    names = [name for stage in recipe.members for name in stages()[stage].tables(getattr(config, stage))]
    return list(dict.fromkeys(names))


def _summary_line(what: str, entry: Entry) -> Iterator[str]:
    yield f"{what}: {entry.meta['summary']}"


def _corpus_lines(job: Job, name: str, entry: Entry) -> Iterator[str]:
    config, report = job.config, entry.meta["report"]
    yield f"{name.replace('-', ' ')}: {entry.meta['summary']}"
    if config.corpus.queries:
        yield f"queries: {entry.meta['query_summary']}"
    yield f"tokens: {entry.meta['length_summary']}"
    if name == CORPUS:
        is_trained_on = any(trains_on_corpus(recipe, config) for recipe in job.recipes)
        small = small_corpus(report["kept"], is_trained_on, config.sed if job.distilling else None)
        for warning in [*long_lines(report["too_long"]), *small, *combination_warnings(config)]:
            log.warning(warning)

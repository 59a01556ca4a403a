"""The exported model, or why there is none: choice, worth, sanity list, formats."""

from collections.abc import Mapping, Sequence
from typing import Any

from raysed.report.findings import gain_sentence
from raysed.report.results import RunResults
from raysed.report.section import Section
from raysed.store.text import Table, number, sentence, size


def sanity_words(sanity: Mapping[str, int]) -> str:
    """Describe the exported model's result on the sanity list.

    >>> sanity_words({"triples": 50, "exported": 48, "base": 40, "words": 23})
    'it finds the closer sentence in 48 of 50 English triples (untouched encoder 40, TF-IDF 23, chance 25)'
    """
    return (
        f"it finds the closer sentence in {sanity['exported']} of {sanity['triples']} English triples "
        f"(untouched encoder {sanity['base']}, TF-IDF {sanity['words']}, chance {sanity['triples'] // 2})"
    )


def formats_table(formats: Sequence[Mapping[str, Any]], dev: str | None) -> Table:
    """Return the formats from `raysed.report.formats.compare_formats` as a table."""
    columns = {
        "format": lambda row: row["format"],
        "file": lambda row: row["file"],
        "size": lambda row: size(row["bytes"]),
        "sentences/s": lambda row: f"{row['sentences_per_second']:,.0f}",
        dev or "dev": lambda row: number(row["score"]),
        "cosine": lambda row: f"{row['cosine']:.4f}",
    }
    return Table.of(formats, columns, text=3)


def _choice(run: RunResults) -> dict[str, str]:
    choice = run.choice
    about = {"chosen": choice.words()} if choice.refusal else {"recipe": choice.model.recipe}
    value = gain_sentence(run.scores, choice.model.recipe, choice.model.kind)
    return {**about, "why": choice.refusal or choice.words(), "worth": value}


SECTIONS = [
    Section(
        "exported",
        "The export",
        20,
        lambda run: {} if run.choice.refusal else _choice(run),
        lambda exported, _: f"Exported: {exported['why']}. {exported.get('worth', '')}".strip(),
    ),
    Section(
        "refused",
        "",
        21,
        lambda run: _choice(run) if run.choice.refusal else {},
        lambda no, _: f"{sentence(no['why'])} The best candidate: {no['chosen']}. {no.get('worth', '')}".strip(),
        is_part=True,
    ),
    Section(
        "sanity",
        "",
        22,
        lambda run: run.sanity,
        lambda sanity, _: f"Sanity check: {sanity_words(sanity)}.",
        is_part=True,
    ),
    Section(
        "formats",
        "",
        23,
        lambda run: run.formats,
        "Formats of the exported model: speed on this machine's CPU, score on the dev task, and mean cosine with the "
        "trained model's vectors.",
        tables=lambda formats, report: [formats_table(formats, report.dev)],
        is_part=True,
    ),
]

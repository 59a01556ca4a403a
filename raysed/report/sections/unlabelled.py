"""What can be told of a model without labels: its neighbours, near-duplicates, and the shape of its space."""

from collections.abc import Iterator, Mapping
from typing import Any

from raysed.report.document import Report
from raysed.report.results import Run
from raysed.report.section import Block, Cards, Section
from raysed.score.unlabelled import CANNOT_BE_TOLD, unlabelled_scores
from raysed.store.text import Table

Models = Mapping[str, Mapping[str, Any]]
"""By model what `unlabelled_scores` returned."""


def unlabelled_table(models: Models) -> Table:
    """Return what can be told without labels, a line per model."""
    columns = {
        "near-duplicates found": lambda found: f"{found['found']:.1f}%",
        "alignment": lambda found: f"{found['alignment']:.3f}",
        "uniformity": lambda found: f"{found['uniformity']:.2f}",
        "cosine of random pairs": lambda found: f"{round(found['cosine'], 3) + 0.0:.3f}",
        "effective rank": lambda found: f"{found['effective_rank']:.1f}",
    }
    lines = [[name, *(words(found) for words in columns.values())] for name, found in models.items()]
    return Table(["models", *columns], lines)


def neighbours_table(models: Models) -> Table:
    """Return some sentences with the nearest other by each model."""
    lines = []
    for entries in zip(*(found["neighbours"] for found in models.values())):
        firsts = [entry["nearest"][0] for entry in entries]
        lines.append([entries[0]["sentence"], *(f"{near['sentence']} ({near['cosine']:.2f})" for near in firsts)])
    header = ["sentence", *(f"nearest by {name}" for name in models)]
    return Table(header, lines, text=len(header))


def _sentences(models: Models) -> str:
    return f"{next(iter(models.values()))['sentences']:,}"


def _neighbour_cards(data: None, report: Report) -> Iterator[Block]:
    models = report.data.get("analysis.unlabelled") or {}
    exported = (report.data.get("exported") or {}).get("recipe")
    whens = ("before", *["after"] * (len(models) - 1)) if len(models) > 1 else ("",)
    titles = [f"{when} {name}{' (exported)' * (name == exported)}".strip() for when, name in zip(whens, models)]
    lists: dict[str, dict[str, list[tuple[float, str]]]] = {}
    for title, found in zip(titles, models.values()):
        for entry in found["neighbours"]:
            nearest = [(near["cosine"], near["sentence"]) for near in entry["nearest"]]
            lists.setdefault(entry["sentence"], {})[title] = nearest
    if lists:
        yield (
            "The sentences that each model finds nearest to a few sentences, among "
            f"{_sentences(models)}, with their cosines. Both models have scales of their own: compare the sentences, "
            "not the cosines."
        )
        yield Cards(lists, neighbours_table(models))


def _words(models: Models, report: Report) -> str:
    return (
        f"On {_sentences(models)} sentences: the share of near-duplicates (a typing mistake, another case, a repeated "
        "word; of 400 sentences at most) whose nearest sentence is the one they were made of; alignment, the mean "
        "squared distance of the two, and uniformity, how evenly all of them are spread (both better the lower they "
        f"are); and the shape of the space. {CANNOT_BE_TOLD}"
    )


def _unlabelled(run: Run) -> Models:
    sentences = run.some_sentences()
    return {name: unlabelled_scores(sentences, embed) for name, embed in run.embedders.items()}


SECTIONS = [
    Section("neighbours", "Nearest neighbours", 40, tables=_neighbour_cards),
    Section(
        "analysis.unlabelled",
        "Without labels",
        110,
        _unlabelled,
        _words,
        tables=lambda models, report: unlabelled_table(models),
    ),
]

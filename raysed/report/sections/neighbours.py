"""Nearest neighbours of some sentences of the corpus."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from raysed.recipe import BASE
from raysed.report.section import Block, Section
from raysed.score.neighbours import nearest_neighbours
from raysed.store.text import Table

if TYPE_CHECKING:
    from raysed.report.results import RunResults

Models = Mapping[str, Mapping[str, Any]]
"""Results of `nearest_neighbours` by model."""


def neighbours_table(models: Models) -> Table:
    """Return some sentences with their nearest neighbour by each model."""
    lines = []
    for entries in zip(*(found["neighbours"] for found in models.values())):
        firsts = [entry["nearest"][0] for entry in entries]
        lines.append([entries[0]["sentence"], *(f"{near['sentence']} ({near['cosine']:.2f})" for near in firsts)])
    header = ["sentence", *(f"nearest by {name}" for name in models)]
    return Table(header, lines, text=len(header), is_stacked=True)


def _neighbours(run: "RunResults") -> Models:
    sentences, models = run.sample_sentences(), {BASE: run.base_model, run.choice.model.recipe: run.exported_model}
    return {name: nearest_neighbours(sentences, model.embed) for name, model in models.items()}


def _blocks(models: Models, run: "RunResults") -> Iterator[Block]:
    count = f"{next(iter(models.values()))['sentences']:,}"
    yield (
        f"For a few sentences, the nearest of {count} by the original encoder and the chosen model, with its cosine. "
        "The two models use different scales: compare the sentences, not the cosines."
    )
    yield neighbours_table(models)


SECTIONS = [Section("neighbours", "Nearest neighbours", 40, _neighbours, blocks=_blocks)]

"""Nearest neighbours, near-duplicates and the shape of the space, from unlabelled sentences."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from raysed.recipe import BASE
from raysed.report.section import Block, Section
from raysed.score.unlabelled import LABELS_ADVICE, unlabelled_scores
from raysed.store.text import Table

if TYPE_CHECKING:
    from raysed.report.results import RunResults

Models = Mapping[str, Mapping[str, Any]]
"""Results of `unlabelled_scores` by model."""


def unlabelled_table(models: Models) -> Table:
    """Return the scores that need no labels, one line per model."""
    columns = {
        "models": lambda model: model[0],
        "near-duplicates found": lambda model: f"{model[1]['found']:.1f}%",
        "alignment": lambda model: f"{model[1]['alignment']:.3f}",
        "uniformity": lambda model: f"{model[1]['uniformity']:.2f}",
        "cosine of random pairs": lambda model: f"{model[1]['cosine']:.3f}",
        "effective rank": lambda model: f"{model[1]['effective_rank']:.1f}",
    }
    return Table.of(models.items(), columns)


def neighbours_table(models: Models) -> Table:
    """Return some sentences with their nearest neighbour by each model."""
    lines = []
    for entries in zip(*(found["neighbours"] for found in models.values())):
        firsts = [entry["nearest"][0] for entry in entries]
        lines.append([entries[0]["sentence"], *(f"{near['sentence']} ({near['cosine']:.2f})" for near in firsts)])
    header = ["sentence", *(f"nearest by {name}" for name in models)]
    return Table(header, lines, text=len(header), is_stacked=True)


def _unlabelled(run: "RunResults") -> Models:
    sentences, models = run.sample_sentences(), {BASE: run.base_model, run.choice.model.recipe: run.exported_model}
    return {name: unlabelled_scores(sentences, model.embed) for name, model in models.items()}


def _blocks(models: Models, run: "RunResults") -> Iterator[Block]:
    count = f"{next(iter(models.values()))['sentences']:,}"
    yield (
        f"For a few sentences, the nearest of {count} by the original encoder and the chosen model, with its cosine. "
        "The two models use different scales: compare the sentences, not the cosines."
    )
    yield neighbours_table(models)
    yield (
        f"Scores without labels on the same {count} sentences. Near-duplicates differ from up to 400 of them by a "
        "typo, a change of case, a repeated word, or a missing or extra full stop. One counts as found if its nearest "
        "sentence is the original. Alignment is the mean squared distance between the two; uniformity shows how evenly "
        "all sentences are spread. For both, lower is better. The last two columns describe the shape of the space. "
        f"{LABELS_ADVICE}"
    )
    yield unlabelled_table(models)


SECTIONS = [Section("analysis.unlabelled", "Nearest neighbours", 40, _unlabelled, blocks=_blocks)]

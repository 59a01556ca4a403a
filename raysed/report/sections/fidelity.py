"""How many of the teachers' search results in the user's text a learner finds; this needs no labels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raysed.report.results import RunResults
from raysed.report.scores import display_name
from raysed.report.section import Block, Section
from raysed.score.kinds.retrieval import DEPTH
from raysed.store.text import Table


def _fidelity(run: RunResults) -> list[dict[str, Any]]:
    recipes = dict.fromkeys(recipe.uncalibrated for recipe in run.job.recipes if recipe.distils)
    found = {recipe: run.meta(f"{recipe}/fidelity/00") for recipe in recipes}
    return [{"recipe": recipe, "asked_by": "texts", **meta} for recipe, meta in found.items() if "searches" in meta]


def fidelity_table(searches: Sequence[Mapping[str, Any]]) -> Table:
    """Return the ways to search as a table."""
    columns = {
        "search by": lambda row: display_name(row["name"], "baseline"),
        f"recall@{DEPTH}": lambda row: f"{row['recall']:.1f}",
        "95 %": lambda row: "-" if row["interval"] is None else "{:.1f} to {:.1f}".format(*row["interval"]),
        f"nDCG@{DEPTH}": lambda row: f"{row['ndcg']:.1f}",
    }
    return Table.of(searches, columns)


def _blocks(found: Sequence[Mapping[str, Any]], run: RunResults) -> Iterator[Block]:
    for about in found:
        yield f"{about['recipe']}: {about['queries']:,} {about['asked_by']} search {about['documents']:,} texts."
        yield fidelity_table(about["searches"])


SECTIONS = [
    Section(
        "fidelity",
        "Search compared with the teachers",
        36,
        _fidelity,
        f"Recall: the share of the combined teachers' first {DEPTH} texts among the first {DEPTH} results; nDCG also "
        "counts their order. Neither shows whether the teachers are right, and the learner was trained on these texts.",
        blocks=_blocks,
    )
]

"""Nearest neighbours of some sentences of the corpus."""

from collections.abc import Mapping
from typing import Any

from raysed.recipe import BASE
from raysed.report.results import RunResults
from raysed.report.section import Section
from raysed.score.neighbours import nearest_neighbours

Models = Mapping[str, Mapping[str, Any]]
"""Results of `nearest_neighbours` by model."""


def _neighbours(run: RunResults) -> Models:
    sentences, models = run.sample_sentences(), {BASE: run.base_model, run.choice.model.recipe: run.exported_model}
    return {name: nearest_neighbours(sentences, model.embed) for name, model in models.items()}


SECTIONS = [Section("neighbours", "", 40, _neighbours)]

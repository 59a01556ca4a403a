"""The embedding space: how evenly embeddings fill it."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from raysed.recipe import BASE, parse_recipe
from raysed.report.charts import LINES, Chart
from raysed.report.results import RunResults
from raysed.report.section import Block, Section
from raysed.score.unlabelled import effective_rank, isotropy, singular_values
from raysed.store.text import Table


def _of_task(run: RunResults) -> dict[str, np.ndarray]:
    """Return one task's embeddings by the base and by the last recipe, each with and without its calibration.

    The task is the first with graded pairs, if any. A recipe's first model that has not collapsed, or else its first,
    represents it.
    """
    names = [name for name in (run.config.evaluation.dev, *run.config.evaluation.report_tasks()) if name]
    task = next((name for name in names if run.evaluation.tasks[name].kind == "pairs"), names[0])
    last, found = parse_recipe(run.config.recipes[-1]), {}
    for text in (BASE, "-".join([BASE, *last.calibration]), last.uncalibrated, last.text):
        if models := [model for model in run.models if model.recipe == text]:
            model = min(models, key=lambda model: model.left_out)
            found[text] = run.evaluation.of_task(run.embeddings(model), task)
    return found


def _blocks(models: Mapping[str, Mapping[str, float]], run: RunResults) -> Iterator[Block]:
    yield spectrum_chart({label: singular_values(x_ND) for label, x_ND in _of_task(run).items()})
    columns = {
        "models": lambda model: model[0],
        "cosine of random pairs": lambda model: f"{model[1]['cosine']:.3f}",
        "effective rank": lambda model: f"{model[1]['effective_rank']:.1f}",
        "share of the first direction": lambda model: f"{model[1]['first_direction']:.1%}",
    }
    yield Table.of(models.items(), columns)


def spectrum_chart(spectra: Mapping[str, np.ndarray]) -> Chart | None:
    """Return the singular values of up to four embedding matrices on a logarithmic axis."""
    # Smaller values are rounding noise.
    kept = {label: values[values > 1e-6] for label, values in spectra.items() if (values > 1e-6).any()}
    if not kept:
        return None

    def draw(axes: Any) -> None:
        for (label, values), (colour, line) in zip(kept.items(), LINES):
            axes.plot(np.arange(1, len(values) + 1), values, line, color=colour, label=label)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
        axes.set(xlabel="number of the singular value, largest first", ylabel="relative to the largest")

    ranks = ", ".join(f"{label} {effective_rank(values):.0f}" for label, values in spectra.items())
    return Chart("spectrum", f"Singular values of the embeddings; effective rank: {ranks}", [draw])


SECTIONS = [
    Section(
        "analysis.isotropy",
        "The embedding space",
        100,
        lambda run: {label: isotropy(x_ND, run.config.seed) for label, x_ND in _of_task(run).items()},
        "How evenly the embeddings fill their space: in an even one, the mean cosine of random pairs is near 0, the "
        "effective rank is near the number of dimensions, and no direction has a large share of the squared lengths.",
        _blocks,
    ),
]

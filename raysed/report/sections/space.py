"""The embedding space: how evenly embeddings fill it."""

from collections.abc import Mapping

import numpy as np

from raysed.report.charts import LINES, Axis, Chart, Panel, Series
from raysed.report.document import Report
from raysed.report.results import Run
from raysed.report.section import Section
from raysed.score.unlabelled import effective_rank, isotropy, singular_values
from raysed.store.text import Table


def _of_task(run: Run) -> dict[str, np.ndarray]:
    """Embeddings of a task's sentences by the base and the last recipe; of graded pairs where there are."""
    names = [name for name in (run.config.evaluation.dev, *run.config.report_tasks()) if name]
    task = next((name for name in names if name in run.evaluation.pair_tasks), names[0])
    return {label: run.evaluation.of_task(run.embeddings(model), task) for label, model in run.pictured().items()}


def _isotropy_tables(models: Mapping[str, Mapping[str, float]], report: Report) -> Table:
    columns = {
        "models": lambda model: model[0],
        "cosine of random pairs": lambda model: f"{model[1]['cosine']:.3f}",
        "effective rank": lambda model: f"{model[1]['effective_rank']:.1f}",
        "share of the first direction": lambda model: f"{model[1]['first_direction']:.1%}",
    }
    return Table.of(models.items(), columns)


def spectrum_chart(spectra: Mapping[str, np.ndarray]) -> Chart | None:
    """Return the singular values of up to four embedding matrices on a logarithmic axis."""
    # What is below is rounding noise.
    kept = {label: values[values > 1e-6] for label, values in spectra.items() if (values > 1e-6).any()}
    if not kept:
        return None
    series = []
    for (label, values), (colour, line) in zip(kept.items(), LINES):
        texts = [f"{label}, number {i}: {value:.3g}" for i, value in enumerate(values, start=1)]
        x = np.arange(1, len(values) + 1)
        series.append(Series(x, values, colour, label, texts, mark="none", line=line))
    x = Axis.of("number of the singular value, largest first", [1, max(map(len, kept.values()))])
    y = Axis.of("size relative to the largest", np.concatenate(list(kept.values())), is_logarithmic=True)
    ranks = ", ".join(f"{label} {effective_rank(values):.0f}" for label, values in spectra.items())
    return Chart("spectrum", f"Singular values of the embeddings; effective rank: {ranks}", [Panel(x, y, series)])


SECTIONS = [
    Section(
        "analysis.isotropy",
        "The embedding space",
        100,
        lambda run: {label: isotropy(x_ND, run.config.seed) for label, x_ND in _of_task(run).items()},
        "How evenly the embeddings fill their space: in an even one, the mean cosine of random pairs is near 0, the "
        "effective rank is near the number of dimensions, and no direction has a large share of the squared lengths.",
        lambda run, _: spectrum_chart({label: singular_values(x_ND) for label, x_ND in _of_task(run).items()}),
        _isotropy_tables,
    ),
]

"""Transfer tasks: linear probes on frozen embeddings."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from raysed.report.document import Report
from raysed.report.scores import display_name
from raysed.report.section import Section
from raysed.score.transfer import SED_TASKS, main_score
from raysed.store.text import Table, number


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation of several values."""
    return statistics.stdev(values) if len(values) > 1 else None


def with_spreads(header: list[str], lines: list[list[str]], spreads: Sequence[float | None]) -> Table:
    """Return a table, with a column for standard deviations where there is one."""
    if all(one is None for one in spreads):
        return Table(header, lines)
    return Table([*header, "std"], [[*line, number(one)] for line, one in zip(lines, spreads)])


def _tables(transfer: Sequence[Mapping[str, Any]], report: Report) -> Table:
    """Means of like models, and how much their averages differ; the columns are in the order of SED table 7."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for model in transfer:
        groups.setdefault((model["recipe"], model["kind"], model["layers"]), []).append(model)
    found = dict.fromkeys(task for model in transfer for task in model["scores"])
    tasks = sorted(found, key=lambda task: SED_TASKS.index(task) if task in SED_TASKS else len(SED_TASKS))
    lines, spreads = [], []
    for (recipe, kind, layers), models in groups.items():
        columns = [[main_score(m["scores"][task]) for m in models if task in m["scores"]] for task in tasks]
        columns.append([m["average"] for m in models if m["average"] is not None])
        means = [number(statistics.fmean(values) if values else None) for values in columns]
        depth = "-" if layers is None else str(layers)
        lines.append([display_name(recipe, kind, len(models)), recipe, depth, *means])
        spreads.append(spread(columns[-1]))
    return with_spreads(["models", "recipe", "layers", *tasks, "average"], lines, spreads)


SECTIONS = [
    Section(
        "transfer",
        "Transfer tasks",
        70,
        lambda run: run.facts.transfer,
        "A linear probe on the frozen embeddings, and on TF-IDF: accuracy in %; for SICKRelatedness and STSBenchmark, "
        "Pearson correlation x100.",
        tables=_tables,
    )
]

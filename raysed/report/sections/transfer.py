"""Transfer tasks: linear probes on frozen embeddings."""

from collections.abc import Mapping, Sequence
from typing import Any

from raysed.report.document import Report
from raysed.report.scores import means_table
from raysed.report.section import Section
from raysed.score.transfer import SED_TASKS, main_score
from raysed.store.text import Table


def _tables(transfer: Sequence[Mapping[str, Any]], report: Report) -> Table:
    """Means of like models, and how much their averages differ; the columns are in the order of SED table 7."""
    found = {task for model in transfer for task in model["scores"]}
    tasks = [*(task for task in SED_TASKS if task in found), *sorted(found - set(SED_TASKS))]
    lines = []
    for model in transfer:
        scores = {task: main_score(model["scores"][task]) if task in model["scores"] else None for task in tasks}
        group = (model["recipe"], model["kind"], "-" if model["layers"] is None else str(model["layers"]))
        lines.append((group, {**scores, "average": model["average"]}))
    return means_table(lines, ["layers"], spread_of="average")


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

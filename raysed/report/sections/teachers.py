"""External teachers beside the model that learnt from them: quality, size, speed."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.recipe import SED, TEACHERS
from raysed.report.results import Run
from raysed.report.section import Section
from raysed.store.text import Table, number

_LEARNT = f"{TEACHERS}-{SED}"
_NOTHING = {"width": None, "parameters": None, "sentences_per_second": None}
Models = Sequence[Mapping[str, Any]]
"""The teachers, what they say together, and at last the exported model; see docs/report.md."""


def _teachers(run: Run) -> list[dict[str, Any]]:
    if not run.config.teachers:
        return []
    found: list[dict[str, Any]] = []
    for index, teacher in enumerate(run.config.teachers):
        meta = run.meta(f"{TEACHERS}/embeddings/{index:02d}")
        about = {key: meta.get(key) for key in _NOTHING}
        found.append({"model": teacher.title, **about, "score": run.scores.average_of(TEACHERS, "member", index)})
    if (TEACHERS, "ensemble") in {(row.recipe, row.kind) for row in run.scores.rows} and len(found) > 1:
        score = run.scores.average_of(TEACHERS, "ensemble", 0)
        found.append({"model": "all of them together", **_NOTHING, "score": score})
    model, encoder = run.choice.model, run.exported.encoder
    size = sum(tensor.numel() for tensor in encoder.parameters())
    own = {"model": run.choice.title, "width": encoder.width, "parameters": size, "sentences_per_second": run.speed}
    own["score"] = run.scores.average_of(model.recipe, model.kind, model.index)
    # How well the learners' queries find what their only teacher has embedded, whose space they share.
    teacher, documents = run.facts.shares_space_of, [model for model in run.models if model.recipe == TEACHERS]
    if teacher and documents:
        learners = [model for model in run.models if model.recipe == _LEARNT]
        x_UD, *others = (np.asarray(run.embeddings(model)) for model in [*documents, *learners])
        scores = [run.evaluation.score_between(y_UD, x_UD, run.scores.tasks) for y_UD in others]
        if None not in scores:  # as where a headline task is neither of graded pairs nor retrieval
            about = {"score": statistics.fmean(scores), "searches": teacher}
            found.append({"model": f"{_LEARNT} searching {teacher}", **_NOTHING, **about})
    return [*found, own]


def teachers_table(models: Models) -> Table:
    """Return models as a table; of teachers it says what the last one, which learnt from them, keeps of their score."""

    def keeps(model: Mapping[str, Any]) -> str:
        is_teacher = model is not models[-1] and "searches" not in model
        return f"{100 * own / model['score']:.1f} %" if is_teacher and own and model["score"] else "-"

    own = models[-1]["score"] if models else None
    columns = {
        "model": lambda model: model["model"],
        "dimensions": lambda model: _count(model["width"]),
        "parameters": lambda model: _count(model["parameters"]),
        "sentences/s": lambda model: _count(model["sentences_per_second"]),
        "score": lambda model: number(model["score"]),
        "the exported model keeps": keeps,
    }
    return Table.of(models, columns)


def _count(value: float | None) -> str:
    return f"{value:,.0f}" if value else "-"


SECTIONS = [
    Section(
        "teachers",
        "Teachers",
        60,
        _teachers,
        "What is kept of each teacher's score, and at which size and speed; sentences per second on one process of "
        f"this machine. In a line `{_LEARNT} searching …`, the learner embeds queries, the teacher documents; of "
        "graded pairs either sentence once.",
        tables=lambda models, report: [teachers_table(models)],
    ),
    Section(
        "choices",
        "",
        61,
        lambda run: run.facts.choices,
        tables=lambda choices, report: [f"Chosen {line}." for line in choices],
        is_part=True,
    ),
]

"""External teachers beside the model that learnt from them: quality, size, speed."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.recipe import BASE, SED, TEACHERS
from raysed.report.charts import Axis, Chart, Panel, Series
from raysed.report.results import Run
from raysed.report.scores import Scores, display_name
from raysed.report.section import Section
from raysed.store.text import Table, number

_LEARNT = f"{TEACHERS}-{SED}"
_COLOURS = ("blue", "orange", "pink", "sky")
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
    return [*found, *_searches(run), own]


def _searches(run: Run) -> list[dict[str, Any]]:
    """Return how well the learners' queries find what their only teacher has embedded, whose space they share.

    Nothing where the teacher was not scored, or where a headline task is neither of graded pairs nor retrieval.
    """
    teacher, documents = run.facts.shares_space_of, [model for model in run.models if model.recipe == TEACHERS]
    if not teacher or not documents:
        return []
    learners = [model for model in run.models if model.recipe == _LEARNT]
    x_UD, *others = (np.asarray(run.embeddings(model)) for model in [*documents, *learners])
    scores = [run.evaluation.score_between(y_UD, x_UD, run.scores.tasks) for y_UD in others]
    if None in scores:
        return []
    about = {"score": statistics.fmean(scores), "searches": teacher}
    return [{"model": f"{_LEARNT} searching {teacher}", **_NOTHING, **about}]


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


def speed_chart(models: Models, scores: Scores) -> Chart | None:
    """Return score against speed, a dot per model, with lines for words alone and the untouched encoder."""
    dots = [model for model in models if model["sentences_per_second"] and model["score"] is not None]
    if len(dots) < 2 or dots[-1] is not models[-1]:
        return None  # nothing to compare the exported model with
    series = []
    for model, colour in zip(dots, [*itertools.islice(itertools.cycle(_COLOURS), len(dots) - 1), "green"]):
        words = f"{model['model']}: {model['score']:.1f}, {model['sentences_per_second']:,.0f} sentences per second"
        words += f", {_count(model['width'])} dimensions, {_count(model['parameters'])} parameters"
        x, y = (np.array([model[key]]) for key in ("sentences_per_second", "score"))
        series.append(Series(x, y, colour, words, [words]))
    lines = {display_name(*group): scores.groups[group]["mean"] for group in scores.groups if group[1] == "baseline"}
    lines = dict(sorted(lines.items(), key=lambda line: line[1])[-1:])  # the best of words alone
    if base := scores.groups.get((BASE, "base")):
        lines["untouched encoder"] = base["mean"]
    x = Axis.of("sentences per second on one process of this machine", [one.x[0] for one in series], True)
    y = Axis.of(scores.axis, [*lines.values(), *(one.y[0] for one in series)])
    own, best = dots[-1], max(dots[:-1], key=lambda model: model["score"])
    times = own["sentences_per_second"] / best["sentences_per_second"]
    title = f"{own['model']}: {own['score']:.1f}, at {times:.2g} times the speed of the best teacher"
    title += f" ({best['model']}, {best['score']:.1f})"
    return Chart("speed", title, [Panel(x, y, series, references=lines)])


SECTIONS = [
    Section(
        "teachers",
        "Teachers",
        60,
        _teachers,
        "What is kept of each teacher's score, and at which size and speed; sentences per second on one process of "
        f"this machine. In a line `{_LEARNT} searching …`, the learner embeds queries, the teacher documents; of "
        "graded pairs either sentence once.",
        lambda run, models: speed_chart(models, run.scores),
        lambda models, report: teachers_table(models),
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

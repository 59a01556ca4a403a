"""External teachers compared with the model distilled from them: quality, size, speed."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from raysed.plan.artefacts import SPEEDS
from raysed.recipe import SED, TEACHERS
from raysed.report.results import RunResults
from raysed.report.scores import signed
from raysed.report.section import Block, Section
from raysed.score.ensemble import summary_lines
from raysed.store.text import Table, number, times

_LEARNER = f"{TEACHERS}-{SED}"
_UNKNOWN: dict[str, Any] = {"width": None, "parameters": None, "speed": None}
Models = Sequence[Mapping[str, Any]]
"""Teachers, the combined teachers, and last the exported model; see docs/files.md."""


def _teachers(run: RunResults) -> list[dict[str, Any]]:
    if not run.config.teachers:
        return []
    found: list[dict[str, Any]] = []
    speeds = run.meta(SPEEDS)
    for index, teacher in enumerate(run.config.teachers):
        meta = run.meta(f"{TEACHERS}/embeddings/{index:02d}")
        about = {key: meta.get(key) for key in _UNKNOWN} | {"speed": speeds.get(f"teacher {index}")}
        if teacher.trust_remote_code:
            about["trust_remote_code"] = True
        found.append({"model": teacher.title, **about, "score": run.scores.average_of(TEACHERS, "member", index)})
    if (TEACHERS, "ensemble") in {(row.recipe, row.kind) for row in run.scores.rows} and len(found) > 1:
        score = run.scores.average_of(TEACHERS, "ensemble", 0)
        found.append({"model": "all teachers together", **_UNKNOWN, "score": score})
    model, loaded = run.choice.model, run.exported_model
    own = {"model": run.choice.title, "width": loaded.encoder.width, "parameters": loaded.parameters}
    own |= {
        "speed": {"ratio": 1.0, "low": 1.0, "high": 1.0},
        "score": run.scores.average_of(model.recipe, model.kind, model.index),
    }
    # Learners that share their only teacher's space can search its vectors.
    teacher, documents = run.facts.shares_space_of, [model for model in run.models if model.recipe == TEACHERS]
    if teacher and documents:
        learners = [model for model in run.models if model.recipe == _LEARNER]
        x_UD, *others = (np.asarray(run.embeddings(model)) for model in [*documents, *learners])
        scores = [run.evaluation.score_between(y_UD, x_UD, run.scores.tasks) for y_UD in others]
        if None not in scores:  # None: a headline task is neither pairs nor retrieval
            about = {"score": statistics.fmean(scores), "searches": teacher}
            found.append({"model": f"{_LEARNER} searching {teacher}", **_UNKNOWN, **about})
    return [*found, own]


def teachers_table(models: Models) -> Table:
    """Return models as a table, with the share of each teacher's score that the last model, their learner, keeps."""

    def keeps(model: Mapping[str, Any]) -> str:
        is_teacher = model is not models[-1] and "searches" not in model
        return f"{100 * own / model['score']:.1f} %" if is_teacher and own and model["score"] else "-"

    own = models[-1]["score"] if models else None
    columns = {
        "model": lambda model: model["model"],
        "dimensions": lambda model: _count(model["width"]),
        "parameters": lambda model: _count(model["parameters"]),
        "speed": lambda model: times(model["speed"]),
        "score": lambda model: number(model["score"]),
        "the exported model keeps": keeps,
    }
    return Table.of(models, columns)


def _teacher_blocks(models: Models) -> Iterator[Block]:
    yield teachers_table(models)
    if trusted := [model["model"] for model in models if model.get("trust_remote_code")]:
        yield f"Code that came with the model was allowed to run: {', '.join(trusted)}."


def gain_blocks(found: Mapping[str, Any]) -> Iterator[Block]:
    """Yield sentences and tables on the gain from combining teachers, see `raysed.score.ensemble`."""
    yield " ".join(summary_lines(found))
    dev, everyone, columns = found.get("dev", []), found["teachers"], list(found["rows"][0]["scores"])
    best_on = "best" if set(dev) & set(found["tasks"]) else "best on dev"

    def name(row: Mapping[str, Any]) -> str:
        names = " + ".join(row["teachers"])
        if len(everyone) > 3 and len(row["teachers"]) >= len(everyone) - 1:
            names = " ".join(["all", *(f"without {title}" for title in everyone if title not in row["teachers"])])
        return f"{names} ({best_on})" if row["teachers"] == found.get("chosen") else names

    shown: dict[str, Callable[[Mapping[str, Any]], str]] = {"teachers": name}
    if len(dev) == 1 and dev != found["tasks"]:
        shown[f"dev: {dev[0]}"] = lambda row: number(row["dev"])
    shown |= {column: lambda row, column=column: number(row["scores"][column]) for column in columns}
    yield Table.of(found["rows"], shown)
    several = [row for row in found["rows"] if row["gains"]]
    best = {column: gain["over"] for column, gain in several[-1]["gains"].items() if gain}

    def gained(row: Mapping[str, Any], column: str) -> str:
        gain = row["gains"][column]
        return signed(gain["value"], gain["ends"]) if gain else "-"

    gains = {column: partial(gained, column=column) for column in columns}
    yield Table.of(several, {"gain over the best teacher": name, **gains}, text=1)
    listed = ", ".join(dict.fromkeys(best.values()))
    if len(set(best.values())) > 1:
        listed = "; ".join(f"{title} ({column})" for column, title in best.items())
    yield f"Best teacher: {listed}. In brackets: 95 % intervals over the sampling of pairs, queries and texts."


def _count(value: float | None) -> str:
    return f"{value:,.0f}" if value else "-"


SECTIONS = [
    Section(
        "teachers",
        "Teachers",
        60,
        _teachers,
        "How much of each teacher's score the exported model keeps, and sizes and speeds. Speeds are multiples of "
        'the exported model\'s, measured in turns in one process, with their range over five rounds; "-": unknown, or '
        f"other programs disturbed them. In a row `{_LEARNER} searching …`, the learner embeds the queries and the "
        "teacher the documents; for graded pairs, each sentence takes the query's place once.",
        blocks=lambda models, run: _teacher_blocks(models),
    ),
    Section(
        "worth",
        "",
        61,
        lambda run: run.facts.worth,
        "The teachers before distillation, at their full width:",
        blocks=lambda found, run: gain_blocks(found),
        is_part=True,
    ),
]

"""External teachers compared with the model distilled from them: quality, size, speed."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from raysed.recipe import SED, TEACHERS
from raysed.report.results import RunResults
from raysed.report.section import Block, Section
from raysed.score.ensemble import summary_lines
from raysed.score.intervals import Difference
from raysed.store.text import Table, number

_LEARNER = f"{TEACHERS}-{SED}"
_UNKNOWN: dict[str, Any] = {"width": None, "parameters": None, "speed": None}
Models = Sequence[Mapping[str, Any]]
"""Teachers, the combined teachers, and last the exported model; see docs/files.md."""


def _teachers(run: RunResults) -> list[dict[str, Any]]:
    if not run.config.teachers:
        return []
    found: list[dict[str, Any]] = []
    for index, teacher in enumerate(run.config.teachers):
        about = {"width": run.meta(f"{TEACHERS}/embeddings/{index:02d}").get("width")}
        about |= run.costs[TEACHERS, "member", index]
        if teacher.trust_remote_code:
            about["trust_remote_code"] = True
        found.append({"model": teacher.title, **about, "score": run.scores.average_of(TEACHERS, "member", index)})
    if (TEACHERS, "ensemble") in {(row.recipe, row.kind) for row in run.scores.rows} and len(found) > 1:
        score = run.scores.average_of(TEACHERS, "ensemble", 0)
        found.append({"model": "all teachers together", **_UNKNOWN, "score": score})
    this = (run.choice.model.recipe, run.choice.model.kind, run.choice.model.index)
    own = {"model": run.choice.title, "width": run.exported_model.encoder.width, **run.costs[this]}
    own["score"] = run.scores.average_of(*this)
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


def _teacher_blocks(models: Models) -> Iterator[Block]:
    for model in (model for model in models if "searches" in model):
        yield f"Its queries find the documents of {model['searches']}: {number(model['score'])} on the same tasks."
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
        return str(Difference(gain["value"], gain["ends"])) if gain else "-"

    gains = {column: partial(gained, column=column) for column in columns}
    yield Table.of(several, {"gain over the best teacher": name, **gains}, text=1)
    listed = ", ".join(dict.fromkeys(best.values()))
    if len(set(best.values())) > 1:
        listed = "; ".join(f"{title} ({column})" for column, title in best.items())
    yield f"Best teacher: {listed}. In brackets: 95 % intervals over the sampling of pairs, queries and texts."


SECTIONS = [
    Section(
        "teachers",
        "Teachers",
        60,
        _teachers,
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

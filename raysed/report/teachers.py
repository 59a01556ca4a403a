"""Teachers from outside beside the model that learnt from them: quality, size, speed."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.model.encoder import Encoder
from raysed.plan.artefacts import ScoredModel, load_calibrated
from raysed.plan.check import Job
from raysed.recipe import SED, TEACHERS
from raysed.report.choice import Choice
from raysed.report.results import Results
from raysed.score.triples import Embed
from raysed.store.storage import Storage
from raysed.store.text import Table, number

_TIMED = 500
"""Sentences on which the exported model's speed is measured, and a few more: they are embedded for that alone."""
_LEARNT = f"{TEACHERS}-{SED}"
_NOTHING = {"width": None, "parameters": None, "sentences_per_second": None}


def compare(
    job: Job, storage: Storage, results: Results, encoder: Encoder, choice: Choice, width: int, speed: float
) -> list[dict[str, Any]]:
    """Returns the teachers that were scored, what they say together, and the exported model.

    Each has `model`, `width`, `parameters`, `sentences_per_second` and `score` (the headline's, x100), the last four
    None where there is no such number.

    Args:
        speed: see `speed_of`.
    """
    if not job.config.teachers:
        return []
    rows = {(row.recipe, row.kind, row.index): row.average(results.tasks) for row in results.counted}
    found = []
    for index, teacher in enumerate(job.config.teachers):
        entry = storage.entry(f"{TEACHERS}/embeddings/{index:02d}")
        about = {key: entry.meta[key] if entry else None for key in ("width", "parameters", "sentences_per_second")}
        found.append({"model": teacher.title, **about, "score": rows.get((TEACHERS, "member", index))})
    if (TEACHERS, "ensemble", 0) in rows and len(found) > 1:
        found.append({"model": "all of them together", **_NOTHING, "score": rows[TEACHERS, "ensemble", 0]})
    size = sum(tensor.numel() for tensor in encoder.parameters())
    own = {"model": choice.title, "width": width, "parameters": size, "sentences_per_second": speed}
    return [*found, {**own, "score": rows.get((choice.model.recipe, choice.model.kind, choice.model.index))}]


def speed_of(embed: Embed, sentences: Sequence[str]) -> tuple[int, float]:
    """Returns the width of a model's embeddings, and how many sentences it embeds per second in this process.

    Args:
        sentences: of which some 500 are embedded, evenly spread, so that they are as long as all of them.
    """
    timed = sentences[:: max(len(sentences) // _TIMED, 1)]
    began = time.monotonic()
    width = embed(timed).shape[1]
    return width, len(timed) / (time.monotonic() - began)


def searches(
    job: Job, storage: Storage, results: Results, models: Sequence[ScoredModel], teacher: str
) -> list[dict[str, Any]]:
    """Returns how well the learners' queries find what their only teacher has embedded, as a line of `compare`.

    It has `searches` as another key, the teacher's name. There is none where the teacher was not scored, or where a
    headline task is neither of graded pairs nor retrieval.

    Args:
        teacher: its name; learners share its space.
    """
    documents = [model for model in models if model.recipe == TEACHERS]
    learners = [model for model in models if model.recipe == _LEARNT]
    if not documents:
        return []
    x_UD, *others = (
        np.asarray(load_calibrated(storage, model.embeddings, job.config.encoder.layers))
        for model in [*documents, *learners]
    )
    scores = [job.evaluation.score_between(y_UD, x_UD, results.tasks) for y_UD in others]
    if None in scores:
        return []
    name = f"{_LEARNT} searching {teacher}"
    return [{"model": name, **_NOTHING, "score": statistics.fmean(scores), "searches": teacher}]


def teachers_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """Returns models as a table; of teachers it says what the last one, which learnt from them, keeps of their score.

    Args:
        models: from `compare`.
    """
    columns = ["model", "dimensions", "parameters", "sentences/s", "score", "the exported model keeps"]
    score = models[-1]["score"] if models else None
    lines = []
    for place, model in enumerate(models, start=1):
        is_teacher = place < len(models) and "searches" not in model
        keeps = f"{100 * score / model['score']:.1f} %" if is_teacher and score and model["score"] else "-"
        counts = [f"{model[key]:,}" if model[key] else "-" for key in ("width", "parameters")]
        speed = model["sentences_per_second"]
        lines.append([model["model"], *counts, f"{speed:,.0f}" if speed else "-", number(model["score"]), keeps])
    return Table(columns, lines)

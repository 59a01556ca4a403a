"""Compare models, alone, together and with lexical baselines, for `raysed evaluate` and `raysed.evaluate`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysed.config import Config
from raysed.errors import UserError
from raysed.make.scores import embed_by
from raysed.make.speeds import relative_speed
from raysed.model.teacher import Teacher
from raysed.model.teachers.python import PythonTeacher
from raysed.plan.check import check_teachers, load_teachers
from raysed.plan.consistency import combination_problems
from raysed.report.scores import display_name
from raysed.report.sections.teachers import gain_blocks
from raysed.resources import device_here
from raysed.score.ensemble import Ensemble, by_title
from raysed.score.intervals import Difference, interval, resample, resolution
from raysed.score.tasks import Evaluation, ModelScores, main_score, mean_score
from raysed.store.progress import steps
from raysed.store.text import Table, number, times

Row = dict[str, Any]
"""A model's or baseline's name, facts, and `metrics` and `outcomes` by task."""


def compare(config: Config, evaluation: Evaluation, objects: Mapping[str, Any] | None = None) -> tuple[Row, str]:
    """Score `config.teachers` on the tasks that all of them know, loaded as for a run that learns from them.

    Args:
        config: also gives the combination of several models, the resources, and the dev and headline tasks.
        objects: Python teachers by path.

    Returns:
        All numbers as plain types, see docs/files.md#comparison, and the same as text.

    Raises:
        UserError: a model cannot be used, or no task is left.
    """
    several = len(config.teachers) > 1
    for teacher in config.teachers:
        if teacher.is_members:
            raise UserError(f"teachers: {teacher.path!r} exists only within a run; name models or files of embeddings")
    for problem in combination_problems(config) if several else ():
        raise UserError(problem)
    teachers = load_teachers(config)
    for teacher in teachers:
        teacher.device, teacher.precision = device_here(config.resources.gpu), config.resources.encode_precision
        if isinstance(teacher, PythonTeacher):
            teacher.objects = objects or {}
    check_teachers(config, teachers)
    evaluation, left_out = _known_to_all(evaluation, teachers)
    named = [name for name in config.evaluation.report_tasks() if name in evaluation.tasks]
    headline, embeddings, models = named or list(evaluation.tasks), [], []
    for teacher in teachers:
        x_UD, row = _score(teacher, evaluation)
        embeddings.append(x_UD)
        models.append({**row, "speed": None})
    _compare_speeds([(row, teacher) for row, teacher in zip(models, teachers) if teacher.is_model], evaluation)
    baselines, worth = _score_baselines(evaluation), None
    if several:
        dev = [config.evaluation.dev] if config.evaluation.dev in evaluation.tasks else headline
        ensemble = Ensemble(evaluation, config.combination, embeddings)
        worth = by_title(ensemble.gain(headline, ensemble.choose(dev)), [row["model"] for row in models])
    text = "\n\n".join(_describe(baselines, models, evaluation, headline, left_out, worth))
    plain = [[{key: row[key] for key in row if key != "outcomes"} for row in rows] for rows in (baselines, models)]
    content = {"tasks": headline, "left_out": left_out, "baselines": plain[0], "models": plain[1]}
    return {**content, **({"worth": worth} if worth else {})}, text


def _known_to_all(evaluation: Evaluation, teachers: Sequence[Teacher]) -> tuple[Evaluation, dict[str, str]]:
    """Return the tasks whose sentences all teachers can embed, and for each other task a teacher that cannot."""
    left_out = {}
    for name, task in evaluation.tasks.items():
        for teacher in teachers:
            if not teacher.knows(task.sentences):
                left_out.setdefault(name, teacher.title)
    if not left_out.keys() < evaluation.tasks.keys():
        name, title = next(iter(left_out.items()))
        raise UserError(
            f"no task is left: {title} has no embeddings for some sentences of {name}; add them to its file"
        )
    return Evaluation([task for name, task in evaluation.tasks.items() if name not in left_out]), left_out


def _score(teacher: Teacher, evaluation: Evaluation) -> tuple[np.ndarray, Row]:
    """Embed all sentences with one teacher and score them; free its model."""
    x_UD = embed_by(teacher, evaluation.sentences, evaluation.roles)
    with steps(f"score {teacher.title}", len(evaluation.tasks)) as begin:
        scores = evaluation.score(x_UD, begin)
    row = {
        **_row(teacher.title, scores),
        "description": teacher.description,
        "width": x_UD.shape[1],
        "parameters": teacher.parameters or None,
    }
    teacher.unload()
    return x_UD, row


def _compare_speeds(models: Sequence[tuple[Row, Teacher]], evaluation: Evaluation) -> None:
    """Enter how many times as fast as the first model each other one is."""
    if len(models) > 1:
        (first, own), *others = models
        first["speed"] = {"ratio": 1.0, "low": 1.0, "high": 1.0}
        with steps("compare speeds", len(others)) as begin:
            for row, teacher in others:
                begin(teacher.title)
                row["speed"] = relative_speed(own.embed, teacher.embed, evaluation, teacher.device, len(others))
                teacher.unload()
        own.unload()


def _score_baselines(evaluation: Evaluation) -> list[Row]:
    """Score the lexical baselines."""
    count = sum(len(task.lexical()) for task in evaluation.tasks.values())
    with steps("score lexical baselines", count) as begin:
        baselines = evaluation.score_baselines(begin)
    return [_row(display_name(name, "baseline"), scores) for name, scores in baselines.items()]


def _row(name: str, scores: ModelScores) -> Row:
    return {"model": name, "metrics": scores.metrics, "outcomes": scores.outcomes}


def _describe(
    baselines: Sequence[Row],
    models: Sequence[Row],
    evaluation: Evaluation,
    headline: Sequence[str],
    left_out: Mapping[str, str],
    worth: Mapping[str, Any] | None,
) -> Iterator[str]:
    """Yield all tables and comparisons as text."""
    for name, title in left_out.items():
        yield f"left out: {name}: {title} has no embeddings for some of its sentences"
    columns = {"models": lambda row: row["model"], "mean": lambda row: number(mean_score(row["metrics"], headline))}
    for task in evaluation.tasks:
        columns[task] = lambda row, task=task: number(main_score(row["metrics"].get(task, {})))
    for title, key in (("dimensions", "width"), ("parameters", "parameters")):
        columns[title] = lambda row, key=key: number(row.get(key), ",.0f")
    columns["speed"] = lambda row: times(row.get("speed"))
    yield Table.of([*baselines, *models], columns, text=1).plain()
    yield "\n".join(f"{name}: {task.size}; {task.measure}, x100" for name, task in evaluation.tasks.items())
    if described := [f"{row['model']}: {row['description']}" for row in models if row["description"]]:
        yield "\n".join(described)
    if differences := list(_differences(baselines, models, evaluation, headline)):
        yield "\n".join(differences)
    for block in gain_blocks(worth) if worth else ():
        yield block if isinstance(block, str) else block.plain()


def _differences(
    baselines: Sequence[Row], models: Sequence[Row], evaluation: Evaluation, headline: Sequence[str]
) -> Iterator[str]:
    """Yield a sentence for each model's mean against the best baseline and model, and what the scored data can show."""
    means = {row["model"]: mean_score(row["metrics"], headline) for row in [*baselines, *models]}
    outcomes = {row["model"]: [row["outcomes"]] for row in [*baselines, *models] if means[row["model"]] is not None}
    with steps("compute intervals", 1):
        draws = resample(evaluation, outcomes, headline)
    found: dict[str, list[Difference]] = {}
    for name in (row["model"] for row in models if row["model"] in outcomes):
        for rows, what in ((baselines, "the best lexical baseline"), (models, "the best of these models")):
            others = [row["model"] for row in rows if row["model"] in outcomes]
            best = max(others, key=means.__getitem__, default=name)
            if best != name:
                difference = Difference(means[name] - means[best], interval(draws[name] - draws[best]))
                yield f"{name}: {difference.against(f'{best}, {what}')}."
                found.setdefault(what, []).append(difference)
    if found:
        yield "In brackets: 95 % intervals over the sampling of pairs, queries and texts."
        # Between models, if there are several.
        if limit := resolution([evaluation.tasks[name].size for name in headline], list(found.values())[-1]):
            yield limit

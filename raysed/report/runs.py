"""Scores of several complete runs, such as one per seed, in one table."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysed.config import EvaluationConfig
from raysed.errors import UserError
from raysed.report.scores import AVERAGE, Group, titled
from raysed.store.status import read_status
from raysed.store.storage import Storage
from raysed.store.text import Table, number

_NO_MODEL = ("run", "storage", "seed", "evaluation", "export", "resources")
"""Blocks of settings that change no model, and the seed."""


@dataclass(frozen=True)
class ReportedScores:
    """What a table takes from the report of a run.

    Attributes:
        tasks: what each column means: a task's settings, or the tasks in the headline mean.
        names: title of each group of models.
        means: by group and task, the mean score x100 of the group's models.
        settings: those that may change a model, but the seed.
    """

    seed: int
    tasks: Mapping[str, Any]
    names: Mapping[Group, str]
    means: Mapping[tuple[Group, str], float]
    settings: Mapping[str, Any]


def table_of_runs(runs: Sequence[Storage], columns: Sequence[str], rows: Sequence[str]) -> tuple[Table, str]:
    """Return a table of mean and standard deviation over runs, and a sentence about its numbers.

    Args:
        columns: tasks; empty: those in the headline, and their mean.
        rows: recipes; empty: all.

    Raises:
        UserError: a run is not complete, or the runs differ in these tasks or recipes.
    """
    scores = {storage.run: _read(storage) for storage in runs}
    (name, first), *others = scores.items()
    headline = first.tasks[AVERAGE]
    columns = columns or ([*headline, AVERAGE] if len(headline) > 1 else headline)
    recipes = dict.fromkeys(recipe for recipe, _ in first.names)
    for option, wanted, known in (("--columns", columns, first.tasks), ("--rows", rows, recipes)):
        if unknown := [each for each in wanted if each not in known]:
            raise UserError(f"{option}: {name} has no {', '.join(unknown)}; it has {', '.join(known)}")
    groups = [group for recipe in rows or recipes for group in first.names if group[0] == recipe]
    for other, found in others:
        theirs = [group for group in found.names if not rows or group[0] in rows]
        tasks = [column for column in columns if found.tasks.get(column) != first.tasks[column]]
        models = [titled(*group) for group in sorted({*groups} ^ {*theirs})]
        for what, differing, option in (("tasks", tasks, "--columns"), ("recipes", models, "--rows")):
            if differing:
                here = f"the runs {name} and {other} differ in {what}: {', '.join(differing)}"
                raise UserError(f"{here}; name runs that have the same {what}, or those in common with {option}")

    def cells(group: Group) -> list[str]:
        return [_cell([run.means.get((group, column)) for run in scores.values()]) for column in columns]

    lines = [[first.names[group], *cells(group)] for group in groups]
    seeds = ", ".join(str(run.seed) for run in scores.values())
    table = Table(["", *columns], lines, text=1)
    note = f"Scores x100, mean ± standard deviation over runs; seeds: {seeds}."
    differing = {key for _, run in others for key in run.settings if run.settings[key] != first.settings.get(key)}
    return table, note + f" The runs differ in {', '.join(sorted(differing))}." * bool(differing)


def _read(storage: Storage) -> ReportedScores:
    status, report = read_status(storage), storage.read_json("report.json")
    if (status.state if status else report.get("status")) != "complete":
        state = status or "it has no report.json of a complete run"
        raise UserError(f"{storage} is not complete: {state}; complete it with the command that began it")
    try:
        config, entries = report["config"], [entry for entry in report["summary"] if entry["kind"] != "grid"]
        headline = list(map(str, EvaluationConfig.model_construct(**config["evaluation"]).report_tasks()))
        names = {(e["recipe"], e["kind"]): titled(e["recipe"], e["kind"], e["n"]) for e in entries}
        scores = {((e["recipe"], e["kind"]), e["task"]): e["mean"] for e in entries}
        means = {key: None if score is None else float(score) for key, score in scores.items()}
        settings = {key: value for key, value in config.items() if key not in _NO_MODEL}
        tasks = {**config["evaluation"]["tasks"], AVERAGE: headline}
        return ReportedScores(config["seed"], tasks, names, means, settings)
    except (LookupError, TypeError, ValueError, AttributeError):
        problem = "it is damaged or was edited; the command that began the run writes it again"
        raise UserError(problem, file=storage.uri("report.json")) from None


def _cell(values: Sequence[float | None]) -> str:
    """Return mean and standard deviation; a dash if a run lacks the score.

    >>> _cell([70.0, 72.0]), _cell([70.0]), _cell([70.0, None])
    ('71.00 ± 1.41', '70.00', '-')
    """
    if None in values:
        return "-"
    mean = number(statistics.fmean(values))
    return f"{mean} ± {number(statistics.stdev(values))}" if len(values) > 1 else mean

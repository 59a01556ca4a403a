"""The verdict: the exported model compared with what a user has anyway, as a table and in a few sentences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raysed.recipe import TEACHERS
from raysed.report.results import RunResults
from raysed.report.scores import ORIGINAL, THE_BASE, Compared, ScoreTable, titled
from raysed.score.intervals import NO_DIFFERENCE, resolution
from raysed.score.lexical import TF_IDF
from raysed.store.text import Table, number, sentence, times

_MOST_TASKS = 3


def comparisons(run: RunResults) -> list[dict[str, Any]]:
    """Return the exported model, each teacher, TF-IDF and the encoder before training.

    Each has its `score`, and those on `tasks` if there are several; models also have `parameters` and `speed`, see
    `RunResults.costs`. Others have the `gain` of the exported model over them, with its 95 % interval from `low` to
    `high` if known.
    """
    scores = run.scores
    this = _exported(scores)
    others: list[tuple[str, Compared]] = [
        *((title, (TEACHERS, "member", index)) for index, title in scores.teachers.items()),
        ("TF-IDF", (TF_IDF, "baseline", 0)),
        (scores.base_name, (*THE_BASE[:2], 0)),
    ]
    found = []
    for name, other in [("this model", this), *others] if this else ():
        row = scores.row(*other)
        if row is None or row.average(scores.tasks) is None or (found and other == this):
            continue
        entry = {"model": name, "score": scores.value(other)}
        if len(scores.tasks) > 1:
            entry["tasks"] = {task: row.score(task) for task in scores.tasks}
        if found:
            gain = scores.difference(this, other)
            entry |= {"gain": gain.value, **dict(zip(("low", "high"), gain.ends or ()))}
        found.append(entry | run.costs.get(other, {}))
    return found


def comparisons_table(found: Sequence[Mapping[str, Any]], scores: ScoreTable) -> Table:
    """Return the result of `comparisons` as a table; each score's column says on what it was measured."""
    sizes = {task: scores.named(task) for task in scores.tasks}
    several = len(sizes) > 1
    columns = {"model": lambda one: one["model"]}
    columns["mean" if several else next(iter(sizes.values()), "score")] = lambda one: number(one["score"])
    columns["gain"] = lambda one: number(one.get("gain"), "+.1f")
    columns["95 %"] = lambda one: f"{one['low']:+.1f} to {one['high']:+.1f}" if "low" in one else "-"
    for task, title in sizes.items() if several else ():
        columns[title] = lambda one, task=task: number(one["tasks"][task])
    columns["parameters"] = lambda one: f"{one['parameters'] / 1e6:.1f} M" if one.get("parameters") else "-"
    if any(one.get("speed") for one in found):
        columns["speed"] = lambda one: times(one.get("speed"))
    return Table.of(found, columns, text=1)


def verdict(run: RunResults) -> str:
    """Compare the exported model with the best teacher, or without any with the encoder before training and words.

    Words come first if they are above the model. Empty if the model has no score.
    """
    scores = run.scores
    this, differences = _exported(scores), []
    if this is None:
        return ""

    def against(other: Compared, name: str) -> str:
        differences.append(scores.difference(this, other))
        return sentence(differences[-1].against(name))

    teacher, words = scores.best((TEACHERS, "member"), scores.teachers), _best_words(scores)
    found = []
    if teacher:
        role = "the best teacher" if len(scores.teachers) > 1 else "the teacher"
        found.append(against(teacher, f"{scores.teachers[teacher[2]]}, {role}"))
        found += [*_other_tasks(scores, this, teacher), *_size(run, this, teacher)]
        found += _other_teachers(scores, this, teacher)
    elif scores.teachers and scores.base_name != ORIGINAL:
        found.append("The teachers have no vectors of the scored texts.")
    elif scores.exported.recipe != THE_BASE[0] and THE_BASE[:2] in scores.groups:
        found.append(against(THE_BASE, scores.base_name))
    if words and (not teacher or scores.value(words) > scores.value(this)):
        said = against(words, f"{titled(*words[:2])}, which needs no model")
        found.insert(0 if scores.value(words) > scores.value(this) else len(found), said)
    found += [resolution([scores.sizes[task] for task in scores.tasks], differences[:1])]
    return " ".join(filter(None, [*_losses(scores), *found]))


def _exported(scores: ScoreTable) -> Compared | None:
    own = scores.exported
    return None if own is None or own.average(scores.tasks) is None else (own.recipe, own.kind, own.index)


def _best_words(scores: ScoreTable) -> Compared | None:
    """Return the best lexical baseline."""
    means = {group: entry["mean"] for group, entry in scores.groups.items() if group[1] == "baseline"}
    return (*max(means, key=means.__getitem__), 0) if means else None


def _size(run: RunResults, this: Compared, teacher: Compared) -> Iterator[str]:
    """Yield a sentence on size and speed, if they are known: files and functions have none."""
    own, its = run.costs.get(this, {}), run.costs.get(teacher, {})
    parts = []
    if its.get("parameters"):
        parts.append(f"{100 * own['parameters'] / its['parameters']:.0f} % of its parameters")
    if its.get("speed"):
        parts.append(f"{1 / its['speed']['ratio']:.1f} times as fast")
    if parts:
        yield f"{', '.join(parts)}."


def _other_teachers(scores: ScoreTable, this: Compared, best: Compared) -> Iterator[str]:
    """Yield a sentence on each other teacher that the model clearly differs from."""
    for index, title in scores.teachers.items():
        other = (*best[:2], index)
        if other != best and scores.best(best[:2], [index]):
            difference = scores.difference(this, other)
            if difference.is_clear:
                yield sentence(difference.against(title))


def _other_tasks(scores: ScoreTable, this: Compared, other: Compared) -> Iterator[str]:
    """Yield a sentence on tasks that clearly say something else than their mean."""
    mean, found = scores.difference(this, other), []
    for task in scores.tasks if len(scores.tasks) > 1 else ():
        difference = scores.difference(this, other, task)
        if difference.is_clear and not (mean.is_clear and mean.value * difference.value > 0):
            found.append(f"on {task}, {difference.against('it')}")
    if found:
        yield sentence("; ".join(found[:_MOST_TASKS]))


def _losses(scores: ScoreTable) -> Iterator[str]:
    """With several tasks, yield a sentence on those where a lexical baseline beats the exported model."""
    found = []
    for task in scores.tasks if len(scores.tasks) > 1 else ():
        words = {group: entry["mean"] for group, entry in scores.groups_of(task).items() if group[1] == "baseline"}
        best, own = max(words, key=words.__getitem__, default=None), scores.exported.score(task)
        if best and own is not None and words[best] - own >= NO_DIFFERENCE - 1e-9:
            found.append(f"{titled(*best)} scores {words[best]:.1f} on {task}, this model {own:.1f}")
    if found:
        yield f"A lexical baseline does better on some tasks: {'; '.join(found)}."

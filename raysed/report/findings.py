"""The conclusion of a run in words: what helped, by how much, and whether that may be chance.

Every sentence knows the lines of the report's tables that it rests on, so that a reader can look them up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raysed.recipe import TEACHERS
from raysed.report.results import (
    BY_TASK,
    CALIBRATIONS,
    KIND_NAMES,
    LEARNERS,
    NO_LABELS,
    SCORES,
    Group,
    Groups,
    Results,
    calibration_of,
    display_name,
    family_of,
    labels_of,
    line_name,
    stages_of,
)
from raysed.score.intervals import interval
from raysed.store.text import number, sentence

NO_DIFFERENCE = 0.1
"""Score differences smaller than this are reported as none."""
_UNTRAINED = ("baseline", "base")
"""Kinds that nothing was trained for."""
_FITTED_ON = {
    "tasks": "The calibrations were fitted on the sentences of the very tasks that they are scored on (without the "
    "gold scores); expect less of them on other text.",
    "corpus": "The calibrations were fitted on the corpus and have not seen the tasks.",
    "nli": "The calibrations were fitted on the sentences of `nli.train` and have not seen the tasks.",
}
_ENSEMBLE_AND_BEST = ("the ensemble is", "its best member")
_Compared = tuple[str, str, str]
"""Recipe, kind, and `mean` or `best` of a group's models."""
_INTERVALS = "In brackets: 95 % intervals over the sampling of pairs and of seeds."


@dataclass(frozen=True)
class Number:
    """A number that a sentence rests on, and where a reader finds it.

    Attributes:
        line: name of the line of a table, see `raysed.store.text.Table.names`.
        what: it is of.
        shown: the number, as the table has it.
    """

    line: str
    what: str
    shown: str


@dataclass(frozen=True)
class Finding:
    """A sentence, or a clause of one, and the numbers that it rests on."""

    text: str
    numbers: tuple[Number, ...] = ()


def findings(
    results: Results,
    dev: str | None = None,
    exported: str | None = None,
    learners: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Returns `conclusions` as a text; arguments are the same."""
    return in_words(conclusions(results, dev, exported, learners))


def in_words(paragraphs: Sequence[Sequence[Finding]]) -> str:
    r"""Returns findings as a text.

    >>> in_words([[Finding("It rains."), Finding("It pours.")], [Finding("So what?")]])
    'It rains. It pours.\n\nSo what?'
    """
    return "\n\n".join(" ".join(finding.text for finding in paragraph) for paragraph in paragraphs)


def conclusions(
    results: Results,
    dev: str | None = None,
    exported: str | None = None,
    learners: Sequence[Mapping[str, Any]] = (),
) -> list[list[Finding]]:
    """Returns in words what helped and what did not, computed from the headline scores, as paragraphs of sentences.

    For every ensemble: its members against the base and against the members that they continue, their mean against
    the best of them, the learner against both, every calibration against the same model without it, and the end of
    the chain against the best of all rows that nothing was trained for; several ensembles have a paragraph each. Then
    what labels buy, and which calibrations make the dev score worse. What was not part of the run is not mentioned. A
    group of several models counts with its mean, and a difference below 0.1 is called none.

    Args:
        dev: the task that choices are made on.
        learners: of each group of learners `recipe`, `updates`, `distance` from their members' mean, and
            `members_distance`, that of the members themselves.
    """
    families = list(dict.fromkeys(family_of(recipe) for recipe, kind in results.groups if kind not in _UNTRAINED))
    several = len(families) > 1
    paragraphs = [_sentence_of(_calibration_clauses("base", results))]
    paragraphs += [_about(family, results, learners, named=several) for family in families]
    paragraphs += [_what_labels_buy(results), _worse_on_dev(results.groups_of(dev), dev, exported)]
    if not any(paragraphs):
        return [[_nothing_to_compare(results)]]
    paragraphs.append([*_words_alone(results), *_what_was_seen(results), *_about_intervals(results)])
    filled = [paragraph for paragraph in paragraphs if paragraph]
    return filled if several else [[finding for paragraph in filled for finding in paragraph]]


def _nothing_to_compare(results: Results) -> Finding:
    alone = ", ".join(_with_score(group, results) for group in results.groups)
    text = f"Nothing to compare: {alone or 'no model was scored on the headline tasks'}."
    return Finding(text, _means(results, *results.groups))


@dataclass(frozen=True)
class Difference:
    """A difference of two scores x100, and its 95 % interval where that is known."""

    value: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, value: float, draws_R: np.ndarray | None) -> "Difference":
        """Returns a difference with the interval of its resamples.

        Args:
            draws_R: in every resample; None where there are none.
        """
        return cls(value, None if draws_R is None else interval(draws_R))

    @property
    def is_none(self) -> bool:
        """Whether it is too small to be called one."""
        return _none(self.value)

    def in_brackets(self) -> str:
        """The interval of the amount, in the direction that a sentence gives: ` (0.2 to 1.4)`."""
        if self.interval is None:
            return ""
        low, high = self.interval if self.value > 0 or self.is_none else (-self.interval[1], -self.interval[0])
        chance = ": may be chance" if low <= 0 <= high and not self.is_none else ""
        return f" ({low:.1f} to {high:.1f}{chance})"

    def position(self) -> str:
        """Returns where one is of the other, in words: `1.2 (0.3 to 2.1) above`."""
        if self.is_none:
            return f"no different{self.in_brackets()} from"
        return f"{abs(self.value):.1f}{self.in_brackets()} {'above' if self.value > 0 else 'below'}"


def _difference(results: Results, a: _Compared, b: _Compared) -> Difference:
    """Of two groups' scores, each the `mean` or, as `best`, the `max` of its models."""
    values = [results.groups[group[:2]]["max" if group[2] == "best" else "mean"] for group in (a, b)]
    draws = [results.draws.get(group) for group in (a, b)]
    known = None if any(draws_R is None for draws_R in draws) else draws[0] - draws[1]
    return Difference.of(values[0] - values[1], known)


def _about(family: str, results: Results, learners: Sequence[Mapping[str, Any]], named: bool) -> list[Finding]:
    """All about one ensemble and what came of it; several are told apart by name."""
    found = [
        *_sentence_of(_ensemble_clauses(family, results)),
        *_sentence_of(_learner_clauses(family, results) + _calibration_clauses(family, results)),
        *(f for learner in learners if family_of(learner["recipe"]) == family for f in _too_few_updates(learner)),
        *_bottom_line(family, results),
    ]
    if named and found and not found[0].text.startswith(family.upper()):
        found[0] = replace(found[0], text=f"{family.upper()}: {found[0].text}")
    return found


def _ensemble_clauses(family: str, results: Results) -> list[Finding]:
    members, ensemble = results.groups.get((family, "member")), results.groups.get((family, "ensemble"))
    base = results.groups.get(("base", "base"))
    clauses = []
    if members and base and family != TEACHERS:
        groups = ((family, "member", "mean"), ("base", "base", "mean"))
        best = f" on average over {members['n']} members (std {members['std']:.1f}, best {{:+.1f}})"
        effect = _effect(family.upper(), "the base", groups, results)
        more = best.format(members["max"] - base["mean"]) if members["n"] > 1 else ""
        clauses.append(replace(effect, text=effect.text + more))
    clauses += _continuation_clauses(family, results)
    if members and ensemble and (members["n"] > 1 or family != TEACHERS):
        groups = ((family, "ensemble", "mean"), (family, "member", "best"))
        names = ("the teachers together are", "the best of them") if family == TEACHERS else _ENSEMBLE_AND_BEST
        text = f"{names[0]} {_difference(results, *groups).position()} {names[1]}"
        clauses.append(Finding(text, _numbers(results, *groups)))
    return clauses


def _continuation_clauses(family: str, results: Results) -> list[Finding]:
    """The members against those of the longest prefix that was scored: what the later stages brought."""
    stages, members = family.split("-"), results.groups.get((family, "member"))
    for cut in reversed(range(1, len(stages))):
        before = "-".join(stages[:cut])
        if members and results.groups.get((before, "member")):
            groups = ((family, "member", "mean"), (before, "member", "mean"))
            return [_effect("-".join(stages[cut:]).upper(), f"the members of {before.upper()}", groups, results)]
    return []


def _learner_clauses(family: str, results: Results) -> list[Finding]:
    learner = f"{family}-sed".strip("-"), "learner", "mean"
    others = {"the best member": (family, "member", "best"), "the ensemble": (family, "ensemble", "mean")}
    if family == TEACHERS:
        several = results.groups.get((family, "member"), {"n": 1})["n"] > 1
        others = {"the base": ("base", "base", "mean"), "the best teacher": (family, "member", "best")}
        others |= {"the teachers together": (family, "ensemble", "mean")} if several else {}
    others = {name: group for name, group in others.items() if results.groups.get(group[:2])}
    if not results.groups.get(learner[:2]) or not others:
        return []
    positions = [f"{_difference(results, learner, group).position()} {name}" for name, group in others.items()]
    count = results.groups[learner[:2]]["n"]
    names = "the learner is" if count == 1 else f"the {count} learners are on average"
    return [Finding(f"{names} {' and '.join(positions)}", _numbers(results, learner, *others.values()))]


def _too_few_updates(learner: Mapping[str, Any]) -> list[Finding]:
    """A learner farther from the members' mean than the members are has learnt less than they know."""
    if learner["distance"] <= learner["members_distance"]:
        return []
    text = (
        f"The learner is still farther from the members' mean than the members are (mean squared distance "
        f"{learner['distance']:.2g} against {learner['members_distance']:.2g}) after {learner['updates']:,} updates. "
        "It needs more updates (raise sed.epochs or enlarge the corpus) or a higher sed.learning_rate."
    )
    line = line_name(LEARNERS, learner["recipe"])
    return [Finding(text, (Number(line, f"distance of {learner['recipe']}", f"{learner['distance']:.2g}"),))]


def _calibration_clauses(family: str, results: Results) -> list[Finding]:
    clauses = []
    for recipe, kind in results.groups:
        stages, calibration = stages_of(recipe)
        plain = "-".join(stages), kind
        if kind != "baseline" and calibration and results.groups.get(plain) and family_of(recipe) == family:
            cause = " with ".join(CALIBRATIONS[stage] for stage in calibration)
            what = f"the {KIND_NAMES[kind].removeprefix('full ')}"
            clauses.append(_effect(cause, what, ((recipe, kind, "mean"), (*plain, "mean")), results))
    return clauses


def _bottom_line(family: str, results: Results) -> list[Finding]:
    """The end of the chain against the best that needs no training: what training brought altogether."""
    chain = [group for group in results.groups if family_of(group[0]) == family and group[1] in ("ensemble", "learner")]
    untrained = [group for group in results.groups if group[1] in _UNTRAINED]
    if not chain or not untrained:
        return []
    best = _best(untrained, results)
    difference = _difference(results, (*chain[-1], "mean"), (*best, "mean"))
    names = [_in_words(group, results) for group in (chain[-1], best)]
    overall = f"Overall, {names[0]} is {difference.position()} {names[1]}, the best row that needs no training."
    return [Finding(overall, _means(results, chain[-1], best)), *_beaten_on(chain[-1], results)]


def _best(groups: Sequence[Group], results: Results) -> Group:
    return max(groups, key=lambda group: results.groups[group]["mean"])


def _in_words(group: Group, results: Results) -> str:
    return f"{display_name(*group)} ({results.groups[group]['mean']:.1f})"


def _beaten_on(group: Group, results: Results) -> list[Finding]:
    """The single tasks on which words alone are better, where there are several tasks."""
    found, numbers = [], []
    for task in results.tasks if len(results.tasks) > 1 else ():
        of_task = results.means_of(task)
        words = {other: value for other, value in of_task.items() if other[1] == "baseline"}
        best = max(words, key=words.__getitem__, default=None)
        if best and group in of_task and words[best] >= of_task[group] - NO_DIFFERENCE:
            found.append(f"{display_name(*best)} has {words[best]:.1f} on {task} against {of_task[group]:.1f}")
            numbers += [_on_task(SCORES, one, task, of_task[one]) for one in (best, group)]
    text = f"Words alone do better on single tasks: {'; '.join(found)}."
    return [Finding(text, tuple(numbers))] if found else []


def worth(results: Results, recipe: str, kind: str) -> str:
    """Returns in a sentence what a model is worth against the best row that needs no training."""
    group = (recipe, kind)
    others = [other for other in results.groups if other[1] in _UNTRAINED and other != group]
    if group not in results.groups or not others:
        return ""
    best = _best(others, results)
    difference = _difference(results, (*group, "mean"), (*best, "mean"))
    what = "the best row that needs no training"
    if difference.value >= NO_DIFFERENCE:
        first = f"It is {difference.position()} {_in_words(best, results)}, {what}."
    else:
        first = f"It does not beat {_in_words(best, results)}, {what}: it is {difference.position()} that."
    return " ".join([first, *(finding.text for finding in _beaten_on(group, results))])


def _words_alone(results: Results) -> list[Finding]:
    groups = [group for group in results.groups if group[1] == "baseline"]
    text = f"Baselines without a model: {', '.join(_with_score(group, results) for group in groups)}."
    return [Finding(text, _means(results, *groups))] if groups else []


def _with_score(group: Group, results: Results) -> str:
    return f"{display_name(*group)} {results.groups[group]['mean']:.1f}"


def _what_was_seen(results: Results) -> list[Finding]:
    groups = [group for group in results.groups if calibration_of(group[0])]
    if not results.fitted_on or not groups:
        return []
    text = _FITTED_ON.get(results.fitted_on, f"The calibrations were fitted on {results.fitted_on}.")
    return [Finding(text, _means(results, *groups))]


def _about_intervals(results: Results) -> list[Finding]:
    if not results.draws:
        return []
    lines = {group: entry for group, entry in results.groups.items() if "low" in entry}
    numbers = [
        replace(_number(results, (*group, "mean")), shown=f"{entry['low']:.1f} to {entry['high']:.1f}")
        for group, entry in lines.items()
    ]
    return [Finding(_INTERVALS, tuple(numbers))]


def _what_labels_buy(results: Results) -> list[Finding]:
    """The best learner without labels against the best with each kind of labels (SED table 4)."""
    best: dict[str, str] = {}
    for recipe, kind in results.groups:
        used = labels_of(recipe, results.labels)
        if kind == "learner" and (used not in best or _mean_of(recipe, results) > _mean_of(best[used], results)):
            best[used] = recipe
    without = best.pop(NO_LABELS, "")
    if not without or not best:
        return []
    others = []
    for used, recipe in best.items():
        difference = _difference(results, (recipe, "learner", "mean"), (without, "learner", "mean"))
        others.append(
            f"with {used} labels it is {recipe} ({_mean_of(recipe, results):.1f}), {difference.position()} that"
        )
    first = f"without labels the best learner is {without} ({_mean_of(without, results):.1f})"
    numbers = _means(results, *((recipe, "learner") for recipe in (without, *best.values())))
    return _sentence_of([Finding("; ".join([first, *others]), numbers)])


def _mean_of(recipe: str, results: Results) -> float:
    return results.groups[recipe, "learner"]["mean"]


def _worse_on_dev(scores: Groups, dev: str | None, exported: str | None) -> list[Finding]:
    """The calibrations that lower the dev score, and what the export makes of it."""
    clauses, numbers = [], []
    for (recipe, kind), calibrated in scores.items():
        stages, calibration = stages_of(recipe)
        before = "-".join(stages)
        plain = scores.get((before, kind))
        # Nothing is chosen by an ensemble's score, and its members' scores say the same.
        if not calibration or not plain or kind == "ensemble" or _none(calibrated["mean"] - plain["mean"]):
            continue
        if calibrated["mean"] < plain["mean"]:
            loss = f"{recipe} scores {plain['mean'] - calibrated['mean']:.1f} below {before}"
            taken = f", and {before} is exported" if exported == before else ""
            clauses.append(f"{loss} ({calibrated['mean']:.1f} against {plain['mean']:.1f}){taken}")
            both = {(recipe, kind): calibrated, (before, kind): plain}
            numbers += [_on_task(BY_TASK, group, dev, entry["mean"], entry["n"]) for group, entry in both.items()]
    text = f"On {dev}, the task on which models are chosen, {'; '.join(clauses)}."
    return [Finding(text, tuple(dict.fromkeys(numbers)))] if clauses else []


def _effect(cause: str, what: str, groups: tuple[_Compared, _Compared], results: Results) -> Finding:
    difference, numbers = _difference(results, *groups), _numbers(results, *groups)
    if difference.is_none:
        return Finding(f"{cause} made no difference to {what}{difference.in_brackets()}", numbers)
    verb = "raised" if difference.value > 0 else "lowered"
    return Finding(f"{cause} {verb} {what} by {abs(difference.value):.1f}{difference.in_brackets()}", numbers)


def _means(results: Results, *groups: Group) -> tuple[Number, ...]:
    return _numbers(results, *((*group, "mean") for group in groups))


def _numbers(results: Results, *groups: _Compared) -> tuple[Number, ...]:
    return tuple(_number(results, group) for group in groups)


def _number(results: Results, group: _Compared) -> Number:
    """Of the table of scores."""
    recipe, kind, which = group
    entry = results.groups[recipe, kind]
    best = "best of " if which == "best" and entry["n"] > 1 else ""
    shown = number(entry["max" if which == "best" else "mean"])
    return Number(line_name(SCORES, recipe, kind), f"{best}{_titled(recipe, kind, entry['n'])}", shown)


def _on_task(table: str, group: Group, task: str, value: float, n: int = 1) -> Number:
    """Of a table that has a column for the task."""
    return Number(line_name(table, *group), f"{_titled(*group, n)} on {task}", number(value))


def _titled(recipe: str, kind: str, n: int) -> str:
    """A group as its first two cells name it."""
    name = display_name(recipe, kind, n)
    return name if kind in _UNTRAINED else f"{name} of {recipe}"


def _none(difference: float) -> bool:
    return abs(difference) < NO_DIFFERENCE - 1e-9


def _sentence_of(clauses: Sequence[Finding]) -> list[Finding]:
    """One sentence of all clauses; none of none."""
    text = sentence("; ".join(clause.text for clause in clauses))
    return [Finding(text, _distinct(number_ for clause in clauses for number_ in clause.numbers))] if text else []


def _distinct(numbers: Iterable[Number]) -> tuple[Number, ...]:
    return tuple(dict.fromkeys(numbers))

"""The conclusion of a run in words: what helped, by how much, and whether that may be chance.

Every sentence knows the lines of the report's tables that it rests on, so that a reader can look them up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raysed.recipe import TEACHERS
from raysed.registry import calibrations
from raysed.report.scores import (
    KIND_NAMES,
    NO_LABELS,
    UNTRAINED,
    Group,
    Scores,
    calibration_of,
    display_name,
    family_of,
    labels_of,
    stages_of,
    titled,
)
from raysed.score.intervals import interval
from raysed.store.text import number, sentence
from raysed.train.collapse import COLLAPSED

NO_DIFFERENCE = 0.1
"""Score differences smaller than this are reported as none."""
BEST_UNTRAINED = "the best row that needs no training"
_FITTED_ON = {
    "tasks": "The calibrations were fitted on the sentences of the very tasks that they are scored on (without the "
    "gold scores); expect less of them on other text.",
    "corpus": "The calibrations were fitted on the corpus and have not seen the tasks.",
    "nli": "The calibrations were fitted on the sentences of `nli.train` and have not seen the tasks.",
}
_INTERVALS = "In brackets: 95 % intervals over the sampling of pairs and of seeds."
_Compared = tuple[str, str, str]
"""Recipe, kind, and `mean` or `best` of a group's models."""


@dataclass(frozen=True)
class Number:
    """A number that a sentence rests on, as a table shows it: the anchor of its line, what it is of, its digits."""

    line: str
    what: str
    shown: str


@dataclass(frozen=True)
class Finding:
    """A sentence, or a clause of one, and the numbers that it rests on."""

    text: str
    numbers: tuple[Number, ...] = ()


def anchor(table: str, *parts: Any) -> str:
    """Return the name of a line of a table, for links: the table's name and what the line is of.

    >>> anchor("scores", "ct-sed", "learner")
    'scores:ct-sed:learner'
    """
    return ":".join([table, *map(str, parts)])


def in_words(paragraphs: Sequence[Sequence[Finding]]) -> str:
    r"""Return findings as a text.

    >>> in_words([[Finding("It rains."), Finding("It pours.")], [Finding("So what?")]])
    'It rains. It pours.\n\nSo what?'
    """
    return "\n\n".join(" ".join(finding.text for finding in paragraph) for paragraph in paragraphs)


def conclusions(
    scores: Scores,
    dev: str | None = None,
    exported: str | None = None,
    learners: Sequence[Mapping[str, Any]] = (),
    left_out: Sequence[Mapping[str, Any]] = (),
) -> list[list[Finding]]:
    """Return in words what helped and what did not, computed from the headline scores, as paragraphs of sentences.

    Several ensembles have a paragraph each. What was not part of the run is not mentioned. A group of several models
    counts with its mean, and a difference below 0.1 is called none.

    Args:
        dev: the task that choices are made on.
        exported: recipe of the exported model.
        learners: data of the report's section of that name.
        left_out: data of the report's section `members`.
    """
    families = list(dict.fromkeys(family_of(recipe) for recipe, kind in scores.groups if kind not in UNTRAINED))
    several = len(families) > 1
    paragraphs = [_sentence_of(_calibration_clauses("base", scores))]
    paragraphs += [_about(family, scores, learners, named=several) for family in families]
    paragraphs += [_what_labels_buy(scores), _worse_on_dev(scores, dev, exported)]
    if any(paragraphs):
        paragraphs.append([*_words_alone(scores), *_what_was_seen(scores), *_about_intervals(scores)])
        filled = [paragraph for paragraph in paragraphs if paragraph]
        paragraphs = filled if several else [[finding for paragraph in filled for finding in paragraph]]
    else:
        alone = ", ".join(_with_score(group, scores) for group in scores.groups)
        text = f"Nothing to compare: {alone or 'no model was scored on the headline tasks'}."
        paragraphs = [[Finding(text, _means(scores, *scores.groups))]]
    paragraphs[-1] += _collapsed(left_out)
    return paragraphs


@dataclass(frozen=True)
class Difference:
    """A difference of two scores x100, and its 95 % interval where that is known."""

    value: float
    interval: tuple[float, float] | None = None

    @classmethod
    def of(cls, value: float, draws_R: np.ndarray | None) -> "Difference":
        """Return a difference with the interval of its resamples; None where there are none."""
        return cls(value, None if draws_R is None else interval(draws_R))

    @property
    def is_none(self) -> bool:
        """Whether it is too small to be called one."""
        return abs(self.value) < NO_DIFFERENCE - 1e-9

    def in_brackets(self) -> str:
        """Return the interval of the amount, in the direction that a sentence gives: ` (0.2 to 1.4)`."""
        if self.interval is None:
            return ""
        low, high = self.interval if self.value > 0 or self.is_none else (-self.interval[1], -self.interval[0])
        chance = ": may be chance" if low <= 0 <= high and not self.is_none else ""
        return f" ({low:.1f} to {high:.1f}{chance})"

    def position(self) -> str:
        """Return where one is of the other, in words: `1.2 (0.3 to 2.1) above`."""
        if self.is_none:
            return f"no different{self.in_brackets()} from"
        return f"{abs(self.value):.1f}{self.in_brackets()} {'above' if self.value > 0 else 'below'}"


def worth(scores: Scores, recipe: str, kind: str) -> str:
    """Return in a sentence what a model is worth against the best row that needs no training."""
    group = (recipe, kind)
    best = scores.best_untrained(group)
    if group not in scores.groups or best is None:
        return ""
    difference = _difference(scores, (*group, "mean"), (*best, "mean"))
    if difference.value >= NO_DIFFERENCE:
        first = f"It is {difference.position()} {_named(best, scores)}, {BEST_UNTRAINED}."
    else:
        first = f"It does not beat {_named(best, scores)}, {BEST_UNTRAINED}: it is {difference.position()} that."
    return " ".join([first, *(finding.text for finding in _beaten_on(group, scores))])


# -- one ensemble ----------------------------------------------------------------------------------------------------


def _about(family: str, scores: Scores, learners: Sequence[Mapping[str, Any]], named: bool) -> list[Finding]:
    """All about one ensemble and what came of it; several are told apart by name."""
    found = [
        *_sentence_of(_ensemble_clauses(family, scores)),
        *_sentence_of(_learner_clauses(family, scores) + _calibration_clauses(family, scores)),
        *(f for learner in learners if family_of(learner["recipe"]) == family for f in _too_few_updates(learner)),
        *_bottom_line(family, scores),
    ]
    if named and found and not found[0].text.startswith(family.upper()):
        found[0] = replace(found[0], text=f"{family.upper()}: {found[0].text}")
    return found


def _ensemble_clauses(family: str, scores: Scores) -> list[Finding]:
    groups, clauses = scores.groups, []
    members, base = groups.get((family, "member")), groups.get(("base", "base"))
    if members and base and family != TEACHERS:
        effect = _effect(family.upper(), "the base", (family, "member"), ("base", "base"), scores)
        best = f"std {members['std']:.1f}, best {members['max'] - base['mean']:+.1f}"
        more = f" on average over {members['n']} members ({best})" if members["n"] > 1 else ""
        clauses.append(replace(effect, text=effect.text + more))
    stages = family.split("-")
    for cut in reversed(range(1, len(stages))):  # the longest prefix that was scored: what the later stages brought
        before = "-".join(stages[:cut])
        if members and (before, "member") in groups:
            cause, what = "-".join(stages[cut:]).upper(), f"the members of {before.upper()}"
            clauses.append(_effect(cause, what, (family, "member"), (before, "member"), scores))
            break
    if members and (family, "ensemble") in groups and (members["n"] > 1 or family != TEACHERS):
        pair = ((family, "ensemble", "mean"), (family, "member", "best"))
        whole, part = ("the ensemble is", "its best member")
        if family == TEACHERS:
            whole, part = ("the teachers together are", "the best of them")
        clauses.append(Finding(f"{whole} {_difference(scores, *pair).position()} {part}", _numbers(scores, *pair)))
    return clauses


def _learner_clauses(family: str, scores: Scores) -> list[Finding]:
    learner = f"{family}-sed".strip("-"), "learner", "mean"
    others = {"the best member": (family, "member", "best"), "the ensemble": (family, "ensemble", "mean")}
    if family == TEACHERS:
        several = scores.groups.get((family, "member"), {"n": 1})["n"] > 1
        others = {"the base": ("base", "base", "mean"), "the best teacher": (family, "member", "best")}
        others |= {"the teachers together": (family, "ensemble", "mean")} if several else {}
    others = {name: group for name, group in others.items() if group[:2] in scores.groups}
    if learner[:2] not in scores.groups or not others:
        return []
    positions = [f"{_difference(scores, learner, group).position()} {name}" for name, group in others.items()]
    count = scores.groups[learner[:2]]["n"]
    names = "the learner is" if count == 1 else f"the {count} learners are on average"
    return [Finding(f"{names} {' and '.join(positions)}", _numbers(scores, learner, *others.values()))]


def _too_few_updates(learner: Mapping[str, Any]) -> list[Finding]:
    """A learner farther from the members' mean than the members are has learnt less than they know."""
    if learner["distance"] <= learner["members_distance"]:
        return []
    text = (
        f"The learner is still farther from the members' mean than the members are (mean squared distance "
        f"{learner['distance']:.2g} against {learner['members_distance']:.2g}) after {learner['updates']:,} updates. "
        "It needs more updates (raise sed.epochs or enlarge the corpus) or a higher sed.learning_rate."
    )
    line = anchor("learners", learner["recipe"])
    return [Finding(text, (Number(line, f"distance of {learner['recipe']}", f"{learner['distance']:.2g}"),))]


def _calibration_clauses(family: str, scores: Scores) -> list[Finding]:
    clauses = []
    for recipe, kind in scores.groups:
        stages, calibration = stages_of(recipe)
        plain = "-".join(stages), kind
        if kind != "baseline" and calibration and plain in scores.groups and family_of(recipe) == family:
            cause = " with ".join(calibrations()[stage].title for stage in calibration)
            clauses.append(
                _effect(cause, f"the {KIND_NAMES[kind].removeprefix('full ')}", (recipe, kind), plain, scores)
            )
    return clauses


def _bottom_line(family: str, scores: Scores) -> list[Finding]:
    """The end of the chain against the best that needs no training: what training brought altogether."""
    chain = [group for group in scores.groups if family_of(group[0]) == family and group[1] in ("ensemble", "learner")]
    best = scores.best_untrained()
    if not chain or best is None:
        return []
    position = _difference(scores, (*chain[-1], "mean"), (*best, "mean")).position()
    overall = f"Overall, {_named(chain[-1], scores)} is {position} {_named(best, scores)}, {BEST_UNTRAINED}."
    return [Finding(overall, _means(scores, chain[-1], best)), *_beaten_on(chain[-1], scores)]


def _beaten_on(group: Group, scores: Scores) -> list[Finding]:
    """The single tasks on which words alone are better, where there are several tasks."""
    found, numbers = [], []
    for task in scores.tasks if len(scores.tasks) > 1 else ():
        of_task = scores.means_of(task)
        words = {other: value for other, value in of_task.items() if other[1] == "baseline"}
        best = max(words, key=words.__getitem__, default=None)
        if best and group in of_task and words[best] >= of_task[group] - NO_DIFFERENCE:
            found.append(f"{display_name(*best)} has {words[best]:.1f} on {task} against {of_task[group]:.1f}")
            numbers += [_on_task("scores", one, task, of_task[one]) for one in (best, group)]
    text = f"Words alone do better on single tasks: {'; '.join(found)}."
    return [Finding(text, tuple(numbers))] if found else []


# -- the whole run ---------------------------------------------------------------------------------------------------


def _what_labels_buy(scores: Scores) -> list[Finding]:
    """The best learner without labels against the best with each kind of labels (SED table 4)."""
    means = {recipe: entry["mean"] for (recipe, kind), entry in scores.groups.items() if kind == "learner"}
    best: dict[str, str] = {}
    for recipe, mean in means.items():
        used = labels_of(recipe, scores.labels)
        if used not in best or mean > means[best[used]]:
            best[used] = recipe
    without = best.pop(NO_LABELS, "")
    if not without or not best:
        return []
    clauses = [f"without labels the best learner is {without} ({means[without]:.1f})"]
    for used, recipe in best.items():
        position = _difference(scores, (recipe, "learner", "mean"), (without, "learner", "mean")).position()
        clauses.append(f"with {used} labels it is {recipe} ({means[recipe]:.1f}), {position} that")
    numbers = _means(scores, *((recipe, "learner") for recipe in (without, *best.values())))
    return [Finding(sentence("; ".join(clauses)), numbers)]


def _worse_on_dev(scores: Scores, dev: str | None, exported: str | None) -> list[Finding]:
    """The calibrations that lower the dev score, and what the export makes of it."""
    clauses, numbers, of_dev = [], [], scores.groups_of(dev)
    for (recipe, kind), calibrated in of_dev.items():
        stages, calibration = stages_of(recipe)
        before = "-".join(stages)
        plain = of_dev.get((before, kind))
        # Nothing is chosen by an ensemble's score, and its members' scores say the same.
        if not calibration or not plain or kind == "ensemble":
            continue
        loss = Difference(plain["mean"] - calibrated["mean"])
        if loss.value > 0 and not loss.is_none:
            taken = f", and {before} is exported" if exported == before else ""
            values = f"({calibrated['mean']:.1f} against {plain['mean']:.1f})"
            clauses.append(f"{recipe} scores {loss.value:.1f} below {before} {values}{taken}")
            both = {(recipe, kind): calibrated, (before, kind): plain}
            numbers += [_on_task("by-task", group, dev, entry["mean"], entry["n"]) for group, entry in both.items()]
    text = f"On {dev}, the task on which models are chosen, {'; '.join(clauses)}."
    return [Finding(text, tuple(dict.fromkeys(numbers)))] if clauses else []


def _words_alone(scores: Scores) -> list[Finding]:
    groups = [group for group in scores.groups if group[1] == "baseline"]
    text = f"Baselines without a model: {', '.join(_with_score(group, scores) for group in groups)}."
    return [Finding(text, _means(scores, *groups))] if groups else []


def _what_was_seen(scores: Scores) -> list[Finding]:
    groups = [group for group in scores.groups if calibration_of(group[0])]
    if not scores.fitted_on or not groups:
        return []
    text = _FITTED_ON.get(scores.fitted_on, f"The calibrations were fitted on {scores.fitted_on}.")
    return [Finding(text, _means(scores, *groups))]


def _about_intervals(scores: Scores) -> list[Finding]:
    numbers = [
        replace(_number(scores, (*group, "mean")), shown=f"{entry['low']:.1f} to {entry['high']:.1f}")
        for group, entry in scores.groups.items()
        if "low" in entry
    ]
    return [Finding(_INTERVALS, tuple(numbers))] if scores.draws else []


def _collapsed(left_out: Sequence[Mapping[str, Any]]) -> list[Finding]:
    members = [member for member in left_out if member["reason"].startswith(COLLAPSED)]
    counts = Counter(member["recipe"] for member in members)
    numbers = [
        Number(anchor("left-out", one["recipe"], one["index"]), f"{one['recipe']} {one['index']}", "collapsed")
        for one in members
    ]
    text = ", ".join(f"{count} of {recipe}" for recipe, count in counts.items())
    return [Finding(f"Collapsed members, left out of every mean: {text}.", tuple(numbers))] if members else []


# -- clauses and numbers ---------------------------------------------------------------------------------------------


def _difference(scores: Scores, a: _Compared, b: _Compared) -> Difference:
    """Of two groups' scores, each the `mean` or, as `best`, the `max` of its models."""
    values = [scores.groups[group[:2]]["max" if group[2] == "best" else "mean"] for group in (a, b)]
    draws = [scores.draws.get(group) for group in (a, b)]
    known = None if any(draws_R is None for draws_R in draws) else draws[0] - draws[1]
    return Difference.of(values[0] - values[1], known)


def _effect(cause: str, what: str, after: Group, before: Group, scores: Scores) -> Finding:
    pair = ((*after, "mean"), (*before, "mean"))
    difference, numbers = _difference(scores, *pair), _numbers(scores, *pair)
    if difference.is_none:
        return Finding(f"{cause} made no difference to {what}{difference.in_brackets()}", numbers)
    verb = "raised" if difference.value > 0 else "lowered"
    return Finding(f"{cause} {verb} {what} by {abs(difference.value):.1f}{difference.in_brackets()}", numbers)


def _named(group: Group, scores: Scores) -> str:
    return f"{display_name(*group)} ({scores.groups[group]['mean']:.1f})"


def _with_score(group: Group, scores: Scores) -> str:
    return f"{display_name(*group)} {scores.groups[group]['mean']:.1f}"


def _means(scores: Scores, *groups: Group) -> tuple[Number, ...]:
    return _numbers(scores, *((*group, "mean") for group in groups))


def _numbers(scores: Scores, *groups: _Compared) -> tuple[Number, ...]:
    return tuple(_number(scores, group) for group in groups)


def _number(scores: Scores, group: _Compared) -> Number:
    """Of the table of scores."""
    recipe, kind, which = group
    entry = scores.groups[recipe, kind]
    best = "best of " if which == "best" and entry["n"] > 1 else ""
    shown = number(entry["max" if which == "best" else "mean"])
    return Number(anchor("scores", recipe, kind), f"{best}{titled(recipe, kind, entry['n'])}", shown)


def _on_task(table: str, group: Group, task: str, value: float, n: int = 1) -> Number:
    """Of a table that has a column for the task."""
    return Number(anchor(table, *group), f"{titled(*group, n)} on {task}", number(value))


def _sentence_of(clauses: Sequence[Finding]) -> list[Finding]:
    """One sentence of all clauses; none of none."""
    text = sentence("; ".join(clause.text for clause in clauses))
    numbers = dict.fromkeys(number_ for clause in clauses for number_ in clause.numbers)
    return [Finding(text, tuple(numbers))] if text else []

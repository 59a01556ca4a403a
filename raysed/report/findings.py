"""The conclusion of a run in words, each sentence with the lines of tables that it rests on."""

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
_Compared = Group | tuple[str, str, str]
"""Recipe, kind, and whether the `mean` of the group's models, as without a word, or the `best` of them."""


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
    """Return the name of a line of a table, for links.

    >>> anchor("scores", "ct-sed", "learner")
    'scores:ct-sed:learner'
    """
    return ":".join([table, *map(str, parts)])


def in_words(paragraphs: Sequence[Sequence[Finding]]) -> str:
    """Return findings as a text."""
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
    counts with its mean.

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
        paragraphs.append(_closing(scores))
        filled = [paragraph for paragraph in paragraphs if paragraph]
        paragraphs = filled if several else [[finding for paragraph in filled for finding in paragraph]]
    else:
        alone = ", ".join(_with_score(group, scores) for group in scores.groups)
        text = f"Nothing to compare: {alone or 'no model was scored on the headline tasks'}."
        paragraphs = [[Finding(text, _numbers(scores, *scores.groups))]]
    members = [member for member in left_out if member["reason"].startswith(COLLAPSED)]
    if members:
        counts = Counter(member["recipe"] for member in members)
        text = ", ".join(f"{count} of {recipe}" for recipe, count in counts.items())
        numbers = tuple(
            Number(anchor("left-out", one["recipe"], one["index"]), f"{one['recipe']} {one['index']}", "collapsed")
            for one in members
        )
        paragraphs[-1].append(Finding(f"Collapsed members, left out of every mean: {text}.", numbers))
    return paragraphs


@dataclass(frozen=True)
class Difference:
    """A difference of two scores x100, and its resamples where there are any."""

    value: float
    draws_R: np.ndarray | None = None

    @property
    def is_none(self) -> bool:
        """Whether it is too small to be called one."""
        return abs(self.value) < NO_DIFFERENCE - 1e-9

    def in_brackets(self) -> str:
        """Return the interval of the amount, in the direction that a sentence gives: ` (0.2 to 1.4)`."""
        ends = None if self.draws_R is None else interval(self.draws_R)
        if ends is None:
            return ""
        low, high = ends
        if self.value <= 0 and not self.is_none:
            low, high = -high, -low
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
    difference = _difference(scores, group, best)
    if difference.value >= NO_DIFFERENCE:
        first = f"It is {difference.position()} {_named(best, scores)}, {BEST_UNTRAINED}."
    else:
        first = f"It does not beat {_named(best, scores)}, {BEST_UNTRAINED}: it is {difference.position()} that."
    return " ".join([first, *(finding.text for finding in _beaten_on(group, scores))])


def _about(family: str, scores: Scores, learners: Sequence[Mapping[str, Any]], named: bool) -> list[Finding]:
    """Return all about one ensemble and what came of it; several are told apart by name."""
    found = _sentence_of(_ensemble_clauses(family, scores))
    found += _sentence_of(_learner_clauses(family, scores) + _calibration_clauses(family, scores))
    for one in learners:
        if family_of(one["recipe"]) == family and one["distance"] > one["members_distance"]:
            text = (
                f"The learner is still farther from the members' mean than the members are (mean squared distance "
                f"{one['distance']:.2g} against {one['members_distance']:.2g}) after {one['updates']:,} updates. "
                "It needs more updates (raise sed.epochs or enlarge the corpus) or a higher sed.learning_rate."
            )
            line, shown = anchor("learners", one["recipe"]), f"{one['distance']:.2g}"
            found.append(Finding(text, (Number(line, f"distance of {one['recipe']}", shown),)))
    chain = [group for group in scores.groups if family_of(group[0]) == family and group[1] in ("ensemble", "learner")]
    best = scores.best_untrained()
    if chain and best is not None:  # what training brought altogether
        position = _difference(scores, chain[-1], best).position()
        overall = f"Overall, {_named(chain[-1], scores)} is {position} {_named(best, scores)}, {BEST_UNTRAINED}."
        found += [Finding(overall, _numbers(scores, chain[-1], best)), *_beaten_on(chain[-1], scores)]
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
        pair = ((family, "ensemble"), (family, "member", "best"))
        whole, part = ("the ensemble is", "its best member")
        if family == TEACHERS:
            whole, part = ("the teachers together are", "the best of them")
        clauses.append(Finding(f"{whole} {_difference(scores, *pair).position()} {part}", _numbers(scores, *pair)))
    return clauses


def _learner_clauses(family: str, scores: Scores) -> list[Finding]:
    learner = f"{family}-sed".strip("-"), "learner"
    others = {"the best member": (family, "member", "best"), "the ensemble": (family, "ensemble")}
    if family == TEACHERS:
        several = scores.groups.get((family, "member"), {"n": 1})["n"] > 1
        others = {"the base": ("base", "base"), "the best teacher": (family, "member", "best")}
        others |= {"the teachers together": (family, "ensemble")} if several else {}
    others = {name: group for name, group in others.items() if group[:2] in scores.groups}
    if learner not in scores.groups or not others:
        return []
    positions = [f"{_difference(scores, learner, group).position()} {name}" for name, group in others.items()]
    count = scores.groups[learner]["n"]
    names = "the learner is" if count == 1 else f"the {count} learners are on average"
    return [Finding(f"{names} {' and '.join(positions)}", _numbers(scores, learner, *others.values()))]


def _calibration_clauses(family: str, scores: Scores) -> list[Finding]:
    clauses = []
    for recipe, kind in scores.groups:
        stages, calibration = stages_of(recipe)
        plain = "-".join(stages), kind
        if kind != "baseline" and calibration and plain in scores.groups and family_of(recipe) == family:
            cause = " with ".join(calibrations()[stage].title for stage in calibration)
            what = f"the {KIND_NAMES[kind].removeprefix('full ')}"
            clauses.append(_effect(cause, what, (recipe, kind), plain, scores))
    return clauses


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
        position = _difference(scores, (recipe, "learner"), (without, "learner")).position()
        clauses.append(f"with {used} labels it is {recipe} ({means[recipe]:.1f}), {position} that")
    numbers = _numbers(scores, *((recipe, "learner") for recipe in (without, *best.values())))
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


def _closing(scores: Scores) -> list[Finding]:
    """Return what baselines score, what calibrations have seen, and what stands in brackets."""
    found = []
    if baselines := [group for group in scores.groups if group[1] == "baseline"]:
        text = f"Baselines without a model: {', '.join(_with_score(group, scores) for group in baselines)}."
        found.append(Finding(text, _numbers(scores, *baselines)))
    calibrated = [group for group in scores.groups if calibration_of(group[0])]
    if scores.fitted_on and calibrated:
        text = _FITTED_ON.get(scores.fitted_on, f"The calibrations were fitted on {scores.fitted_on}.")
        found.append(Finding(text, _numbers(scores, *calibrated)))
    if scores.draws:
        known = {group: entry for group, entry in scores.groups.items() if "low" in entry}
        ends = [f"{entry['low']:.1f} to {entry['high']:.1f}" for entry in known.values()]
        numbers = [replace(number, shown=shown) for number, shown in zip(_numbers(scores, *known), ends)]
        text = "In brackets: 95 % intervals over the sampling of pairs and of seeds."
        found.append(Finding(text, tuple(numbers)))
    return found


def _difference(scores: Scores, a: _Compared, b: _Compared) -> Difference:
    pair = [(*group, "mean")[:3] for group in (a, b)]
    values = [scores.groups[group[:2]]["max" if group[2] == "best" else "mean"] for group in pair]
    draws = [scores.draws.get(group) for group in pair]
    known = None if any(draws_R is None for draws_R in draws) else draws[0] - draws[1]
    return Difference(values[0] - values[1], known)


def _effect(cause: str, what: str, after: Group, before: Group, scores: Scores) -> Finding:
    difference, numbers = _difference(scores, after, before), _numbers(scores, after, before)
    if difference.is_none:
        return Finding(f"{cause} made no difference to {what}{difference.in_brackets()}", numbers)
    verb = "raised" if difference.value > 0 else "lowered"
    return Finding(f"{cause} {verb} {what} by {abs(difference.value):.1f}{difference.in_brackets()}", numbers)


def _named(group: Group, scores: Scores) -> str:
    return f"{display_name(*group)} ({scores.groups[group]['mean']:.1f})"


def _with_score(group: Group, scores: Scores) -> str:
    return f"{display_name(*group)} {scores.groups[group]['mean']:.1f}"


def _numbers(scores: Scores, *groups: _Compared) -> tuple[Number, ...]:
    """Return numbers of the table of scores."""
    found = []
    for recipe, kind, *which in groups:
        entry, is_best = scores.groups[recipe, kind], which == ["best"]
        what = f"{'best of ' * (is_best and entry['n'] > 1)}{titled(recipe, kind, entry['n'])}"
        found.append(Number(anchor("scores", recipe, kind), what, number(entry["max" if is_best else "mean"])))
    return tuple(found)


def _on_task(table: str, group: Group, task: str, value: float, n: int = 1) -> Number:
    """Of a table that has a column for the task."""
    return Number(anchor(table, *group), f"{titled(*group, n)} on {task}", number(value))


def _sentence_of(clauses: Sequence[Finding]) -> list[Finding]:
    """One sentence of all clauses; none of none."""
    text = sentence("; ".join(clause.text for clause in clauses))
    numbers = dict.fromkeys(number_ for clause in clauses for number_ in clause.numbers)
    return [Finding(text, tuple(numbers))] if text else []

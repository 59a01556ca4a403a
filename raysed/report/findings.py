"""The findings of a run: sentences, each with the rows of the score table that it compares."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysed.recipe import BASE, SED, TEACHERS
from raysed.registry import calibrations, stages_of_pairs
from raysed.report.scores import (
    KIND_NAMES,
    NO_LABELS,
    UNTRAINED,
    Group,
    ScoreTable,
    display_name,
    family_of,
    labels_of,
    stages_of,
    titled,
)
from raysed.score.intervals import Difference, interval
from raysed.store.text import sentence
from raysed.train.collapse import COLLAPSED

BEST_UNTRAINED, BEST_OTHER = "the best without training", "the best other one without training"
_FITTED_ON = {
    "tasks": "the sentences that they are scored on (without gold scores), so expect less of them on other text",
    "corpus": "the corpus and have not seen the tasks",
}
_BASE = (BASE, "base")
_Compared = Group | tuple[str, str, str]
"""Recipe and kind, and whether to take the `mean` of the group's models (default) or the `best`."""


@dataclass(frozen=True)
class Finding:
    """A sentence or clause, and the groups whose scores it compares."""

    text: str
    groups: tuple[Group, ...] = ()


def finding_paragraphs(
    scores: ScoreTable, dev: str | None = None, exported: str | None = None, left_out: Sequence[Mapping[str, Any]] = ()
) -> list[list[Finding]]:
    """Return findings in paragraphs; `exported` is a recipe, `left_out` the data of the section `members`."""
    families = list(dict.fromkeys(family_of(recipe) for recipe, kind in scores.groups if kind not in UNTRAINED))
    paragraphs = [_sentence_of(_calibrated(BASE, scores))]
    paragraphs += [_family_findings(family, scores) for family in families]
    paragraphs.append([*_gain_from_labels(scores), *_worse_on_dev(scores, dev, exported)])
    if not any(paragraphs):
        paragraphs = [[Finding("Nothing to compare.", tuple(scores.groups))]]
    counts = Counter(member["recipe"] for member in left_out if member["reason"].startswith(COLLAPSED))
    collapsed = ", ".join(f"{count} of {recipe}" for recipe, count in counts.items())
    closing = [Finding(f"Collapsed members, left out of every mean: {collapsed}.")] if collapsed else []
    return [paragraph for paragraph in [*paragraphs, [*_closing_findings(scores), *closing]] if paragraph]


def gain_sentence(scores: ScoreTable, recipe: str, kind: str) -> str:
    """Say what a model is worth against the best row that needs no training; empty if there is none."""
    group = (recipe, kind)
    best = scores.best_untrained(group)
    if group not in scores.groups or best is None:
        return ""
    count = scores.groups[group]["n"]
    subject = "It is" if count == 1 else f"The {count} {kind}s of {recipe} are on average"
    which = BEST_OTHER if kind in UNTRAINED else BEST_UNTRAINED
    first = f"{subject} {_difference(scores, group, best).position()} {_with_mean(best, scores)}, {which}."
    return " ".join([first, *(finding.text for finding in _losses(group, scores))])


def _family_findings(family: str, scores: ScoreTable) -> list[Finding]:
    found = _sentence_of(_ensemble(family, scores))
    found += _sentence_of([*_learner(family, scores), *_calibrated(family, scores)])
    chain = [group for group in scores.groups if family_of(group[0]) == family and group[1] in ("ensemble", "learner")]
    best = scores.best_untrained()
    if chain and best is not None:  # the total effect of training
        position = _difference(scores, chain[-1], best).position()
        overall = (
            f"Overall, {_with_mean(chain[-1], scores)} is {position} {_with_mean(best, scores)}, {BEST_UNTRAINED}."
        )
        found += [Finding(overall, (chain[-1], best)), *_losses(chain[-1], scores)]
    return found


def _ensemble(family: str, scores: ScoreTable) -> list[Finding]:
    groups, members, clauses = scores.groups, (family, "member"), []
    if members not in groups:
        return []
    entry, stages = groups[members], family.split("-")
    if _BASE in groups and family != TEACHERS:
        effect = _effect(family.upper(), "the base", members, _BASE, scores)
        best = f"std {entry['std']:.1f}, best {entry['max'] - groups[_BASE]['mean']:+.1f}"
        more = f" on average over {entry['n']} members ({best})" if entry["n"] > 1 else ""
        clauses.append(replace(effect, text=effect.text + more))
    for cut in reversed(range(1, len(stages))):  # longest scored prefix: the effect of later stages
        before = ("-".join(stages[:cut]), "member")
        if before in groups:
            cause, what = "-".join(stages[cut:]).upper(), f"the members of {before[0].upper()}"
            clauses.append(_effect(cause, what, members, before, scores))
            break
    if (family, "ensemble") in groups and entry["n"] > 1:
        pair = ((family, "ensemble"), (family, "member", "best"))
        whole, part = ("the ensemble is", "its best member")
        if family == TEACHERS:
            whole, part = ("the teachers together are", "the best one alone")
        clauses.append(Finding(f"{whole} {_difference(scores, *pair).position()} {part}", (pair[0], members)))
        others = {"centred": "with each member centred it is", "soup": "the average of their weights is"}
        for kind, what in others.items():
            if (family, kind) in groups:
                position = _difference(scores, (family, kind), pair[0]).position()
                clauses.append(Finding(f"{what} {position} the ensemble", ((family, kind), pair[0])))
    return clauses


def _learner(family: str, scores: ScoreTable) -> list[Finding]:
    learner, best = (f"{family}-{SED}", "learner"), (family, "member", "best")
    others: dict[str, _Compared] = {"the best member": best, "the ensemble": (family, "ensemble")}
    if family == TEACHERS:
        others = {"the base": _BASE, "the best teacher": best, "the teachers together": (family, "ensemble")}
    others = {name: group for name, group in others.items() if group[:2] in scores.groups}
    if learner not in scores.groups or not others:
        return []
    positions = [f"{_difference(scores, learner, group).position()} {name}" for name, group in others.items()]
    count = scores.groups[learner]["n"]
    names = "the learner is" if count == 1 else f"the {count} learners are on average"
    return [Finding(f"{names} {' and '.join(positions)}", (learner, *(group[:2] for group in others.values())))]


def _calibrated(family: str, scores: ScoreTable) -> list[Finding]:
    clauses = []
    for recipe, kind in scores.groups:
        stages, calibration = stages_of(recipe)
        plain = "-".join(stages), kind
        if calibration and plain in scores.groups and family_of(recipe) == family:
            cause = " with ".join(calibrations()[stage].title for stage in calibration)
            what = f"the {KIND_NAMES[kind].removeprefix('full ')}"
            clauses.append(_effect(cause, what, (recipe, kind), plain, scores))
    return clauses


def _losses(group: Group, scores: ScoreTable) -> list[Finding]:
    """Return the single tasks on which words alone do better, if there are several tasks."""
    found = []
    for task in scores.tasks if len(scores.tasks) > 1 else ():
        means = {other: entry["mean"] for other, entry in scores.groups_of(task).items()}
        words = {other: mean for other, mean in means.items() if other[1] == "baseline"}
        best = max(words, key=words.__getitem__, default=None)
        if best and group in means:
            lead = Difference(words[best] - means[group])
            if lead.value > 0 and not lead.is_none:
                found.append(f"{display_name(*best)} has {words[best]:.1f} on {task} against {means[group]:.1f}")
    return [Finding(f"A lexical baseline does better on some tasks: {'; '.join(found)}.")] if found else []


def _gain_from_labels(scores: ScoreTable) -> list[Finding]:
    """Compare the best learner without labels with the best for each kind of labels (SED table 4).

    What external teachers have learnt from is not known.
    """
    own = {group: entry for group, entry in scores.groups.items() if family_of(group[0]) != TEACHERS}
    means = {group: entry["mean"] for group, entry in own.items() if group[1] == "learner"}
    best: dict[str, Group] = {}
    for group in sorted(means, key=means.__getitem__):
        best[labels_of(group[0], scores.labels)] = group
    without = best.pop(NO_LABELS, None)
    if without is None or not best:
        return []
    clauses = [f"without labels the best learner is {without[0]} ({means[without]:.1f})"]
    for used, group in sorted(best.items()):
        position = _difference(scores, group, without).position()
        clauses.append(f"with {used} labels it is {group[0]} ({means[group]:.1f}), {position} that")
    return [Finding(sentence("; ".join(clauses)), (without, *best.values()))]


def _worse_on_dev(scores: ScoreTable, dev: str | None, exported: str | None) -> list[Finding]:
    """Return the calibrations that lower the dev score, and what that means for the export."""
    clauses, of_dev = [], scores.groups_of(dev)
    for (recipe, kind), entry in of_dev.items():
        before = "-".join(stages_of(recipe)[0])
        plain = of_dev.get((before, kind), entry)
        loss = Difference(plain["mean"] - entry["mean"])
        # Ensemble scores choose nothing, and the members' say the same.
        if kind != "ensemble" and loss.value > 0 and not loss.is_none:
            taken = f", and {before} is exported" if exported == before else ""
            values = f"({entry['mean']:.1f} against {plain['mean']:.1f})"
            clauses.append(f"{recipe} scores {loss.value:.1f} below {before} {values}{taken}")
    return [Finding(f"On {dev}, the task on which models are chosen, {'; '.join(clauses)}.")] if clauses else []


def _closing_findings(scores: ScoreTable) -> list[Finding]:
    """Return what baselines score, what calibrations have seen, and what is in brackets."""
    found = []
    if baselines := [group for group in scores.groups if group[1] == "baseline"]:
        named = ", ".join(_with_mean(group, scores) for group in baselines)
        found.append(Finding(f"Baselines without a model: {named}.", tuple(baselines)))
    calibrated = [group for group in scores.groups if stages_of(group[0])[1]]
    if scores.fitted_on and calibrated:
        text = _FITTED_ON.get(scores.fitted_on, scores.fitted_on)
        if text in stages_of_pairs():
            text = f"the sentences of `{text}.train` and have not seen the tasks"
        found.append(Finding(f"The calibrations were fitted on {text}.", tuple(calibrated)))
    if scores.draws:
        found.append(Finding("In brackets: 95 % intervals over the sampling of pairs and seeds."))
    return found


def _difference(scores: ScoreTable, a: _Compared, b: _Compared) -> Difference:
    pair = [(*group, "mean")[:3] for group in (a, b)]
    values = [scores.groups[group[:2]]["max" if group[2] == "best" else "mean"] for group in pair]
    draws = [scores.draws.get(group) for group in pair]
    known = None if any(draws_R is None for draws_R in draws) else interval(draws[0] - draws[1])
    return Difference(values[0] - values[1], known)


def _effect(cause: str, what: str, after: Group, before: Group, scores: ScoreTable) -> Finding:
    difference = _difference(scores, after, before)
    verb, amount = ("raised" if difference.value > 0 else "lowered"), f" by {abs(difference.value):.1f}"
    if difference.is_none:
        verb, amount = "made no difference to", ""
    return Finding(f"{cause} {verb} {what}{amount}{difference.in_brackets()}", (after, before))


def _with_mean(group: Group, scores: ScoreTable) -> str:
    return f"{titled(*group)} ({scores.groups[group]['mean']:.1f})"


def _sentence_of(clauses: Sequence[Finding]) -> list[Finding]:
    text = sentence("; ".join(clause.text for clause in clauses))
    return [Finding(text, tuple(dict.fromkeys(group for clause in clauses for group in clause.groups)))] if text else []

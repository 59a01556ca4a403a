"""The exported model compared with cheaper ones, and at most five findings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysed.recipe import BASE, SED, TEACHERS
from raysed.registry import calibrations
from raysed.report.scores import (
    NO_LABELS,
    UNTRAINED,
    Compared,
    Group,
    ScoreTable,
    family_of,
    labels_of,
    signed,
    stages_of,
    titled,
)
from raysed.score.intervals import Difference
from raysed.score.lexical import TF_IDF
from raysed.store.text import Table, number
from raysed.train.collapse import COLLAPSED

if TYPE_CHECKING:
    from raysed.report.results import RunResults

MOST_FINDINGS = 5
_BASE = (BASE, "base", "mean")


# -- the exported model ----------------------------------------------------------------------------------------------


def comparisons(scores: ScoreTable) -> list[dict[str, Any]]:
    """Return the exported model's `score`, and its `gain` over its start, its best teacher and untrained models.

    A gain's 95 % interval is from `low` to `high`, if known.
    """
    own = scores.exported
    if own is None or own.average(scores.tasks) is None:
        return []
    this, family = (own.recipe, own.kind, "exported"), family_of(own.recipe)
    others: dict[str, Compared] = {"start (base)": _BASE}
    if own.kind == "learner":
        others["best teacher" if family == TEACHERS else "best member"] = (family, "member", "best")
    others["TF-IDF"] = (TF_IDF, "baseline", "mean")
    best = scores.best_untrained(this[:2])
    if best and (*best, "mean") not in others.values():
        others[f"{titled(*best)} (best untrained)"] = (*best, "mean")
    found = [{"model": "this model", "score": scores.value(this)}]
    for name, other in others.items():
        if other[:2] in scores.groups and other[:2] != this[:2]:
            gain = scores.difference(this, other)
            entry = {"model": name, "score": scores.value(other), "gain": gain.value}
            found.append(entry | dict(zip(("low", "high"), gain.ends or ())))
    return found


def comparisons_table(found: Sequence[dict[str, Any]]) -> Table:
    """Return the result of `comparisons` as a table."""
    columns = {
        "model": lambda one: one["model"],
        "score": lambda one: number(one["score"]),
        "gain": lambda one: number(one.get("gain"), "+.1f"),
        "95 %": lambda one: f"{one['low']:+.1f} to {one['high']:+.1f}" if "low" in one else "-",
    }
    return Table.of(found, columns, text=1)


def gain_sentence(scores: ScoreTable) -> str:
    """Judge the exported model against the best row that needs no training; empty if either has no score."""
    own = scores.exported
    best = own and scores.best_untrained((own.recipe, own.kind))
    if best is None or own.average(scores.tasks) is None:
        return ""
    this, other = (own.recipe, own.kind, "exported"), (*best, "mean")
    difference, name = scores.difference(this, other), f"{titled(*best)} ({scores.value(other):.1f})"
    which = "the best other one without training" if own.kind in UNTRAINED else "the best without training"
    score = f"{scores.value(this):.1f}{scores.basis}"
    sentence = f"It scores {score}, {difference.position()} {name}, {which}."
    if not is_clear(difference):
        sentence = f"It scores {score}: no clear effect compared with {name}, {which}."
    return " ".join([sentence, *_losses(scores)])


def _losses(scores: ScoreTable) -> Iterator[str]:
    """With several tasks, yield a sentence on those where a lexical baseline beats the exported model."""
    found = []
    for task in scores.tasks if len(scores.tasks) > 1 else ():
        words = {group: entry["mean"] for group, entry in scores.groups_of(task).items() if group[1] == "baseline"}
        best, own = max(words, key=words.__getitem__, default=None), scores.exported.score(task)
        if best and own is not None and words[best] > own and not Difference(words[best] - own).is_none:
            found.append(f"{titled(*best)} scores {words[best]:.1f} on {task}, this model {own:.1f}")
    if found:
        yield f"A lexical baseline does better on some tasks: {'; '.join(found)}."


# -- findings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """A sentence, and the groups whose scores it compares."""

    text: str
    groups: tuple[Group, ...] = ()


_Effect = tuple[str, str, Compared, Compared]
"""Kind, title, and the scores after and before."""


def findings(run: "RunResults") -> list[Finding]:
    """Return at most five findings: clear effects by kind, one for all unclear ones, one for collapsed members."""
    scores, by_kind, unclear = run.scores, {}, []
    for effect in _effects(scores):
        kind, _, after, before = effect
        if {after[:2], before[:2]} <= scores.groups.keys():
            alike = by_kind.setdefault(kind, []) if is_clear(scores.difference(after, before)) else unclear
            alike.append(effect)
    closing = [_finding("No clear effect", unclear, scores)] if unclear else []
    collapsed = Counter(name.split("/")[0] for name, why in run.facts.left_out.items() if why.startswith(COLLAPSED))
    if collapsed:
        counts = ", ".join(f"{count} of {recipe}" for recipe, count in collapsed.items())
        closing.append(Finding(f"Collapsed members, left out of every mean: {counts}."))
    found = [_finding(kind, effects, scores) for kind, effects in by_kind.items()]
    return [*found[: MOST_FINDINGS - len(closing)], *closing] or [Finding("Nothing to compare.", tuple(scores.groups))]


def _finding(kind: str, effects: Sequence[_Effect], scores: ScoreTable) -> Finding:
    parts, groups = [], {}
    for _, what, after, before in effects:
        difference = scores.difference(after, before)
        parts.append(f"{what} {signed(difference.value, difference.ends)}")
        groups |= dict.fromkeys((after[:2], before[:2]))
    return Finding(f"{kind}: {'; '.join(parts)}.", tuple(groups))


def is_clear(difference: Difference) -> bool:
    """Return whether a difference is large enough to matter, and its interval excludes 0."""
    return not difference.is_none and not (difference.ends and difference.ends[0] <= 0 <= difference.ends[1])


def _effects(scores: ScoreTable) -> Iterator[_Effect]:
    """Yield all comparisons by kind, whether or not they were scored."""
    families = list(dict.fromkeys(family_of(recipe) for recipe, kind in scores.groups if kind not in UNTRAINED))
    for family in families:
        members, stages = (family, "member", "mean"), family.split("-")
        yield ("Training", f"members of {family} against the base", members, _BASE)
        prefixes = ["-".join(stages[:cut]) for cut in reversed(range(1, len(stages)))]
        for before in [prefix for prefix in prefixes if (prefix, "member") in scores.groups][:1]:
            yield ("Training", f"members of {family} against those of {before}", members, (before, *members[1:]))
    for family in families:
        learner, one = (f"{family}-{SED}", "learner", "mean"), "teacher" if family == TEACHERS else "member"
        yield ("Distillation", f"{learner[0]} against the base", learner, _BASE)
        yield ("Distillation", f"{learner[0]} against the best {one}", learner, (family, "member", "best"))
        yield ("Distillation", f"{learner[0]} against the ensemble", learner, (family, "ensemble", "mean"))
    for family in families:
        whole = (family, "ensemble", "mean")
        if scores.groups.get((family, "member"), {"n": 0})["n"] < 2:
            continue  # a single member is its own mean
        yield ("Averaging", f"{titled(*whole[:2])} against the best one", whole, (family, "member", "best"))
    yield from _labels(scores)
    yield from _calibrated(scores)


def _calibrated(scores: ScoreTable) -> Iterator[_Effect]:
    for recipe, kind in scores.groups:
        stages, calibration = stages_of(recipe)
        if calibration:
            plain = "-".join(stages), kind
            cause = " with ".join(calibrations()[stage].title for stage in calibration)
            what = f"{cause} on {titled(*plain, scores.groups.get(plain, {'n': 1})['n'])}"
            yield ("Calibration", what, (recipe, kind, "mean"), (*plain, "mean"))


def _labels(scores: ScoreTable) -> Iterator[_Effect]:
    """Compare the best learner without labels with the best for each kind of labels (SED table 4).

    External teachers are left out: their training labels are unknown.
    """
    means = {group: entry["mean"] for group, entry in scores.groups.items() if group[1] == "learner"}
    best: dict[str, Group] = {}
    for group in sorted(means, key=means.__getitem__):
        if family_of(group[0]) != TEACHERS:
            best[labels_of(group[0], scores.labels)] = group
    if without := best.pop(NO_LABELS, None):
        for used, group in sorted(best.items()):
            what = f"{used} ({group[0]}) against none ({without[0]})"
            yield ("Labels", what, (*group, "mean"), (*without, "mean"))

"""At most five findings: what training, distillation, averaging, labels and calibrations changed."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from raysed.recipe import SED, TEACHERS
from raysed.registry import calibrations
from raysed.report.results import RunResults
from raysed.report.scores import (
    NO_LABELS,
    ORIGINAL,
    THE_BASE,
    UNTRAINED,
    Compared,
    Group,
    ScoreTable,
    family_of,
    labels_of,
    stages_of,
    titled,
)
from raysed.train.collapse import COLLAPSED

MOST_FINDINGS, _MOST_UNCLEAR = 5, 3


@dataclass(frozen=True)
class Finding:
    """A sentence, and the groups whose scores it compares."""

    text: str
    groups: tuple[Group, ...] = ()


_Effect = tuple[str, str, Compared | None, Compared | None]
"""Kind, title, and the scores after and before."""


def findings(run: RunResults) -> list[Finding]:
    """Return at most five findings: clear effects by kind, one for unclear ones, one for collapsed members."""
    scores, by_kind, unclear = run.scores, {}, []
    for effect in _effects(scores):
        kind, _, after, before = effect
        if after and before and {after[:2], before[:2]} <= scores.groups.keys():
            difference = scores.difference(after, before)
            if any(round(value, 1) for value in (difference.value, *(difference.ends or ()))):  # not one model twice
                alike = by_kind.setdefault(kind, []) if difference.is_clear else unclear
                alike.append(effect)
    closing = [_finding("No clear effect", unclear[:_MOST_UNCLEAR], scores)] if unclear else []
    collapsed = Counter(name.split("/")[0] for name, why in run.facts.left_out.items() if why.startswith(COLLAPSED))
    if collapsed:
        counts = ", ".join(f"{count} of {recipe}" for recipe, count in collapsed.items())
        closing.append(Finding(f"Collapsed members, left out of every mean: {counts}."))
    found = [_finding(kind, effects, scores) for kind, effects in by_kind.items()]
    return [*found[: MOST_FINDINGS - len(closing)], *closing] or [Finding("Nothing to compare.", tuple(scores.groups))]


def _finding(kind: str, effects: Sequence[_Effect], scores: ScoreTable) -> Finding:
    parts, groups = [], {}
    for _, what, after, before in effects:
        parts.append(f"{what} {scores.difference(after, before)}")
        groups |= dict.fromkeys((after[:2], before[:2]))
    return Finding(f"{kind}: {'; '.join(parts)}.", tuple(groups))


def _effects(scores: ScoreTable) -> Iterator[_Effect]:
    """Yield all comparisons by kind, whether or not they were scored."""
    families = list(dict.fromkeys(family_of(recipe) for recipe, kind in scores.groups if kind not in UNTRAINED))
    for family in families:
        members, stages = (family, "member", "mean"), family.split("-")
        if family == TEACHERS:
            continue  # nobody trained them
        yield ("Training", f"members of {family} against the base", members, THE_BASE)
        prefixes = ["-".join(stages[:cut]) for cut in reversed(range(1, len(stages)))]
        for before in [prefix for prefix in prefixes if (prefix, "member") in scores.groups][:1]:
            yield ("Training", f"members of {family} against those of {before}", members, (before, *members[1:]))
    for family in families:
        learner, one = (f"{family}-{SED}", "learner", "mean"), "teacher" if family == TEACHERS else "member"
        if family != TEACHERS or scores.base_name == ORIGINAL:
            yield ("Distillation", f"{learner[0]} against the base", learner, THE_BASE)
        yield ("Distillation", f"{learner[0]} against the best {one}", learner, scores.best((family, "member")))
        yield ("Distillation", f"{learner[0]} against the ensemble", learner, (family, "ensemble", "mean"))
    for family in families:
        whole = (family, "ensemble", "mean")
        if scores.groups.get((family, "member"), {"n": 0})["n"] < 2:
            continue  # a single member is its own mean
        yield ("Averaging", f"{titled(*whole[:2])} against the best one", whole, scores.best((family, "member")))
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

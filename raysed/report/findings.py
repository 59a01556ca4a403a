"""What a run found: one row per scored model, the statistics of groups of rows, and the conclusion in words.

Everything here is computed from plain rows, so that a sentence can be checked without training anything.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from raysed.evaluation.baselines import TF_IDF, WORD_OVERLAP
from raysed.evaluation.intervals import interval

AVERAGE = "sts-avg"
"""Task name in summaries for the mean over the headline tasks."""
CALIBRATIONS = {"flow": "the flow", "sn": "SN", "natsv": "NATSV", "whiten": "whitening"}
"""Last stages of a recipe, and what sentences call them."""
LABELS: Mapping[str, str] = {"nli": "NLI", "sts": "STS"}
"""The labels that stages train on, where these are part of the stage itself; views of a run may bring more."""
NO_LABELS = "none"
NO_DIFFERENCE = 0.1
"""Score differences smaller than this are reported as none."""

Kind = Literal["baseline", "base", "member", "ensemble", "grid", "learner"]
Groups = Mapping[tuple[str, str], Mapping[str, Any]]
"""(recipe, kind) to its summary entry for one task."""
_KIND_ORDER = ("baseline", "base", "grid", "member", "ensemble", "learner")
_KIND_NAMES = {
    "base": "base",
    "grid": "grid models",
    "member": "members",
    "ensemble": "full ensemble",
    "learner": "learner",
}


_BASELINE_NAMES = {WORD_OVERLAP: "word overlap", TF_IDF: "TF-IDF"}
_UNTRAINED = ("baseline", "base")
"""Kinds that nothing was trained for."""
_FITTED_ON = {
    "tasks": "The calibrations were fitted on the sentences of the very tasks that they are scored on (without their "
    "scores); on other text they do less.",
    "corpus": "The calibrations were fitted on the corpus and have not seen the tasks.",
    "nli": "The calibrations were fitted on the sentences of `nli.train` and have not seen the tasks.",
}
_INTERVALS = "In brackets: 95 % intervals over the draw of pairs and of seeds."

Draws = Mapping[tuple[str, str, str], np.ndarray]
"""(recipe, kind, `mean` or `best` of the group's models) to resampled average scores, see `evaluation.intervals`."""


@dataclass(frozen=True)
class Row:
    """One scored model at one pooling depth."""

    recipe: str
    """As in the run's list, e.g. `ct-sed-flow`; `base`, `base-flow`; `word-overlap`, `tf-idf`."""
    kind: Kind
    index: int
    lower_bound: float | None
    """Of a grid model; None elsewhere."""
    layers: int | str
    """Pooled layers."""
    metrics: Mapping[str, Mapping[str, Any]]
    """Task name to what `Evaluation.score` returned for it."""
    left_out: bool = False
    """Whether the model has collapsed: it is in the list of rows, and in no mean."""

    def counts(self, main_layers: int | str) -> bool:
        """Returns whether the row is part of the headline: not left out, and at the main pooling depth, or without."""
        return not self.left_out and (self.layers == main_layers or self.kind == "baseline")

    def average(self, tasks: Sequence[str]) -> float | None:
        """Returns the mean Spearman correlation over `tasks`; None where one of them was not scored."""
        values = [self.spearman(task) for task in tasks]
        if not values or any(value is None for value in values):
            return None
        return statistics.fmean(values)

    def spearman(self, task: str) -> float | None:
        """Returns the Spearman correlation (x100) on one task; None where it is missing or not finite."""
        value = self.metrics.get(task, {}).get("spearman")
        return value if value is not None and math.isfinite(value) else None


def summarise(
    rows: Iterable[Row], tasks: Sequence[str], main_layers: int | str, draws: Draws | None = None
) -> list[dict[str, Any]]:
    """Returns the statistics of every group of like models (SED table 3).

    A group shares recipe, kind and lower bound. Only rows at the main pooling depth count, and baselines,
    which have none.

    Args:
        rows: scored models.
        tasks: the headline tasks; their mean is reported as `sts-avg`.
        main_layers: pooled layers of the headline numbers.
        draws: resampled scores.

    Returns:
        One dict per group and task: recipe, kind, task, max, mean, std (of the sample; 0 for one model) and
        n; grid models also have lower_bound. Where there are `draws`, those of `sts-avg` have low and high, the 95 %
        interval of the mean.
    """
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        if row.counts(main_layers):
            groups.setdefault((row.recipe, row.kind, row.lower_bound), []).append(row)
    summary = []
    for (recipe, kind, lower_bound), members in groups.items():
        bound = {} if lower_bound is None else {"lower_bound": lower_bound}
        columns = {task: [row.spearman(task) for row in members] for task in task_names(members)}
        columns[AVERAGE] = [row.average(tasks) for row in members]
        for task, values in columns.items():
            present = [value for value in values if value is not None]
            if present:
                ends = _ends((draws or {}).get((recipe, kind, "mean"))) if task == AVERAGE and not bound else {}
                summary.append({"recipe": recipe, "kind": kind, **bound, "task": task, **_statistics(present), **ends})
    return summary


def _ends(draws_R: np.ndarray | None) -> dict[str, float]:
    found = interval(draws_R) if draws_R is not None else None
    return {} if found is None else dict(zip(("low", "high"), found))


def task_names(rows: Iterable[Row]) -> list[str]:
    """Returns the tasks that rows were scored on, in first-seen order."""
    return list(dict.fromkeys(task for row in rows for task in row.metrics))


def _statistics(values: Sequence[float]) -> dict[str, float | int]:
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"max": max(values), "mean": statistics.fmean(values), "std": std, "n": len(values)}


def headline_groups(summary: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns (recipe, kind) of every line of the headline table in reading order, grid models left out.

    From the cheapest to the final model: words alone, the base, then for every ensemble its members, their
    mean and its learners, each followed by its calibrated version.

    >>> entry = {"task": "sts-avg"}
    >>> learner, base = {"recipe": "ct-sed", "kind": "learner"}, {"recipe": "base", "kind": "base"}
    >>> headline_groups([learner | entry, base | entry])
    [('base', 'base'), ('ct-sed', 'learner')]
    """
    groups = list(dict.fromkeys((entry["recipe"], entry["kind"]) for entry in summary if entry["task"] == AVERAGE))
    families = list(dict.fromkeys(_family(recipe) for recipe, kind in groups if kind not in ("baseline", "base")))

    def place(group: tuple[str, str]) -> tuple:
        recipe, kind = group
        family = families.index(_family(recipe)) if _family(recipe) in families else -1
        return family, _KIND_ORDER.index(kind), len(calibration_of(recipe))

    return sorted((group for group in groups if group[1] != "grid"), key=place)


def labels_of(recipe: str, labels: Mapping[str, str] = LABELS) -> str:
    """Returns which labels a recipe trains on.

    Args:
        recipe: e.g. `nli-ct-sed`.
        labels: what stages train on, by stage.

    >>> labels_of("ct-sed-flow"), labels_of("nli-ct-sed"), labels_of("nli-sts")
    ('none', 'NLI', 'NLI + STS')
    """
    used = dict.fromkeys(labels[stage] for stage in _stages(recipe)[0] if stage in labels)
    return " + ".join(used) or NO_LABELS


def display_name(recipe: str, kind: str, n: int = 1) -> str:
    """Returns what a table calls a group of models.

    >>> display_name("ct", "member", 10), display_name("ct-sed-flow", "learner"), display_name("tf-idf", "baseline")
    ('members (10)', 'learner + flow', 'TF-IDF')
    """
    if kind == "baseline":
        return _BASELINE_NAMES.get(recipe, recipe)
    name = _KIND_NAMES[kind] if kind != "learner" or n == 1 else "learners"
    count = f" ({n})" if kind in ("member", "grid") or n > 1 else ""
    return " + ".join([name, *calibration_of(recipe)]) + count


def groups_of(summary: Iterable[Mapping[str, Any]], task: str = AVERAGE) -> Groups:
    """Returns the entries of one task by (recipe, kind) in reading order, grid models left out."""
    entries = {(entry["recipe"], entry["kind"]): entry for entry in summary if entry["task"] == task}
    return {group: entries[group] for group in headline_groups(summary) if group in entries}


def findings(
    rows: Sequence[Row],
    tasks: Sequence[str],
    main_layers: int | str,
    dev: str | None = None,
    exported: str | None = None,
    labels: Mapping[str, str] = LABELS,
    draws: Draws | None = None,
    fitted_on: str | None = None,
    learners: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Returns in words what helped and what did not, computed from the headline scores.

    For every ensemble: its members against the base and against the members that they continue, their mean against
    the best of them, the learner against both, every calibration against the same model without it, and the end of
    the chain against the best of all rows that nothing was trained for; several ensembles have a paragraph each. Then
    what labels buy, and which calibrations make the dev score worse. What was not part of the run is not mentioned. A
    group of several models counts with its mean, and a difference below 0.1 is called none.

    Args:
        rows: scored models.
        tasks: the headline tasks.
        main_layers: pooled layers of the headline numbers.
        dev: the task that choices are made on.
        exported: recipe of the exported model.
        labels: what stages train on, by stage.
        draws: resampled scores; with them every difference comes with its 95 % interval.
        fitted_on: `flow.fit_on`, what calibrations have seen.
        learners: of each group of learners `recipe`, `updates`, `distance` from their members' mean, and
            `members_distance`, that of the members themselves.
    """
    summary = summarise(rows, tasks, main_layers)
    scores = _Scores(groups_of(summary), draws or {})
    families = list(dict.fromkeys(_family(recipe) for recipe, kind in scores.groups if kind not in _UNTRAINED))
    several = len(families) > 1
    sentences = [_join(_calibration_clauses("base", scores))]
    sentences += [_about(family, scores, learners, named=several) for family in families]
    sentences += [_what_labels_buy(scores, labels), _worse_on_dev(groups_of(summary, dev), dev, exported)]
    if any(sentences):
        notes = [_words_alone(scores), _what_was_seen(scores, fitted_on), _INTERVALS if draws else ""]
        return ("\n\n" if several else " ").join(filter(None, [*sentences, " ".join(filter(None, notes))]))
    alone = [f"{display_name(recipe, kind)} {entry['mean']:.1f}" for (recipe, kind), entry in scores.groups.items()]
    return f"Nothing to compare: {', '.join(alone) or 'no model was scored on the headline tasks'}."


@dataclass(frozen=True)
class _Scores:
    """The groups' scores and, where there are some, their resampled scores."""

    groups: Groups
    draws: Draws

    def get(self, group: tuple[str, str]) -> Mapping[str, Any] | None:
        return self.groups.get(group)

    def difference(self, a: tuple[str, str, str], b: tuple[str, str, str]) -> "_Difference":
        """Of two groups' scores, each the `mean` or, as `best`, the `max` of its models."""
        values = [self.groups[group[:2]]["max" if group[2] == "best" else "mean"] for group in (a, b)]
        draws = [self.draws.get(group) for group in (a, b)]
        known = None if any(draws_R is None for draws_R in draws) else interval(draws[0] - draws[1])
        return _Difference(values[0] - values[1], known)


@dataclass(frozen=True)
class _Difference:
    value: float
    interval: tuple[float, float] | None = None

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


def _about(family: str, scores: _Scores, learners: Sequence[Mapping[str, Any]], named: bool) -> str:
    """All about one ensemble and what came of it; several are told apart by name."""
    texts = [
        _join(_ensemble_clauses(family, scores)),
        _join(_learner_clauses(family, scores) + _calibration_clauses(family, scores)),
        *(_too_few_updates(learner) for learner in learners if _family(learner["recipe"]) == family),
        _bottom_line(family, scores),
    ]
    text = " ".join(filter(None, texts))
    return f"{family.upper()}: {text}" if named and text and not text.startswith(family.upper()) else text


def _ensemble_clauses(family: str, scores: _Scores) -> list[str]:
    members, ensemble = scores.get((family, "member")), scores.get((family, "ensemble"))
    base = scores.get(("base", "base"))
    clauses = []
    if members and base:
        difference = scores.difference((family, "member", "mean"), ("base", "base", "mean"))
        best = f" on average over {members['n']} members (std {members['std']:.1f}, best {{:+.1f}})"
        effect = _effect(family.upper(), "the base", difference)
        clauses.append(effect + (best.format(members["max"] - base["mean"]) if members["n"] > 1 else ""))
    clauses += _continuation_clauses(family, scores)
    if members and ensemble:
        difference = scores.difference((family, "ensemble", "mean"), (family, "member", "best"))
        clauses.append(f"the ensemble is {_position(difference)} its best member")
    return clauses


def _continuation_clauses(family: str, scores: _Scores) -> list[str]:
    """The members against those of the longest prefix that was scored: what the later stages brought."""
    stages, members = family.split("-"), scores.get((family, "member"))
    for cut in reversed(range(1, len(stages))):
        before = "-".join(stages[:cut])
        if members and scores.get((before, "member")):
            difference = scores.difference((family, "member", "mean"), (before, "member", "mean"))
            return [_effect("-".join(stages[cut:]).upper(), f"the members of {before.upper()}", difference)]
    return []


def _learner_clauses(family: str, scores: _Scores) -> list[str]:
    learner = f"{family}-sed".strip("-"), "learner", "mean"
    others = {"the best member": (family, "member", "best"), "the ensemble": (family, "ensemble", "mean")}
    others = {name: group for name, group in others.items() if scores.get(group[:2])}
    if not scores.get(learner[:2]) or not others:
        return []
    positions = [f"{_position(scores.difference(learner, group))} {name}" for name, group in others.items()]
    count = scores.get(learner[:2])["n"]
    names = "the learner is" if count == 1 else f"the {count} learners are on average"
    return [f"{names} {' and '.join(positions)}"]


def _too_few_updates(learner: Mapping[str, Any]) -> str:
    """A learner that is farther from the members' mean than the members are has learnt less than they know."""
    if learner["distance"] <= learner["members_distance"]:
        return ""
    return (
        f"The learner is still farther from the members' mean than the members are (mean squared distance "
        f"{learner['distance']:.2g} against {learner['members_distance']:.2g}) after {learner['updates']:,} updates: "
        "it needs more of them (sed.epochs, a larger corpus) or a higher sed.learning_rate."
    )


def _calibration_clauses(family: str, scores: _Scores) -> list[str]:
    clauses = []
    for recipe, kind in scores.groups:
        stages, calibration = _stages(recipe)
        plain = "-".join(stages), kind
        if kind != "baseline" and calibration and scores.get(plain) and _family(recipe) == family:
            cause = " with ".join(CALIBRATIONS[stage] for stage in calibration)
            what = f"the {_KIND_NAMES[kind].removeprefix('full ')}"
            clauses.append(_effect(cause, what, scores.difference((recipe, kind, "mean"), (*plain, "mean"))))
    return clauses


def _bottom_line(family: str, scores: _Scores) -> str:
    """The end of the chain against the best of what needs no training: what training brought in all."""
    chain = [group for group in scores.groups if _family(group[0]) == family and group[1] in ("ensemble", "learner")]
    untrained = [group for group in scores.groups if group[1] in _UNTRAINED]
    if not chain or not untrained:
        return ""
    best = max(untrained, key=lambda group: scores.groups[group]["mean"])
    difference = scores.difference((*chain[-1], "mean"), (*best, "mean"))
    names = [f"{display_name(*group)} ({scores.groups[group]['mean']:.1f})" for group in (chain[-1], best)]
    return f"In all, {names[0]} is {_position(difference)} {names[1]}, the best of what needs no training."


def _words_alone(scores: _Scores) -> str:
    found = [
        f"{display_name(recipe, kind)} {entry['mean']:.1f}"
        for (recipe, kind), entry in scores.groups.items()
        if kind == "baseline"
    ]
    return f"Without a model: {', '.join(found)}." if found else ""


def _what_was_seen(scores: _Scores, fitted_on: str | None) -> str:
    if fitted_on is None or not any(calibration_of(recipe) for recipe, kind in scores.groups if kind != "baseline"):
        return ""
    return _FITTED_ON.get(fitted_on, f"The calibrations were fitted on {fitted_on}.")


def _what_labels_buy(scores: _Scores, labels: Mapping[str, str]) -> str:
    """The best learner without labels against the best with each kind of labels (SED table 4)."""
    best: dict[str, str] = {}
    for recipe, kind in scores.groups:
        used = labels_of(recipe, labels)
        if kind == "learner" and (used not in best or _mean_of(recipe, scores) > _mean_of(best[used], scores)):
            best[used] = recipe
    without = best.pop(NO_LABELS, "")
    if not without or not best:
        return ""
    others = []
    for used, recipe in best.items():
        difference = scores.difference((recipe, "learner", "mean"), (without, "learner", "mean"))
        others.append(
            f"with {used} labels it is {recipe} ({_mean_of(recipe, scores):.1f}), {_position(difference)} that"
        )
    return "; ".join([f"Without labels the best learner is {without} ({_mean_of(without, scores):.1f})", *others]) + "."


def _mean_of(recipe: str, scores: _Scores) -> float:
    return scores.groups[recipe, "learner"]["mean"]


def _worse_on_dev(scores: Groups, dev: str | None, exported: str | None) -> str:
    """The calibrations that lower the dev score, and what the export makes of it."""
    clauses = []
    for (recipe, kind), calibrated in scores.items():
        stages, calibration = _stages(recipe)
        before = "-".join(stages)
        plain = scores.get((before, kind))
        # Nothing is chosen by an ensemble's score, and its members' scores say the same.
        if not calibration or not plain or kind == "ensemble" or _none(calibrated["mean"] - plain["mean"]):
            continue
        if calibrated["mean"] < plain["mean"]:
            loss = f"{recipe} scores {plain['mean'] - calibrated['mean']:.1f} below {before}"
            taken = f", and {before} is exported" if exported == before else ""
            clauses.append(f"{loss} ({calibrated['mean']:.1f} against {plain['mean']:.1f}){taken}")
    return f"On {dev}, the task that choices are made on, {'; '.join(clauses)}." if clauses else ""


def _stages(recipe: str) -> tuple[list[str], list[str]]:
    """Training stages and calibrations of a recipe."""
    stages = recipe.split("-")
    cut = next((i for i, stage in enumerate(stages) if stage in CALIBRATIONS), len(stages))
    return stages[:cut], stages[cut:]


def calibration_of(recipe: str) -> list[str]:
    """Returns the calibrations that a recipe ends in; baselines have none.

    >>> calibration_of("ct-sed-flow"), calibration_of("tf-idf")
    (['flow'], [])
    """
    return _stages(recipe)[1]


def _family(recipe: str) -> str:
    """The recipe of the members that a model goes back to: `ct` for `ct-sed-flow`."""
    return "-".join(stage for stage in _stages(recipe)[0] if stage != "sed")


def _effect(cause: str, what: str, difference: _Difference) -> str:
    if difference.is_none:
        return f"{cause} made no difference to {what}{difference.in_brackets()}"
    verb = "raised" if difference.value > 0 else "lowered"
    return f"{cause} {verb} {what} by {abs(difference.value):.1f}{difference.in_brackets()}"


def _position(difference: _Difference) -> str:
    brackets = difference.in_brackets()
    if difference.is_none:
        return f"no different{brackets} from"
    return f"{abs(difference.value):.1f}{brackets} {'above' if difference.value > 0 else 'below'}"


def _none(difference: float) -> bool:
    return abs(difference) < NO_DIFFERENCE - 1e-9


def _join(clauses: Sequence[str]) -> str:
    text = "; ".join(clauses)
    return text[0].upper() + text[1:] + "." if text else ""

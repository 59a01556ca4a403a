"""What a run found: one row per scored model, the statistics of groups of rows, and the conclusion in words.

Everything here is computed from plain rows, so that a sentence can be checked without training anything.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    "baseline": "word overlap",
    "base": "base",
    "grid": "grid models",
    "member": "members",
    "ensemble": "full ensemble",
    "learner": "learner",
}


@dataclass(frozen=True)
class Row:
    """One scored model at one pooling depth."""

    recipe: str
    """As in the run's list, e.g. `ct-sed-flow`; `base`, `base-flow`; `word-overlap`."""
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


def summarise(rows: Iterable[Row], tasks: Sequence[str], main_layers: int | str) -> list[dict[str, Any]]:
    """Returns the statistics of every group of like models (SED table 3).

    A group shares recipe, kind and lower bound. Only rows at the main pooling depth count, and baselines,
    which have none.

    Args:
        rows: scored models.
        tasks: the headline tasks; their mean is reported as `sts-avg`.
        main_layers: pooled layers of the headline numbers.

    Returns:
        One dict per group and task: recipe, kind, task, max, mean, std (of the sample; 0 for one model) and
        n; grid models also have lower_bound.
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
                summary.append({"recipe": recipe, "kind": kind, **bound, "task": task, **_statistics(present)})
    return summary


def task_names(rows: Iterable[Row]) -> list[str]:
    """Returns the tasks that rows were scored on, in first-seen order."""
    return list(dict.fromkeys(task for row in rows for task in row.metrics))


def _statistics(values: Sequence[float]) -> dict[str, float | int]:
    std = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"max": max(values), "mean": statistics.fmean(values), "std": std, "n": len(values)}


def headline_groups(summary: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns (recipe, kind) of every line of the headline table in reading order, grid models left out.

    From the cheapest to the final model: word overlap, the base, then for every ensemble its members, their
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
        return family, _KIND_ORDER.index(kind), len(_calibration(recipe))

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

    >>> display_name("ct", "member", 10), display_name("ct-sed-flow", "learner")
    ('members (10)', 'learner + flow')
    """
    name = _KIND_NAMES[kind] if kind != "learner" or n == 1 else "learners"
    count = f" ({n})" if kind in ("member", "grid") or n > 1 else ""
    return " + ".join([name, *_calibration(recipe)]) + count


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
) -> str:
    """Returns in words what helped and what did not, computed from the headline scores.

    For every ensemble: its members against the base and against the members that they continue, their mean against
    the best of them, the learner against both, every calibration against the same model without it, and the end of
    the chain against the base under the same calibration; several ensembles have a paragraph each. Then what labels
    buy, and which calibrations make the dev score worse. What was not part of the run is not mentioned. A group of
    several models counts with its mean, and a difference below 0.1 is called none.

    Args:
        rows: scored models.
        tasks: the headline tasks.
        main_layers: pooled layers of the headline numbers.
        dev: the task that choices are made on.
        exported: recipe of the exported model.
        labels: what stages train on, by stage.
    """
    summary = summarise(rows, tasks, main_layers)
    scores = groups_of(summary)
    families = list(dict.fromkeys(_family(recipe) for recipe, kind in scores if kind not in ("baseline", "base")))
    several = len(families) > 1
    sentences = [_join(_calibration_clauses("base", scores))]
    sentences += [_about(family, scores, named=several) for family in families]
    sentences += [_what_labels_buy(scores, labels), _worse_on_dev(groups_of(summary, dev), dev, exported)]
    if any(sentences):
        return ("\n\n" if several else " ").join(filter(None, [*sentences, _overlap(scores)]))
    alone = [f"{display_name(recipe, kind)} {entry['mean']:.1f}" for (recipe, kind), entry in scores.items()]
    return f"Nothing to compare: {', '.join(alone) or 'no model was scored on the headline tasks'}."


def _about(family: str, scores: Groups, named: bool) -> str:
    """All about one ensemble and what came of it; several are told apart by name."""
    texts = [
        _join(_ensemble_clauses(family, scores)),
        _join(_learner_clauses(family, scores) + _calibration_clauses(family, scores)),
        _bottom_line(family, scores),
    ]
    text = " ".join(filter(None, texts))
    return f"{family.upper()}: {text}" if named and text and not text.startswith(family.upper()) else text


def _ensemble_clauses(family: str, scores: Groups) -> list[str]:
    members, ensemble = scores.get((family, "member")), scores.get((family, "ensemble"))
    base = scores.get(("base", "base"))
    clauses = []
    if members and base:
        effect = _effect(family.upper(), "the base", members["mean"] - base["mean"])
        best = f" on average over {members['n']} members (std {members['std']:.1f}, best {{:+.1f}})"
        clauses.append(effect + (best.format(members["max"] - base["mean"]) if members["n"] > 1 else ""))
    clauses += _continuation_clauses(family, scores)
    if members and ensemble:
        clauses.append(f"the ensemble is {_position(ensemble['mean'] - members['max'])} its best member")
    return clauses


def _continuation_clauses(family: str, scores: Groups) -> list[str]:
    """The members against those of the longest prefix that was scored: what the later stages brought."""
    stages, members = family.split("-"), scores.get((family, "member"))
    for cut in reversed(range(1, len(stages))):
        before = "-".join(stages[:cut])
        if members and (before, "member") in scores:
            difference = members["mean"] - scores[before, "member"]["mean"]
            return [_effect("-".join(stages[cut:]).upper(), f"the members of {before.upper()}", difference)]
    return []


def _learner_clauses(family: str, scores: Groups) -> list[str]:
    learner = scores.get((f"{family}-sed".strip("-"), "learner"))
    members, ensemble = scores.get((family, "member")), scores.get((family, "ensemble"))
    others = [(members["max"], "the best member")] if members else []
    others += [(ensemble["mean"], "the ensemble")] if ensemble else []
    if not learner or not others:
        return []
    positions = [f"{_position(learner['mean'] - score)} {name}" for score, name in others]
    return [f"the learner is {' and '.join(positions)}"]


def _calibration_clauses(family: str, scores: Groups) -> list[str]:
    clauses = []
    for (recipe, kind), calibrated in scores.items():
        stages, calibration = _stages(recipe)
        plain = scores.get(("-".join(stages), kind))
        if calibration and plain and _family(recipe) == family:
            cause = " with ".join(CALIBRATIONS[stage] for stage in calibration)
            what = f"the {_KIND_NAMES[kind].removeprefix('full ')}"
            clauses.append(_effect(cause, what, calibrated["mean"] - plain["mean"]))
    return clauses


def _bottom_line(family: str, scores: Groups) -> str:
    """The end of the chain against the base under the same calibration: what training brought in all."""
    chain = [group for group in scores if _family(group[0]) == family and group[1] in ("ensemble", "learner")]
    if not chain:
        return ""
    recipe, kind = chain[-1]
    other = "-".join(["base", *_calibration(recipe)])
    final, base = scores[recipe, kind], scores.get((other, "base"))
    if not base:
        return ""
    difference = _position(final["mean"] - base["mean"])
    names = display_name(recipe, kind), display_name(other, "base")
    return f"In all, {names[0]} ({final['mean']:.1f}) is {difference} {names[1]} ({base['mean']:.1f})."


def _overlap(scores: Groups) -> str:
    score = next((entry["mean"] for (_, kind), entry in scores.items() if kind == "baseline"), None)
    return f"Word overlap alone scores {score:.1f}." if score is not None else ""


def _what_labels_buy(scores: Groups, labels: Mapping[str, str]) -> str:
    """The best learner without labels against the best with each kind of labels (SED table 4)."""
    best: dict[str, tuple[str, float]] = {}
    for (recipe, kind), entry in scores.items():
        used = labels_of(recipe, labels)
        if kind == "learner" and (used not in best or entry["mean"] > best[used][1]):
            best[used] = recipe, entry["mean"]
    recipe, without = best.pop(NO_LABELS, ("", 0.0))
    if not recipe or not best:
        return ""
    others = [
        f"with {used} labels it is {other} ({score:.1f}), {_position(score - without)} that"
        for used, (other, score) in best.items()
    ]
    return "; ".join([f"Without labels the best learner is {recipe} ({without:.1f})", *others]) + "."


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


def _calibration(recipe: str) -> list[str]:
    return _stages(recipe)[1]


def _family(recipe: str) -> str:
    """The recipe of the members that a model goes back to: `ct` for `ct-sed-flow`."""
    return "-".join(stage for stage in _stages(recipe)[0] if stage != "sed")


def _effect(cause: str, what: str, difference: float) -> str:
    if _none(difference):
        return f"{cause} made no difference to {what}"
    return f"{cause} {'raised' if difference > 0 else 'lowered'} {what} by {abs(difference):.1f}"


def _position(difference: float) -> str:
    if _none(difference):
        return "no different from"
    return f"{abs(difference):.1f} {'above' if difference > 0 else 'below'}"


def _none(difference: float) -> bool:
    return abs(difference) < NO_DIFFERENCE - 1e-9


def _join(clauses: Sequence[str]) -> str:
    text = "; ".join(clauses)
    return text[0].upper() + text[1:] + "." if text else ""

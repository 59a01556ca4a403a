"""Score teachers alone and combined at full width, from existing embeddings, and choose which to keep."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from raysed.config import CombinationConfig
from raysed.model.combination import MOST_EXHAUSTIVE, choose_teachers, combined, prepared
from raysed.score.intervals import NO_DIFFERENCE, Difference, interval, resample
from raysed.score.tasks import Evaluation, ModelScores, mean_score
from raysed.store.progress import steps
from raysed.store.text import number

Subset = tuple[int, ...]
"""Ascending indices of teachers."""


class Ensemble:
    """Teachers scored alone and combined; each subset is scored at most once per task.

    Args:
        embeddings: for each of K teachers, the embeddings of the evaluation's sentences, [U, D_k].
    """

    def __init__(self, evaluation: Evaluation, config: CombinationConfig, embeddings: Sequence[np.ndarray]):
        self._evaluation, self._config, self._embeddings = evaluation, config, embeddings
        self._prepared = [prepared(config.how, x_UD).astype(np.float32) for x_UD in embeddings]
        self._everyone = tuple(range(len(embeddings)))
        self._scores: dict[tuple[Subset, str], ModelScores] = {}

    def choose(self, dev: Sequence[str]) -> dict[str, Any]:
        """Choose the subset to keep by its mean score on `dev`; return `dev`, `chosen` and all `tried`, best first."""

        def score(subset: Subset) -> float:
            # Rounded: noise must not break ties. An undefined score counts as chance.
            return round(self._mean(subset, dev) or 0.0, 6)

        count = len(self._everyone)
        tries = 2**count - 1 if count <= MOST_EXHAUSTIVE else count * (count + 1) // 2
        with steps("combine teachers", tries * len(dev)) as self._begin:
            chosen, tried = choose_teachers(count, score, NO_DIFFERENCE)
        found = [{"teachers": list(subset), "dev": value} for subset, value in tried.items()]
        return {"dev": list(dev), "chosen": list(chosen), "tried": sorted(found, key=lambda one: -one["dev"])}

    def gain(self, tasks: Sequence[str], choice: Mapping[str, Any]) -> dict[str, Any]:
        """Score each teacher alone, all but one, all together, and the subset of `choice` (from `choose`), if any.

        Returns:
            Plain types: the content of `choice`, `tasks`, `kinds` (tasks by kind) and `rows`. A row has its `teachers`,
            its score on each of `tasks`, and its `scores` by column (`mean`, and each of several kinds). A row of
            several teachers also has its `gains` over the best single one, by column.
        """
        everyone, tried = self._everyone, {tuple(one["teachers"]): one["dev"] for one in choice.get("tried", [])}
        shown = [*combinations(everyone, 1), *combinations(everyone, len(everyone) - 1), everyone]
        shown = list(dict.fromkeys([*shown, *([tuple(choice["chosen"])] if choice else [])]))
        kinds: dict[str, list[str]] = {}
        for name in tasks:
            kinds.setdefault(self._evaluation.tasks[name].kind, []).append(name)
        columns, draws = {"mean": list(tasks), **(kinds if len(kinds) > 1 else {})}, {}
        with steps("compare teachers", len(shown) * len(tasks) + 1) as self._begin:
            scores = {subset: {column: self._mean(subset, of) for column, of in columns.items()} for subset in shown}
            self._begin("intervals")
            for seed, (kind, of) in enumerate(kinds.items()):  # each kind has its own draws
                outcomes = {some: [{name: self._scored(some, name).outcomes[name] for name in of}] for some in shown}
                draws[kind] = resample(self._evaluation, outcomes, of, seed=seed)
        share = {kind: len(of) / len(tasks) for kind, of in kinds.items()}
        draws["mean"] = {subset: sum(share[kind] * draws[kind][subset] for kind in kinds) for subset in shown}
        rows = []
        for subset in shown:
            each = {name: self._mean(subset, [name]) for name in tasks}
            row = {"teachers": list(subset), "dev": tried.get(subset), "tasks": each, "scores": scores[subset]}
            row["gains"] = dict.fromkeys(columns if len(subset) > 1 else ())
            for column in row["gains"]:
                best = max(everyone, key=lambda k, column=column: scores[k,][column] or 0.0)
                score, of_best = scores[subset][column], scores[best,][column]
                if score is not None and of_best is not None:
                    ends = interval(draws[column][subset] - draws[column][best,])
                    row["gains"][column] = {"over": best, "value": score - of_best, "ends": ends and list(ends)}
            rows.append(row)
        return {**choice, "tasks": list(tasks), "kinds": kinds, "rows": rows}

    def _mean(self, subset: Subset, tasks: Sequence[str]) -> float | None:
        return mean_score({name: self._scored(subset, name).metrics[name] for name in tasks}, tasks)

    def _scored(self, subset: Subset, task: str) -> ModelScores:
        if (subset, task) not in self._scores:
            self._begin(f"{task} by {len(subset)} of {len(self._everyone)}")
            rows, weights = self._evaluation.rows(task), self._config.weights or [1.0] * len(self._everyone)
            x_BD = self._embeddings[subset[0]][rows]
            if len(subset) > 1:
                parts = [self._prepared[k][rows] for k in subset]
                x_BD = combined(self._config.how, [weights[k] for k in subset], parts)
            self._scores[subset, task] = self._evaluation.score({task: x_BD})
        return self._scores[subset, task]


def by_title(found: Mapping[str, Any], titles: Sequence[str]) -> dict[str, Any]:
    """Replace teachers' indices by their names in the result of `Ensemble.gain`."""
    result = {"teachers": list(titles), **found}
    if "chosen" in found:
        result["chosen"] = [titles[k] for k in found["chosen"]]
    for entries in ("tried", "rows"):
        if entries in found:
            named = [{**entry, "teachers": [titles[k] for k in entry["teachers"]]} for entry in found[entries]]
            result[entries] = named
    for row in result["rows"]:
        gains = row["gains"].items()
        row["gains"] = {column: gain and {**gain, "over": titles[gain["over"]]} for column, gain in gains}
    return result


def summary_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on the gain of all teachers together, and of the subset chosen on dev."""
    rows, everyone = {tuple(row["teachers"]): row for row in found["rows"]}, found["teachers"]
    on, all_of_them = _mean_of(found["tasks"]), "both" if len(everyone) == 2 else f"all {len(everyone)}"
    together = rows[tuple(everyone)]
    gain = together["gains"]["mean"]
    if gain is None:
        yield f"On {on}, the score of a teacher is undefined, so teachers cannot be compared."
        return
    yield (
        f"On {on}, {gain['over']} is the best single teacher with {rows[gain['over'],]['scores']['mean']:.1f}; "
        f"{all_of_them} together score {together['scores']['mean']:.1f}, {_against(gain, 'it')}."
    )
    if "chosen" not in found:
        return
    chosen = rows[tuple(found["chosen"])]
    names = " + ".join(found["chosen"]) if len(found["chosen"]) > 1 else f"{found['chosen'][0]} alone"
    names = f"{all_of_them} together" if found["chosen"] == everyone else names
    best = f"Best on {_mean_of(found['dev'])}: {names}, with {number(chosen['dev'], '.1f')}."
    if set(found["dev"]) & set(found["tasks"]):
        yield (
            f"{best} They were chosen by these same scores, so part of the gain is luck: choose on one task and "
            "compare on others."
        )
    elif chosen is together:
        yield best
    elif gain := chosen["gains"].get("mean"):
        yield f"{best} On {on}, which did not influence the choice, that is {_against(gain, gain['over'])}."
    else:
        score = number(chosen["scores"]["mean"], ".1f")
        yield f"{best} On {on}, which did not influence the choice, it scores {score}."


def _mean_of(tasks: Sequence[str]) -> str:
    return f"the mean over {', '.join(tasks)}" if len(tasks) > 1 else tasks[0]


def _against(gain: Mapping[str, Any], other: str) -> str:
    return Difference(gain["value"], gain["ends"]).against(other)

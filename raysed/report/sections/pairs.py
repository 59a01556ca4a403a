"""The pairs that say most about the model: where it changed most, and where it fails.

A model's error on a pair is the difference between the ranks of its cosine and of the graded score.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from raysed.recipe import BASE, parse_recipe
from raysed.report.charts import BLUE, GREEN, ORANGE, Chart
from raysed.report.results import PairComparison, RunResults
from raysed.report.section import Block, Section
from raysed.score.lexical import word_edits
from raysed.score.metrics import ranks, spearman
from raysed.store.text import Table, shortened

_LONGEST = 80
"""Characters shown of a sentence."""
_NEAR = 4
"""BERT-flow figure 2 marks pairs up to this edit distance."""
_MOST_EDITED = 2000
"""Pairs whose edit distance a report computes."""


def worst_pairs(comparison: PairComparison, count: int = 10) -> list[dict[str, Any]]:
    """Return the pairs that the chosen model ranks farthest from their graded rank, worst first."""
    if not np.isfinite(comparison.after_P).all():
        return []
    gold_P, cosine_P = _ranks(comparison.gold_P), _ranks(comparison.after_P)
    numbers = {"cosine": comparison.after_P, "rank_by_score": gold_P, "rank_by_cosine": cosine_P}
    return _largest(np.abs(gold_P - cosine_P), count, numbers, comparison)


def changed_pairs(comparison: PairComparison, count: int = 5) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs whose error the chosen model lowered most (`better`) and raised most (`worse`).

    >>> texts = ["It rains.", "It snows.", "It hails."]
    >>> gold, before, after = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1]), np.array([0.1, 0.3, 0.2])
    >>> found = changed_pairs(PairComparison("dev", "ct", texts, texts, gold, before, after))
    >>> {kind: [pair["sentence1"] for pair in pairs] for kind, pairs in found.items()}
    {'better': ['It rains.', 'It hails.'], 'worse': ['It snows.']}
    """
    if not np.isfinite([comparison.before_P, comparison.after_P]).all():
        return {"better": [], "worse": []}
    gold_P, before_P, after_P = map(_ranks, (comparison.gold_P, comparison.before_P, comparison.after_P))
    gains_P = np.abs(before_P - gold_P) - np.abs(after_P - gold_P)
    numbers = {"cosine_before": comparison.before_P, "cosine_after": comparison.after_P}
    numbers |= {"rank_by_score": gold_P, "rank_before": before_P, "rank_after": after_P}
    return {
        kind: _largest(by_P, count, numbers, comparison) for kind, by_P in (("better", gains_P), ("worse", -gains_P))
    }


def _largest(
    by_P: np.ndarray, count: int, numbers: Mapping[str, np.ndarray], comparison: PairComparison
) -> list[dict[str, Any]]:
    found = []
    for row in (row for row in np.argsort(-by_P, kind="stable")[:count] if by_P[row] > 0):
        texts = {"sentence1": comparison.first[row], "sentence2": comparison.second[row]}
        pair = {key: float(values[row]) for key, values in {"score": comparison.gold_P, **numbers}.items()}
        found.append(pair | {key: shortened(text, _LONGEST) for key, text in texts.items()})
    return found


def _ranks(values_P: np.ndarray) -> np.ndarray:
    """Return ranks from 0 (least) to 100 (most); ties share their mean."""
    return (ranks(values_P) - 1) / max(len(values_P) - 1, 1) * 100


def _changes(run: RunResults) -> dict[str, Any]:
    comparison = run.pair_comparison
    pairs = changed_pairs(comparison) if comparison else {}
    return {"task": comparison.task, "model": comparison.model, **pairs} if any(pairs.values()) else {}


def _failures(run: RunResults) -> dict[str, Any]:
    pairs = run.pair_comparison and worst_pairs(run.pair_comparison)
    return {"task": run.pair_comparison.task, "model": run.pair_comparison.model, "pairs": pairs} if pairs else {}


def pairs_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """Return pairs from `worst_pairs` or `changed_pairs` as a table."""
    columns = {"sentence": lambda pair: pair["sentence1"], "other sentence": lambda pair: pair["sentence2"]}
    for key in pairs[0]:
        if not key.startswith("sentence"):
            style = ".0f" if key.startswith("rank") else ".2f"
            columns[key.replace("_", " ")] = lambda pair, key=key, style=style: format(pair[key], style)
    return Table.of(pairs, columns, text=2, is_stacked=True)


def _changes_blocks(changes: Mapping[str, Any], run: RunResults) -> Iterator[Block]:
    model = f"{changes['model']} on {changes['task']}"
    for kind, direction in {"better": "closer to", "worse": "farther from"}.items():
        if changes[kind]:
            yield f"{kind.title()}: pairs that {model} ranks {direction} the graded order than the original encoder."
            yield pairs_table(changes[kind])


def agreement_chart(comparison: PairComparison) -> Chart | None:
    """Chart cosines against graded scores with the means of ten bins, a panel per model with finite cosines."""
    gold_P, cosines = comparison.gold_P, {BASE: comparison.before_P, comparison.model: comparison.after_P}
    cosines = {model: cosine_P for model, cosine_P in cosines.items() if np.isfinite(cosine_P).all()}
    if not cosines:
        return None
    # Jitter: with few distinct scores, dots would hide each other.
    moved_P = gold_P + np.random.default_rng(0).uniform(-0.006, 0.006, len(gold_P)) * np.ptp(gold_P)
    edges = np.linspace(gold_P.min(), gold_P.max(), 11)
    bin_P = np.minimum(np.searchsorted(edges, gold_P, side="right") - 1, 9)
    filled = [bin_P == i for i in np.unique(bin_P)]
    ends = [np.min(list(cosines.values())) - 0.05, np.max(list(cosines.values())) + 0.05]

    def draw(axes: Any, model: str, cosine_P: np.ndarray) -> None:
        alpha = min(0.5, 400 / len(gold_P))
        axes.scatter(moved_P, cosine_P, s=8, alpha=alpha, color=BLUE, linewidths=0, rasterized=True)
        golds, means = ([of_P[in_P].mean() for in_P in filled] for of_P in (gold_P, cosine_P))
        axes.plot(golds, means, "o-", markersize=4, color=ORANGE, label="mean cosine")
        for gold, mean in list(zip(golds, means))[::2]:
            axes.annotate(f"{mean:.2f}", (gold, mean), (0, 6), textcoords="offset points", ha="center")
        axes.set(title=model, xlabel=f"graded score of {comparison.task}", ylabel="cosine", ylim=ends)

    correlations = ", ".join(f"{model} {100 * spearman(found_P, gold_P):.1f}" for model, found_P in cosines.items())
    title = f"Cosines and graded scores on {comparison.task}; Spearman: {correlations}"
    return Chart("agreement", title, [partial(draw, model=model, cosine_P=x_P) for model, x_P in cosines.items()])


def edit_distance_chart(task: str, edits_P: np.ndarray, gold_P: np.ndarray, cosines: Mapping[str, np.ndarray]) -> Chart:
    """Chart edit distance in words against the gold score and each model's cosine, as BERT-flow's figure 2."""
    tenths = np.array_split(np.argsort(edits_P, kind="stable"), min(10, len(edits_P)))
    # Jitter: distances are whole numbers, and gold scores have few values.
    jitter_2P = np.random.default_rng(0).uniform(-1, 1, (2, len(edits_P)))
    moved_P, moved_gold_P = edits_P + 0.4 * jitter_2P[0], gold_P + 0.015 * np.ptp(gold_P) * jitter_2P[1]
    is_near_P = edits_P <= _NEAR
    alpha = min(0.5, 600 / len(edits_P))

    def draw(axes: Any, title: str, label: str, x_P: np.ndarray) -> None:
        for drawn_P, colour in ((~is_near_P, BLUE), (is_near_P, GREEN)):
            axes.scatter(x_P[drawn_P], moved_P[drawn_P], s=8, alpha=alpha, color=colour, linewidths=0, rasterized=True)
        axes.scatter([], [], s=16, color=GREEN, label=f"edit distance of at most {_NEAR}")
        means = ([values_P[rows].mean() for rows in tenths] for values_P in (x_P, edits_P))
        axes.plot(*means, "o-", markersize=4, color=ORANGE, label="mean of a tenth of the pairs, by edit distance")
        axes.set(title=title, xlabel=label, ylabel="edit distance, words")

    panels = [partial(draw, title="gold score", label=f"graded score of {task}", x_P=moved_gold_P)]
    panels += [partial(draw, title=model, label="cosine", x_P=cosine_P) for model, cosine_P in cosines.items()]
    similarities = {"gold score": gold_P, **cosines}
    correlations = ", ".join(f"{name} {100 * spearman(x_P, edits_P):.1f}" for name, x_P in similarities.items())
    title = f"Edit distance and similarity of {len(gold_P):,} pairs of {task}; Spearman: {correlations}"
    return Chart("edit-distance", title, panels)


def _edit_distance_blocks(data: None, run: RunResults) -> Iterator[Block]:
    comparison = run.pair_comparison
    if comparison is None or not parse_recipe(run.choice.model.recipe).calibration:
        return
    drawn = np.random.default_rng(0).permutation(len(comparison.gold_P))[:_MOST_EDITED]
    edits_P = word_edits(*([side[row] for row in drawn] for side in (comparison.first, comparison.second)))
    cosines = {BASE: comparison.before_P[drawn], comparison.model: comparison.after_P[drawn]}
    yield edit_distance_chart(comparison.task, edits_P, comparison.gold_P[drawn], cosines)


SECTIONS = [
    Section(
        "pairs",
        "Pairs",
        50,
        words="Ranks go from 0, the least alike of all pairs, to 100, the most alike.",
        blocks=lambda data, run: [run.pair_comparison and agreement_chart(run.pair_comparison)],
    ),
    Section("changes", "What got better and worse", 51, _changes, blocks=_changes_blocks, is_part=True),
    Section(
        "failures",
        "Where it fails",
        52,
        _failures,
        blocks=lambda found, run: [
            f"The pairs that {found['model']} on {found['task']} ranks farthest from the graded order.",
            pairs_table(found["pairs"]),
        ],
        is_part=True,
    ),
    Section(
        "edit-distance",
        "Wording and meaning",
        53,
        words="If cosines correlate with edit distance more than graded scores do, the model compares wording.",
        blocks=_edit_distance_blocks,
        is_part=True,
    ),
]

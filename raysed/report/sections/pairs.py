"""The pairs that say most about the model: where it changed most, and where it fails.

A model's error on a pair is the difference between the ranks of its cosine and of the graded score.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from raysed.recipe import BASE
from raysed.report.charts import BLUE, ORANGE, Chart
from raysed.report.results import PairComparison, RunResults
from raysed.report.section import Block, Section
from raysed.score.metrics import ranks, spearman
from raysed.store.text import Table, shortened

_LONGEST = 80
"""Characters shown of a sentence."""


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
]

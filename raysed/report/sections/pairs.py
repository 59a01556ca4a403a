"""The pairs that say most about the model: where it changed most, and where it fails.

A model's error on a pair is the difference between the ranks of its cosine and of the graded score.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raysed.report.results import PairComparison, RunResults
from raysed.report.section import Section
from raysed.score.metrics import ranks
from raysed.store.text import Table, shortened

_LONGEST, _SHOWN = 80, 5
"""Characters kept of a sentence, and pairs on the page."""


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


SECTIONS = [
    Section("changes", "", 51, _changes),
    Section(
        "failures",
        "Where it fails",
        52,
        _failures,
        blocks=lambda found, run: [
            f"The pairs of {found['task']} that {found['model']} ranks farthest from the graded order. Ranks go from "
            "0, the least alike of all pairs, to 100, the most alike.",
            pairs_table(found["pairs"][:_SHOWN]),
        ],
    ),
]

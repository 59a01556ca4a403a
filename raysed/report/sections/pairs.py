"""Pairs of sentences that say most about the model: those where it changed most, and those on which it fails.

A model's error on a pair is the difference of two ranks: that of its cosine, and that of the graded score.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysed.recipe import BASE
from raysed.report.charts import Chart, pairs_chart
from raysed.report.document import Report
from raysed.report.results import Judged, Run
from raysed.report.section import Block, Section
from raysed.score.metrics import ranks
from raysed.store.text import Table, shortened

_LONGEST = 80
"""Characters of a sentence that are shown."""


def worst_pairs(judged: Judged, count: int = 10) -> list[dict[str, Any]]:
    """Return the pairs that the chosen model ranks most differently than people do, the worst first."""
    if not np.isfinite(judged.after_P).all():
        return []
    gold_P, cosine_P = _ranks(judged.gold_P), _ranks(judged.after_P)
    numbers = {"cosine": judged.after_P, "rank_by_score": gold_P, "rank_by_cosine": cosine_P}
    return _largest(np.abs(gold_P - cosine_P), count, numbers, judged)


def changed_pairs(judged: Judged, count: int = 5) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs whose error the chosen model lowered most, as `better`, and raised most, as `worse`.

    >>> texts = ["It rains.", "It snows.", "It hails."]
    >>> gold, before, after = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1]), np.array([0.1, 0.3, 0.2])
    >>> found = changed_pairs(Judged("dev", "ct", texts, texts, gold, before, after))
    >>> {kind: [pair["sentence1"] for pair in pairs] for kind, pairs in found.items()}
    {'better': ['It rains.', 'It hails.'], 'worse': ['It snows.']}
    """
    if not np.isfinite([judged.before_P, judged.after_P]).all():
        return {"better": [], "worse": []}
    gold_P, before_P, after_P = map(_ranks, (judged.gold_P, judged.before_P, judged.after_P))
    gains_P = np.abs(before_P - gold_P) - np.abs(after_P - gold_P)
    numbers = {"cosine_before": judged.before_P, "cosine_after": judged.after_P}
    numbers |= {"rank_by_score": gold_P, "rank_before": before_P, "rank_after": after_P}
    return {kind: _largest(by_P, count, numbers, judged) for kind, by_P in (("better", gains_P), ("worse", -gains_P))}


def _largest(by_P: np.ndarray, count: int, numbers: Mapping[str, np.ndarray], judged: Judged) -> list[dict[str, Any]]:
    found = []
    for row in (row for row in np.argsort(-by_P, kind="stable")[:count] if by_P[row] > 0):
        texts = {"sentence1": judged.first[row], "sentence2": judged.second[row]}
        pair = {key: float(values[row]) for key, values in {"score": judged.gold_P, **numbers}.items()}
        found.append(pair | {key: shortened(text, _LONGEST) for key, text in texts.items()})
    return found


def _ranks(values_P: np.ndarray) -> np.ndarray:
    """Return ranks from 0, the least, to 100, the most; equal values share their mean."""
    return (ranks(values_P) - 1) / max(len(values_P) - 1, 1) * 100


def pairs_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """Return pairs from `worst_pairs` or `changed_pairs` as a table."""
    columns = {
        "sentence": lambda pair: pair["sentence1"],
        "other sentence": lambda pair: pair["sentence2"],
    }
    for key in pairs[0]:
        if not key.startswith("sentence"):
            style = ".0f" if key.startswith("rank") else ".2f"
            columns[key.replace("_", " ")] = lambda pair, key=key, style=style: format(pair[key], style)
    return Table.of(pairs, columns, text=2, is_stacked=True)


def _changes(run: Run) -> dict[str, Any]:
    judged = run.judged
    pairs = changed_pairs(judged) if judged else {}
    return {"task": judged.task, "model": judged.model, **pairs} if any(pairs.values()) else {}


def _failures(run: Run) -> dict[str, Any]:
    judged = run.judged
    pairs = worst_pairs(judged) if judged else []
    return {"task": judged.task, "model": judged.model, "pairs": pairs} if pairs else {}


def _changes_tables(changes: Mapping[str, Any], report: Report) -> Iterator[Block]:
    model = f"{changes['model']} on {changes['task']}"
    for kind, how in {"better": "more", "worse": "less"}.items():
        if changes[kind]:
            yield f"{kind.title()}: the pairs that {model} ranks {how} like people do than the untouched encoder."
            yield pairs_table(changes[kind])


def agreement_chart(judged: Judged) -> Chart | None:
    """Return the cosines of both models against the graded scores."""
    pairs = zip(judged.gold_P, judged.first, judged.second)
    texts = [f"{shortened(a, _LONGEST)}\n{shortened(b, _LONGEST)}\ngraded {gold:.2f}" for gold, a, b in pairs]
    about, graded = f"Cosines and graded scores on {judged.task}", (f"graded score of {judged.task}", judged.gold_P)
    return pairs_chart(
        "agreement", about, graded, "cosine", {BASE: judged.before_P, judged.model: judged.after_P}, texts
    )


SECTIONS = [
    Section(
        "pairs",
        "Pairs",
        50,
        words="Ranks go from 0, the least alike of all pairs, to 100, the most alike.",
        charts=lambda run, _: agreement_chart(run.judged) if run.judged else None,
    ),
    Section("changes", "What got better and worse", 51, _changes, tables=_changes_tables, is_part=True),
    Section(
        "failures",
        "Where it fails",
        52,
        _failures,
        lambda found, _: f"The pairs that {found['model']} on {found['task']} ranks most differently than people do.",
        tables=lambda failures, report: pairs_table(failures["pairs"]),
        is_part=True,
    ),
]

"""Pairs of sentences that say most about the model: those where it changed most, and those on which it fails.

A model's error on a pair is the difference of two ranks: that of its cosine, and that of the graded score.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raysed.recipe import BASE
from raysed.report.charts import Axis, Chart, Pairs, Panel, Series, finite, ranks_in_words, sample_note
from raysed.report.document import Report
from raysed.report.results import Run
from raysed.report.section import Block, Section
from raysed.score.metrics import ranks
from raysed.store.text import Table, shortened

_LONGEST = 80
"""Characters of a sentence that are shown."""
_COLUMNS = {
    "graded": ("score", ".2f"),
    "cosine": ("cosine", ".2f"),
    "cosine before": ("cosine_before", ".2f"),
    "cosine after": ("cosine_after", ".2f"),
    "rank, graded": ("rank_by_score", ".0f"),
    "rank, cosine": ("rank_by_cosine", ".0f"),
    "rank before": ("rank_before", ".0f"),
    "rank after": ("rank_after", ".0f"),
}
"""Columns of a table of pairs, those that its pairs have."""


def worst_pairs(
    first: Sequence[str], second: Sequence[str], gold_P: np.ndarray, cosine_P: np.ndarray, count: int = 10
) -> list[dict[str, Any]]:
    """Return the pairs with the largest differences of ranks, the worst first; none where a cosine is not a number."""
    if not np.isfinite(cosine_P).all():
        return []
    ranks_2P = _ranks(gold_P, cosine_P)
    numbers = {"score": gold_P, "cosine": cosine_P, "rank_by_score": ranks_2P[0], "rank_by_cosine": ranks_2P[1]}
    return _largest(np.abs(ranks_2P[0] - ranks_2P[1]), count, numbers, first, second)


def changed_pairs(
    first: Sequence[str],
    second: Sequence[str],
    gold_P: np.ndarray,
    before_P: np.ndarray,
    after_P: np.ndarray,
    count: int = 5,
) -> dict[str, list[dict[str, Any]]]:
    """Return the pairs whose error another model lowered most, as `better`, and raised most, as `worse`.

    >>> a = ["It rains.", "It snows.", "It hails."]
    >>> gold, before, after = np.array([1.0, 2.0, 3.0]), np.array([0.3, 0.2, 0.1]), np.array([0.1, 0.3, 0.2])
    >>> found = changed_pairs(a, a, gold, before, after)
    >>> {kind: [pair["sentence1"] for pair in pairs] for kind, pairs in found.items()}
    {'better': ['It rains.', 'It hails.'], 'worse': ['It snows.']}
    """
    if not (np.isfinite(before_P).all() and np.isfinite(after_P).all()):
        return {"better": [], "worse": []}
    ranks_3P = _ranks(gold_P, before_P, after_P)
    gains_P = np.abs(ranks_3P[1] - ranks_3P[0]) - np.abs(ranks_3P[2] - ranks_3P[0])
    numbers = {"score": gold_P, "cosine_before": before_P, "cosine_after": after_P}
    numbers |= dict(zip(("rank_by_score", "rank_before", "rank_after"), ranks_3P))
    ways = {"better": gains_P, "worse": -gains_P}
    return {kind: _largest(by_P, count, numbers, first, second) for kind, by_P in ways.items()}


def _ranks(*values_P: np.ndarray) -> np.ndarray:
    """Return ranks [., P] from 0, the least, to 100, the most; equal values share their mean."""
    return (np.stack([ranks(of_one_P) for of_one_P in values_P]) - 1) / max(len(values_P[0]) - 1, 1) * 100


def _largest(
    by_P: np.ndarray, count: int, numbers: Mapping[str, np.ndarray], first: Sequence[str], second: Sequence[str]
) -> list[dict[str, Any]]:
    rows = [row for row in np.argsort(-by_P, kind="stable")[:count] if by_P[row] > 0]
    found = []
    for row in rows:
        texts = {"sentence1": shortened(first[row], _LONGEST), "sentence2": shortened(second[row], _LONGEST)}
        found.append({key: float(values[row]) for key, values in numbers.items()} | texts)
    return found


def pairs_table(pairs: Sequence[Mapping[str, Any]]) -> Table:
    """Return pairs from `worst_pairs` or `changed_pairs` as a table."""
    columns = {name: column for name, column in _COLUMNS.items() if pairs and column[0] in pairs[0]}
    lines = []
    for pair in pairs:
        numbers = [format(pair[key], style) for key, style in columns.values()]
        lines.append([pair["sentence1"], pair["sentence2"], *numbers])
    return Table(["sentence", "other sentence", *columns], lines, text=2, is_stacked=True)


def _changes(run: Run) -> dict[str, Any]:
    judged = run.judged
    if judged is None:
        return {}
    pairs = changed_pairs(judged.first, judged.second, judged.gold_P, judged.before_P, judged.after_P)
    return {"task": judged.task, "model": judged.model, **pairs} if any(pairs.values()) else {}


def _failures(run: Run) -> dict[str, Any]:
    judged = run.judged
    pairs = worst_pairs(judged.first, judged.second, judged.gold_P, judged.after_P) if judged else []
    return {"task": judged.task, "model": judged.model, "pairs": pairs} if pairs else {}


def _changes_tables(changes: Mapping[str, Any], report: Report) -> Iterator[Block]:
    model = f"{changes['model']} on {changes['task']}"
    for kind, how in {"better": "more", "worse": "less"}.items():
        if changes[kind]:
            yield f"{kind.title()}: the pairs that {model} ranks {how} like people do than the untouched encoder."
            yield pairs_table(changes[kind])


def _chart(run: Run, data: None) -> Chart | None:
    judged = run.judged
    if judged is None:
        return None
    models = {BASE: (judged.before_P, judged.gold_P), judged.model: (judged.after_P, judged.gold_P)}
    return agreement_chart(models, judged.task, judged.first, judged.second)


def agreement_chart(agreement: Pairs, task: str, first: Sequence[str] = (), second: Sequence[str] = ()) -> Chart | None:
    """Return predicted cosine against gold score, a panel per model, with the mean cosine of ten gold bins."""
    agreement = finite(agreement)
    if not agreement:
        return None
    y = Axis.of("predicted cosine", np.concatenate([cosine_P for cosine_P, _ in agreement.values()]))
    panels = []
    sentences = ["\n".join(["", *(shortened(text, _LONGEST) for text in pair)]) for pair in zip(first, second)]
    for label, (cosine_P, gold_P) in agreement.items():
        numbers = [f"graded {gold:.2f}, cosine {cosine:.2f}" for cosine, gold in zip(cosine_P, gold_P)]
        texts = [a + b for a, b in zip(numbers, sentences)] or numbers
        # Gold scores are few and far between: moved apart a little, equal ones do not hide each other.
        jitter_P = np.random.default_rng(0).uniform(-0.006, 0.006, len(gold_P)) * np.ptp(gold_P)
        bin_P = np.searchsorted(np.linspace(gold_P.min(), gold_P.max(), 11), gold_P, side="right") - 1
        filled = [np.clip(bin_P, 0, 9) == i for i in np.unique(np.clip(bin_P, 0, 9))]
        x, means = (np.array([of_P[in_P].mean() for in_P in filled]) for of_P in (gold_P, cosine_P))
        series = [
            Series(gold_P + jitter_P, cosine_P, "blue", texts=texts, weight="faint"),
            Series(x, means, "orange", "mean cosine", [f"mean cosine {y:.2f}" for y in means], line="-"),
        ]
        panels.append(Panel(Axis.of(f"gold score of {task}", gold_P), y, series, title=label))
    title = f"Predicted cosine and gold score on {task}; Spearman: {ranks_in_words(agreement)}"
    return Chart("agreement", title, panels, sample_note(agreement))


SECTIONS = [
    Section(
        "pairs",
        "Pairs",
        50,
        words="Ranks go from 0, the least alike of all pairs, to 100, the most alike.",
        charts=_chart,
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

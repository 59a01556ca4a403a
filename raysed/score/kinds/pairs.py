"""Graded pairs (semantic textual similarity): cosine of two embeddings against a gold score.

A task often has several subsets (a SemEval year), and published tables combine them differently. All three ways are
always computed: `all` concatenates the subsets (SBERT, BSL), `mean` averages their correlations (SED), and `wmean`
weights that average by subset size (BERT-flow).
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raysed.config import TaskConfig
from raysed.data.graded import FEWEST, StsTask, gold_of, load_task
from raysed.errors import UserError
from raysed.score.kinds import EvaluationTask
from raysed.score.lexical import Vectors, sparse_pair_cosines
from raysed.score.metrics import Order, pair_cosines, pearson, spearman

log = logging.getLogger(__name__)
_CORRELATIONS = {"spearman": spearman, "pearson": pearson}


class Pairs(EvaluationTask):
    """Scores models on graded pairs; `aggregation` is the default for tasks that set none."""

    kind, main = "pairs", "spearman"
    measure = "Spearman correlation between cosine and gold score"

    def __init__(self, task: StsTask, aggregation: str = "mean"):
        self.task, self.name, self.aggregation = task, task.name, task.aggregation or aggregation
        self.first, self.second = ([s for subset in task.subsets.values() for s in subset[side]] for side in (0, 1))
        self.gold = gold_of(task)
        kind = "generated pairs (written and graded by a program)" if task.is_generated else "pairs"
        self.size = f"{task.pairs:,} {kind}"
        self.sentences = list(dict.fromkeys(s for pair in zip(self.first, self.second) for s in pair))
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self.pair_rows = np.array([[row[s] for s in side] for side in (self.first, self.second)], dtype=np.int64).T
        """Indices in `sentences` of each pair's two sentences, int64 [P, 2]."""
        self._subsets, start = {}, 0
        for name, (_, _, gold_P) in task.subsets.items():
            self._subsets[name] = slice(start, start := start + len(gold_P))
        self._left_out = [name for name, pairs in self._subsets.items() if not _can_correlate(self.gold[pairs])]
        if len(self._subsets) > 1:
            kept = len(self._subsets) - len(self._left_out) * (self.aggregation != "all")
            self.size += f", {self.aggregation} over {kept} subsets"
        if self._left_out and self.aggregation != "all" and len(self._subsets) > 1:
            self._report_left_out()

    def _report_left_out(self) -> None:
        why = f"fewer than {FEWEST} pairs or only one score"
        if len(self._left_out) == len(self._subsets):
            raise UserError(
                f"task {self.name}: each of its {len(self._subsets):,} subsets has {why}, so the mean of their "
                f"correlations is not defined; set evaluation.tasks.{self.name}.aggregation to all"
            )
        more = f" and {len(self._left_out) - 3:,} more" if len(self._left_out) > 3 else ""
        shown = ", ".join(self._left_out[:3]) + more
        log.info("task %s: the mean leaves out subsets with %s: %s", self.name, why, shown)

    @classmethod
    def load(cls, name: str, config: TaskConfig, split: str, aggregation: str) -> "Pairs":
        return cls(load_task(name, config, split=split), aggregation)

    def content(self) -> list[Any]:
        return [[name, *map(list, subset)] for name, subset in self.task.subsets.items()]

    def items(self) -> list[tuple[str, ...]]:
        return list(zip(self.first, self.second))

    def without(self, rows: Sequence[int]) -> "Pairs | None":
        kept_P = np.ones(len(self.gold), bool)
        kept_P[rows] = False
        if not _can_correlate(self.gold[kept_P]):
            return None
        subsets = {}
        for name, (first, second, gold_P) in self.task.subsets.items():
            kept = np.flatnonzero(kept_P[self._subsets[name]])
            if len(kept):
                subsets[name] = [first[i] for i in kept], [second[i] for i in kept], gold_P[kept]
        if self.aggregation != "all" and not any(_can_correlate(gold_P) for _, _, gold_P in subsets.values()):
            return None
        return Pairs(replace(self.task, subsets=subsets), self.aggregation)

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return the cosine of every pair, float64 [P]."""
        return pair_cosines(x_UD, x_UD, self.pair_rows)

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        return sparse_pair_cosines(vectors(self.sentences), self.pair_rows)

    def score_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> float | None:
        """Return the mean of both directions: each sentence of a pair is the query once."""
        ways = [pair_cosines(a_UD, b_UD, self.pair_rows) for a_UD, b_UD in ((x_UD, y_UD), (y_UD, x_UD))]
        scores = [self.metrics(similarity_P)[self.main] for similarity_P in ways]
        return None if None in scores else sum(scores) / 2

    def metrics(self, similarity_P: np.ndarray) -> dict[str, Any]:
        """Score similarities of the pairs; several subsets are also scored one by one and by every aggregation.

        A correlation is None if all pairs are equally similar, and for a subset with fewer than three pairs or only one
        gold score. Means exclude such subsets, which `subsets_left_out` lists.
        """
        if similarity_P.shape != self.gold.shape or not np.isfinite(similarity_P).all():
            raise ValueError(f"{len(self.gold)} finite similarities expected, got shape {similarity_P.shape}")
        subsets = {name: _correlate(similarity_P[at], self.gold[at]) for name, at in self._subsets.items()}
        counted = [metrics for name, metrics in subsets.items() if name not in self._left_out]
        whole, sizes = _correlate(similarity_P, self.gold), [metrics["pairs"] for metrics in counted]
        # A mean without the subsets on which only this model fails would not be comparable with other models' means.
        defined = bool(counted) and all(metrics["spearman"] is not None for metrics in counted)
        ways: dict[str, dict[str, float | None]] = {"all": {key: whole[key] for key in _CORRELATIONS}}
        for way, weights in (("mean", None), ("wmean", sizes)):
            ways[way] = {
                key: float(np.average([metrics[key] for metrics in counted], weights=weights)) if defined else None
                for key in _CORRELATIONS
            }
        found = {**ways[self.aggregation], "pairs": self.task.pairs, "aggregation": self.aggregation}
        if len(subsets) == 1:
            return found
        return {**found, **ways, "subsets": subsets, **({"subsets_left_out": self._left_out} if self._left_out else {})}

    def strata(self) -> list[tuple[slice, float]]:
        """Return the pairs of each part with its own correlation, and its share of the task's score."""
        if self.aggregation == "all":
            return [(slice(0, len(self.gold)), 1.0)]
        counted = [pairs for name, pairs in self._subsets.items() if name not in self._left_out]
        sizes = [pairs.stop - pairs.start if self.aggregation == "wmean" else 1 for pairs in counted]
        return [(pairs, size / sum(sizes)) for pairs, size in zip(counted, sizes)]

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        """Return Spearman's correlation x100 of M models, [M, R], from centred ranks; NaN if undefined."""
        gold = Order(self.gold[rows])
        gold_KR, gold_square_R = gold.centred_ranks(counts_PR)
        weighted_PR = counts_PR * gold_KR[gold.place_P]
        found_MR = np.full((len(outcomes), counts_PR.shape[1]), np.nan)
        for found_R, similarity_P in zip(found_MR, outcomes):
            order = Order(similarity_P[rows])
            ranks_KR, square_R = order.centred_ranks(counts_PR)
            product_R = (order.sums(weighted_PR) * ranks_KR).sum(0)
            length_R = np.sqrt(square_R * gold_square_R)
            np.divide(100 * product_R, length_R, out=found_R, where=length_R > 0)
        return found_MR


def _can_correlate(gold_P: np.ndarray) -> bool:
    return len(gold_P) >= FEWEST and np.ptp(gold_P) > 0


def _correlate(similarity_P: np.ndarray, gold_P: np.ndarray) -> dict[str, float | int | None]:
    defined = _can_correlate(gold_P) and np.ptp(similarity_P) > 0
    found = {key: 100 * metric(similarity_P, gold_P) if defined else None for key, metric in _CORRELATIONS.items()}
    return {**found, "pairs": len(gold_P)}

"""Semantic textual similarity: cosine of two embeddings against a human score.

A task is a set of graded sentence pairs, often in several subsets (a SemEval year). How the subsets become
one number is what makes published tables hard to compare, so all three ways are computed every time: `all`
concatenates the subsets (SBERT, BSL), `mean` averages their correlations (SED), `wmean` weights that average
by subset size (BERT-flow).
"""

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysed.data.graded import FEWEST, StsTask, gold_of
from raysed.errors import UserError

log = logging.getLogger(__name__)


class _Group(NamedTuple):
    """Pairs under one correlation; its gold side is the same for every model, so it is computed once."""

    pairs: slice
    gold: np.ndarray
    gold_ranks: np.ndarray

    @property
    def counts(self) -> bool:
        """Whether a correlation with these scores says something: they are three or more, and differ."""
        return len(self.gold) >= FEWEST and bool(self.gold.any())


class Similarity:
    """Scores models on graded pairs; see `evaluation.tasks.Task`.

    Args:
        aggregation: `all`, `mean` or `wmean`, where the task does not name its own.

    Raises:
        UserError: a mean over subsets of which none has a correlation.
    """

    kind, main = "pairs", "spearman"
    rises_when_resampled = False

    def __init__(self, task: StsTask, aggregation: str = "mean"):
        self.task, self.name, self.aggregation = task, task.name, task.aggregation or aggregation
        self.first, self.second = ([s for subset in task.subsets.values() for s in subset[side]] for side in (0, 1))
        self.gold = gold_of(task)
        """Scores, float64 [P]."""
        self.sentences = list(dict.fromkeys(s for pair in zip(self.first, self.second) for s in pair))
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self.pair_rows = np.array([[row[s] for s in side] for side in (self.first, self.second)], dtype=np.int64).T
        """Where in `sentences` the two sentences of every pair are, int64 [P, 2]."""
        self._whole, self._subsets = _groups(task)
        self._left_out = [name for name, group in self._subsets.items() if not group.counts]
        self._refuse_means_of_nothing()

    @property
    def size(self) -> str:
        """What there is, in words."""
        return f"{self.task.pairs:,} pairs"

    def content(self) -> list[Any]:
        """See `evaluation.tasks.Task`."""
        return [[name, *map(list, subset)] for name, subset in self.task.subsets.items()]

    def _refuse_means_of_nothing(self) -> None:
        task, groups, left_out = self.name, self._subsets, self._left_out
        if len(groups) == 1 or not left_out or self.aggregation == "all":
            return
        why = f"fewer than {FEWEST} pairs or one score only"
        if len(left_out) == len(groups):
            raise UserError(
                f"task {task}: each of its {len(groups):,} subsets has {why}, so the mean of their correlations is "
                f"not defined; set evaluation.tasks.{task}.aggregation to all"
            )
        shown = ", ".join(left_out[:3]) + (f" and {len(left_out) - 3:,} more" if len(left_out) > 3 else "")
        log.info("task %s: left out of the mean over subsets, which have %s: %s", task, why, shown)

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Returns the cosine of every pair, float64 [P].

        Args:
            x_UD: embeddings of `sentences`.
        """
        return _pair_cosines(x_UD, x_UD, self.pair_rows)

    def score_between(self, x_UD: np.ndarray, y_UD: np.ndarray) -> float | None:
        """Returns the score x100 where one sentence of a pair is embedded by one model and the other by another.

        It is the mean of both ways; None where one of them is not defined.

        Args:
            x_UD: embeddings of `sentences` by the one.
            y_UD: those by the other, in the same space.
        """
        ways = [_pair_cosines(a_UD, b_UD, self.pair_rows) for a_UD, b_UD in ((x_UD, y_UD), (y_UD, x_UD))]
        scores = [self.metrics(similarity_P)[self.main] for similarity_P in ways]
        return None if None in scores else sum(scores) / 2

    def metrics(self, similarity_P: np.ndarray) -> dict:
        """Scores any similarity of the pairs.

        Returns:
            `spearman` and `pearson` (x100, under `aggregation`), `pairs` and `aggregation`; where the task has several
            subsets also `all`, `mean`, `wmean` and, per subset, `subsets`. A correlation that is not defined is None:
            that of a model for which all pairs of a task, or of a subset under `mean` and `wmean`, are equally similar,
            and that of a subset with fewer than three pairs or one score only. Such a subset is in no mean, and
            `subsets_left_out` lists it where there is one.
        """
        if similarity_P.shape != self.gold.shape or not np.isfinite(similarity_P).all():
            raise ValueError(f"{len(self.gold)} finite similarities expected, got shape {similarity_P.shape}")
        subsets = {name: _correlate(group, similarity_P) for name, group in self._subsets.items()}
        counted = [metrics for name, metrics in subsets.items() if name not in self._left_out]
        ways = _aggregate(counted, _correlate(self._whole, similarity_P))
        chosen = {key: ways[self.aggregation][key] for key in ("spearman", "pearson")}
        metrics = {**chosen, "pairs": self.task.pairs, "aggregation": self.aggregation}
        if len(subsets) == 1:
            return metrics
        left_out = {"subsets_left_out": self._left_out} if self._left_out else {}
        return {**metrics, **ways, "subsets": subsets, **left_out}

    def strata(self) -> list[tuple[slice, float]]:
        """Returns the pairs of each part that has a correlation of its own, and its share of the task's score.

        A subset that is in no mean is not among them.
        """
        if self.aggregation == "all":
            return [(self._whole.pairs, 1.0)]
        counted = [group.pairs for name, group in self._subsets.items() if name not in self._left_out]
        sizes = [pairs.stop - pairs.start if self.aggregation == "wmean" else 1 for pairs in counted]
        return [(pairs, size / sum(sizes)) for pairs, size in zip(counted, sizes)]

    def resampled(self, pairs: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        """Returns Spearman's correlation x100 of M models, [M, R]; NaN where it is not defined.

        The correlation is that of ranks less their mean, of which every resample has the same: (n + 1) / 2.

        Args:
            pairs: one of `strata`.
            counts_PR: how often each of these pairs occurs in each resample, float32.
        """
        gold = _Order(self.gold[pairs])
        gold_KR, gold_square_R = gold.centred_ranks(counts_PR)
        weighted_PR = counts_PR * gold_KR[gold.place_P]
        found_MR = np.empty((len(outcomes), counts_PR.shape[1]))
        for model, similarity_P in enumerate(outcomes):
            order = _Order(similarity_P[pairs])
            ranks_KR, square_R = order.centred_ranks(counts_PR)
            product_R = (order.sums(weighted_PR) * ranks_KR).sum(0)
            defined = (square_R > 0) & (gold_square_R > 0)
            length_R = np.sqrt(square_R * gold_square_R)
            found_MR[model] = np.divide(100 * product_R, length_R, out=np.full(len(defined), np.nan), where=defined)
        return found_MR


def spearman(a_P: np.ndarray, b_P: np.ndarray) -> float:
    """Returns the rank correlation, -1 to 1; ties share their mean rank, and a constant side gives 0.

    >>> round(spearman(np.array([1, 2, 3]), np.array([1, 4, 9])), 6)
    1.0
    """
    return pearson(ranks(a_P), ranks(b_P))


def ranks(values_P: np.ndarray) -> np.ndarray:
    """Returns ranks from 1, the least, float64 [P]; equal values share their mean, NaN makes all NaN.

    `scipy.stats.rankdata` does the same, but importing scipy.stats takes every worker half a second.

    >>> ranks(np.array([5.0, 1.0, 5.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    if np.isnan(values_P).any():
        return np.full(len(values_P), np.nan)
    values = pa.array(values_P)
    first_P, last_P = (pc.rank(values, tiebreaker=which).to_numpy() for which in ("min", "max"))
    return (first_P + last_P) / 2


def pearson(a_P: np.ndarray, b_P: np.ndarray) -> float:
    """Returns the linear correlation, -1 to 1; 0 where a side is constant (as SentEval reports it)."""
    return _dot(_standardise(a_P), _standardise(b_P))


def _groups(task: StsTask) -> tuple[_Group, dict[str, _Group]]:
    """A task's whole and its subsets, as slices of its pairs."""
    subsets, start = {}, 0
    for name, (_, _, gold_P) in task.subsets.items():
        subsets[name] = _group(slice(start, start := start + len(gold_P)), gold_P)
    return _group(slice(0, start), gold_of(task)), subsets


def _group(pairs: slice, gold_P: np.ndarray) -> _Group:
    return _Group(pairs, _standardise(gold_P), _standardise(ranks(gold_P)))


def _correlate(group: _Group, similarity_P: np.ndarray) -> dict[str, float | int | None]:
    values = similarity_P[group.pairs]
    if not group.counts or np.ptp(values) == 0:
        return {"spearman": None, "pearson": None, "pairs": len(values)}
    return {
        "spearman": 100 * _dot(_standardise(ranks(values)), group.gold_ranks),
        "pearson": 100 * _dot(_standardise(values), group.gold),
        "pairs": len(values),
    }


def _aggregate(subsets: Sequence[dict], whole: dict) -> dict[str, dict[str, float | None]]:
    keys = ("spearman", "pearson")
    sizes = [metrics["pairs"] for metrics in subsets]
    table = {key: [metrics[key] for metrics in subsets] for key in keys}
    # A mean without the subsets on which this one model fails could not be compared with that of another.
    defined = bool(subsets) and None not in table["spearman"]
    return {
        "all": {key: whole[key] for key in keys},
        "mean": {key: float(np.mean(table[key])) if defined else None for key in keys},
        "wmean": {key: float(np.average(table[key], weights=sizes)) if defined else None for key in keys},
    }


def _dot(a_P: np.ndarray, b_P: np.ndarray) -> float:
    return float(np.clip(a_P @ b_P, -1.0, 1.0))


def _standardise(values_P: np.ndarray) -> np.ndarray:
    """Mean 0 and length 1, so that a dot product is a correlation; zeros for a constant."""
    values_P = np.asarray(values_P, dtype=np.float64)
    if np.ptp(values_P) == 0:
        return np.zeros_like(values_P)
    centred_P = values_P - values_P.mean()
    return centred_P / np.linalg.norm(centred_P)


def _pair_cosines(x_UD: np.ndarray, y_UD: np.ndarray, rows_P2: np.ndarray, block: int = 4096) -> np.ndarray:
    """Cosines of x and y in float64, 0 for a zero vector; in blocks, so that memory does not grow with the pairs."""
    cosines_P = np.zeros(len(rows_P2))
    for start in range(0, len(rows_P2), block):
        rows = rows_P2[start : start + block]
        a_BD, b_BD = (e_UD[rows[:, side]].astype(np.float64) for side, e_UD in enumerate((x_UD, y_UD)))
        dot_B = np.einsum("bd,bd->b", a_BD, b_BD)
        norm_B = np.linalg.norm(a_BD, axis=1) * np.linalg.norm(b_BD, axis=1)
        np.divide(dot_B, norm_B, out=cosines_P[start : start + block], where=norm_B > 0)
    # Pairs that are equal in exact arithmetic (a sentence with itself) must tie: rounding noise has no rank.
    return cosines_P.round(12)


class _Order:
    """The order of some values, from which the ranks in any resample follow without sorting."""

    def __init__(self, values_P: np.ndarray):
        self.order_P = np.argsort(values_P, kind="stable")
        sorted_P = values_P[self.order_P]
        new_P = np.append(True, sorted_P[1:] != sorted_P[:-1])
        self.place_P = np.empty(len(values_P), np.int64)
        self.place_P[self.order_P] = np.cumsum(new_P) - 1
        """Which of the distinct values each is, from the smallest."""
        self.starts = np.flatnonzero(new_P)

    def sums(self, values_PR: np.ndarray) -> np.ndarray:
        """Returns the sums over equal values, from the smallest value on, [K, R]."""
        sorted_PR = values_PR[self.order_P]
        return sorted_PR if len(self.starts) == len(sorted_PR) else np.add.reduceat(sorted_PR, self.starts, axis=0)

    def centred_ranks(self, counts_PR: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the rank of each distinct value less the mean rank, [K, R], and the sum of squares over all, [R].

        Args:
            counts_PR: how often value p occurs in resample r; ties share their mean rank.
        """
        ties_KR = self.sums(counts_PR)
        ranks_KR = np.cumsum(ties_KR, axis=0)
        total_R = ranks_KR[-1].astype(np.float64)
        ranks_KR -= ties_KR / 2 + total_R.astype(np.float32) / 2  # last rank - (ties - 1) / 2 - (n + 1) / 2
        return ranks_KR, (ties_KR * np.square(ranks_KR)).sum(0, dtype=np.float64)

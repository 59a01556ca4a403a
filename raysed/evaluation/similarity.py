"""Semantic textual similarity: cosine of two embeddings against a human score.

A task is a set of graded sentence pairs, often in several subsets (a SemEval year). How the subsets become
one number is what makes published tables hard to compare, so all three ways are computed every time: `all`
concatenates the subsets (SBERT, BSL), `mean` averages their correlations (SED), `wmean` weights that average
by subset size (BERT-flow).
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from raysed.data.graded import FEWEST, StsTask, gold_of
from raysed.errors import UserError

log = logging.getLogger(__name__)


Embeddings = np.ndarray | Mapping[str, np.ndarray]
"""Of one model: a matrix with a row for each of `Evaluation.sentences`; or, where every task has its own embeddings
(BERT-flow fits a flow per task), by task a matrix with a row for each of `Evaluation.rows`."""


class _Group(NamedTuple):
    """Pairs under one correlation; its gold side is the same for every model, so it is computed once."""

    pairs: slice
    gold: np.ndarray
    gold_ranks: np.ndarray

    @property
    def counts(self) -> bool:
        """Whether a correlation with these scores says something: they are three or more, and differ."""
        return len(self.gold) >= FEWEST and bool(self.gold.any())


class Evaluation:
    """Scores models on tasks; built once, then given the embeddings of one model after the other.

    >>> gold = np.array([5.0, 1.0, 3.0])
    >>> task = StsTask("toy", {"all": (["a", "b", "a"], ["c", "d", "b"], gold)})
    >>> evaluation = Evaluation([task])
    >>> evaluation.sentences
    ['a', 'c', 'b', 'd']
    >>> round(evaluation.score(np.array([[1, 0], [1, 0], [1, 2], [-1, 0]]))["toy"]["spearman"], 6)
    100.0
    """

    def __init__(self, tasks: Sequence[StsTask], aggregation: str = "mean"):
        """Numbers the distinct sentences and prepares the gold side of every correlation.

        Args:
            tasks: what to score; names must differ.
            aggregation: `all`, `mean` or `wmean`, for tasks that do not name their own.

        Raises:
            UserError: a mean over subsets of which none has a correlation.
        """
        self.tasks = {task.name: task for task in tasks}
        self._aggregation = {task.name: task.aggregation or aggregation for task in tasks}
        subsets = [subset for task in tasks for subset in task.subsets.values()]
        sides = [[s for subset in subsets for s in subset[side]] for side in (0, 1)]
        self.sentences = list(dict.fromkeys(s for pair in zip(*sides) for s in pair))
        """The distinct sentences of all tasks in first-seen order: what a model has to encode."""
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self._rows_P2 = np.array([[row[s] for s in side] for side in sides], dtype=np.int64).T
        self._whole, self._subsets = _groups(tasks)
        self._left_out = {
            task: [name for name, group in groups.items() if not group.counts] for task, groups in self._subsets.items()
        }
        self._refuse_means_of_nothing()

    def _refuse_means_of_nothing(self) -> None:
        for task, groups in self._subsets.items():
            left_out, several = self._left_out[task], len(groups) > 1
            if not several or not left_out or self._aggregation[task] == "all":
                continue
            why = f"fewer than {FEWEST} pairs or one score only"
            if len(left_out) == len(groups):
                raise UserError(
                    f"task {task}: each of its {len(groups):,} subsets has {why}, so the mean of their correlations is "
                    f"not defined; set evaluation.tasks.{task}.aggregation to all"
                )
            shown = ", ".join(left_out[:3]) + (f" and {len(left_out) - 3:,} more" if len(left_out) > 3 else "")
            log.info("task %s: left out of the mean over subsets, which have %s: %s", task, why, shown)

    def pair_rows(self, tasks: Iterable[str] | None = None) -> np.ndarray:
        """Returns int64 [P, 2]: where in `sentences` the two sentences of every pair are.

        Args:
            tasks: the tasks whose pairs are meant, in this order; None: all.
        """
        if tasks is None:
            return self._rows_P2
        return np.concatenate([self._rows_P2[self._whole[task].pairs] for task in tasks])

    def pair_sentences(self, tasks: Iterable[str] | None = None) -> tuple[list[str], list[str]]:
        """Returns the first and the second sentences of the P pairs; `tasks` as for `pair_rows`."""
        first, second = ([self.sentences[row] for row in side] for side in self.pair_rows(tasks).T)
        return first, second

    def of_tasks(self, similarity_P: np.ndarray, tasks: Iterable[str]) -> np.ndarray:
        """Returns the values of some tasks' pairs, in the order of `pair_rows(tasks)`, of one for every pair.

        Args:
            similarity_P: of all pairs.
            tasks: their names.
        """
        return np.concatenate([similarity_P[self._whole[task].pairs] for task in tasks])

    def rows(self, task: str) -> np.ndarray:
        """Returns where in `sentences` the distinct sentences of one task are, rising, int64 [U_task]."""
        return np.unique(self.pair_rows([task]))

    def of_task(self, embeddings: Embeddings, task: str) -> np.ndarray:
        """Returns the embeddings of one task's distinct sentences, [U_task, D], in the order of `rows`.

        Args:
            embeddings: float32 [U, D], or by task.
            task: its name.
        """
        return embeddings[task] if isinstance(embeddings, Mapping) else embeddings[self.rows(task)]

    def score(self, embeddings: Embeddings) -> dict[str, dict]:
        """Scores one model.

        Args:
            embeddings: one row for each of `sentences`, in their order; or a matrix per task, and then only the
                tasks that are there are scored.

        Returns:
            Per task `spearman` and `pearson` (x100, under `aggregation`), `pairs` and `aggregation`; where
            the task has several subsets also `all`, `mean`, `wmean` and, per subset, `subsets`. A correlation that is
            not defined is None: that of a model for which all pairs of a task, or of a subset under `mean` and
            `wmean`, are equally similar, and that of a subset with fewer than three pairs or one score only. Such a
            subset is in no mean, and `subsets_left_out` lists it where there is one.

        Raises:
            UserError: an embedding has a value that is not finite.
        """
        if not isinstance(embeddings, Mapping):
            return self.score_similarities(self._cosines(embeddings, np.arange(len(self.sentences)), self._rows_P2))
        similarity_P, scored = np.zeros(len(self._rows_P2)), [task for task in self.tasks if task in embeddings]
        for task in scored:
            similarity_P[self._whole[task].pairs] = self.cosines(embeddings, task)[0]
        return {task: self._metrics(task, similarity_P) for task in scored}

    def score_similarities(self, similarity_P: np.ndarray) -> dict[str, dict]:
        """Scores any similarity, one value per row of `pair_rows`; returns what `score` returns."""
        if similarity_P.shape != (len(self._rows_P2),) or not np.isfinite(similarity_P).all():
            raise ValueError(f"{len(self._rows_P2)} finite similarities expected, got shape {similarity_P.shape}")
        return {name: self._metrics(name, similarity_P) for name in self.tasks}

    def strata(self, task: str) -> list[np.ndarray]:
        """Returns the gold scores [P] of each part of a task that has a correlation of its own, in order."""
        if self._aggregation[task] == "all":
            return [gold_of(self.tasks[task])]
        return [gold_P for _, _, gold_P in self.tasks[task].subsets.values()]

    def weights(self, task: str) -> list[float]:
        """Returns the share of each of `strata` in the task's score; 0 for a subset that is in no mean."""
        if self._aggregation[task] == "all":
            return [1.0]
        weighted, left_out = self._aggregation[task] == "wmean", self._left_out[task]
        sizes = [
            0 if name in left_out else len(s[2]) if weighted else 1 for name, s in self.tasks[task].subsets.items()
        ]
        return [size / sum(sizes) for size in sizes]

    def cosines(self, embeddings: Embeddings, task: str) -> tuple[np.ndarray, np.ndarray]:
        """Returns the cosine and the gold score of every pair of one task, both float64 [P].

        Args:
            embeddings: float32 [U, D], or by task.
            task: its name.
        """
        rows_P2, gold_P = self.pair_rows([task]), gold_of(self.tasks[task])
        if isinstance(embeddings, Mapping):
            sentences_U = self.rows(task)
            return self._cosines(embeddings[task], sentences_U, np.searchsorted(sentences_U, rows_P2)), gold_P
        return self._cosines(embeddings, np.arange(len(self.sentences)), rows_P2), gold_P

    def _cosines(self, embeddings_UD: np.ndarray, sentences_U: np.ndarray, rows_P2: np.ndarray) -> np.ndarray:
        """Row i of the embeddings is that of sentence `sentences_U[i]`."""
        embeddings_UD = np.asarray(embeddings_UD)
        if embeddings_UD.ndim != 2 or len(embeddings_UD) != len(sentences_U):
            raise ValueError(f"{len(sentences_U)} rows of embeddings expected, got shape {embeddings_UD.shape}")
        self._refuse_not_finite(embeddings_UD, sentences_U)
        return _pair_cosines(embeddings_UD, rows_P2)

    def _refuse_not_finite(self, embeddings_UD: np.ndarray, sentences_U: np.ndarray) -> None:
        bad = np.flatnonzero(~np.isfinite(embeddings_UD).all(axis=1))
        if len(bad):
            examples = ", ".join(repr(self.sentences[i][:60]) for i in sentences_U[bad[:3]])
            raise UserError(
                f"{len(bad)} of {len(embeddings_UD)} embeddings are not finite, first those of {examples}: "
                "the model has diverged; lower its learning rate"
            )

    def _metrics(self, task: str, similarity_P: np.ndarray) -> dict:
        subsets = {name: _correlate(group, similarity_P) for name, group in self._subsets[task].items()}
        left_out = self._left_out[task]
        counted = [metrics for name, metrics in subsets.items() if name not in left_out]
        ways = _aggregate(counted, _correlate(self._whole[task], similarity_P))
        aggregation = self._aggregation[task]
        chosen = {key: ways[aggregation][key] for key in ("spearman", "pearson")}
        metrics = {**chosen, "pairs": self.tasks[task].pairs, "aggregation": aggregation}
        if len(subsets) == 1:
            return metrics
        return {**metrics, **ways, "subsets": subsets, **({"subsets_left_out": left_out} if left_out else {})}


def comparable(correlation: float | None) -> float:
    """Returns a score that a choice can be made by, rounded so that noise breaks no tie.

    One that is not defined is 0: a model that tells no pairs apart is as good as chance.

    >>> comparable(71.23456789), comparable(None)
    (71.234568, 0.0)
    """
    return round(correlation or 0.0, 6)


def mean_embeddings(models: Sequence[Embeddings]) -> Embeddings:
    """Returns the mean of several models' embeddings, per task where theirs are.

    >>> mean_embeddings([np.zeros((1, 2)), np.ones((1, 2))]).tolist()
    [[0.5, 0.5]]
    """
    if isinstance(models[0], Mapping):
        return {task: mean_embeddings([model[task] for model in models]) for task in models[0]}
    return np.mean(models, axis=0)


def spearman(a_P: np.ndarray, b_P: np.ndarray) -> float:
    """Returns the rank correlation, -1 to 1; ties share their mean rank, and a constant side gives 0.

    Args:
        a_P: numbers.
        b_P: numbers.

    >>> round(spearman(np.array([1, 2, 3]), np.array([1, 4, 9])), 6)
    1.0
    """
    return pearson(rankdata(a_P), rankdata(b_P))


def pearson(a_P: np.ndarray, b_P: np.ndarray) -> float:
    """Returns the linear correlation, -1 to 1; 0 where a side is constant (as SentEval reports it).

    Args:
        a_P: numbers.
        b_P: numbers.
    """
    return _dot(_standardise(a_P), _standardise(b_P))


def _groups(tasks: Sequence[StsTask]) -> tuple[dict[str, _Group], dict[str, dict[str, _Group]]]:
    """Per task, its whole and its subsets as slices of the pairs of all tasks."""
    whole, subsets, start = {}, {}, 0
    for task in tasks:
        first, subsets[task.name] = start, {}
        for name, (_, _, gold_P) in task.subsets.items():
            subsets[task.name][name] = _group(slice(start, start := start + len(gold_P)), gold_P)
        whole[task.name] = _group(slice(first, start), gold_of(task))
    return whole, subsets


def _group(pairs: slice, gold_P: np.ndarray) -> _Group:
    return _Group(pairs, _standardise(gold_P), _standardise(rankdata(gold_P)))


def _correlate(group: _Group, similarity_P: np.ndarray) -> dict[str, float | int | None]:
    values = similarity_P[group.pairs]
    if not group.counts or np.ptp(values) == 0:
        return {"spearman": None, "pearson": None, "pairs": len(values)}
    return {
        "spearman": 100 * _dot(_standardise(rankdata(values)), group.gold_ranks),
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


def _pair_cosines(embeddings_UD: np.ndarray, rows_P2: np.ndarray, block: int = 4096) -> np.ndarray:
    """Cosines in float64, 0 for a zero vector; in blocks, so that memory does not grow with the pairs."""
    cosines_P = np.zeros(len(rows_P2))
    for start in range(0, len(rows_P2), block):
        rows = rows_P2[start : start + block]
        a_BD, b_BD = (embeddings_UD[rows[:, side]].astype(np.float64) for side in (0, 1))
        dot_B = np.einsum("bd,bd->b", a_BD, b_BD)
        norm_B = np.linalg.norm(a_BD, axis=1) * np.linalg.norm(b_BD, axis=1)
        np.divide(dot_B, norm_B, out=cosines_P[start : start + block], where=norm_B > 0)
    # Pairs that are equal in exact arithmetic (a sentence with itself) must tie: rounding noise has no rank.
    return cosines_P.round(12)

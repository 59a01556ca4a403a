"""A user's own texts with labels: how well a linear probe tells the labels, and how well k-means finds them.

Sources: the probe is that of SentEval (Conneau and Kiela 2018), see `evaluation.probes`; V-measure is Rosenberg and
Hirschberg 2007. Scikit-learn is imported where it is used: it takes a second, and most processes need none of it.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raysed.data.classes import LabelledTexts
from raysed.score import probes
from raysed.score.probes import Labelled

FOLDS = 5
"""Of a classification without a test part: each text is predicted by a probe that has not seen it."""
SEEDS = 5
"""Runs of k-means, whose mean counts."""

Predict = Callable[[Any, np.ndarray, Any], np.ndarray]
"""Features of training rows, their classes, and features of test rows to the test rows' classes."""


class _OnTexts:
    """What both tasks have in common."""

    def __init__(self, data: LabelledTexts, seed: int = 0):
        self.data, self.name, self._seed = data, data.name, seed
        self.sentences = list(dict.fromkeys(data.texts))
        """What a model has to embed: the U distinct texts."""
        row = {sentence: i for i, sentence in enumerate(self.sentences)}
        self.rows = np.array([row[text] for text in data.texts])
        """Where in `sentences` each text is, int64 [N]."""

    @property
    def size(self) -> str:
        """What there is, in words."""
        return f"{len(self.data.texts):,} texts, {len(self.data.classes)} classes"

    def content(self) -> list[Any]:
        """See `evaluation.tasks.Task`."""
        return [self.kind, self.data.texts, self.data.labels.tolist(), self._tested.tolist(), self._seed]

    def _features(self, x_UD: np.ndarray) -> np.ndarray:
        return np.asarray(x_UD, np.float32)[self.rows]

    @property
    def _tested(self) -> np.ndarray:
        """Which texts count, bool [N]."""
        return np.ones(len(self.data.texts), bool)

    def strata(self) -> list[tuple[slice, float]]:
        """See `evaluation.tasks.Task`."""
        return [(slice(0, int(self._tested.sum())), 1.0)]


class Classification(_OnTexts):
    """Scores models by the accuracy of a logistic regression on their embeddings.

    A source with a test part is learnt from its other rows; of any other source each of five stratified folds is
    predicted from the rest. The strength of regularisation is chosen by folds of the training rows.
    """

    kind, main = "classification", "accuracy"
    rises_when_resampled = False

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Returns the predicted class of every test row, int64 [N_test].

        Args:
            x_UD: embeddings of `sentences`.
        """
        return self.outcome_of(self._features(x_UD), self._probe)

    def outcome_of(self, features: Any, predict: Predict) -> np.ndarray:
        """Returns what `outcome` does, of any features and any classifier.

        Args:
            features: one row for each text, [N, ...]; may be sparse.
        """
        labels_N = self.data.labels
        predicted_N = np.empty_like(labels_N)
        for train, test in self._parts():
            predicted_N[test] = predict(features[train], labels_N[train], features[test])
        return predicted_N[self._tested]

    def metrics(self, outcome: np.ndarray) -> dict[str, float | int]:
        """Returns accuracy and the mean F1 of the classes, x100, and the number of texts that were predicted."""
        from sklearn.metrics import f1_score

        gold = self.data.labels[self._tested]
        return {
            "accuracy": 100 * float(np.mean(outcome == gold)),
            "macro_f1": 100 * float(f1_score(gold, outcome, average="macro")),
            "texts": len(gold),
            "classes": len(self.data.classes),
        }

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_NR: np.ndarray) -> np.ndarray:
        """Returns the accuracy x100 of M models, [M, R]; arguments as for `evaluation.tasks.Task`."""
        gold = self.data.labels[self._tested]
        return 100 * np.stack([outcome == gold for outcome in outcomes]) @ counts_NR / counts_NR.sum(0)

    @property
    def _tested(self) -> np.ndarray:
        return super()._tested if self.data.test is None else self.data.test

    def _parts(self) -> list[tuple[np.ndarray, np.ndarray]]:
        if self.data.test is not None:
            return [(np.flatnonzero(~self.data.test), np.flatnonzero(self.data.test))]
        return probes.stratified_folds(self.data.labels, self._seed, FOLDS)

    def _probe(self, train_ND: np.ndarray, labels_N: np.ndarray, test_ND: np.ndarray) -> np.ndarray:
        train = Labelled(train_ND, labels_N)
        return probes.classify_by_folds(train, test_ND, probes.SPLIT_GRID, self._seed, FOLDS).predicted


class Clustering(_OnTexts):
    """Scores models by how well k-means on unit vectors, with as many clusters as classes, finds the classes."""

    kind, main = "clustering", "v_measure"
    rises_when_resampled = True

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Returns the cluster of every text in every run of k-means, int64 [N, seeds].

        Args:
            x_UD: embeddings of `sentences`.
        """
        x_ND = self._features(x_UD)
        return self.outcome_of(x_ND / np.maximum(np.linalg.norm(x_ND, axis=1, keepdims=True), 1e-12))

    def outcome_of(self, features: Any) -> np.ndarray:
        """Returns what `outcome` does, of any features.

        Args:
            features: one row for each text, [N, ...]; may be sparse.
        """
        from sklearn.cluster import KMeans

        count = len(self.data.classes)
        runs = [KMeans(count, n_init=1, random_state=self._seed + run).fit(features) for run in range(SEEDS)]
        return np.stack([run.labels_.astype(np.int64) for run in runs], axis=1)

    def metrics(self, outcome_NS: np.ndarray) -> dict[str, float | int]:
        """Returns the mean V-measure x100 of the runs of k-means, its deviation, and the counts."""
        values = v_measure(self._tables(outcome_NS, np.ones((len(outcome_NS), 1))))[0].tolist()
        return {
            "v_measure": 100 * statistics.fmean(values),
            "std": 100 * statistics.stdev(values),
            "texts": len(outcome_NS),
            "classes": len(self.data.classes),
        }

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_NR: np.ndarray) -> np.ndarray:
        """Returns the V-measure x100 of M models, [M, R]; arguments as for `evaluation.tasks.Task`."""
        return np.stack([100 * v_measure(self._tables(outcome_NS, counts_NR)).mean(1) for outcome_NS in outcomes])

    def _tables(self, outcome_NS: np.ndarray, counts_NR: np.ndarray) -> np.ndarray:
        """How often class and cluster meet, [R, S, classes, clusters]."""
        count = len(self.data.classes)
        tables = np.empty((counts_NR.shape[1], outcome_NS.shape[1], count, count))
        for run, cluster_N in enumerate(outcome_NS.T):
            cell_N = self.data.labels * count + cluster_N
            cells, place_N = np.unique(cell_N, return_inverse=True)
            met_CN = np.zeros((len(cells), len(cell_N)), np.float32)
            met_CN[place_N, np.arange(len(cell_N))] = 1
            flat = np.zeros((counts_NR.shape[1], count * count))
            flat[:, cells] = (met_CN @ counts_NR).T
            tables[:, run] = flat.reshape(-1, count, count)
        return tables


def v_measure(tables: np.ndarray) -> np.ndarray:
    """Returns the V-measure of tables of counts, the harmonic mean of homogeneity and completeness.

    Args:
        tables: how often class and cluster meet, [..., classes, clusters].

    Returns:
        0 to 1, [...].

    >>> v_measure(np.array([[[3, 0], [0, 2]], [[1, 1], [1, 1]]])).round(6).tolist()
    [1.0, 0.0]
    """
    share = tables / tables.sum((-2, -1), keepdims=True)
    classes, clusters = share.sum(-1), share.sum(-2)
    together = _entropy(share.reshape(*share.shape[:-2], -1))
    of_classes, of_clusters = _entropy(classes), _entropy(clusters)
    shared, total = of_classes + of_clusters - together, of_classes + of_clusters
    return np.divide(2 * shared, total, out=np.ones_like(total), where=total > 0)


def _entropy(share: np.ndarray) -> np.ndarray:
    return -(share * np.log(np.where(share > 0, share, 1))).sum(-1)

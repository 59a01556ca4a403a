"""Labelled texts: how well k-means recovers the labels, by V-measure (Rosenberg and Hirschberg 2007)."""

import statistics
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix

from raysed.score.kinds.classification import LabelledTask
from raysed.score.lexical import Vectors
from raysed.score.metrics import unit, v_measure

SEEDS = 5
"""Runs of k-means to average."""


class Clustering(LabelledTask):
    """Scores models by how well k-means on unit vectors, one cluster per class, recovers the classes."""

    kind, main, measure = "clustering", "v_measure", "V-measure of k-means"
    rises_when_resampled = True

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return the cluster of every text in every run of k-means, int64 [N, runs]."""
        return self.lexical_outcome(lambda texts: unit(np.asarray(x_UD, np.float32)[self.rows]))

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        from sklearn.cluster import KMeans  # takes a second; most processes never need it

        features, count = vectors(self.texts), len(self.classes)
        runs = [KMeans(count, n_init=1, random_state=(self._seed + run) % 2**32).fit(features) for run in range(SEEDS)]
        return np.stack([run.labels_.astype(np.int64) for run in runs], axis=1)

    def metrics(self, outcome_NS: np.ndarray) -> dict[str, float | int]:
        values = v_measure(self._tables(outcome_NS, np.ones((len(outcome_NS), 1))))[0].tolist()
        return {
            "v_measure": 100 * statistics.fmean(values),
            "std": 100 * statistics.stdev(values),
            "texts": len(outcome_NS),
            "classes": len(self.classes),
        }

    def resampled(self, rows: slice, outcomes: Sequence[np.ndarray], counts_PR: np.ndarray) -> np.ndarray:
        return np.stack([100 * v_measure(self._tables(outcome_NS, counts_PR)).mean(1) for outcome_NS in outcomes])

    def _tables(self, outcome_NS: np.ndarray, counts_NR: np.ndarray) -> np.ndarray:
        """Return how often class and cluster meet, [R, S, classes, clusters]."""
        count = len(self.classes)
        tables = np.zeros((counts_NR.shape[1], outcome_NS.shape[1], count * count))
        for run, cluster_N in enumerate(outcome_NS.T):
            cells, place_N = np.unique(self.labels * count + cluster_N, return_inverse=True)
            ones_N = np.ones(len(place_N), np.float32)
            met_CN = csr_matrix((ones_N, (place_N, np.arange(len(place_N)))), (len(cells), len(place_N)))
            tables[:, run, cells] = (met_CN @ counts_NR).T
        return tables.reshape(*tables.shape[:2], count, count)

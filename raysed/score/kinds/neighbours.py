"""Labelled texts: how often a text's nearest neighbours share its label. Without a fit, this takes seconds."""

import logging
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import numpy as np

from raysed.config import TaskConfig
from raysed.score.kinds import BLOCK_CELLS
from raysed.score.kinds.labelled import LabelledTask
from raysed.score.lexical import Vectors, key_of
from raysed.score.metrics import unit

log = logging.getLogger(__name__)

_NEIGHBOURS = 5


class Neighbours(LabelledTask):
    """Scores models by a vote of each text's five nearest others, by cosine; nearer ones break ties.

    A text's equals do not vote: every model would find them. `key_of` tells what is equal.
    """

    kind, main, measure = "neighbours", "neighbours", "accuracy of the 5 nearest neighbours"

    @classmethod
    def load(cls, name: str, config: TaskConfig, split: str, aggregation: str) -> Self:
        task = super().load(name, config, split, aggregation)
        if equals := int((np.bincount(task._equal_N)[task._equal_N] > 1).sum()):
            log.info("task %s: %d of %d texts have equals, which are no neighbours", name, equals, len(task.texts))
        return task

    @cached_property
    def _equal_N(self) -> np.ndarray:
        """A number for each text that its equals share, int64 [N]."""
        return np.unique([key for text in self.texts for key in key_of([text])], return_inverse=True)[1]

    def outcome(self, x_UD: np.ndarray) -> np.ndarray:
        """Return the predicted class of every text, int64 [N]."""
        x_ND = unit(np.asarray(x_UD, np.float32))[self.rows]
        return self._predict(lambda block: x_ND[block] @ x_ND.T)

    def lexical_outcome(self, vectors: Vectors) -> np.ndarray:
        x_NV = vectors(self.texts)
        return self._predict(lambda block: (x_NV[block] @ x_NV.T).toarray())

    def _predict(self, cosines: Callable[[slice], np.ndarray]) -> np.ndarray:
        count, predicted = len(self.labels), []
        weight_K = 1 + 2.0 ** -np.arange(8, 8 + _NEIGHBOURS)
        step = max(1, BLOCK_CELLS // count)
        for start in range(0, count, step):
            cosine_BN = np.array(cosines(slice(start, start + step)))
            rows_B = np.arange(len(cosine_BN))
            cosine_BN[self._equal_N[start : start + step, None] == self._equal_N] = -np.inf
            near_BK = np.argsort(-cosine_BN, axis=1, kind="stable")[:, :_NEIGHBOURS]
            votes_BC = np.zeros((len(cosine_BN), len(self.classes)))
            for rank, weight in enumerate(weight_K[: near_BK.shape[1]]):
                near_B = near_BK[:, rank]
                votes_BC[rows_B, self.labels[near_B]] += weight * np.isfinite(cosine_BN[rows_B, near_B])
            predicted.append(votes_BC.argmax(1))
        return np.concatenate(predicted)

    def metrics(self, outcome: np.ndarray) -> dict[str, Any]:
        accuracy = 100 * float(np.mean(outcome == self.labels))
        return {"neighbours": accuracy, "texts": len(outcome), "classes": len(self.classes)}

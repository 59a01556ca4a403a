"""Labelled texts: how often a text's nearest neighbours share its label. Without a fit, this takes seconds."""

from collections.abc import Callable
from typing import Any

import numpy as np

from raysed.score.kinds.labelled import LabelledTask
from raysed.score.lexical import Vectors
from raysed.score.metrics import unit

_NEIGHBOURS = 5
_BLOCK_CELLS = 2**24


class Neighbours(LabelledTask):
    """Scores models by a vote of each text's five nearest others, by cosine; nearer ones break ties."""

    kind, main, measure = "neighbours", "neighbours", "accuracy of the 5 nearest neighbours"

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
        step = max(1, _BLOCK_CELLS // count)
        for start in range(0, count, step):
            cosine_BN = np.array(cosines(slice(start, start + step)))
            rows_B = np.arange(len(cosine_BN))
            cosine_BN[rows_B, start + rows_B] = -np.inf
            near_BK = np.argsort(-cosine_BN, axis=1, kind="stable")[:, :_NEIGHBOURS]
            votes_BC = np.zeros((len(cosine_BN), len(self.classes)))
            for rank, weight in enumerate(weight_K[: near_BK.shape[1]]):
                votes_BC[rows_B, self.labels[near_BK[:, rank]]] += weight
            predicted.append(votes_BC.argmax(1))
        return np.concatenate(predicted)

    def metrics(self, outcome: np.ndarray) -> dict[str, Any]:
        accuracy = 100 * float(np.mean(outcome == self.labels))
        return {"neighbours": accuracy, "texts": len(outcome), "classes": len(self.classes)}

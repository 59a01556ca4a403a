# raysed/score/kinds/odd_one_out.py
"""Which of three sentences does not belong? Lines of three, separated by tabs; the last one is odd."""

from pathlib import Path

import numpy as np

from raysed.data.rows import read_lines
from raysed.score.kinds import EvaluationTask
from raysed.score.metrics import unit


class OddOneOut(EvaluationTask):
    """Scores models by how often the odd sentence is the farthest from the others."""

    kind, main = "odd-one-out", "found"
    measure, short_measure = "share of odd sentences found", "Found"

    def __init__(self, name, lines):
        self.name, self.size = name, f"{len(lines):,} lines"
        self.sentences = [sentence for line in lines for sentence in line.split("\t")]

    @classmethod
    def load(cls, name, config, split, aggregation):
        return cls(name, read_lines(Path(config.source)))

    def content(self):
        return [self.kind, self.sentences]

    def outcome(self, x_UD):
        x_L3D = unit(np.asarray(x_UD, np.float32)).reshape(-1, 3, x_UD.shape[1])
        return (x_L3D @ x_L3D.transpose(0, 2, 1)).sum(2).argmin(1) == 2

    def lexical_outcome(self, vectors):
        return self.outcome(vectors(self.sentences).toarray())

    def metrics(self, outcome):
        return {"found": 100 * float(outcome.mean()), "lines": len(outcome)}

    def strata(self):
        return [(slice(0, len(self.sentences) // 3), 1.0)]

    def resampled(self, rows, outcomes, counts_PR):
        return 100 * np.stack(outcomes) @ counts_PR / counts_PR.sum(0)

"""Labelled texts by their nearest neighbours, against plain loops."""

from collections import Counter

import numpy as np

from raysed.score.kinds.neighbours import Neighbours
from raysed.score.lexical import tf_idf_vectors
from raysed.score.tasks import Evaluation, main_score


def test_each_text_has_the_label_of_most_of_its_five_nearest(monkeypatch):
    monkeypatch.setattr("raysed.score.kinds.neighbours._BLOCK_CELLS", 7 * 40)  # several blocks
    rng = np.random.default_rng(0)
    labels, texts = rng.integers(3, size=40), [f"text {i} of {i % 7}" for i in range(40)]
    task, x_ND = Neighbours("t", texts, labels, ["a", "b", "c"]), rng.normal(size=(40, 4))
    found = task.outcome(x_ND)
    cosine_NN = [[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in x_ND] for x in x_ND]
    for i in range(40):
        near = sorted((j for j in range(40) if j != i), key=lambda j, i=i: -cosine_NN[i][j])[:5]
        votes = Counter(labels[near].tolist())
        best = [label for label in votes if votes[label] == max(votes.values())]
        assert found[i] in best and (len(best) > 1 or found[i] == best[0])
    metrics = Evaluation([task]).score(x_ND)["t"]
    assert main_score(metrics) == 100 * np.mean(found == labels)
    once_P1 = np.ones((40, 1), np.float32)
    assert abs(task.resampled(slice(0, 40), [found], once_P1)[0, 0] - main_score(metrics)) < 1e-4
    assert task.lexical_outcome(tf_idf_vectors).shape == (40,)

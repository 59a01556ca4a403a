"""Nearest neighbours against plain sorting."""

import numpy as np
import pytest

from raysed import bundled
from raysed.score.neighbours import nearest_neighbours

SENTENCES = bundled.corpus()[:60]


def test_neighbours_are_the_nearest_others():
    table = dict(zip(SENTENCES, np.random.default_rng(0).normal(size=(60, 16))))
    for entry in nearest_neighbours(SENTENCES, lambda texts: np.array([table[text] for text in texts]))["neighbours"]:
        mine = table[entry["sentence"]]
        cosines = {s: mine @ table[s] / np.linalg.norm(mine) / np.linalg.norm(table[s]) for s in SENTENCES}
        del cosines[entry["sentence"]]
        best = sorted(cosines, key=cosines.get, reverse=True)[:2]
        assert [near["sentence"] for near in entry["nearest"]] == best
        assert entry["nearest"][0]["cosine"] == pytest.approx(cosines[best[0]])

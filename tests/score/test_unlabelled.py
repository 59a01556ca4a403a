"""Measures without labels against their definitions, on spaces whose shape is known."""

import itertools
import math
import re

import numpy as np
import pytest

from raysed import bundled
from raysed.score.unlabelled import MOST_CHANGED, isotropy, near_duplicates, unlabelled_scores

SENTENCES = bundled.corpus()[:60]


def spread(width=16, noise=0.0):
    """A random place for each sentence, and one beside it for its near-duplicate; and who embeds them there."""
    rng = np.random.default_rng(0)
    places = rng.normal(size=(len(SENTENCES), width))
    near = places + noise * rng.normal(size=places.shape)
    table = {**dict(zip(near_duplicates(SENTENCES, 0), near)), **dict(zip(SENTENCES, places))}
    return table, lambda sentences: np.array([table[s] for s in sentences])


def test_a_planted_offset_is_found_and_gone_without_it():
    """Offset 3 per channel on unit noise in 16 dimensions: cosine and share are near 9 / 10."""
    x_ND = np.random.default_rng(0).normal(size=(4000, 16))
    cone, even = isotropy(x_ND + 3), isotropy(x_ND)
    assert cone["cosine"] == pytest.approx(0.9, abs=0.01)
    assert cone["first_direction"] == pytest.approx(0.9 + 0.1 / 16, abs=0.01)
    assert even["cosine"] == pytest.approx(0, abs=0.01)
    assert even["first_direction"] == pytest.approx(1 / 16, abs=0.01)
    assert even["effective_rank"] > 15.9 > 12 > cone["effective_rank"]


def test_every_near_duplicate_differs_and_the_seed_decides():
    changed = near_duplicates(SENTENCES, 3)
    assert all(a != b for a, b in zip(SENTENCES, changed))
    assert changed == near_duplicates(SENTENCES, 3) != near_duplicates(SENTENCES, 4)
    assert near_duplicates(["", "word", "a b"], 0)


def test_alignment_and_uniformity_are_their_definitions():
    table, embed = spread(noise=0.2)
    found = unlabelled_scores(SENTENCES, embed)
    unit = {s: v / np.linalg.norm(v) for s, v in table.items()}
    pairs = [np.sum((unit[s] - unit[c]) ** 2) for s, c in zip(SENTENCES, near_duplicates(SENTENCES, 0))]
    assert found["alignment"] == pytest.approx(np.mean(pairs))
    kernel = [math.exp(-2 * np.sum((unit[a] - unit[b]) ** 2)) for a, b in itertools.combinations(SENTENCES, 2)]
    assert found["uniformity"] == pytest.approx(math.log(np.mean(kernel)))


def test_near_duplicates_of_a_sample_are_those_of_its_sentences():
    """With more sentences than are changed: whatever the sample, each is found where it lies beside its own."""
    many = [f"Row {i} of it." for i in range(MOST_CHANGED + 200)]
    places = np.random.default_rng(3).normal(size=(len(many), 16))

    def embed(sentences):
        return places[[int(re.search(r"\d+", sentence)[0]) for sentence in sentences]]

    found = unlabelled_scores(many, embed)
    assert found["found"] == 100 and found["alignment"] == pytest.approx(0)


def test_neighbours_are_the_nearest_others():
    table, embed = spread()
    for entry in unlabelled_scores(SENTENCES, embed)["neighbours"]:
        mine = table[entry["sentence"]]
        cosines = {s: mine @ table[s] / np.linalg.norm(mine) / np.linalg.norm(table[s]) for s in SENTENCES}
        del cosines[entry["sentence"]]
        best = sorted(cosines, key=cosines.get, reverse=True)[:2]
        assert [near["sentence"] for near in entry["nearest"]] == best
        assert entry["nearest"][0]["cosine"] == pytest.approx(cosines[best[0]])

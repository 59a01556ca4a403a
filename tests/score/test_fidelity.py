"""Searches among a user's own texts, against those of the teachers, as plain definitions have them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.model.library import stored_smaller
from raysed.score.fidelity import fidelity
from raysed.score.kinds.retrieval import DEPTH

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(["cat", "dog", "tree", "car", "rain", "sun", "red", "blue"], 6)) for _ in range(150)]
TEACHER_ND = RNG.normal(size=(150, 24))
QUERIES_Q = np.arange(0, 150, 4)


ALL_N = np.arange(150)


def plain(teacher_ND, learner_NE, kept_NE, documents_P) -> tuple[float, float]:
    """Recall and nDCG, one query and one document at a time."""

    def best(row: int, queries: np.ndarray, documents: np.ndarray) -> list[int]:
        cosines = {
            other: queries[row] @ documents[other] / np.linalg.norm(queries[row]) / np.linalg.norm(documents[other])
            for other in documents_P
            if other != row
        }
        return sorted(cosines, key=lambda other: -cosines[other])[:10]

    recalls, gains = [], []
    for row in QUERIES_Q:
        wanted, found = best(row, teacher_ND, teacher_ND), best(row, learner_NE, kept_NE)
        gain = {document: 10 - place for place, document in enumerate(wanted)}
        recalls.append(len(set(wanted) & set(found)) / 10)
        ideal = sum((10 - place) / np.log2(place + 2) for place in range(10))
        gains.append(sum(gain.get(doc, 0) / np.log2(place + 2) for place, doc in enumerate(found)) / ideal)
    return 100 * np.mean(recalls), 100 * np.mean(gains)


@pytest.mark.parametrize("documents_P", [ALL_N, ALL_N[1::2]], ids=["others", "documents"])
@pytest.mark.parametrize("noise", [0.0, 0.5, 2.0])
def test_recall_and_order_are_those_of_the_plain_definition(noise, documents_P):
    learner_NE = (TEACHER_ND + noise * RNG.normal(size=TEACHER_ND.shape)).astype(np.float32)
    stored = stored_smaller(learner_NE)
    found = {row["name"]: row for row in fidelity(TEACHER_ND, learner_NE, stored, TEXTS, QUERIES_Q, documents_P)}
    assert list(found) == ["learner", "learner, int8", "learner, bits", "tf-idf", "bm25"]
    for name, (kept_NE, size) in stored.items():
        expected = plain(TEACHER_ND, learner_NE, kept_NE, documents_P)
        assert (found[name]["recall"], found[name]["ndcg"]) == pytest.approx(expected, abs=1e-6)
        low, high = found[name]["interval"]
        assert low <= found[name]["recall"] <= high and found[name]["bytes"] == size
    recalls = [found[name]["recall"] for name in stored]
    assert (recalls[0] == 100) == (noise == 0) and abs(recalls[1] - recalls[0]) < 5 and recalls[2] < recalls[0] + 2
    chance = 100 * DEPTH / (len(documents_P) - 1)
    assert all(found[name]["recall"] < 4 * chance and found[name]["bytes"] is None for name in ("tf-idf", "bm25"))


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_what_is_left_of_smaller_vectors(seed, width):
    """int8 is off by half a step at most, and bits are signs."""
    x_NE = np.random.default_rng(seed).normal(size=(20, width)).astype(np.float32)
    (same, of_floats), (bytes_NE, of_bytes), (bits_NE, of_bits) = stored_smaller(x_NE).values()
    assert (same == x_NE).all() and (of_floats, of_bytes, of_bits) == (4 * width, width, width / 8)
    steps_E = (x_NE.max(0) - x_NE.min(0)) / 255
    assert (np.abs(bytes_NE - x_NE) <= 0.51 * steps_E + 1e-6).all()
    assert (bits_NE == np.where(x_NE > 0, 1, -1)).all()


@pytest.mark.parametrize("without", [len(TEACHER_ND), 5])
def test_texts_without_words_are_no_mistake(without):
    texts = ["!" * (row + 1) for row in range(without)] + TEXTS[without:]
    found = fidelity(TEACHER_ND, TEACHER_ND, {}, texts, QUERIES_Q, ALL_N)
    assert {row["name"] for row in found} == {"tf-idf", "bm25"}

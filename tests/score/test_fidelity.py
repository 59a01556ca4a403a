"""Searches among a user's own texts, against those of the teachers, as plain definitions have them."""

import numpy as np
import pytest

from raysed.score.fidelity import fidelity
from raysed.score.kinds.retrieval import DEPTH

RNG = np.random.default_rng(0)
TEXTS = [" ".join(RNG.choice(["cat", "dog", "tree", "car", "rain", "sun", "red", "blue"], 6)) for _ in range(150)]
TEACHER_ND = RNG.normal(size=(150, 24))
QUERIES_Q = np.arange(0, 150, 4)


ALL_N = np.arange(150)


def plain(teacher_ND, learner_NE, documents_P) -> tuple[float, float]:
    """Recall and nDCG, one query and one document at a time."""

    def best(row: int, x_ND: np.ndarray) -> list[int]:
        cosines = {
            other: x_ND[row] @ x_ND[other] / np.linalg.norm(x_ND[row]) / np.linalg.norm(x_ND[other])
            for other in documents_P
            if other != row
        }
        return sorted(cosines, key=lambda other: -cosines[other])[:10]

    recalls, gains = [], []
    for row in QUERIES_Q:
        wanted, found = best(row, teacher_ND), best(row, learner_NE)
        gain = {document: 10 - place for place, document in enumerate(wanted)}
        recalls.append(len(set(wanted) & set(found)) / 10)
        ideal = sum((10 - place) / np.log2(place + 2) for place in range(10))
        gains.append(sum(gain.get(doc, 0) / np.log2(place + 2) for place, doc in enumerate(found)) / ideal)
    return 100 * np.mean(recalls), 100 * np.mean(gains)


@pytest.mark.parametrize("documents_P", [ALL_N, ALL_N[1::2]], ids=["others", "documents"])
@pytest.mark.parametrize("noise", [0.0, 0.5, 2.0])
def test_recall_and_order_are_those_of_the_plain_definition(noise, documents_P):
    learner_NE = (TEACHER_ND + noise * RNG.normal(size=TEACHER_ND.shape)).astype(np.float32)
    found = {row["name"]: row for row in fidelity(TEACHER_ND, learner_NE, TEXTS, QUERIES_Q, documents_P)}
    assert list(found) == ["learner", "tf-idf", "bm25"]
    learner = found["learner"]
    assert (learner["recall"], learner["ndcg"]) == pytest.approx(plain(TEACHER_ND, learner_NE, documents_P), abs=1e-6)
    low, high = learner["interval"]
    assert low <= learner["recall"] <= high and (learner["recall"] == 100) == (noise == 0)
    chance = 100 * DEPTH / (len(documents_P) - 1)
    assert all(found[name]["recall"] < 4 * chance for name in ("tf-idf", "bm25"))


@pytest.mark.parametrize("documents_P", [ALL_N, ALL_N[1::2]], ids=["others", "documents"])
def test_new_and_old_queries_search_the_old_index(documents_P):
    """The naive search in vectors of the old documents and of queries by either model."""
    new_ND, old_ND = (TEACHER_ND + 0.5 * RNG.normal(size=TEACHER_ND.shape) for _ in range(2))
    found = {row["name"]: row for row in fidelity(TEACHER_ND, new_ND, TEXTS, QUERIES_Q, documents_P, old_ND)}
    for name, asking_ND in (("new model, old index", new_ND), ("old model, old index", old_ND)):
        recalls = []
        for row in QUERIES_Q:
            others = [other for other in documents_P if other != row]
            best = []
            for x_D, y_ND in ((TEACHER_ND[row], TEACHER_ND), (asking_ND[row], old_ND)):
                cosines = y_ND[others] @ x_D / np.linalg.norm(y_ND[others], axis=1)
                best.append({others[place] for place in np.argsort(-cosines)[:DEPTH]})
            recalls.append(100 * len(best[0] & best[1]) / DEPTH)
        assert found[name]["recall"] == pytest.approx(np.mean(recalls), abs=1e-9)
        low, high = found[name]["interval"]
        assert low < found[name]["recall"] < high


@pytest.mark.parametrize("without", [len(TEACHER_ND), 5])
def test_texts_without_words_are_no_mistake(without):
    texts = ["!" * (row + 1) for row in range(without)] + TEXTS[without:]
    found = fidelity(TEACHER_ND, TEACHER_ND, texts, QUERIES_Q, ALL_N)
    assert {row["name"] for row in found} == {"learner", "tf-idf", "bm25"}

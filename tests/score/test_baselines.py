"""Baselines without a model against plain counting."""

import math
from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from raysed.data.transfer import Split, TransferTask
from raysed.score import lexical as module
from raysed.score.lexical import count_vectors, tf_idf_vectors, transfer_baselines, word_cosines

WORDS = "the a dog cat sun rain sings sleeps runs on in house".split()


def cosine(a: dict[str, float], b: dict[str, float]) -> float:
    norms = math.sqrt(sum(x * x for x in a.values()) * sum(x * x for x in b.values()))
    return sum(x * b.get(word, 0) for word, x in a.items()) / norms if norms else 0.0


def plain_tf_idf(first: list[str], second: list[str]) -> list[float]:
    """Logarithmic counts times log((1 + n) / (1 + df)) + 1 over n distinct sentences, without words of one letter."""
    sentences = list(dict.fromkeys([*first, *second]))
    bags = {s: Counter(word for word in s.split() if len(word) > 1) for s in sentences}
    frequency = Counter(word for bag in bags.values() for word in bag)
    weights = {word: math.log((1 + len(sentences)) / (1 + df)) + 1 for word, df in frequency.items()}
    vectors = {s: {w: (1 + math.log(n)) * weights[w] for w, n in bag.items()} for s, bag in bags.items()}
    return [cosine(vectors[a], vectors[b]) for a, b in zip(first, second)]


def test_word_overlap_is_the_cosine_of_counts():
    rows = [("The cat saw the dog.", "the dog"), ("a b", "c d"), ("It's me!", "it's ME"), ("", "a")]
    got = word_cosines(count_vectors, *zip(*rows))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, [3 / np.sqrt(7 * 2), 0, 1, 0])


@pytest.mark.parametrize("seed", range(5))
def test_tf_idf_equals_plain_counting(seed):
    rng = np.random.default_rng(seed)
    first, second = ([" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(30)] for _ in range(2))
    np.testing.assert_allclose(word_cosines(tf_idf_vectors, first, second), plain_tf_idf(first, second), atol=1e-12)


def sentences(count: int, rng: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Sentences of two classes, which differ in how often they have each word."""
    labels_N = np.arange(count) % 2
    odds = rng.uniform(size=(2, len(WORDS)))
    odds /= odds.sum(1, keepdims=True)
    return [" ".join(rng.choice(WORDS, rng.integers(2, 7), p=odds[label])) for label in labels_N], labels_N


def test_tf_idf_of_a_transfer_task_is_sklearns():
    rng = np.random.default_rng(0)
    parts = {key: sentences(count, rng) for key, count in (("train", 150), ("dev", 80), ("test", 300))}
    task = TransferTask("SST2", "split", {key: Split((texts,), y_N) for key, (texts, y_N) in parts.items()})
    found = transfer_baselines([task])["tf-idf"]["SST2"]
    vectorizer = TfidfVectorizer(sublinear_tf=True).fit(list(dict.fromkeys(parts["train"][0])))
    model = LogisticRegression(C=found["C"], tol=1e-9, max_iter=5000)
    model.fit(vectorizer.transform(parts["train"][0]), parts["train"][1])
    expected = 100 * model.score(vectorizer.transform(parts["test"][0]), parts["test"][1])
    assert found["accuracy"] == pytest.approx(expected, abs=0.4) and found["accuracy"] > 60 and found["converged"]


@pytest.mark.parametrize("sides", [1, 2])
def test_tf_idf_knows_the_words_of_the_training_rows_alone(monkeypatch, sides):
    """Each sentence has one word of its own; those of a held-out row, or of other splits, have no column."""
    texts = tuple([f"{name}{i} the" for i in range(60)] for name in "ab"[:sides])
    task = TransferTask("MR", "nested", {"all": Split(texts, np.arange(60) % 2)})
    widths = []
    monkeypatch.setattr(module, "run_probe", lambda job, features_UV: widths.append((job, features_UV)))
    monkeypatch.setattr(module, "combine", list)
    transfer_baselines([task], seed=4)
    assert len(widths) == 10
    for job, features_UV in widths:
        assert features_UV.shape == (60 * sides, 54 * sides + 1)
        known_U = np.diff(features_UV.indptr) == 2
        assert set(np.flatnonzero(known_U)) == set(job.training_rows)
        assert not set(job.training_rows) & set(job.rows["all"][job.outer_fold[1]].ravel())


def test_tf_idf_without_a_word_is_no_feature():
    task = TransferTask(
        "SST2", "split", {key: Split((["?", "!"] * 10,), np.arange(20) % 2) for key in ("train", "dev", "test")}
    )
    assert transfer_baselines([task])["tf-idf"]["SST2"]["accuracy"] == 50

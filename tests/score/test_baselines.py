"""Baselines without a model against plain counting."""

import math
from collections import Counter

import numpy as np
import pytest

from raysed.score.lexical import bm25_of, count_vectors, tf_idf_vectors, word_cosines

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


def test_text_without_spaces_is_counted_by_characters():
    first, near, far = "今天天气很好，我们去公园散步。", "今天天气不错，我们去公园走走。", "他买了一台电脑。"
    for vectors in (count_vectors, tf_idf_vectors):
        alike, unlike = word_cosines(vectors, [first, first], [near, far])
        assert alike > 0.4 > unlike
    assert word_cosines(tf_idf_vectors, ["人々"], ["々・𠮷"])[0] > 0
    scores_N = bm25_of([near, far])(["天气"])[0]
    assert scores_N[0] > scores_N[1] == 0


@pytest.mark.parametrize("seed", range(5))
def test_tf_idf_equals_plain_counting(seed):
    rng = np.random.default_rng(seed)
    first, second = ([" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(30)] for _ in range(2))
    np.testing.assert_allclose(word_cosines(tf_idf_vectors, first, second), plain_tf_idf(first, second), atol=1e-12)

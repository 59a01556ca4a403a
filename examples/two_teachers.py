"""Do two teachers together beat the better one? One of these is a function, as an API would be.

python examples/two_teachers.py
"""

from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

import raysed
from raysed import bundled

sentences = bundled.corpus()
words = TfidfVectorizer(sublinear_tf=True).fit(sentences)


def rare_words(some: Sequence[str]) -> np.ndarray:
    """Return a TF-IDF vector per sentence."""
    return words.transform(some).toarray()


pairs = {"pairs": [(first, second, score) for score, first, second in bundled.pairs("test")]}
print(raysed.evaluate(["bundled:encoder", rare_words], pairs))

result = raysed.distill(
    teachers=["bundled:encoder", rare_words],
    corpus=sentences[:1000],
    learner="bundled:encoder",  # starts from this model, with all layers
    tasks=pairs,
    run="two-teachers",
    settings={"combination": {"weights": [1.0, 0.2]}, "sed": {"epochs": 1}, "export": {"allow_worse": True}},
)
print(result.scores)
print(result.report["findings"])

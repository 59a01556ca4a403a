"""A sanity list: which of two sentences is closer to a third? Fifty triples that a person answers at once.

In a third of them the wrong answer shares more words. They choose nothing and count in no score.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from raysed.data.rows import read_lines
from raysed.score.lexical import tf_idf_vectors, word_cosines
from raysed.score.metrics import unit

FILE = Path(__file__).parents[1] / "bundled" / "triples.tsv"
Embed = Callable[[Sequence[str]], np.ndarray]
"""Sentences to embeddings [B, D]."""


@lru_cache
def triples() -> tuple[tuple[str, str, str], ...]:
    """Return (sentence, closer, farther) of every triple.

    >>> len(triples()), triples()[0]
    (50, ('A man plays the guitar.', 'Someone is making music.', 'It rains.'))
    """
    return tuple(tuple(line.split("\t")) for line in read_lines(FILE)[1:])


def answered_by(embed: Embed) -> int:
    """Return how many triples a model answers as a person does, by cosine; a tie is no answer."""
    x_ND, near_ND, far_ND = (unit(np.asarray(embed(side), np.float64)) for side in zip(*triples()))
    return int(((x_ND * near_ND).sum(1).round(12) > (x_ND * far_ND).sum(1).round(12)).sum())


def answered_by_words() -> int:
    """Return how many of them TF-IDF answers, whose frequencies are those of the list."""
    sentences, closer, farther = zip(*triples())
    near_N, far_N = np.split(word_cosines(tf_idf_vectors, [*sentences, *sentences], [*closer, *farther]), 2)
    return int((near_N > far_N).sum())

"""The bundled sentences are what their generator writes, and words alone score badly on its pairs."""

import pytest
from scipy.stats import spearmanr

from everyday import generator
from raysed import bundled
from raysed.score.lexical import count_vectors, word_cosines

SPLITS = ("train", "dev", "test")


def test_the_generator_still_makes_exactly_the_files_of_the_package():
    folder = bundled.ENCODER.parent
    assert {name: (folder / name).read_text(encoding="utf-8") for name in generator.files()} == generator.files()
    assert bundled.corpus() == generator.corpus()
    for split in SPLITS:
        assert bundled.pairs(split) == generator.pairs(split)


@pytest.mark.parametrize("split", SPLITS)
def test_words_alone_score_badly(split):
    scores, first, second = zip(*bundled.pairs(split))
    assert 0.25 < spearmanr(scores, word_cosines(count_vectors, first, second)).statistic < 0.5

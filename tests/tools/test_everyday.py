"""The bundled sentences are what their generator writes, and words alone score badly on its pairs."""

from scipy.stats import spearmanr

from everyday import generator
from raysed import bundled
from raysed.score.lexical import count_vectors, word_cosines


def test_the_generator_still_makes_exactly_the_files_of_the_package():
    files, folder = generator.files(), bundled.ENCODER.parent
    assert {name: (folder / name).read_text(encoding="utf-8") for name in files} == files
    assert bundled.corpus() == files["corpus.txt"].splitlines()


def test_pairs_are_those_of_the_generator_and_words_alone_score_badly():
    for split in ("train", "dev", "test"):
        assert bundled.pairs(split) == generator.pairs(split)
        scores, first, second = zip(*bundled.pairs(split))
        assert 0.25 < spearmanr(scores, word_cosines(count_vectors, first, second)).statistic < 0.5

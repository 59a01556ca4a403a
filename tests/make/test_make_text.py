"""The sentence table: what making it takes, and what is said of a small one."""

import tracemalloc

import pyarrow.parquet as pq
import pytest

from raysed.config import CorpusConfig, EncoderConfig
from raysed.context import Context
from raysed.data.tokens import read_tokens
from raysed.make.text import sentence_table, small_corpus
from raysed.train.stages.sed import SedConfig

WORDS = "cat dog bird horse cow car tree house road river".split()


def write_text(path, count: int) -> None:
    """Different sentences of 16 words."""
    with open(path, "w") as file:
        for number in range(count):
            words = [WORDS[int(digit)] for digit in f"{number:08d}"]
            file.write(" ".join(words * 2) + "\n")


def test_memory_does_not_grow_with_the_corpus(tmp_path, tiny_encoder_dir):
    """Of 16,000 more sentences, text alone would take 2 MB; what stays of each are the 8 bytes of its hash."""
    peaks = []
    for count in (256, 4096, 20_480):  # the first fills the caches of libraries
        text, table = tmp_path / f"{len(peaks)}.txt", tmp_path / f"table-{len(peaks)}"
        write_text(text, count)
        table.mkdir()
        inputs = {"encoder": EncoderConfig(path=str(tiny_encoder_dir), max_length=16), "start": None}
        tracemalloc.start()
        made = sentence_table(table, inputs, {"corpus": CorpusConfig(source=str(text)), "seed": 0}, Context())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert made["rows"] == pq.read_metadata(table / "part-00000.parquet").num_rows == count
        assert len(read_tokens(table)) == count
    assert peaks[2] - peaks[1] < 1e6


@pytest.mark.parametrize(
    ("sentences", "sed", "words"),
    [
        (400, {}, ["only 400 sentences", "only 12 training steps (400 sentences, sed.batch_size 32, sed.epochs 1)"]),
        (400, {"epochs": 13}, ["only 400 sentences"]),
        (6000, {}, []),
        (6000, {"batch_size": 64}, ["a learner gets only 93 training steps", "set sed.epochs to 2 for"]),
    ],
)
def test_too_little_text_is_said_before_training(sentences, sed, words):
    said = " ".join(small_corpus(sentences, is_trained_on=True, sed=SedConfig(**sed)))
    assert all(part in said for part in words) and bool(said) == bool(words)
    assert not list(small_corpus(3, is_trained_on=False, sed=None))

"""The sentence table: what making it takes, and what is said of a small one."""

import tracemalloc

import pyarrow.parquet as pq
import pytest

from raysed.config import make_config
from raysed.data.tokens import read_tokens
from raysed.recipe import parse_recipes
from raysed.stages.corpus import too_little, write_sentence_table

WORDS = "cat dog bird horse cow car tree house road river".split()


def write_text(path, count: int) -> None:
    """Different sentences of 16 words."""
    with open(path, "w") as file:
        for number in range(count):
            words = [WORDS[int(digit)] for digit in f"{number:08d}"]
            file.write(" ".join(words * 2) + "\n")


def test_memory_does_not_grow_with_the_corpus(tmp_path, tiny_tokenizer):
    """Of 16,000 more sentences, text alone would take 2 MB; what stays of each are the 8 bytes of its hash."""
    peaks = []
    for count in (256, 4096, 20_480):  # the first fills the caches of libraries
        text, table = tmp_path / f"{len(peaks)}.txt", tmp_path / f"table-{len(peaks)}"
        write_text(text, count)
        table.mkdir()
        config = make_config({"corpus": {"source": str(text)}, "encoder": {"max_length": 16}})
        tracemalloc.start()
        made = write_sentence_table(config, tiny_tokenizer, table)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert made["report"]["kept"] == pq.read_metadata(table / "part-00000.parquet").num_rows == count
        assert len(read_tokens(table)) == count
    assert peaks[2] - peaks[1] < 1e6


@pytest.mark.parametrize(
    ("sentences", "settings", "words"),
    [
        (400, {}, ["only 400 sentences", "only 12 updates (400 sentences, sed.batch_size 32, sed.epochs 1)"]),
        (400, {"sed": {"epochs": 13}}, ["only 400 sentences"]),
        (6000, {}, []),
        (6000, {"sed": {"batch_size": 64}}, ["a learner gets only 93 updates", "sed.epochs: 2 would give it"]),
        (3, {"recipes": ["nli-flow"]}, []),
    ],
)
def test_too_little_text_is_said_before_training(sentences, settings, words):
    config = make_config({"recipes": ["ct-sed"], **settings})
    said = list(too_little(config, parse_recipes(config.recipes), sentences))
    assert all(part in " ".join(said) for part in words) and bool(said) == bool(words)

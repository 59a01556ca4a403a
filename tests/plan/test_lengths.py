"""Long texts become passages, and what is read of each follows the text and the models."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysed.api import distillation
from raysed.config import CorpusConfig, EncoderConfig
from raysed.data.corpus import CorpusReport, passages, sentence_chunks
from raysed.model.pretrained import load_tokenizer
from raysed.plan.draft import survey_corpus
from raysed.plan.lengths import choose_lengths, fit_lengths, in_passages

TEXT = st.text(alphabet="ab .!?。\"'é", max_size=200).map(lambda text: " ".join(text.split()))


@given(TEXT, st.integers(5, 60))
def test_passages_are_the_text_in_turn_and_none_is_too_long(text, most):
    parts = passages(text, most)
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")
    assert all(0 < len(part) <= most and part == part.strip() for part in parts)
    assert parts == ([text] if text else []) or len(text) > most


def test_passages_end_with_sentences_where_they_can():
    sentences = [f"Sentence {index} says something." for index in range(50)]
    parts = passages(" ".join(sentences), 100)
    assert all(part.endswith("something.") for part in parts) and len(parts) < 50 / 2


def test_long_lines_become_passages_instead_of_being_skipped(tmp_path):
    long, file = "The cat sat near the tree. " * 200, tmp_path / "text.txt"
    file.write_text(f"A short line.\n{long}\n\nx\n")

    def read(**settings) -> tuple[list[str], CorpusReport]:
        report = CorpusReport()
        chunks = sentence_chunks(CorpusConfig(source=str(file), **settings), 0, report)
        return [sentence for _, chunk in chunks for sentence in chunk], report

    kept, report = read()
    assert kept == ["A short line."] and report.too_long == 1 and "passages" not in report.summary()
    kept, report = read(passage_characters=400)
    assert report.split == 1 and report.too_long == 0 and report.too_short == 1 and report.empty == 1
    assert kept[0] == "A short line." and kept[1] == " ".join(["The cat sat near the tree."] * 14)
    assert len(kept) == 3 and report.duplicates == 13  # of the same sentence again and again
    assert report.lines == report.empty + report.too_short + report.duplicates + report.usable


@given(st.lists(st.integers(3, 900), min_size=1, max_size=40), st.integers(75, 512))
def test_what_is_read_covers_most_texts_or_all_that_the_models_can_read(tokens, limit):
    found = choose_lengths(np.array(tokens), limit)
    assert 75 <= found.tokens <= limit
    assert found.tokens == limit or np.mean(np.array(tokens) <= found.tokens) >= 0.95
    plain = [max(0, count - found.tokens) for count in tokens]
    assert found.cut_texts == pytest.approx(sum(lost > 0 for lost in plain) / len(tokens))
    assert found.cut_tokens == pytest.approx(sum(plain) / sum(tokens))


def test_passages_fit_what_a_teacher_reads(tmp_path, tiny_encoder_dir):
    """The tiny encoder has places for 40 tokens."""
    file = tmp_path / "text.txt"
    file.write_text("\n".join(f"{word} cat sat near the old tree. " * 30 for word in ("a", "the", "one", "that")))
    encoder, corpus = EncoderConfig(path=str(tiny_encoder_dir), max_length=20), CorpusConfig(source=str(file))
    survey = survey_corpus(in_passages(corpus))
    texts = survey.sample, survey.report.split > 0
    found = fit_lengths(*texts, corpus, encoder, [str(tiny_encoder_dir), "no/such-model"])
    assert found.tokens == found.limit == 40 and found.passage_characters < 300 and found.cut_tokens < 0.05
    beside_a_file = fit_lengths(*texts, corpus, encoder, ["vectors.parquet"])
    assert beside_a_file.passage_characters is None
    tokenizer, report = load_tokenizer(encoder), CorpusReport()
    settings = {"source": str(file), "passage_characters": found.passage_characters}
    parts = [text for _, chunk in sentence_chunks(CorpusConfig(**settings), 0, report) for text in chunk]
    lengths = [len(tokenizer(text)["input_ids"]) for text in parts]
    assert np.mean(np.array(lengths) > 40) <= 0.05 and max(lengths) > 20


def test_distill_reads_as_much_as_the_text_has_unless_it_is_told(tmp_path):
    texts = [" ".join(f"word{index}" for index in range(start, start + 60)) + "." for start in range(40)]
    for settings, tokens in (({}, 88), ({"encoder": {"max_length": 50}}, 50)):
        config = distillation("bundled:encoder", texts, storage=str(tmp_path), settings=settings)
        teacher = config.teachers[0].max_length
        assert config.encoder.max_length == tokens and (teacher == tokens or settings)

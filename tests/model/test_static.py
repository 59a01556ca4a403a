"""Tables of token vectors, compared with what sentence-transformers makes of them, and with plain sums."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from raysed.config import make_config
from raysed.data.tokens import TokenTable, pack, tokenize
from raysed.errors import UserError
from raysed.model.calibration import Affine
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode
from raysed.model.library import export_model, parity
from raysed.model.load import load_model
from raysed.model.pretrained import check_encoder, load_checkpoint, load_encoder, save_encoder
from raysed.model.static import StaticVectors, without_special_tokens
from raysed.model.static_start import SIF, start_rows, token_embeddings, write_static
from raysed.plan.check import check

MAX_LENGTH, WIDTH = 6, 5


@pytest.fixture(scope="module")
def tokenizer(tiny_encoder_dir) -> PreTrainedTokenizerBase:
    return without_special_tokens(AutoTokenizer.from_pretrained(tiny_encoder_dir))


@pytest.fixture
def encoder(tokenizer) -> Encoder:
    rows_VD = np.random.default_rng(0).normal(size=(len(tokenizer), WIDTH)).astype(np.float32)
    return Encoder(StaticVectors.from_rows(torch.from_numpy(rows_VD)))


@pytest.fixture(scope="module")
def sentences(make_sentences) -> list[str]:
    """Some longer than the maximum length, one empty, one of unknown words, one with a special token in it."""
    return [*make_sentences(60), "", "zzz qqq", f"{make_sentences(1)[0]} [SEP]"]


@given(st.lists(st.lists(st.integers(0, 8), max_size=12), min_size=1, max_size=9))
def test_an_embedding_is_the_mean_of_its_tokens_rows(token_lists):
    rows_VD = np.random.default_rng(1).normal(size=(9, 3)).astype(np.float32)
    encoder = Encoder(StaticVectors.from_rows(torch.from_numpy(rows_VD)))
    expected = np.stack([rows_VD[tokens].mean(0) if tokens else np.zeros(3) for tokens in token_lists])
    table = TokenTable.from_lists(token_lists)
    np.testing.assert_allclose(encode(encoder, table)[0], expected, atol=1e-6)
    with torch.no_grad():  # several sentences a row, as in training
        np.testing.assert_allclose(encoder(pack(table)).numpy(), expected, atol=1e-6)


def test_it_is_the_same_when_it_is_loaded_again(encoder, tokenizer, sentences, tmp_path):
    """As an artefact of a run, and by `evaluate` as a plain model of one layer."""
    save_encoder(encoder, tokenizer, tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    for max_length in (500, MAX_LENGTH):
        before, after = tokenize(tokenizer, sentences, max_length), tokenize(again, sentences, max_length)
        assert before.input_ids.tolist() == after.input_ids.tolist()
        assert before.offsets.tolist() == after.offsets.tolist() and before.lengths.max() <= max_length
    expected = encode(encoder, before)[0]
    assert np.array_equal(expected, encode(load_checkpoint(tmp_path), after)[0])
    np.testing.assert_allclose(load_model(str(tmp_path), 1, MAX_LENGTH).embed(sentences), expected, atol=1e-6)
    with pytest.raises(UserError, match="2 layers cannot be pooled: the encoder has 1"):
        load_model(str(tmp_path), 2, MAX_LENGTH)


def test_the_tokenizer_adds_nothing_and_finds_the_same_tokens(tiny_encoder_dir, tokenizer, sentences):
    whole = AutoTokenizer.from_pretrained(tiny_encoder_dir)
    for sentence in sentences:
        with_specials = whole(sentence)["input_ids"]
        assert [with_specials[0], *tokenizer(sentence)["input_ids"], with_specials[-1]] == with_specials


@pytest.mark.parametrize("kind", ["plain", "calibrated", "wider"])
def test_exports_are_what_sentence_transformers_computes(encoder, tokenizer, sentences, tmp_path, kind):
    """Also of a head that leads from the table to wider targets."""
    generator, calibration = np.random.default_rng(2), None
    expected = encode(encoder, tokenize(tokenizer, sentences, MAX_LENGTH))[0]
    if kind == "calibrated":
        calibration = Affine(generator.normal(size=(WIDTH, WIDTH)), generator.normal(size=WIDTH))
        expected = calibration.transform(expected)
    if kind == "wider":
        encoder.set_head(generator.normal(size=(WIDTH, 9)).astype(np.float32))
        expected = expected @ encoder.head_weight()
    export_model(encoder, tokenizer, tmp_path, layers=1, max_length=MAX_LENGTH, calibration=calibration)
    assert parity(tmp_path, sentences, expected) < 1e-5 < 1e-3 < parity(tmp_path, sentences, expected + 0.01)
    assert np.abs(load_model(str(tmp_path)).embed(sentences) - expected).max() < 1e-5


# -- what it starts from ---------------------------------------------------------------------------------------------


def test_a_tokens_embedding_is_that_of_the_token_as_a_sentence(tiny_encoder_dir):
    config = make_config({"encoder": {"path": str(tiny_encoder_dir), "max_length": 20}}).encoder
    encoder, tokenizer = load_encoder(config)
    words = [word for word in tokenizer.get_vocab() if word.isalpha()]
    expected = encode(encoder, tokenize(tokenizer, words, 20))[0]
    found = token_embeddings(encoder, tokenizer)[tokenizer.convert_tokens_to_ids(words)]
    assert len(words) > 10 and np.abs(found - expected).max() < 1e-5


def test_rows_are_centred_and_scaled_by_frequency():
    """Narrower ones keep the dot products as well as possible."""
    rows_VD, counts_V = np.random.default_rng(4).normal(size=(30, 6)).astype(np.float32), np.arange(30) ** 2
    whole, narrow = start_rows(rows_VD, counts_V, 6), start_rows(rows_VD, counts_V, 2)
    for v in range(30):
        expected = (rows_VD[v] - sum(rows_VD) / 30) * SIF / (SIF + counts_V[v] / sum(counts_V))
        np.testing.assert_allclose(whole[v], expected, atol=1e-6)
    left, values, _ = np.linalg.svd(whole)
    np.testing.assert_allclose(narrow @ narrow.T, left[:, :2] * values[:2] ** 2 @ left[:, :2].T, atol=1e-5)


def settings(path: Path, **encoder) -> dict:
    return {
        "recipes": ["teachers-sed"],
        "teachers": [{"path": str(path), "max_length": 20}],
        "encoder": {"path": str(path), "pool_layers": 1, "static": {}, **encoder},
        "evaluation": {"pool_layers": [1]},
    }


def test_the_start_is_written_as_the_parts_say(tiny_encoder_dir, tmp_path, make_sentences):
    """Though `max_length` is more than the encoder takes."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(make_sentences(40)) + "\n")
    config = make_config({**settings(tiny_encoder_dir, max_length=500), "corpus": {"source": str(text)}})
    assert check_encoder(config.encoder) == 1
    for name in ("start", "again"):
        write_static(config.encoder, config.corpus, config.seed, tmp_path / name)
    encoder, tokenizer = load_checkpoint(tmp_path / "start"), AutoTokenizer.from_pretrained(tmp_path / "start")
    own, own_tokenizer = load_encoder(config.encoder.model_copy(update={"max_length": 20}))
    lists = [tokenizer(sentence)["input_ids"] for sentence in set(text.read_text().splitlines())]
    counts_V = np.bincount([token for tokens in lists for token in tokens], minlength=len(tokenizer))
    expected = start_rows(token_embeddings(own, own_tokenizer), counts_V, own.width)
    np.testing.assert_allclose(encoder.transformer.embedding.weight.detach(), expected, atol=1e-6)
    for file in (tmp_path / "start").iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_another_corpus_or_width_makes_another_start(tiny_encoder_dir):
    plain, narrow = (settings(tiny_encoder_dir, static=static) for static in ({}, {"width": 3}))
    runs = plain, narrow, {**plain, "corpus": {"sentences": 50}}
    first, *others = [check(make_config(content)).inputs["encoder"] for content in runs]
    assert first not in others

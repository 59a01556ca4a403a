"""The script that trains an encoder from text alone."""

import pytest

import bundled_encoder
from raysed.config import EncoderConfig
from raysed.model.pretrained import load_encoder

# Every word is as frequent as the others, so that many pieces are.
SENTENCES = [f"{first}{second}{third} and Été 東京" for first in "abcd" for second in "efgh" for third in "ijkl"]


def trained(sentences: list[str], size: int = 100):
    return bundled_encoder.train_tokenizer(sentences, size)


def test_the_same_sentences_give_the_same_pieces_with_the_same_numbers():
    first = trained(SENTENCES).get_vocab()
    assert len(first) == 100 and sorted(first.values()) == list(range(100))
    assert all(trained(SENTENCES).get_vocab() == first for _ in range(5))


def test_the_order_of_sentences_does_not_matter():
    assert trained(SENTENCES[::-1]).get_vocab() == trained(SENTENCES).get_vocab()


def test_special_tokens_come_first_and_nothing_else_is_special():
    tokenizer = trained(SENTENCES)
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]) == [0, 1, 2, 3, 4]
    assert set(tokenizer.all_special_ids) == {0, 1, 2, 3, 4}
    assert tokenizer.get_added_vocab().keys() == {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}
    assert tokenizer.tokenize("##e") == ["[UNK]", "[UNK]", "e"]


@pytest.mark.parametrize("size", (100, 300))
def test_a_word_of_the_corpus_is_cut_into_pieces_that_spell_it(size):
    tokenizer = trained(SENTENCES, size)
    assert tokenizer("AEI ete")["input_ids"][0] == 2 and tokenizer("AEI ete")["input_ids"][-1] == 3
    for word in ("aei", "dhl", "and", "ete", "東", "京"):
        pieces = tokenizer.tokenize(word)
        assert "".join(piece.removeprefix("##") for piece in pieces) == word
    assert tokenizer.tokenize("and") == ["and"]


def test_what_is_trained_is_an_encoder_of_random_weights_that_depend_on_the_seed(tmp_path):
    weights = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        bundled_encoder.write_start(SENTENCES, seed, tmp_path / name)
        encoder, tokenizer = load_encoder(EncoderConfig(path=str(tmp_path / name), max_length=48, layers=3))
        assert encoder.width == 192 and tokenizer.mask_token_id == 4
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]

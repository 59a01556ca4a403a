"""The script that distils the bundled encoder."""

import bundled_encoder

# Every word is as frequent as the others, so that many pieces are.
SENTENCES = [f"{first}{second}{third} and Été 東京" for first in "abcd" for second in "efgh" for third in "ijkl"]


def test_the_same_sentences_in_any_order_give_the_same_pieces_with_the_same_numbers():
    first, *others = (bundled_encoder.train_tokenizer(SENTENCES[::step], 100).get_vocab() for step in (1, 1, -1))
    assert len(first) == 100 and sorted(first.values()) == list(range(100)) and others == [first, first]

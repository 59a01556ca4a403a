"""The script that distils the bundled encoder."""

import numpy as np
import torch
from torch.nn import functional

import bundled_encoder
from raysed.config import EncoderConfig
from raysed.data.tokens import TokenTable, pack
from raysed.model.pretrained import load_encoder

# Every word is as frequent as the others, so that many pieces are.
SENTENCES = [f"{first}{second}{third} and Été 東京" for first in "abcd" for second in "efgh" for third in "ijkl"]


def trained(sentences: list[str], size: int = 100):
    return bundled_encoder.train_tokenizer(sentences, size)


def test_the_same_sentences_in_any_order_give_the_same_pieces_with_the_same_numbers():
    first = trained(SENTENCES).get_vocab()
    assert len(first) == 100 and sorted(first.values()) == list(range(100))
    assert all(trained(SENTENCES[::step]).get_vocab() == first for step in (1, -1))


def test_the_start_passes_what_is_said_of_tokens_through_all_layers(tmp_path):
    vectors_VD = np.random.default_rng(0).normal(size=(95, bundled_encoder.WIDTH)).astype(np.float32)
    bundled_encoder.write_start(trained(SENTENCES), vectors_VD, tmp_path)
    vectors_VD = torch.from_numpy(vectors_VD)
    encoder, tokenizer = load_encoder(EncoderConfig(path=str(tmp_path), max_length=48, pool_layers=3))
    encoder.eval()
    ids = tokenizer("aei and")["input_ids"]
    special_2D = encoder.transformer.get_input_embeddings().weight[[2, 3]]
    said_ND = torch.cat([vectors_VD[[token - 5 for token in ids[1:-1]]], special_2D])
    expected_D = functional.layer_norm(said_ND, said_ND.shape[1:], eps=1e-12).mean(0)
    for depth in (1, 2, 3):
        (x_1D,) = encoder.embed(pack(TokenTable.from_lists([ids])), (depth,))
        torch.testing.assert_close(x_1D[0], expected_D, rtol=0, atol=1e-5)

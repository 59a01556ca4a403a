"""Whole tables: their order, and what happens when memory runs out."""

import numpy as np
import pytest
import torch

from raysed.data.tokens import TokenTable, batches_by_tokens, pack
from raysed.errors import UserError
from raysed.model.encoder import Encoder
from raysed.model.encoding import encode

POOLINGS = [1, 2, 3, "first_last"]


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_encode_keeps_the_order_whatever_the_budget(make_encoder, make_table, architecture):
    encoder, table = make_encoder(architecture), make_table(70, longest=38)
    whole = encode(encoder, table, POOLINGS, 10**6)
    for budget in (1, 64, 333):
        told = []
        for a, b in zip(whole, encode(encoder, table, POOLINGS, budget, on_rows=told.append)):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(a).max())
        assert told == sorted(set(told)) and told[-1] == 70
    shuffled = np.random.default_rng(0).permutation(70)
    np.testing.assert_allclose(encode(encoder, table.take(shuffled))[0], whole[0][shuffled], atol=1e-5)
    one = encode(encoder, table.take(np.array([5])))[0]
    np.testing.assert_allclose(one[0], whole[0][5], atol=1e-5)
    assert whole[0].dtype == np.float32 and whole[0].shape == (70, 16)
    assert encode(encoder, TokenTable.from_lists([]))[0].shape == (0, 16)


@pytest.mark.parametrize("training", [True, False])
def test_encode_leaves_the_encoder_as_it_was(make_encoder, make_table, training):
    """Without dropout and gradients inside, in its own mode after, even after an error."""
    encoder, table = make_encoder("bert").train(training), make_table(9)
    np.testing.assert_array_equal(encode(encoder, table)[0], encode(encoder, table)[0])
    with pytest.raises(ValueError):
        encode(encoder, table, (9,))
    assert {module.training for module in encoder.modules()} == {training}
    assert all(p.grad is None for p in encoder.parameters())


@pytest.mark.parametrize("training", [True, False])
def test_encode_with_dropout_draws_a_mask_for_each_row(make_encoder, make_table, training):
    """As the encoder in training, also for a sentence that comes twice; it is left as it was."""
    encoder, table = make_encoder("bert").train(training), make_table(9)
    torch.manual_seed(3)
    found = encode(encoder, table, (1, 2), 10**6, dropout=True)
    assert {module.training for module in encoder.modules()} == {training}
    torch.manual_seed(3)
    rows = next(batches_by_tokens(table.lengths, 10**6))
    with torch.no_grad():
        expected = encoder.train().embed(pack(table.take(rows), row_tokens=1), (1, 2))
    for x_ND, expected_ND in zip(found, expected):
        np.testing.assert_allclose(x_ND[rows], expected_ND, atol=1e-6)
    twice = encode(encoder, table.take(np.array([4, 4])), dropout=True)[0]
    assert np.abs(twice[0] - twice[1]).max() > 1e-3


@pytest.mark.parametrize("architecture", ["bert", "mpnet"])
def test_embeddings_in_bf16_are_near_those_in_fp32_and_pooled_in_it(make_encoder, make_table, architecture):
    encoder, table = make_encoder(architecture), make_table(70)
    exact, buffers = encode(encoder, table)[0], [x.dtype for x in encoder.buffers()]
    encoder.round_weights()
    assert encoder.is_rounded and [x.dtype for x in encoder.buffers()] == buffers
    (found,) = encode(encoder, table)
    assert found.dtype == np.float32
    assert 0 < np.abs(found - exact).max() < 3e-2 * np.abs(exact).max()
    assert not torch.is_autocast_enabled("cpu")


@pytest.fixture
def little_memory(monkeypatch):
    """Returns what lets passes of more than so many tokens run out of memory, and a list of those that are done."""
    done, embed = [], Encoder.embed

    def limit(most: int, error: Exception) -> list[int]:
        def limited(self, packed, poolings):
            if packed.input_ids.numel() > most:
                raise error
            done.append(packed.input_ids.numel())
            return embed(self, packed, poolings)

        monkeypatch.setattr(Encoder, "embed", limited)
        return done

    return limit


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_passes_become_smaller_where_memory_runs_out(make_encoder, make_table, little_memory, caplog, error):
    encoder, table = make_encoder("bert"), make_table(70, longest=38)
    expected = encode(encoder, table, token_budget=10**6)[0]
    done = little_memory(400, error)
    found = encode(encoder, table, token_budget=10**6)[0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert len(done) > 1 and len(done) & (len(done) - 1) == 0  # a power of two: what is left is halved, too
    assert "not enough memory to embed 70 sentences of up to 38 tokens at once; halving the batch" in caplog.text


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            torch.OutOfMemoryError("CUDA"),
            UserError,
            "not enough memory to embed a sentence of 38 tokens; lower encoder",
        ),
        (RuntimeError("shapes do not fit"), RuntimeError, "shapes do not fit"),
    ],
)
def test_too_long_sentences_and_other_errors_end_it(make_encoder, make_table, little_memory, error, expected, message):
    little_memory(20, error)
    with pytest.raises(expected, match=message):
        encode(make_encoder("bert"), make_table(70, longest=38))

"""Masked language modelling: what is masked, and the loss against full logits, one padded sentence at a time."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AlbertConfig, AlbertModel, AutoModel, AutoModelForMaskedLM

from raysed.config import EncoderConfig
from raysed.data.tokens import TokenTable, pack
from raysed.model.encoder import Encoder
from raysed.model.pretrained import load_lm_head
from raysed.train.stages.mlm import MaskedLM

SPECIAL, MASK = [0, 1, 2, 3, 4], 4


@pytest.fixture
def objective(make_encoder) -> MaskedLM:
    torch.manual_seed(0)
    return MaskedLM(make_encoder("bert", layers=2).eval(), MASK, SPECIAL)


def test_15_percent_are_predicted_and_80_percent_of_these_masked(objective, make_table):
    """And 10 % random, 10 % left as they are; shares within four standard errors."""
    batch = pack(make_table(6000, longest=40))
    torch.manual_seed(0)
    chosen = objective._choose(batch)
    corrupted = objective._corrupt(batch.input_ids, chosen)
    assert torch.equal(corrupted[~chosen], batch.input_ids[~chosen])
    ordinary, count = int((batch.input_ids > MASK).sum()), int(chosen.sum())
    before, after = batch.input_ids[chosen], corrupted[chosen]

    def near(share: float, expected: float, n: int) -> bool:
        return abs(share - expected) < 4 * (expected * (1 - expected) / n) ** 0.5

    vocabulary = len(objective.bias)
    assert near(count / ordinary, 0.15, ordinary)
    # A random token may happen to be the mask, or the token that was there.
    assert near((after == MASK).float().mean().item(), 0.8 + 0.1 / vocabulary, count)
    assert near((after == before).float().mean().item(), 0.1 + 0.1 / vocabulary, count)
    others = after[(after != MASK) & (after != before)]
    assert set(others.tolist()) == set(range(vocabulary)) - {MASK}  # any token may come up


def test_special_tokens_and_empty_places_are_never_predicted(objective, make_table):
    """Over many draws, each ordinary token is."""
    batch = pack(make_table(30), row_tokens=32)
    assert (batch.segments == len(batch)).any()
    for special, expected in ((SPECIAL, batch.input_ids > MASK), ([], batch.segments < len(batch))):
        objective.special_ids = torch.tensor(special, dtype=torch.long)
        ever = torch.stack([objective._choose(batch) for _ in range(300)]).any(0)
        assert torch.equal(ever, expected)


def assert_loss_is_that_of_full_logits(objective, table, logits_of):
    """The mean cross entropy of the predicted tokens, where `logits_of` takes the corrupted tokens of one sentence."""
    batch, inputs, forward = pack(table, row_tokens=64), [], objective.encoder.token_states
    objective.encoder.token_states = lambda tokens: inputs.append(tokens.input_ids) or forward(tokens)
    torch.manual_seed(5)
    chosen = objective._choose(batch)
    torch.manual_seed(5)
    loss, losses = objective.loss(batch), []
    for number in range(len(batch)):
        here = batch.segments == number
        for place in torch.where(chosen[here])[0].tolist():
            scores = logits_of(inputs[0][here][None])[place]
            losses.append((torch.logsumexp(scores, 0) - scores[batch.input_ids[here][place]]).item())
    assert loss.item() == pytest.approx(np.mean(losses), abs=1e-5) and len(losses) == int(chosen.sum()) > 10


def test_the_loss_is_the_cross_entropy_of_full_logits(objective, make_table):
    nn.init.normal_(objective.bias)
    model, (dense, _, norm) = (copy.deepcopy(part).double() for part in (objective.encoder, objective.transform))

    def logits(input_ids):
        states = model.transformer(input_ids=input_ids).last_hidden_state[0]
        hidden = norm(nn.functional.gelu(dense(states)))
        return hidden @ model.transformer.embeddings.word_embeddings.weight.T + objective.bias.double()

    assert_loss_is_that_of_full_logits(objective, make_table(25), logits)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])  # with `hidden_act` and with `activation`
def test_it_goes_on_with_the_head_that_the_checkpoint_has(kind, tmp_path, make_table, make_encoder):
    model = AutoModelForMaskedLM.from_config(make_encoder(kind).transformer.config).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.1)
    model.save_pretrained(tmp_path)
    encoder, config = Encoder(AutoModel.from_pretrained(tmp_path).eval()), EncoderConfig(path=str(tmp_path))
    objective = MaskedLM(encoder, MASK, SPECIAL, dropout=False, head=load_lm_head(config)).eval()
    table = make_table(25, longest=9)
    assert_loss_is_that_of_full_logits(objective, table, lambda input_ids: model(input_ids=input_ids).logits[0])
    encoder.transformer.save_pretrained(tmp_path / "headless")
    assert load_lm_head(EncoderConfig(path=str(tmp_path / "headless"))) is None


def test_embeddings_may_be_narrower_than_states(make_table):
    sizes = {"embedding_size": 8, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    encoder = Encoder(AlbertModel(AlbertConfig(vocab_size=60, num_hidden_layers=1, **sizes)))
    assert torch.isfinite(MaskedLM(encoder, MASK, SPECIAL).loss(pack(make_table(25))))


def test_a_batch_with_nothing_to_predict_has_loss_zero_and_no_gradient(objective):
    """0, not 0 / 0."""
    loss = objective.loss(pack(TokenTable.from_lists([[2, 3], [2, 3]])))
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in objective.parameters())

"""Masked language modelling: what is masked, and the loss against full logits of a padded batch."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForMaskedLM

from raysed.config import EncoderConfig
from raysed.data.tokens import EpochBatches, TokenTable, pack
from raysed.model.encoder import Encoder
from raysed.model.pretrained import load_lm_head
from raysed.train.stages.mlm import MaskedLM

SPECIAL, MASK = [0, 1, 2, 3, 4], 4


@pytest.fixture
def objective(make_encoder) -> MaskedLM:
    torch.manual_seed(0)
    return MaskedLM(make_encoder("bert", layers=2).eval(), MASK, SPECIAL)


class Spy:
    """Stands in for the encoder's forward and remembers what it was given."""

    def __init__(self, objective: MaskedLM):
        self.inputs = []
        self._forward = objective.encoder.token_states
        objective.encoder.token_states = self

    def __call__(self, tokens):
        self.inputs.append(tokens.input_ids.clone())
        return self._forward(tokens)


def test_15_percent_are_predicted_and_80_percent_of_these_masked(objective, make_table):
    """And 10 % random, 10 % left as they are; shares within four standard errors."""
    batch = pack(make_table(6000, longest=40))
    torch.manual_seed(0)
    chosen = objective._choose(batch)
    corrupted = objective._corrupt(batch.input_ids, chosen)
    assert torch.equal(corrupted[~chosen], batch.input_ids[~chosen])
    ordinary = int((batch.input_ids > MASK).sum())
    count = int(chosen.sum())
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


def test_the_loss_is_the_cross_entropy_of_full_logits(objective, make_table):
    """One padded sentence at a time through transformers; every predicted token with log softmax by hand."""
    table = make_table(25)
    batch, spy = pack(table, row_tokens=64), Spy(objective)
    nn.init.normal_(objective.bias)
    torch.manual_seed(5)
    chosen = objective._choose(batch)
    torch.manual_seed(5)
    loss = objective.loss(batch)
    corrupted = spy.inputs[0]
    model = copy.deepcopy(objective.encoder.transformer).double().eval()
    dense, _, norm = copy.deepcopy(objective.transform).double()
    losses = []
    for number in range(len(batch)):
        here = batch.segments == number
        inputs = corrupted[here][None]
        states = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).last_hidden_state[0]
        hidden = norm(nn.functional.gelu(dense(states)))
        logits = hidden @ model.embeddings.word_embeddings.weight.T + objective.bias.double()
        for place in torch.where(chosen[here])[0].tolist():
            scores = logits[place]
            losses.append((torch.logsumexp(scores, 0) - scores[batch.input_ids[here][place]]).item())
    assert len(losses) == int(chosen.sum()) > 20
    assert loss.item() == pytest.approx(np.mean(losses), abs=1e-5)


def test_a_batch_with_nothing_to_predict_has_loss_zero_and_no_gradient(objective):
    """Special tokens only: 0, not 0 / 0, and special tokens stay unpredicted."""
    batch = pack(TokenTable.from_lists([[2, 3], [2, 3]]))
    loss = objective.loss(batch)
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in objective.parameters())


def test_an_epoch_has_each_sentence_once_and_its_own_order(make_table):
    """53 sentences in batches of 8: 5 are left out of each epoch, others each time."""
    table, orders = make_table(53), []
    batches = EpochBatches(table, 8, seed=1)
    assert batches.per_epoch == 6
    for epoch in range(3):
        rows = np.concatenate([batches.rows(step) for step in range(6 * epoch, 6 * epoch + 6)])
        assert len(set(rows)) == 48
        orders.append(rows.tolist())
    assert orders[0] != orders[1] != orders[2] and len({frozenset(order) for order in orders}) == 3
    assert batches(3).ids.tolist() == table.ids[batches.rows(3)].tolist()


def test_any_step_is_reached_at_once(make_table):
    table = make_table(53)
    forward = EpochBatches(table, 8, seed=1)
    rows = [forward.rows(step).tolist() for step in range(20)]
    for step in (19, 0, 7, 6):
        assert EpochBatches(table, 8, seed=1).rows(step).tolist() == forward.rows(step).tolist() == rows[step]
    assert EpochBatches(table, 8, seed=2).rows(0).tolist() != rows[0]
    assert EpochBatches(table, 100, seed=1).per_epoch == 1  # fewer sentences than a batch


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "mpnet"])
def test_it_goes_on_with_the_head_that_the_checkpoint_has(kind, tmp_path, make_table, make_encoder):
    """The loss of the whole published model on one padded sentence at a time."""
    model = AutoModelForMaskedLM.from_config(make_encoder(kind).transformer.config).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.1)
    model.save_pretrained(tmp_path)
    config = EncoderConfig(path=str(tmp_path), max_length=16)
    head = load_lm_head(config)
    encoder = Encoder(AutoModel.from_pretrained(tmp_path).eval())
    objective = MaskedLM(encoder, MASK, SPECIAL, dropout=False, head=head).eval()
    batch, spy = pack(make_table(25, longest=9), row_tokens=64), Spy(objective)
    torch.manual_seed(5)
    chosen = objective._choose(batch)
    torch.manual_seed(5)
    loss, losses = objective.loss(batch).item(), []
    for number in range(len(batch)):
        here = batch.segments == number
        inputs, asked = spy.inputs[0][here][None], chosen[here]
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits[0, asked]
        losses += nn.functional.cross_entropy(logits, batch.input_ids[here][asked], reduction="none").tolist()
    assert loss == pytest.approx(np.mean(losses), abs=1e-5) and len(losses) > 10
    AutoModel.from_pretrained(tmp_path).save_pretrained(tmp_path / "headless")
    assert load_lm_head(EncoderConfig(path=str(tmp_path / "headless"), max_length=16)) is None

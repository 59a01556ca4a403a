"""What holds for every stage that trains members, whichever files there are."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from stopping import stop_after

from raysed.config import make_config
from raysed.data.pairs import PairRows, write_pairs
from raysed.data.tokens import FlatTokens, Tokenizer
from raysed.registry import stages
from raysed.store.storage import Storage
from raysed.train.setup import set_up
from raysed.train.stage import Start

MEMBERS = sorted(stages().keys() - {"sed"})


@pytest.fixture
def data(tmp_path, make_table, make_sentences, tiny_tokenizer):
    """A table for each name that a stage asks for, by default or not."""
    rng, first, second = np.random.default_rng(0), make_sentences(40, 1), make_sentences(40, 2)
    labels = {"pairs/nli": rng.integers(3, size=40), "pairs/sts": rng.random(40)}
    places = {}
    named = [table for stage in MEMBERS for table in stages()[stage].tables(stages()[stage].Settings())]
    for name in {*named, "views/files"}:
        places[name] = tmp_path / name
        places[name].mkdir(parents=True)
        if name == "corpus":
            with closing(FlatTokens(places[name])) as flat:
                flat.add(make_table(40))
        else:
            write_pairs(PairRows(first, second, labels.get(name)), Tokenizer(tiny_tokenizer, 20), places[name])
    return places


@pytest.fixture
def setup(data, make_encoder, tiny_tokenizer):
    """The training of a member as a worker begins it, of eight updates."""

    def make(name, dropout=True, seed=3):
        settings = {"steps": 8} if name == "ct" else {"epochs": 2, "batch_size": 10, "learning_rate": 1e-3}
        if name == "contrastive" and not dropout:
            settings["views"] = ["files"]
        config = make_config({name: {**settings, "dropout": dropout}})
        start = Start(make_encoder("bert", layers=2), tiny_tokenizer, data, seed, lower_bound=0.2)
        run = set_up(stages()[name], getattr(config, name), config.members, start)
        assert run.plan.steps == 8
        return replace(run, plan=replace(run.plan, checkpoint_every=3))

    return make


@pytest.mark.parametrize("name", MEMBERS)
def test_an_interrupted_training_goes_on_exactly(setup, tmp_path, name):
    """All that it holds, encoders, heads with their statistics, targets and moments, and its history, bit for bit."""
    whole, checkpoints = setup(name), Storage(str(tmp_path), "run").checkpoints("member", {})
    expected = whole.train()
    for updates in (2, 5):
        stop_after(replace(setup(name), checkpoints=checkpoints), updates)
    continued = replace(setup(name), checkpoints=checkpoints)
    result = continued.train()
    assert result.resumed_at == 5
    torch.testing.assert_close(continued.engine.state_dict(), whole.engine.state_dict(), rtol=0, atol=0)
    assert replace(result, resumed_at=0) == replace(expected, resumed_at=0)
    other = setup(name, seed=4)
    other.train()
    kept, theirs = (list(run.objective.candidates().values())[-1].state_dict() for run in (whole, other))
    assert any(not torch.equal(value, theirs[key]) for key, value in kept.items())


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("name", MEMBERS)
def test_dropout_is_a_setting_and_encoders_alone_are_kept(setup, name, dropout):
    """The rest of an objective is in training mode either way; nothing is while it is evaluated."""
    objective = setup(name, dropout).objective.train()
    encoders = objective.encoders()
    within = {id(module) for encoder in encoders for module in encoder.modules()}
    assert all(module.training is (dropout or id(module) not in within) for module in objective.modules())
    assert not any(module.training for module in objective.eval().modules())
    assert {id(kept) for kept in objective.candidates().values()} <= {id(encoder) for encoder in encoders}

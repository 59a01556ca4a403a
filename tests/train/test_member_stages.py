"""What holds for every stage that trains members, whichever files there are."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from raysed.config import make_config
from raysed.data.pairs import PairRows, write_pairs
from raysed.data.tokens import FlatTokens
from raysed.registry import stages
from raysed.store.storage import Storage
from raysed.train.loop import Run
from raysed.train.stage import Start

MEMBERS = sorted(stages().keys() - {"sed"})
VARIANTS = [
    *((name, {"dropout": True}) for name in MEMBERS),
    ("bsl", {"predictor": "released"}),
    ("nli", {"bias": False}),
]


@pytest.fixture
def data(tmp_path, make_table, make_sentences, tiny_tokenizer):
    """A table for each name that a stage asks for."""
    rng, first, second = np.random.default_rng(0), make_sentences(40, 1), make_sentences(40, 2)
    labels = {"pairs/nli": rng.integers(3, size=40), "pairs/sts": rng.random(40)}
    places = {}
    for name in {table for stage in MEMBERS for table in stages()[stage].tables(stages()[stage].Settings())}:
        places[name] = tmp_path / name
        places[name].mkdir(parents=True)
        if name == "corpus":
            with closing(FlatTokens(places[name])) as flat:
                flat.add(make_table(40))
        else:
            write_pairs(PairRows(first, second, labels.get(name)), tiny_tokenizer, 20, places[name])
    return places


@pytest.fixture
def set_up(data, make_encoder, tiny_tokenizer):
    """The training of a member as a worker begins it, of eight updates."""

    def make(name, settings, seed=3):
        size = {"steps": 8} if name == "ct" else {"epochs": 2, "batch_size": 10, "learning_rate": 1e-3}
        config = make_config({name: size | settings})
        start = Start(make_encoder("bert", layers=2), tiny_tokenizer, data, seed, lower_bound=0.2)
        setup = stages()[name].set_up(getattr(config, name), config.members, start)
        assert setup.plan.steps == 8
        return replace(setup, plan=replace(setup.plan, checkpoint_every=3, log_every=1))

    return make


def trained(setup, checkpoints=None, until=None):
    return Run(setup.objective, setup.batch_at, setup.plan, setup.engine, checkpoints=checkpoints, until=until).train()


def assert_equal(a, b, place=""):
    """To the last bit, through dictionaries and lists."""
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), place
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), place
        for key in a:
            assert_equal(a[key], b[key], f"{place} {key}")
    else:
        assert a == b, place


@pytest.mark.parametrize(("name", "settings"), VARIANTS)
def test_an_interrupted_training_goes_on_exactly(set_up, tmp_path, name, settings):
    """All that it holds, encoders, heads with their statistics, targets and moments, and its history, bit for bit."""
    whole, checkpoints = set_up(name, settings), Storage(str(tmp_path), "run").checkpoints("member", {})
    expected = trained(whole)
    for until in (2, 5, None):
        continued = set_up(name, settings)
        result = trained(continued, checkpoints, until)
    assert result.resumed_at == 5
    assert_equal(continued.objective.state_dict(), whole.objective.state_dict())
    assert_equal(*(setup.engine.optimizer.state_dict()["state"] for setup in (continued, whole)))
    assert replace(result, resumed_at=0) == replace(expected, resumed_at=0)
    trained(other := set_up(name, settings, seed=4))
    kept, theirs = (list(s.objective.candidates().values())[-1].state_dict() for s in (whole, other))
    assert any(not torch.equal(value, theirs[key]) for key, value in kept.items())


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("name", MEMBERS)
def test_dropout_is_a_setting_and_encoders_alone_are_kept(set_up, name, dropout):
    """The rest of an objective is in training mode either way; nothing is while it is evaluated."""
    settings = {"dropout": dropout} | ({"views": ["mlm"]} if name == "contrastive" else {})
    objective = set_up(name, settings).objective.train()
    encoders = objective.encoders()
    within = {id(module) for encoder in encoders for module in encoder.modules()}
    assert all(module.training is (dropout or id(module) not in within) for module in objective.modules())
    assert not any(module.training for module in objective.eval().modules())
    assert {id(kept) for kept in objective.candidates().values()} <= {id(encoder) for encoder in encoders}


@pytest.mark.parametrize(
    ("name", "source", "count", "guess", "share"),
    [
        ("nli", "nli/snli-sample.tsv", 2527, lambda classes: np.log(3), 0.4),
        ("sts", "sts/stsb-train.tsv", 5749, np.var, 0.75),
    ],
)
def test_real_pairs_can_be_learned(make_encoder, tiny_tokenizer, data_dir, tmp_path, name, source, count, guess, share):
    """Twenty passes over 48 of them: well below the loss of the best guess that looks at no sentence."""
    rates = {"learning_rate": 6e-4, "decay": "constant", "warmup": 0, "dropout": False}
    config = make_config({name: {"train": str(data_dir / source), "epochs": 20, "batch_size": 16, **rates}})
    stage, settings = stages()[name], getattr(config, name)
    rows = stage.load_pairs(settings)
    assert len(rows) == count
    rows = PairRows(rows.first[-48:], rows.second[-48:], rows.labels[-48:])
    write_pairs(rows, tiny_tokenizer, 30, tmp_path)
    start = Start(make_encoder("bert", layers=1, width=32), tiny_tokenizer, {f"pairs/{name}": tmp_path}, seed=0)
    setup = stage.set_up(settings, config.members, start)
    losses = [entry["loss"] for entry in trained(replace(setup, plan=replace(setup.plan, log_every=1))).history]
    assert len(losses) == 60
    assert np.mean(losses[:3]) > 0.9 * guess(rows.labels) and np.mean(losses[-3:]) < share * guess(rows.labels)

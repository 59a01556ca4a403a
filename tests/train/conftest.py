"""What tests of trainings share: every stage that trains members, on data of its own."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from raysed.config import make_config
from raysed.data.pairs import PairRows, write_pairs
from raysed.data.tokens import FlatTokens, Tokenizer
from raysed.registry import stages
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

    def make(name, dropout=True, seed=3, precision="auto", **more):
        settings = {"steps": 8} if name == "ct" else {"epochs": 2, "batch_size": 10, "learning_rate": 1e-3}
        if name == "contrastive" and not dropout:
            settings["views"] = ["files"]
        config = make_config({name: {**settings, "dropout": dropout, **more}, "members": {"precision": precision}})
        start = Start(make_encoder("bert", layers=2), tiny_tokenizer, data, seed, lower_bound=0.2)
        run = set_up(stages()[name], getattr(config, name), config.members, start)
        assert run.plan.steps == 8
        return replace(run, plan=replace(run.plan, checkpoint_every=3))

    return make

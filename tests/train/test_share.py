"""Members that read a share of the corpus, each its own, and learners that read less than members."""

import numpy as np
import pytest

from raysed.config import make_config
from raysed.data.tokens import FlatTokens, TokenTable
from raysed.plan.tables import corpora
from raysed.recipe import parse_recipes
from raysed.registry import stages
from raysed.train.stage import Start


def start(directory, seed: int, share: float) -> Start:
    return Start(None, None, {"corpus": directory}, seed, share=share)


@pytest.fixture
def corpus(tmp_path):
    draw = np.random.default_rng(0)
    table = TokenTable.from_lists([draw.integers(9, size=draw.integers(1, 8)).tolist() for _ in range(101)])
    flat = FlatTokens(tmp_path)
    flat.add(table)
    flat.close()
    return tmp_path, table


@pytest.mark.parametrize("share", [1.0, 0.5, 0.001])
def test_a_member_reads_its_own_share_and_always_the_same(corpus, share):
    directory, whole = corpus
    parts = [start(directory, seed, share).read_corpus() for seed in (1, 2, 1)]
    kept = [part.take(np.arange(len(part))) for part in parts]
    ids = [part.ids.tolist() for part in kept]
    assert [len({*of_part}) for of_part in ids] == [len(part) for part in parts] == [max(1, int(101 * share))] * 3
    assert ids[0] == ids[2] and (ids[0] == ids[1]) == (share == 1)
    for part in kept:
        expected = whole.take(part.ids)
        assert part.input_ids.tolist() == expected.input_ids.tolist()
        assert part.offsets.tolist() == expected.offsets.tolist()


@pytest.mark.parametrize(("name", "updates"), [("ct", 40), ("mlm", 36)])
def test_batches_have_sentences_of_the_share_and_updates_are_as_planned(corpus, name, updates):
    stage, config = stages()[name], make_config({"mlm": {"batch_size": 4, "epochs": 3}, "ct": {"steps": 40}})
    settings, own = getattr(config, name), start(corpus[0], 7, 0.5)
    batches, part = stage.batches(settings, own), own.read_corpus()
    assert stage.steps(settings, stage.rows_read(settings, 0.5, {"corpus": 101})) == updates
    assert stage.steps(settings, len(batches.table)) == updates
    read = {int(i) for step in range(updates) for i in batches(step).ids}
    assert read == {*part.take(np.arange(50)).ids.tolist()}


@pytest.mark.parametrize(
    ("sed", "recipes", "expected"),
    [
        ({}, ["ct-sed"], {"corpus": 900}),
        ({"sentences": 100}, ["ct"], {"corpus": 900}),
        ({"sentences": 100}, ["teachers-sed"], {"corpus": 100}),
        ({"sentences": 100}, ["ct-sed", "sts"], {"corpus": 100, "members-corpus": 900}),
    ],
)
def test_learners_read_a_draw_of_their_own(sed, recipes, expected):
    more = {"teachers": ["bundled:encoder"]} if recipes == ["teachers-sed"] else {}
    config = make_config({"sed": sed, "recipes": recipes, "corpus": {"sentences": 900}, **more})
    found = corpora(config, parse_recipes(recipes))
    assert {name: block.sentences for name, block in found.items()} == expected

"""What is made: its fingerprint, its checkpoints and the blocks of a table; makers only record."""

import pytest
from started_jobs import described

from raysed.config import make_config
from raysed.made import BlockShape, ExternalInput, Made, Step, block_name, made
from raysed.store.storage import Storage
from raysed.train.stages.ct import CtConfig
from raysed.train.stages.sed import SedConfig


def make(out, inputs, settings, context):
    """Writes nothing but its name."""
    (out / "made").touch()


def thing(untracked=None, version=None, **sed) -> Made:
    settings, given = {"sed": SedConfig(**sed), "ct": CtConfig()}, {"given": ExternalInput("same", object())}
    return made("a", "a", "s", make, given, settings, untracked)


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path), "run")


def test_settings_without_effect_and_what_lies_beside_change_no_fingerprint():
    first = thing({"how": {"retries": 1}})
    assert thing({"how": {"retries": 2}}, max_retries=7, checkpoint_every=3).fingerprint == first.fingerprint
    assert thing(learning_rate=1e-3).fingerprint != first.fingerprint


def test_a_fingerprint_depends_on_the_version_of_its_maker_and_on_that_of_each_input(monkeypatch):
    def following() -> str:
        return made("b", "b", "s", make, {"of": [thing(), None], "by": thing()}).fingerprint

    before = following()
    monkeypatch.setattr(make, "version", 2, raising=False)
    assert following() != before
    two, one = ([made(name, name, "s", make, {}, {"seed": name}) for name in names] for names in ("ab", "a"))
    prints = {made("c", "c", "s", make, {"of": given}).fingerprint for given in (two, two[::-1], one)}
    assert len(prints) == 3


def test_a_training_does_not_go_on_from_a_state_of_another_format(storage, monkeypatch):
    step = thing().step
    step.checkpoints(storage).save(3, lambda path: (path / "state.json").write_text("{}"))
    assert step.checkpoints(storage).newest()[0] == 3
    monkeypatch.setattr("raysed.made._STATE", 0)
    assert step.checkpoints(storage).newest() is None


def test_a_table_has_no_blocks_of_a_larger_corpus(storage):
    for number in range(3):
        storage.commit(block_name("table", number), lambda path: (path / "rows").touch(), {})
    Step("table", "table", make, {}, {}, {"blocks": BlockShape("table", 2, 256, 300)}).run(storage, None)
    assert storage.names("table") == ["table/000000", "table/000001"]
    assert {file.split("/")[1] for file in storage.plain.sizes_below("table")} >= {"000000", "000001"}
    assert not any("000002" in file for file in storage.plain.sizes_below(""))


def test_a_table_to_start_from_does_not_depend_on_how_it_learns():
    def start(width: int = 32, **sed: float) -> str:
        static = {"path": "bundled:encoder", "static": {"width": width}, "pool_layers": 1}
        config = {"recipes": ["teachers-sed"], "teachers": ["bundled:encoder"], "encoder": static, "sed": sed}
        found = described(make_config({**config, "evaluation": {"pool_layers": [1]}}))
        return found["encoder/start"].fingerprint

    assert start() == start(epochs=2, learning_rate=0.1) != start(width=64)

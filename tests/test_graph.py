"""The graph: what a changed setting makes again, outcomes, and runs that continue; makers only record."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysed.graph import (
    LISTS,
    Artefact,
    BlocksRef,
    Candidates,
    ExternalInput,
    Graph,
    OutcomeMember,
    State,
    Task,
    block_name,
)
from raysed.store.storage import Storage
from raysed.train.stages.ct import CtConfig
from raysed.train.stages.sed import SedConfig


def make(out, inputs, settings, context):
    """Writes nothing but its name."""
    (out / "made").touch()


def choose(out, inputs, settings, context):
    """Lists the members that exist, best first."""
    there = sorted((f for f in inputs["members"] if f.meta is not None), key=lambda f: -f.meta.get("score", 0))
    lists = [(found.name, found.fingerprint) for found in there]
    return {LISTS: {"all": lists, "sound": [item if item[0] != "m/1" else ("", "") for item in lists]}}


def step(name: str, inputs=None, is_intermediate=False, **settings) -> Artefact:
    return Artefact(name, name, "s", make, inputs or {}, settings, is_intermediate=is_intermediate)


def execute(artefacts, storage, fail=(), kill_before=None, scores=None) -> list[str]:
    """Makes what is missing, one after the other; returns what was made."""
    graph = Graph(artefacts)
    state, made = State(graph, storage), []
    for artefact in graph.artefacts.values():
        if not state.is_wanted(artefact) or artefact.name in fail:
            continue
        if artefact.name == kill_before:
            raise KeyboardInterrupt
        task, meta = state.task(artefact), {"score": (scores or {}).get(artefact.name, 0)}
        storage.commit(
            artefact.name,
            lambda out, t=task, m=meta: m.update(t.make(out, t.inputs, t.settings, None) or {}),
            task.depends,
            meta,
        )
        made.append(artefact.name)
    return made


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path), "run")


@st.composite
def graphs(draw) -> list[tuple[list[int], int]]:
    """Of each artefact the places of its inputs, and a setting."""
    count = draw(st.integers(1, 7))
    return [
        (draw(st.lists(st.integers(0, place - 1), max_size=2, unique=True)) if place else [], draw(st.integers(0, 2)))
        for place in range(count)
    ]


@settings(max_examples=25)
@given(graphs(), st.integers(0, 6), st.integers(0, 6))
def test_a_killed_run_continues_and_a_changed_setting_remakes_what_depends_on_it(tmp_path_factory, plan, kill, change):
    storage = Storage(str(tmp_path_factory.mktemp("graph")), "run")
    kill, change = kill % len(plan), change % len(plan)

    def artefacts(bump: int) -> list[Artefact]:
        made = []
        for i, (inputs, setting) in enumerate(plan):
            made.append(step(f"a/{i}", {f"of {j}": made[j] for j in inputs}, setting=setting + bump * (i == change)))
        return made

    with pytest.raises(KeyboardInterrupt):
        execute(artefacts(0), storage, kill_before=f"a/{kill}")
    assert execute(artefacts(0), storage) == [f"a/{i}" for i in range(kill, len(plan))]
    assert execute(artefacts(0), storage) == []
    below = {change}
    for i, (inputs, _) in enumerate(plan):
        below |= {i} if below & set(inputs) else set()
    assert execute(artefacts(10), storage) == [f"a/{i}" for i in sorted(below)]


def ensemble() -> list[Artefact]:
    """Three members, an outcome, and what is made of some members and of all."""
    members = [step(f"m/{i}", is_intermediate=True, seed=i) for i in range(3)]
    inputs = {"members": Candidates(tuple(members))}
    outcome = Artefact("m/choice", "choice", "s", choose, inputs, is_outcome=True)
    return [
        *members,
        outcome,
        *(step(f"e/{i}", {"model": OutcomeMember(outcome, i)}) for i in range(3)),
        step("mean", {"models": OutcomeMember(outcome)}),
        *(step(f"c/{i}", {"model": OutcomeMember(outcome, i, "sound")}) for i in range(3)),
    ]


def test_what_follows_depends_on_what_an_outcome_lists(storage):
    """A member that failed is not tried again once the outcome is there, and what it would have led to is not made."""
    made = execute(ensemble(), storage, fail=("m/1",))
    assert made == ["m/0", "m/2", "m/choice", "e/0", "e/1", "mean", "c/0", "c/1"]
    assert execute(ensemble(), storage) == []
    storage.remove("m/2")
    assert execute(ensemble(), storage) == ["m/2"], "listed members are made again, and come out the same"
    storage.remove("m/choice")
    made = execute(ensemble(), storage, scores={"m/1": 5})
    assert made == ["m/1", "m/choice", "e/0", "e/1", "e/2", "mean", "c/1", "c/2"]


def test_intermediate_artefacts_are_made_only_for_what_is_missing(storage):
    def artefacts(seed: int) -> list[Artefact]:
        targets, unused = (step(name, is_intermediate=True) for name in ("targets", "unused"))
        return [targets, step("learner", {"targets": targets}, seed=seed), unused]

    assert execute(artefacts(0), storage) == ["targets", "learner"]
    storage.remove("targets")
    assert execute(artefacts(0), storage) == []
    assert execute(artefacts(1), storage) == ["targets", "learner"]


def test_settings_without_effect_and_what_lies_beside_change_nothing(storage):
    def artefact(untracked, **sed) -> Artefact:
        settings = {"sed": SedConfig(**sed), "ct": CtConfig()}
        return Artefact("a", "a", "s", make, {"given": ExternalInput("same", object())}, settings, untracked)

    assert execute([artefact({"how": {"retries": 1}})], storage) == ["a"]
    assert execute([artefact({"how": {"retries": 2}}, max_retries=7, checkpoint_every=3)], storage) == []
    assert execute([artefact({}, learning_rate=1e-3)], storage) == ["a"]


def test_another_version_of_a_maker_makes_its_artefacts_again(storage, monkeypatch):
    assert execute([step("a")], storage) == ["a"]
    monkeypatch.setattr(make, "version", 2, raising=False)
    assert execute([step("a")], storage) == ["a"]


def test_a_training_does_not_go_on_from_a_state_of_another_format(storage, monkeypatch):
    task = State(Graph([step("a")]), storage).task("a")
    task.checkpoints(storage).save(3, lambda path: (path / "state.json").write_text("{}"))
    assert task.checkpoints(storage).newest()[0] == 3
    monkeypatch.setattr("raysed.graph._STATE", 0)
    assert task.checkpoints(storage).newest() is None


def test_a_table_has_no_blocks_of_a_larger_corpus(storage):
    for number in range(3):
        storage.commit(block_name("table", number), lambda path: (path / "rows").touch(), {})
    Task("table", "table", make, {}, {}, {"blocks": BlocksRef("table", 2, 256, 300)}).run(storage, None)
    assert storage.names("table") == ["table/000000", "table/000001"]
    assert {file.split("/")[1] for file in storage.plain.sizes_below("table")} >= {"000000", "000001"}
    assert not any("000002" in file for file in storage.plain.sizes_below(""))


def test_a_graph_is_in_order_and_has_no_name_twice():
    with pytest.raises(ValueError, match="b needs a, which no earlier artefact provides"):
        Graph([step("b", {"of": (a := step("a"))}), a])
    with pytest.raises(ValueError, match="two artefacts are called a"):
        Graph([step("a"), step("a")])


def test_a_table_to_start_from_does_not_depend_on_how_it_learns(tmp_path):
    def start(width: int = 32, **sed: float) -> str:
        from raysed.config import make_config
        from raysed.plan.check import check
        from raysed.plan.graph import Plan

        static = {"path": "bundled:encoder", "static": {"width": width}, "pool_layers": 1}
        config = {"recipes": ["teachers-sed"], "teachers": ["bundled:encoder"], "encoder": static, "sed": sed}
        graph = Plan(check(make_config({**config, "evaluation": {"pool_layers": [1]}}))).graph
        return State(graph, Storage(str(tmp_path), "run")).fingerprint(graph.artefacts["encoder/start"])

    assert start() == start(epochs=2, learning_rate=0.1) != start(width=64)

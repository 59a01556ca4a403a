"""The graph of a configuration: what each block of settings makes again, and what choices depend on."""

import pytest

from raysed.config import make_config
from raysed.graph import LISTS, State, Tried
from raysed.plan.check import check
from raysed.plan.graph import Plan
from raysed.store.storage import Storage

RECIPES = ["ct-sed-flow", "nli-ct", "sts-sed", "mlm", "contrastive", "base-sn", "teachers-sed"]


@pytest.fixture
def settings(tiny_encoder_dir, tmp_path):
    nli = tmp_path / "nli.tsv"
    nli.write_text("label\tpremise\thypothesis\n" + "entailment\ta cat\ta dog\nneutral\ta cat\ta bird\n" * 4)
    pairs = tmp_path / "pairs.tsv"
    rows = [f"{group}\t{score}\ta cat {score}\tdog {group}" for group in "ab" for score in range(6)]
    pairs.write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n")
    return {
        "recipes": RECIPES,
        "encoder": {"path": str(tiny_encoder_dir), "max_length": 16},
        "teachers": [{"path": str(tiny_encoder_dir), "max_length": 16}, "members:ct"],
        "evaluation": {"tasks": {"mine": str(pairs), "other": "bundled:test"}, "dev": "mine", "layers": [1]},
        "members": {"count": 2},
        "nli": {"train": str(nli)},
        "sts": {"train": str(pairs), "lower_bounds": [0.0, 0.5], "models": 1},
        "calibration": {"natsv_k": 3},
    }


def prints(settings: dict, storage: Storage) -> dict[str, str | None]:
    """Fingerprints of all artefacts, as if each had been made with success and the first bound had won."""
    graph = Plan(check(make_config(settings))).graph
    state = State(graph, storage)
    for name, artefact in graph.artefacts.items():
        if artefact.needs.is_outcome:
            (tried,) = [value for value in artefact.inputs.values() if isinstance(value, Tried)]
            listed = [(member, state.fingerprint(member)) for member in tried.names]
            lists = {"all": listed, "healthy": listed, "sound": listed, "probed": listed}
            storage.commit(name, lambda out: None, state.task(name).depends, {LISTS: lists})
    return {name: state.task(name).fingerprint for name in graph.artefacts}


def merged(settings: dict, changes: dict) -> dict:
    return {**settings, **{k: {**settings.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}


MEMBERS = {"ct", "nli", "nli-ct", "mlm", "contrastive", "sts"}
LEARNERS, GRID = {"ct-sed", "sts-sed", "teachers-sed", "ct-sed-flow"}, {"sts", "sts-sed"}


@pytest.mark.parametrize(
    ("changes", "roots"),
    [
        ({"ct": {"steps": 7}}, {"ct", "ct-sed", "ct-sed-flow", "nli-ct", "teachers", "teachers-sed"}),
        ({"nli": {"epochs": 2}}, {"nli", "nli-ct"}),
        ({"mlm": {"rate": 0.3}}, {"mlm"}),
        ({"contrastive": {"temperature": 0.1}}, {"contrastive"}),
        ({"sts": {"epochs": 5}}, GRID),
        ({"sts": {"criterion": "pearson"}}, GRID),
        (
            {"members": {"precision": "fp32"}},
            {"ct", "nli", "nli-ct", "mlm", "contrastive", "sts", *LEARNERS, "teachers"},
        ),
        ({"sed": {"learning_rate": 1e-3}}, LEARNERS),
        ({"flow": {"epochs": 2}}, {"ct-sed-flow", "base-flow", "base-sn", "base-whiten"}),
        ({"calibration": {"natsv_k": 4}}, {"ct-sed-flow", "base-flow", "base-sn", "base-whiten"}),
        ({"combination": {"weights": [1, 2]}}, {"teachers-sed", "teachers"}),
        ({"members": {"max_retries": 9, "checkpoint_every": 7}}, set()),
        ({"members": {"min_members": 1}}, set()),
        ({"sed": {"max_retries": 9, "evaluate_every": 7, "patience": 2, "zero_stage": 1}}, {"sts-sed"}),
        ({"resources": {"silence_seconds": 9, "gpu": False, "encode_token_budget": 99}}, set()),
        ({"export": {"allow_worse": True}}, set()),
        ({"run": "other"}, set()),
    ],
)
def test_a_changed_block_remakes_the_recipes_that_use_it(settings, tmp_path, changes, roots):
    before = prints(settings, Storage(str(tmp_path), "before"))
    after = prints(merged(settings, changes), Storage(str(tmp_path), "after"))
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name] != after[name]}
    outcomes = {name for name in changed if name.endswith(("/ensemble", "/choice"))}
    assert {name.split("/")[0] for name in changed - outcomes} == roots


@pytest.mark.parametrize("change", [{"aggregation": "all"}, {"tasks": None}])
@pytest.mark.parametrize(
    ("chooses", "name"),
    [
        ({"ct": {"keep": "best_on_dev"}}, "ct/members/00"),
        ({"nli": {"keep": "best_on_dev"}}, "nli/members/01"),
        ({}, "sts/grid/0.5/00"),
        ({}, "sts/grid/choice"),
        ({"sed": {"keep": "best_on_dev"}}, "ct-sed/learners/00"),
        ({}, "sts-sed/learners/00"),
        ({"combination": {"leave_out": True}}, "teachers-sed/targets"),
        ({"calibration": {"natsv_k": "dev"}, "recipes": [*RECIPES, "base-natsv"]}, "base-natsv/calibrations/00"),
    ],
)
def test_choices_depend_on_how_the_dev_task_is_put_together(settings, tmp_path, chooses, name, change):
    """Another aggregation, of the evaluation or of the task alone, makes again what was chosen by it, and only that."""
    settings = merged(settings, chooses)
    evaluation = {**settings["evaluation"], **change}
    if change == {"tasks": None}:
        tasks = settings["evaluation"]["tasks"]
        evaluation["tasks"] = {**tasks, "mine": {"source": tasks["mine"], "aggregation": "wmean"}}
    before = prints(settings, Storage(str(tmp_path), "before"))
    after = prints({**settings, "evaluation": evaluation}, Storage(str(tmp_path), "after"))
    assert before[name] != after[name]
    assert before["mlm/members/00"] == after["mlm/members/00"]


def test_titles_are_words(settings):
    titles = {name: a.title for name, a in Plan(check(make_config(settings))).graph.artefacts.items()}
    assert titles["ct/members/01"] == "member 01 of ct"
    assert titles["sts/grid/0.5/00"] == "grid model 00 of sts with lower bound 0.5"
    assert titles["ct-sed/learners/00"] == "learner 00 of ct-sed"
    assert titles["ct-sed/targets"] == "targets of ct-sed"

"""What a configuration makes: what each block of settings makes again, and what choices depend on."""

from collections import Counter

import pytest
from started_jobs import described

from raysed.config import make_config
from raysed.pipeline import ensemble_then_distill
from raysed.plan.check import check
from raysed.plan.size import rehearsed
from raysed.store.storage import Entry

RECIPES = ["ct-sed-flow", "nli-ct", "sts-sed", "mlm", "contrastive", "base-sn", "teachers-sed"]


@pytest.fixture(scope="module")
def settings(tiny_encoder_dir, tmp_path_factory):
    root = tmp_path_factory.mktemp("inputs")
    nli, pairs = root / "nli.tsv", root / "pairs.tsv"
    nli.write_text("label\tpremise\thypothesis\n" + "entailment\ta cat\ta dog\nneutral\ta cat\ta bird\n" * 4)
    rows = [f"{group}\t{score}\ta cat {score}\tdog {group}" for group in "ab" for score in range(6)]
    pairs.write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n")
    return {
        "recipes": RECIPES,
        "encoder": {"path": str(tiny_encoder_dir), "max_length": 16},
        "teachers": [{"path": str(tiny_encoder_dir), "max_length": 16}, "members:ct"],
        "evaluation": {
            "tasks": {"mine": str(pairs), "other": "bundled:generated-test"},
            "dev": "mine",
            "pool_layers": [1],
        },
        "members": {"count": 2},
        "nli": {"train": str(nli)},
        "sts": {"train": str(pairs), "lower_bounds": [0.0, 0.5], "models": 1},
        "calibration": {"natsv_k": 3},
    }


def changed_by(settings: dict, changes: dict) -> set[str]:
    """The names of what has another fingerprint, if no training fails and the first bound wins."""
    before, after = (described(make_config(given)) for given in (settings, merged(settings, changes)))
    assert before.keys() == after.keys()
    return {name for name in before if before[name].fingerprint != after[name].fingerprint}


def merged(settings: dict, changes: dict) -> dict:
    return {**settings, **{k: {**settings.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}}


LEARNERS, GRID = {"ct-sed", "sts-sed", "teachers-sed", "ct-sed-flow"}, {"sts", "sts-sed"}
CALIBRATED = {"ct-sed-flow", "base-flow", "base-sn"}
MEMBERS = {"ct", "nli", "nli-ct", "mlm", "contrastive", "sts"}


@pytest.mark.parametrize(
    ("changes", "roots"),
    [
        ({"ct": {"steps": 7}}, {"ct", "ct-sed", "ct-sed-flow", "nli-ct", "teachers", "teachers-sed"}),
        (
            {"nli": {"epochs": 2}, "mlm": {"rate": 0.3}, "contrastive": {"temperature": 0.1}},
            {"nli", "nli-ct", "mlm", "contrastive"},
        ),
        ({"sts": {"epochs": 5}}, GRID),
        ({"members": {"precision": "fp32"}}, {*MEMBERS, *LEARNERS, "teachers"}),
        ({"sed": {"learning_rate": 1e-3}}, LEARNERS),
        ({"flow": {"epochs": 2}}, CALIBRATED),
        ({"calibration": {"natsv_k": 4}}, CALIBRATED),
        ({"combination": {"weights": [1, 2]}}, {"teachers-sed", "teachers"}),
        ({"sed": {"max_retries": 9, "evaluate_every": 7, "patience": 2, "zero_stage": 1}}, {"sts-sed"}),
        (
            {
                "run": "other",
                "export": {"allow_worse": True},
                "members": {"max_retries": 9, "checkpoint_every": 7, "min_members": 1},
                "resources": {"stall_seconds": 9, "gpu": False},
            },
            set(),
        ),
    ],
)
def test_a_changed_block_remakes_the_recipes_that_use_it(settings, changes, roots):
    changed = changed_by(settings, changes)
    assert {name.split("/")[0] for name in changed} == roots


def test_embeddings_are_made_again_for_other_tasks_and_for_another_order(settings):
    """Their rows follow the sentences of all tasks, in order; a mean of members is one of them."""
    tasks = settings["evaluation"]["tasks"]
    for other in (dict(reversed(tasks.items())), {**tasks, "third": "bundled:generated-dev"}):
        changed = changed_by(settings, {"evaluation": {"tasks": other}})
        assert changed >= {"base/embeddings/00", "ct/embeddings/00", "teachers/embeddings/00", "teachers/embeddings/01"}
        assert changed & {"ct/members/00", "ct-sed/learners/00", "teachers-sed/targets"} == set()


CHOOSING = [
    (
        {"ct": {"copy": "best_on_dev"}, "nli": {"checkpoint": "best_on_dev"}, "calibration": {"natsv_k": "dev"}},
        {"ct/members/00", "nli/members/01", "base-natsv/calibrations/00"},
    ),
    (
        {"ct": {"copy": "closest"}, "sed": {"checkpoint": "best_on_dev"}},
        {"ct-sed/learners/00", "teachers-sed/learners/00"},
    ),
]


@pytest.mark.parametrize("of_task", [False, True])
@pytest.mark.parametrize(("chooses", "chosen"), CHOOSING, ids=["members", "learners"])
def test_choices_depend_on_how_the_dev_task_is_put_together(settings, chooses, chosen, of_task):
    """Another aggregation, of the evaluation or of the task alone, makes again what was chosen by it, and only that."""
    settings = merged(settings, {**chooses, "recipes": [*RECIPES, "base-natsv"]})
    tasks = settings["evaluation"]["tasks"]
    weighted = {"tasks": {**tasks, "mine": {"source": tasks["mine"], "aggregation": "wmean"}}}
    changed = changed_by(settings, {"evaluation": weighted if of_task else {"aggregation": "all"}})
    assert changed >= {*chosen, "sts/grid/0.5/00", "sts-sed/learners/00"}
    others = {"mlm/members/00", *(CHOOSING[0][1] - chosen)}
    assert changed & others == set()


def test_members_of_a_depth_and_all_learners_train_at_the_same_time(settings):
    job = check(make_config(merged(settings, {"sed": {"learners": 2}})))
    stages = Counter((made.stage, made.how.is_gang) for made in rehearsed(ensemble_then_distill, job))
    assert list(stages.values()) == [10, 2, 6] and [is_gang for _, is_gang in stages] == [False, False, True]


def test_what_follows_from_queries_depends_on_their_words(tiny_encoder_dir, tmp_path):
    """Otherwise targets would be those of other text than a learner reads."""

    def asking(query: str) -> dict:
        (tmp_path / query).write_text(f"same\n{query}\n")
        return {"corpus": {"queries": str(tmp_path / query)}}

    teacher = {"path": str(tiny_encoder_dir), "max_length": 16}
    settings = {"recipes": ["teachers-sed"], "encoder": {**teacher, "pool_layers": 1}, "teachers": [teacher]}
    changed = changed_by({**settings, **asking("one.txt")}, asking("two.txt"))
    assert changed >= {"corpus", "teachers-sed/targets", "teachers-sed/learners/00"}
    assert any(name.startswith("teachers/rows/") for name in changed)


def corpus_entry(**counts) -> Entry:
    meta = {"summary": "", "length_summary": "", "report": {"kept": 10_000, "too_long": 0, **counts}}
    return Entry("corpus", {}, {}, meta, {}, "")


def test_lines_that_are_skipped_for_their_length_are_said(settings, caplog):
    list(described(make_config(settings))["corpus"].lines(corpus_entry(too_long=3)))
    assert "3 lines of the corpus have more than 2,000 characters and are skipped; set corpus.passage" in caplog.text


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ({}, True),
        ({"sed": {"loss": "unit_mse"}}, False),
        ({"sed": {"head": "keep"}}, False),
        ({"combination": {"how": "mean"}}, False),
        ({"recipes": ["ct-sed"], "teachers": []}, False),
    ],
)
def test_a_loss_that_learns_the_length_of_unit_vectors_is_said(settings, changes, is_said, caplog):
    config = make_config({**settings, "recipes": ["ct", "teachers-sed"], **changes})
    list(described(config)["corpus"].lines(corpus_entry()))
    assert [record.levelname for record in caplog.records] == ["WARNING"] * is_said
    assert ("sed.loss: unit_mse" in caplog.text) is is_said

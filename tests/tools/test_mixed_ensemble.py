"""How `benchmarks/mixed_ensemble.py` combines members and judges ensembles, against plain references."""

import importlib
from pathlib import Path

import numpy as np
import pytest

from raysed.config import load_config
from raysed.score.kinds.pairs import Pairs
from raysed.score.tasks import Evaluation

ROOT = Path(__file__).resolve().parents[2]
PAIRS = 12


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("mixed_ensemble")


@pytest.fixture
def vectors(mixed, monkeypatch):
    """Random embeddings by path, of a different length and offset each."""
    draw = np.random.default_rng(0)
    found = {Path(name): scale * draw.normal(0.3, 1, (2 * PAIRS, 6)) for name, scale in zip("abc", (1, 5, 30))}
    monkeypatch.setattr(mixed, "embedded", lambda path, texts: found[path])
    return found


def evaluation(tmp_path: Path) -> Evaluation:
    lines = [f"all\t{i % 6}\tsentence {i}\tother {i}" for i in range(PAIRS)]
    (tmp_path / "task.tsv").write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *lines]) + "\n")
    tasks = {"evaluation.tasks": f"{{task: {tmp_path / 'task.tsv'}}}", "evaluation.dev": "null"}
    config = load_config(ROOT / "benchmarks/mixed_ensemble.yaml", [f"{key}={value}" for key, value in tasks.items()])
    return Evaluation.load(config.evaluation, 0)


def cosines(x_ND: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    x_ND = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    return (x_ND[pairs[:, 0]] * x_ND[pairs[:, 1]]).sum(1)


def test_groups_are_averaged_and_stand_side_by_side(mixed, vectors, tmp_path):
    tasks = evaluation(tmp_path)
    assert isinstance(tasks.tasks["task"], Pairs)
    a, b, c = vectors
    pairs = tasks.pair_rows()
    mean = np.mean([vectors[a], vectors[b]], axis=0)
    expected = {
        ((a,),): cosines(vectors[a], pairs),
        ((a, b),): cosines(mean, pairs),
        ((a,), (b,), (c,)): np.mean([cosines(vectors[path], pairs) for path in vectors], axis=0),
        ((a, b), (c,)): np.mean([cosines(mean, pairs), cosines(vectors[c], pairs)], axis=0),
    }
    for place, (model, cosines_P) in enumerate(expected.items()):
        file = tmp_path / f"{place}.npz"
        outcome = mixed.outcomes_of(model, tasks, file)["task"]
        np.testing.assert_allclose(np.ravel(outcome), cosines_P, atol=1e-6)
        np.testing.assert_array_equal(mixed.outcomes_of(((c,),), tasks, file)["task"], outcome), "embedded twice"


def test_a_best_member_is_chosen_where_its_part_may_choose(mixed):
    scores = {"mean": {"bsl": [70.0], "nli": [60.0], "sts": [50.0], "ct": [71.0], "contrastive": [0.0]}}
    scores["stsb-dev"] = {"bsl": [1.0], "nli": [2.0], "sts": [3.0]}
    found = mixed.Scores(None, scores, {})
    assert mixed.best_member(mixed.PARTS["labelled"], found) == "sts"
    assert mixed.best_member(mixed.PARTS["unlabelled"], found) == "ct"


@pytest.mark.parametrize(("shift", "won"), [(0.5, False), (3.0, True), (-3.0, False)])
def test_an_ensemble_wins_beyond_its_interval_only(mixed, shift, won):
    part = mixed.PARTS["unlabelled"]
    scores = {"mean": {name: [60.0] for name in [*part.stages, part.ensemble()]}}
    draw = np.random.default_rng(0)
    draws = {name: draw.normal(60, 0.1, 2000) for name in part.stages} | {
        part.ensemble(): draw.normal(60, 1, 2000) + shift
    }
    assert mixed.wins(part, mixed.Scores(None, scores, {"mean": draws})) is won


def test_the_ensemble_with_labels_is_the_best_one_on_dev_however_it_scores_on_tests(mixed):
    part = mixed.PARTS["labelled"]
    pair, others = ("bsl", "sts"), [("bsl", "nli"), ("nli", "sts"), part.stages]
    dev = {part.ensemble("side by side", stages): [80.0] for stages in others}
    dev |= {part.ensemble("side by side", pair): [81.0], part.ensemble("mean", others[0]): [99.0], "sts": [90.0]}
    dev |= {"bsl": [1.0], "nli": [1.0]}
    tests = {name: [60.0] for name in dev} | {part.ensemble(): [99.0]}
    draws = {name: np.full(10, scores[0]) for name, scores in tests.items()}
    found = mixed.Scores(None, {"mean": tests, "stsb-dev": dev}, {"mean": draws})
    assert mixed.chosen(part, found) == pair
    assert mixed.gain(part, found) == (0, 0, 0)


def test_trainings_of_steps_and_of_epochs_get_longer(mixed):
    config = load_config(mixed.CONFIG)
    stages = sorted({stage for part in mixed.PARTS.values() for stage in part.stages})
    longer = load_config(mixed.CONFIG, mixed.longer(config, stages, 2.0))
    for stage in stages:
        before, after = getattr(config, stage), getattr(longer, stage)
        assert (getattr(after, "steps", None) or after.epochs) == 2 * (getattr(before, "steps", None) or before.epochs)

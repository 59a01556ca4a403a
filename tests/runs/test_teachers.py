"""Teachers from outside: their targets are the plain combination, and nothing is asked of a teacher twice."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from started_jobs import artefact, run_here, small_tasks

import raysed
from raysed.cluster.local import LocalBackend
from raysed.config import Config, TeacherConfig, make_config
from raysed.made import BLOCK_FILE, Made, resolve_input
from raysed.model.teacher import load_teacher
from raysed.model.teachers.python import given_objects, settings_of
from raysed.pipeline import ensemble_then_distill
from raysed.plan.check import check
from raysed.runner import Run
from raysed.store.storage import Storage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("blank_pictures")]

TASKS = dict(zip(("dev", "test"), small_tasks().values()))


@pytest.fixture(scope="module")
def settings_at(tiny_encoder_dir):
    """A run of two teachers of different widths, and a learner as wide as none of them."""

    def make(storage: Path, **changes) -> dict:
        return {
            "run": "taught",
            "storage": str(storage),
            "recipes": ["teachers-sed"],
            "teachers": ["bundled:encoder", {"path": str(tiny_encoder_dir), "max_length": 20}],
            "encoder": {"model_kwargs": {"num_hidden_layers": 1}, "pool_layers": 1},
            "corpus": {"sentences": 300},
            "evaluation": {"tasks": TASKS, "dev": "dev", "pool_layers": [1]},
            "sed": {"loss": "unit_mse", "learning_rate": 1e-3, "epochs": 2, "evaluate_every": 5},
            "combination": {"turn": False},
            "resources": {"encode_precision": "fp32", "engine": "local"},  # to equal plain definitions anywhere
            **changes,
        }

    return make


@pytest.fixture
def settings(settings_at, tmp_path):
    return partial(settings_at, tmp_path / "runs")


@pytest.fixture(scope="module")
def first(settings_at, tmp_path_factory) -> tuple[Config, list[str]]:
    """What comes before the learner of that run."""
    return combined(settings_at(tmp_path_factory.mktemp("first")))


@pytest.fixture
def copied(first, tmp_path) -> Path:
    """The directory of a copy of that run, whose storage is that of `settings`."""
    shutil.copytree(first[0].storage, tmp_path / "runs")
    return tmp_path / "runs/taught"


def rows_of(directory: Path, kind: str = "rows") -> dict[str, int]:
    """When each block of a teacher's embeddings was written: of the corpus, or of the tasks."""
    pattern = "*/*.json" if kind == "rows" else "*.json"
    return {
        p.relative_to(directory).as_posix(): p.stat().st_mtime_ns
        for p in directory.glob(f"manifest/teachers/{kind}/{pattern}")
    }


def targets(directory: Path) -> tuple[list[str], np.ndarray]:
    corpus = pq.read_table(directory / "corpus")
    storage = Storage(str(directory.parent), directory.name)
    table = resolve_input(Made("teachers-sed/targets"), storage).read(0, len(corpus))
    assert table["id"].to_pylist() == corpus["id"].to_pylist()
    return corpus["sentence"].to_pylist(), np.array(table["target"].to_pylist())


class UpToLearners(Run):
    """Ends once learners have their targets."""

    def train(self, models):
        if not models or not models[0].how.is_gang:
            return super().train(models)
        self.ensure(*(need for learner in models for need in learner.needs))
        raise StopIteration


def combined(settings: dict) -> tuple[Config, list[str]]:
    """Makes all of a run that comes before its learners; returns what was said, too."""
    job, said = check(make_config(settings)), []
    run = run_here(job, Storage(settings["storage"], settings["run"]), said.append, UpToLearners)
    with pytest.raises(StopIteration):
        ensemble_then_distill(run, job)
    return job.config, said


def test_a_function_teaches_and_is_not_taken_for_another(settings, tmp_path):
    """Targets are what it says; a function that says something else is asked itself, and the first one not again."""
    asked = []

    def by_letters(sentences, letters="aeioust"):
        asked.append(len(sentences))
        return np.array([[text.count(letter) for letter in letters] for text in sentences])

    def other(sentences):
        return by_letters(sentences, "bcdfghj")

    for function, blocks in ((by_letters, 1), (other, 1), (by_letters, 0)):
        asked.clear()
        combined(settings(teachers=[settings_of(function, given_objects)], sed={"head": "keep"}))
        assert asked.count(256) == asked.count(44) == blocks, "the corpus has two blocks"
        sentences, x_ND = targets(tmp_path / "runs" / "taught")
        expected_ND = function(sentences)
        norms_N1 = np.maximum(np.linalg.norm(expected_ND, axis=1, keepdims=True), 1e-12)
        np.testing.assert_allclose(x_ND, expected_ND / norms_N1, atol=1e-6)


def test_another_teacher_combination_or_encoder_to_learn_asks_nobody_twice(settings, first, copied, tmp_path, caplog):
    directory, teachers = copied, first[0].teachers
    old = rows_of(directory)
    assert len(old) == 4

    sentences, target_ND = targets(directory)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (load_teacher(t).embed(sentences) for t in teachers)]
    left, values, _ = np.linalg.svd(np.concatenate(unit, 1) / np.sqrt(2), full_matrices=False)
    width = target_ND.shape[1]
    best_NN = left[:, :width] * values[:width] ** 2 @ left[:, :width].T  # of the dot products, at the learner's width
    np.testing.assert_allclose(target_ND @ target_ND.T, best_NN, atol=1e-4)

    file = tmp_path / "vectors.parquet"
    vectors = np.random.default_rng(0).normal(size=(len(sentences), 7))
    pq.write_table(pa.table({"sentence": sentences, "embedding": vectors.tolist()}), file)
    with caplog.at_level("INFO", "raysed"):
        combined(settings(teachers=[*settings()["teachers"], str(file)]))
    second = rows_of(directory)
    assert old.items() < second.items() and len(second) == 6
    assert "not scored: vectors has no embeddings for the evaluation's sentences" in caplog.messages

    scored = rows_of(directory, "embeddings")
    combined(settings(encoder={"model_kwargs": {"num_hidden_layers": 2}, "pool_layers": 1}))
    combined(settings(combination={"weights": [1.0, 2.0]}))
    assert rows_of(directory) == second and rows_of(directory, "embeddings") == scored
    before = targets(directory)[1]

    damaged, *_, deleted = sorted(old)
    (artefact(directory, damaged.removeprefix("manifest/").removesuffix(".json")) / "block.parquet").write_text("")
    (directory / deleted).unlink()
    combined(settings(combination={"weights": [2.0, 1.0]}))
    combined(settings(combination={"weights": [1.0, 2.0]}))
    assert rows_of(directory).keys() == second.keys() and {damaged, deleted} == {
        name for name, written in rows_of(directory).items() if written != second[name]
    }
    np.testing.assert_array_equal(targets(directory)[1], before)


def test_blocks_of_a_text_that_was_given_up_are_not_taken_for_those_of_another(settings, copied, tmp_path, monkeypatch):
    """A run of other sentences is stopped when their blocks are there; the first sentences get their own vectors."""
    do = LocalBackend.map

    def stop(backend, jobs, *rest):
        if jobs[0].name.startswith("teachers/rows/"):
            raise KeyboardInterrupt
        do(backend, jobs, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(LocalBackend, "map", stop)
        with pytest.raises(KeyboardInterrupt):
            combined(settings(seed=1))
    other = {"combination": {"weights": [1.0, 2.0], "turn": False}}
    combined(settings(**other))
    combined({**settings(**other), "storage": str(tmp_path / "new")})
    np.testing.assert_allclose(targets(copied)[1], targets(tmp_path / "new/taught")[1], atol=1e-6)


@pytest.mark.parametrize("damaged", [False, True])
def test_only_new_text_of_a_corpus_that_has_grown_is_embedded(settings, tmp_path, capfd, damaged):
    """Whatever its order, and whatever is gone; vectors are those of a run that embeds everything."""
    asked: list[str] = []

    def by_letters(sentences):
        asked.extend(sentences)
        return np.array([[text.count(letter) for letter in "aeioust"] for text in sentences])

    file, old = tmp_path / "corpus.txt", [f"Ticket {n} says {chr(97 + n % 26) * 3}." for n in range(600)]
    about = {"teachers": [settings_of(by_letters, given_objects)], "sed": {"head": "keep"}}
    about["corpus"] = {"source": str(file)}
    file.write_text("\n".join(old))
    combined(settings(**about))
    if damaged:
        for path in (tmp_path / "runs/taught/teachers/rows").glob("*/000000/*/block.parquet"):
            path.write_bytes(b"")
    grown = [*old[40:], *(f"New ticket {n}." for n in range(50))]
    np.random.default_rng(0).shuffle(grown)
    file.write_text("\n".join(grown))
    asked.clear()
    combined(settings(**about))
    of_corpus = [text for text in asked if "icket" in text]
    assert len(of_corpus) == len(set(of_corpus)) and set(of_corpus) >= set(grown) - set(old)
    if not damaged:
        assert set(of_corpus) == set(grown) - set(old)
        assert "610 sentences, 560 found, 50 embedded" in capfd.readouterr().out
    expected = targets(tmp_path / "runs/taught")
    combined({**settings(**about), "storage": str(tmp_path / "new")})
    found = targets(tmp_path / "new/taught")
    assert found[0] == expected[0]
    np.testing.assert_allclose(found[1], expected[1], atol=1e-6)


def test_teachers_are_scored_together_and_the_best_on_dev_are_named(first):
    """The tiny encoder has random weights."""
    config, said = first
    (worth,) = [line for line in said if "is the best single teacher" in line]
    assert worth.startswith("On test, bundled is the best single teacher with ") and "both together score " in worth
    (choice,) = [line for line in said if line.startswith("Best on dev: ")]
    assert choice.startswith("Best on dev: bundled alone, with ") and "On test, which did not influence" in choice
    worth = Storage(config.storage, config.run).entry("teachers/worth").meta
    assert worth["chosen"] == [0] and len(worth["tried"]) == 3


def test_members_of_the_run_are_a_teacher_beside_one_from_outside(settings, tmp_path):
    """Their mean is what the ensemble's own learner would learn from, and it is made only once."""
    mixed = settings(
        recipes=["ct", "ct-sed", "teachers-sed"],
        teachers=["bundled:encoder", "members"],
        members={"count": 2, "evaluate_every": 100},
        ct={"steps": 3},
        combination={"how": "concatenated", "turn": False, "weights": [1, 3]},
    )
    config, _ = combined(mixed)
    directory = tmp_path / "runs/taught"
    sentences, target_ND = targets(directory)
    blocks = [pq.read_table(artefact(directory, f"ct-sed/targets/{index:06d}") / BLOCK_FILE) for index in range(2)]
    mean_ND = np.array(pa.concat_tables(blocks)["target"].to_pylist())
    parts = [load_teacher(config.teachers[0]).embed(sentences), mean_ND]
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in parts]
    expected_NN = unit[0] @ unit[0].T / 4 + unit[1] @ unit[1].T * 3 / 4
    left, values, _ = np.linalg.svd(expected_NN)
    width = target_ND.shape[1]
    np.testing.assert_allclose(target_ND @ target_ND.T, left[:, :width] * values[:width] @ left[:, :width].T, atol=1e-4)

    members = [artefact(directory, f"ct/embeddings/0{index}") / "layers-1.npy" for index in range(2)]
    said = np.load(artefact(directory, "teachers/embeddings/01") / "layers-1.npy")
    np.testing.assert_allclose(said, np.mean([np.load(path) for path in members], axis=0), atol=1e-6)
    before = {p: p.stat().st_mtime_ns for p in (directory / "manifest").rglob("*.json")}
    combined(mixed)
    assert before == {p: p.stat().st_mtime_ns for p in (directory / "manifest").rglob("*.json")}, "all of it is there"


def test_a_new_model_searches_the_old_index(settings, copied):
    """The old model is a teacher, too, so it embeds nothing again."""
    before = rows_of(copied)
    result = raysed.run(settings(combination={"turn": "bundled:encoder"}, export={"allow_worse": True}))
    assert rows_of(copied) == before
    (found,) = result.report["fidelity"]
    recalls = {row["name"]: row["recall"] for row in found["searches"]}
    assert {"new model, old index", "old model, old index"} < recalls.keys()
    sentences, target_ND = targets(copied)
    old_ND = load_teacher(TeacherConfig(path="bundled:encoder")).embed(sentences)
    cosines_N = (target_ND * old_ND).sum(1) / np.linalg.norm(old_ND, axis=1) / np.linalg.norm(target_ND, axis=1)
    assert cosines_N.mean() > 0.5
    card = Path(result.path, "README.md").read_text()
    assert "queries embedded by this model can search documents embedded by bundled." in card


def test_the_exported_learner_can_be_cut_short(settings, tmp_path):
    """sentence-transformers cuts to what the table by width was computed from, and that is good at all widths."""
    transformers = pytest.importorskip("sentence_transformers")
    sed = {**settings()["sed"], "widths": [8, 48]}
    made = settings(combination={}, sed=sed, teachers=["bundled:encoder"], export={"recipe": "teachers-sed"})
    result = raysed.run(made)
    directory = tmp_path / "runs/taught"
    _, target_ND = targets(directory)
    products_DD = target_ND.T @ target_ND
    lengths_D = np.diag(products_DD)
    assert (np.diff(lengths_D) <= 1e-4).all() and np.abs(products_DD - np.diag(lengths_D)).max() < 1e-3

    evaluation = check(make_config(made)).evaluation
    own_UD = np.load(artefact(directory, "teachers-sed/embeddings/00") / "layers-1.npy")
    for entry in result.report["widths"]:
        width = entry["width"]
        model = transformers.SentenceTransformer(result.path, device="cpu", truncate_dim=width)
        short_UD = model.encode(evaluation.sentences[:50])
        np.testing.assert_allclose(short_UD, own_UD[:50, :width], atol=1e-4)
        assert entry["metrics"]["test"]["spearman"] == evaluation.score(own_UD[:, :width]).metrics["test"]["spearman"]
    assert [entry["width"] for entry in result.report["widths"]] == [8, 48, 192]
    assert "## By width" in (directory / "report.md").read_text()
    assert "truncate_dim=8" in (directory / "model/README.md").read_text()


def test_a_head_leads_into_the_space_of_a_wider_teacher(settings, tiny_encoder_dir, tmp_path):
    """Dev scores, the report and the export are of the vectors after the head, which starts at the best turn."""
    transformers = pytest.importorskip("sentence_transformers")
    encoder = {"path": str(tiny_encoder_dir), "max_length": 20, "pool_layers": 1}
    sed = {**settings()["sed"], "loss": "unit_mse", "checkpoint": "best_on_dev", "epochs": 4, "head": "keep"}
    given = {"encoder": encoder, "teachers": ["bundled:encoder"], "export": {"recipe": "teachers-sed"}}
    made = settings(combination={}, sed=sed, **given)
    directory, evaluation = tmp_path / "runs/taught", check(make_config(made)).evaluation
    result = raysed.run(made)
    own_UD = np.load(artefact(directory, "teachers-sed/embeddings/00") / "layers-1.npy").astype(np.float64)
    model = transformers.SentenceTransformer(result.path, device="cpu")
    np.testing.assert_allclose(model.encode(evaluation.sentences[:50]), own_UD[:50], atol=1e-4)
    assert type(model[-1]).__name__ == "Dense"
    entry = json.loads((directory / "manifest/teachers-sed/learners/00.json").read_text())
    (row,) = [row for row in result.report["rows"] if row["kind"] == "learner"]
    assert row["metrics"]["dev"]["spearman"] == pytest.approx(entry["meta"]["dev"], abs=0.01)
    teacher_UD = np.load(artefact(directory, "teachers/embeddings/00") / "layers-1.npy")
    assert own_UD.shape[1] == teacher_UD.shape[1] > 16

    (line,) = [row for row in result.report["teachers"] if "searches" in row]
    assert line["model"] == "teachers-sed searching bundled"
    assert line["score"] == evaluation.score_between(own_UD, teacher_UD, ["test"])
    _, target_ND = targets(directory)
    sentences = pq.read_table(directory / "corpus")["sentence"].to_pylist()
    expected_ND = load_teacher(make_config(made).teachers[0]).embed(sentences)
    expected_ND /= np.linalg.norm(expected_ND, axis=1, keepdims=True)
    np.testing.assert_allclose(target_ND, expected_ND, atol=1e-5)
    start_ND = load_teacher(TeacherConfig(path=str(tiny_encoder_dir), max_length=20)).embed(sentences)
    start_ND /= np.linalg.norm(start_ND, axis=1, keepdims=True)
    left_HH, _, right_HD = np.linalg.svd(start_ND.T @ target_ND, full_matrices=False)
    head_HD = np.load(artefact(directory, "teachers-sed/targets") / "head.npy")
    np.testing.assert_allclose(head_HD, left_HH @ right_HD, atol=1e-3)

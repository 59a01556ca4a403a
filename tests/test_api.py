"""raysed from Python: which settings a call makes."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import raysed
from raysed import api
from raysed.errors import UserError
from raysed.plan.consistency import check_settings


@pytest.fixture
def distillation(monkeypatch):
    """`raysed.distill` that returns the settings instead of running them."""
    monkeypatch.setattr(api, "_run", lambda config, verbose: config)
    return api.distill


PAIRS = "0.5\tA cat sleeps.\tA dog runs.\n4.5\tIt rains.\tRain falls.\n"


def test_tasks_without_a_dev_task_are_reported_and_choices_are_made_on_the_default_one(tmp_path, distillation):
    (tmp_path / "mine.tsv").write_text(PAIRS)
    task = str(tmp_path / "mine.tsv")
    config = distillation(["A", "B"], "c.txt", "A", keep_layers=3, tasks=[task], settings={"sed": {"loss": "mse"}})
    check_settings(config)
    assert config.evaluation.dev == "everyday-dev" and config.evaluation.report == ["mine"]
    assert config.sed.loss == "mse"


@pytest.mark.parametrize(
    ("teachers", "learner", "layers", "expected"),
    [
        (["A", "B"], None, None, ("A", "half", {})),
        (["members", "v.parquet", {"path": "B", "prompt": "query: "}], None, None, ("B", "half", {})),
        (["v.parquet"], None, None, ("bundled:encoder", None, {})),
        (["A"], None, 2, ("A", 2, {})),
        (["A"], None, [0, 5], ("A", [0, 5], {})),
        (["A"], "A", None, ("A", None, {})),
        (["A"], "A", 2, ("A", 2, {})),
        (["A"], "B", None, ("B", None, {})),
        (["A"], "B", 2, ("B", None, {"num_hidden_layers": 2})),
        (["v.parquet"], None, 2, ("bundled:encoder", None, {"num_hidden_layers": 2})),
    ],
)
def test_half_of_the_first_teacher_learns_unless_told_otherwise(distillation, teachers, learner, layers, expected):
    config = distillation(teachers, "corpus.txt", learner, keep_layers=layers)
    assert (config.encoder.path, config.encoder.keep_layers, config.encoder.model_kwargs) == expected


def by_letters(sentences):
    return np.array([[text.count(letter) for letter in "aeiou"] for text in sentences])


def test_an_object_teaches_in_this_process(distillation, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    config = distillation([by_letters, "B"], "c.txt", settings={"resources": {"gpu": False}})
    check_settings(config)
    first, second = config.teachers
    assert first.path.startswith("python:") and (first.title, second.title) == ("by_letters", "B")
    assert config.encoder.path == "B" and config.resources.engine == "local" and config.resources.gpu is False
    assert distillation(["B"], "c.txt").resources.engine == "auto"
    for address, chosen in (("ray://there", {}), (None, {"resources": {"engine": "ray"}})):
        monkeypatch.setenv("RAY_ADDRESS", address) if address else monkeypatch.delenv("RAY_ADDRESS")
        config = distillation([by_letters], "c.txt", settings=chosen)
        with pytest.raises(UserError, match=r"^teachers: by_letters is an object .*; set resources\.engine to lo"):
            check_settings(config)


def test_a_static_learner_has_its_own_rate_unless_told_otherwise(distillation):
    def settings(**given):
        return distillation(["A"], "corpus.txt", "A", static=True, settings=given)

    config = settings()
    check_settings(config)
    assert config.encoder.static.width is None and config.encoder.layers == 1
    assert (config.sed.learning_rate, config.sed.batch_size, config.sed.epochs) == (0.01, 256, 3)
    with pytest.raises(UserError, match="keep_layers is for transformers"):
        distillation("A", "corpus.txt", static=True, keep_layers=2)
    config = settings(encoder={"static": {"width": 64}}, sed={"learning_rate": 0.5})
    assert config.encoder.static.width == 64 and (config.sed.learning_rate, config.sed.batch_size) == (0.5, 256)


def by_words(sentences):
    return np.array(
        [[word in text.lower().split() for word in ("a", "man", "woman", "is", "the")] for text in sentences]
    )


def test_objects_are_as_good_as_files(distillation, tmp_path):
    """Sentences, the dev task and others; names are those that are given, or those of the files."""
    datasets = pytest.importorskip("datasets")
    (tmp_path / "mine.tsv").write_text(PAIRS)
    pairs = [("A cat.", "A pet.", 3.0), ("A cat.", "It rains.", 0.0)]
    config = distillation(
        "A", ["It rains.", "A cat."], dev=pairs, tasks=[tmp_path / "mine.tsv", pairs], storage=str(tmp_path / "runs")
    )
    check_settings(config)
    given = tmp_path / "runs/distilled/given"
    assert config.corpus.source == [str(given / "sentences.parquet")]
    assert list(config.evaluation.tasks) == ["dev", "mine", "task-2"] and config.evaluation.dev == "dev"
    config = distillation("A", "c.txt", tasks={"first": pairs, "other": tmp_path / "mine.tsv"}, storage=str(tmp_path))
    assert list(config.evaluation.tasks) == ["everyday-dev", "first", "other"]
    assert config.evaluation.report == ["first", "other"]
    assert list(distillation("A", "c.txt", tasks=pairs, storage=str(tmp_path)).evaluation.tasks)[1:] == ["task-1"]
    rows = datasets.Dataset.from_dict({"sentence1": ["A cat."], "sentence2": ["A pet."], "score": [3.0]})
    assert list(distillation("A", "c.txt", tasks=rows, storage=str(tmp_path)).evaluation.tasks)[1:] == ["task-1"]
    with pytest.raises(UserError, match="task task-1: a list of files is not one task"):
        distillation("A", "c.txt", tasks=[[tmp_path / "mine.tsv", tmp_path / "mine.tsv"]], storage=str(tmp_path))
    with pytest.raises(UserError, match="two tasks are called dev"):
        distillation("A", "c.txt", dev=pairs, tasks={"dev": pairs}, storage=str(tmp_path))
    with pytest.raises(UserError, match=r"^sentences: storage is a URI"):
        distillation("A", ["It rains."], storage="s3://bucket/runs")


def test_evaluate_takes_objects():
    pairs = [("A man sleeps.", "The man sleeps.", 5), ("A man sleeps.", "It rains.", 0), ("A cat.", "A dog.", 2)]
    scores = api.evaluate(by_words, {"mine": pairs, "classes": [("a man", "x"), ("the woman", "y")] * 20})
    assert list(scores) == ["mine", "classes", "classes-clusters"]
    assert str(scores).split()[0] == "spearman" and "\nmine  " in str(scores)
    assert scores.to_pandas().loc["mine", "spearman"] == scores["mine"]["spearman"]


class FakeHub:
    """Keeps the names of files, and the text of the card."""

    def __init__(self, uploaded):
        self.uploaded = uploaded

    def create_repo(self, repo_id, **options):
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, repo_id, folder_path, **options):
        files = {path.name: path for path in Path(folder_path).iterdir()}
        self.uploaded[repo_id] = {name: path.read_text() if name == "README.md" else "" for name, path in files.items()}
        return SimpleNamespace(commit_url="https://hub/commit/1", pr_url=None)


@pytest.mark.slow
def test_a_distillation_from_objects_to_a_model(tmp_path, capfd, monkeypatch):
    """Silent, on the local engine; the result is a loaded model, tables, and what the hub gets."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from raysed import bundled

    pairs = [(first, second, score) for score, first, second in bundled.pairs("dev")]
    options = {
        "teachers": sentence_transformers.SentenceTransformer(str(bundled.ENCODER), device="cpu"),
        "sentences": iter(bundled.corpus()[:600]),
        "learner": "bundled:encoder",
        "keep_layers": 1,
        "dev": pairs[:200],
        "tasks": {"mine": pairs[200:]},
        "storage": str(tmp_path),
        "settings": {"sed": {"epochs": 1}, "export": {"recipe": "teachers-sed", "allow_worse": True}},
    }
    result = raysed.distill(**options)
    shown = capfd.readouterr()
    assert (shown.out, shown.err) == ("", "")
    assert result.model.encode(["It rains."]).shape == (1, 192)
    assert 0 < result.scores["teachers-sed/learner"]["mine"] == result.scores["teachers-sed/learner"]["mean"] < 100
    assert "teachers-sed/learner" in str(result) and "## " in str(result.report)
    assert set(result.report.to_pandas()["task"]) >= {"dev", "mine"}
    evaluated = raysed.evaluate(result.model, {"mine": pairs[200:]})
    assert evaluated["mine"]["spearman"] == pytest.approx(result.scores["teachers-sed/learner"]["mine"], abs=0.05)
    uploaded = {}
    monkeypatch.setattr("sentence_transformers.base.model.HfApi", lambda token=None: FakeHub(uploaded))
    assert result.push_to_hub("me/mine") == "https://hub/commit/1"
    assert {"model.safetensors", "modules.json"} <= uploaded["me/mine"].keys()
    assert "spearman_cosine" in uploaded["me/mine"]["README.md"]

    again = raysed.distill(**options | {"sentences": bundled.corpus()[:600]}, verbose=True)
    assert "nothing to do" in capfd.readouterr().out and again.scores == result.scores

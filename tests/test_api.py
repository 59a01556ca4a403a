"""raysed from Python: which settings a call makes."""

import numpy as np
import pytest

from raysed import api
from raysed.errors import UserError
from raysed.plan.consistency import check_settings


@pytest.fixture
def distillation(monkeypatch):
    """`raysed.distill` that returns the settings instead of running them."""
    monkeypatch.setattr(api, "_run", lambda config: config)
    return api.distill


PAIRS = "0.5\tA cat sleeps.\tA dog runs.\n4.5\tIt rains.\tRain falls.\n"


def test_tasks_without_a_dev_task_are_reported_and_choices_are_made_on_the_default_one(tmp_path, distillation):
    (tmp_path / "mine.tsv").write_text(PAIRS)
    task = str(tmp_path / "mine.tsv")
    config = distillation(["A", "B"], "c.txt", "A", layers=3, tasks=[task], settings={"sed": {"loss": "mse"}})
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
    config = distillation(teachers, "corpus.txt", learner, layers=layers)
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
    config = settings(encoder={"static": {"width": 64}}, sed={"learning_rate": 0.5})
    assert config.encoder.static.width == 64 and (config.sed.learning_rate, config.sed.batch_size) == (0.5, 256)

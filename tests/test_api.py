"""raysed from Python: which settings a call makes."""

from raysed.api import distillation
from raysed.plan.consistency import check_settings

PAIRS = "0.5\tA cat sleeps.\tA dog runs.\n4.5\tIt rains.\tRain falls.\n"


def test_tasks_without_a_dev_task_are_reported_and_choices_are_made_on_the_default_one(tmp_path):
    (tmp_path / "mine.tsv").write_text(PAIRS)
    task = str(tmp_path / "mine.tsv")
    config = distillation(["A", "B"], "corpus.txt", "A", 3, None, [task], "mine", "runs", {"sed": {"loss": "cosine"}})
    check_settings(config)
    assert config.evaluation.dev == "everyday-dev" and config.evaluation.report == ["mine"]
    assert config.sed.loss == "cosine"


def test_a_static_learner_has_its_own_rate_unless_told_otherwise():
    def settings(**given):
        return distillation(["A"], "corpus.txt", "A", None, None, [], "mine", "runs", given, static=True)

    config = settings()
    check_settings(config)
    assert config.encoder.static.width is None and config.encoder.layers == 1
    assert (config.sed.learning_rate, config.sed.batch_size, config.sed.epochs) == (0.01, 256, 3)
    config = settings(encoder={"static": {"width": 64}}, sed={"learning_rate": 0.5})
    assert config.encoder.static.width == 64 and (config.sed.learning_rate, config.sed.batch_size) == (0.5, 256)

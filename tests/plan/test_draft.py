"""The configuration that is written for a user's files: it loads, and its numbers follow the files."""

from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from raysed.config import load_config
from raysed.data.survey import PairsSurvey, Survey
from raysed.plan.consistency import check_settings
from raysed.plan.draft import MOST_SENTENCES, EncoderFacts, draft
from raysed.registry import stages

PAIRS = [PairsSurvey("data/dev.csv", 300, 0, 0.1, 0.9, 0), PairsSurvey("other/dev.csv", 300, 0, 1, 5, 0, subsets=2)]


def survey(count: int, characters: int = 80, **changes) -> Survey:
    report = SimpleNamespace(usable=count, lines=count)
    known = {
        "source": ["data/tickets.txt"],
        "files": ["data/tickets.txt"],
        "size": 10**6,
        "columns": [],
        "column": None,
        "guessed": False,
        "taken": None,
        "tabbed": False,
        "report": report,
        "complete": True,
        "lengths_N": np.full(count, characters),
        "sample": ["x" * characters],
    }
    return Survey(**{**known, **changes})


def facts(tokens: int = 22, limit: int | None = 512, layers: int = 6) -> EncoderFacts:
    return EncoderFacts(layers, 10**6, limit, np.full(100, tokens))


def written(found: Survey, pairs=(), teachers=(), encoder="MODEL", known=None, keep=None):
    return draft(found, pairs, teachers, encoder, keep, known, "raysed.yaml")


def test_half_of_a_teachers_layers_is_said_to_be_kept():
    made = written(survey(3000), [], ["A"], "A", facts(layers=3), "half")
    assert made.config.encoder.keep_layers == "half" and "It keeps half of the layers of this teacher" in made.text


@pytest.mark.parametrize("count", [2, 3000, 10**6])
@pytest.mark.parametrize("pairs", [[], PAIRS[:1], PAIRS], ids=len)
@pytest.mark.parametrize("teachers", [[], ["A"], ["A", "B/c: d"]], ids=len)
@pytest.mark.parametrize("known", [None, facts(), facts(layers=1)], ids=["unknown", "six layers", "one layer"])
def test_what_is_written_loads_and_goes_together(tmp_path, count, pairs, teachers, known):
    path = tmp_path / "raysed.yaml"
    made = written(survey(count), pairs, teachers, "bundled:encoder" if known else "MODEL", known)
    path.write_text(made.text)
    config = load_config(path)
    recipes = [recipe.text for recipe in check_settings(config)]
    assert config == made.config
    assert recipes == (["teachers-sed"] if teachers else ["base-whiten", "base-flow", "ct-sed-flow"])
    assert [teacher.path for teacher in config.teachers] == teachers
    assert config.evaluation.dev == ("dev" if pairs else "everyday-dev")
    assert max(map(len, made.text.splitlines())) <= 130


@pytest.mark.parametrize("count", [2, 60, 300, 1500, 3000, 9000, 40_000, 100_000, 10**7])
@pytest.mark.parametrize("teachers", [[], ["A"]], ids=len)
def test_a_learner_gets_some_hundred_updates_wherever_there_is_text_for_them(count, teachers):
    config = written(survey(count), teachers=teachers).config
    rows = config.corpus.sentences or count
    updates = stages()["sed"].steps(config.sed, rows)
    assert updates <= 3200 and (updates >= 300 or config.sed.epochs == 20)
    assert config.sed.evaluate_every < updates or count == 2
    assert 200 <= config.ct.steps <= 1000 or teachers
    assert config.ct.steps >= 4 * config.members.evaluate_every or teachers


def test_scoring_takes_less_time_than_learning():
    few, many = (PairsSurvey("dev.csv", count, 0, 0, 5, 0) for count in (100, 1500))
    for pairs in (few, many):
        sed = written(survey(3000), [pairs], ["A"]).config.sed
        assert sed.evaluate_every * sed.batch_size >= 2 * pairs.pairs
    assert 4 * sed.evaluate_every <= stages()["sed"].steps(sed, 3000)


def test_a_draw_asks_for_no_more_than_was_seen():
    """So it cannot fail, whatever the rows that were not read hold."""
    assert written(survey(MOST_SENTENCES)).config.corpus.sentences is None
    assert written(survey(150_000)).config.corpus.sentences == MOST_SENTENCES
    assert written(survey(150_000, complete=False)).config.corpus.sentences == MOST_SENTENCES
    assert written(survey(60_000, complete=False)).config.corpus.sentences == 60_000


@pytest.mark.parametrize(
    ("known", "characters", "max_length", "cut"),
    [
        (facts(22), 0, 24, 0),
        (facts(24), 0, 24, 0),
        (facts(5), 0, 16, 0),
        (facts(700), 0, 512, 1),
        (facts(700, limit=96), 0, 96, 1),
        (facts(700, limit=None), 0, 512, 1),
        (None, 80, 24, 0),
        (None, 2000, 504, 0),
    ],
)
def test_the_length_leaves_one_sentence_in_a_hundred_longer(known, characters, max_length, cut):
    made = written(survey(5000, characters or 80), known=known)
    assert (made.config.encoder.max_length, made.cut) == (max_length, cut)


def test_lengths_are_of_the_distribution():
    tokens_N = np.array([10] * 980 + [30] * 15 + [300] * 5)
    made = written(survey(5000), known=EncoderFacts(6, 10**6, 512, tokens_N))
    assert made.config.encoder.max_length == 32 and made.cut == 0.005 and made.lengths == (10, 10, 30, 300)


def test_scores_columns_and_names_are_the_users():
    found = survey(3000, source=["data/a b/*.jsonl", "s3://bucket/x: y"], column="Body", guessed=True, taken="Body")
    config = written(found, PAIRS).config
    assert config.corpus.source == ["data/a b/*.jsonl", "s3://bucket/x: y"] and config.corpus.column == "Body"
    assert config.run == "a-b" and list(config.evaluation.tasks) == ["dev", "other/dev.csv"]
    first, second = config.evaluation.tasks.values()
    assert first.score_range == (0, 1) and second.score_range == (0, 5)
    assert (first.aggregation, second.aggregation) == (None, "all")


def test_every_setting_has_a_comment_above_it():
    """Of two that belong together, the first has it."""
    together = {"checkpoint_every", "batch_size", "decay", "patience"}
    for teachers, pairs in (([], []), (["A"], PAIRS)):
        text = written(survey(150_000), pairs, teachers, "bundled:encoder", facts()).text
        lines = text.splitlines()
        for place, line in enumerate(lines):
            key = line.strip().partition(":")[0]
            is_setting = line and not line.lstrip().startswith(("#", "- ")) and not line.endswith(":")
            if is_setting and not line.startswith("    ") and key not in together:
                assert lines[place - 1].lstrip().startswith("#"), line
        assert yaml.safe_load(text)

"""What is said of a user's files, and the configuration for them: it loads, and its numbers follow the files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed import bundled
from raysed.config import CorpusConfig, EncoderConfig, load_config
from raysed.data.graded import StsTask
from raysed.plan.consistency import check_settings
from raysed.plan.draft import MOST_SENTENCES, SAMPLE, Draft, Survey, draft, survey_corpus, warnings
from raysed.plan.lengths import in_passages
from raysed.registry import stages


@pytest.fixture
def encoder_of(tmp_path) -> Callable[..., EncoderConfig]:
    """Makes encoders without weights that count tokens as the bundled one."""

    def encoder(layers: int = 6, limit: int = 512) -> EncoderConfig:
        path = tmp_path / "encoder"
        shutil.copytree(Path(bundled.__file__).parent / "encoder", path)
        sizes = {"num_hidden_layers": layers, "max_position_embeddings": limit}
        for name, changes in (("config.json", sizes), ("tokenizer_config.json", {"model_max_length": limit})):
            known = json.loads((path / name).read_text())
            (path / name).write_text(json.dumps({**known, **changes}))
        return EncoderConfig(path=str(path), pool_layers=1)

    return encoder


BUNDLED = EncoderConfig(pool_layers=1)


def survey(count: int, tokens: int = 20, complete: bool = True, sample=None) -> Survey:
    sentence = " ".join(["the"] * (tokens - 2))  # a token each, between two special ones
    report = SimpleNamespace(usable=count, lines=count, split=0, duplicates=0)
    return Survey(["tickets.txt"], [], report, complete, sample or [sentence] * 10)


def task(pairs: int, subsets: int = 1) -> StsTask:
    columns = ["A cat."] * pairs, ["A dog."] * pairs, np.linspace(0.1, 0.9, pairs)
    return StsTask("", {str(subset): columns for subset in range(subsets)})


PAIRS = {"data/dev.csv": task(300), "other/dev.csv": task(150, 2)}


def written(
    found: Survey, pairs=None, teachers=(), encoder=BUNDLED, source=("data/tickets.txt",), column=None, has_dev=True
) -> Draft:
    corpus = CorpusConfig(source=list(source), column=column)
    return draft(found, corpus, pairs or {}, has_dev and bool(pairs), teachers, encoder, "raysed.yaml")


# -- what the files hold ---------------------------------------------------------------------------------------------


def sentences(count: int) -> list[str]:
    return [f"Ticket {number} says that {'really ' * (number % 5)}nothing works." for number in range(count)]


def survey_of(path: Path, lines: list[str], **options) -> Survey:
    path.write_text("\n".join(lines) + "\n")
    return survey_corpus(in_passages(CorpusConfig(source=[str(path)])), **options)


def test_every_row_is_counted(tmp_path):
    text = sentences(2000)
    lines = [*text, text[0], "", "x", "y" * 2001]
    found = survey_of(tmp_path / "a.txt", lines)
    report = found.report
    assert (report.lines, report.usable, report.duplicates) == (2005, 2001, 1)
    assert (report.empty, report.too_short, report.split) == (1, 2, 1)
    assert found.complete and found.files == [str(tmp_path / "a.txt")] and found.columns == []
    assert not survey_of(tmp_path / "a.txt", lines, first=10).complete


def test_the_sample_is_spread_over_all_that_was_read(tmp_path):
    text = sentences(30_000)
    sample = survey_of(tmp_path / "a.txt", text).sample
    places = np.array([text.index(sentence) for sentence in sample[::100]])
    assert SAMPLE <= len(sample) <= 2 * SAMPLE
    assert len(set(np.diff(places))) == 1 and places[0] == 0 and places[-1] > 27_000


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_columns_are_those_of_the_file_and_sentences_those_of_one(tmp_path, kind):
    columns, path = ["id", "title", "Sentence"], tmp_path / f"a.{kind}"
    values = [[f"T{n}", f"No. {n}", f"The ticket of customer {n} is open."] for n in range(5)]
    if kind == "csv":
        path.write_text("\n".join(",".join(row) for row in [columns, *values]))
    elif kind == "jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(columns, row))) for row in values))
    else:
        pq.write_table(pa.table(dict(zip(columns, map(list, zip(*values))))), path)
    for column, taken in ((None, 2), ("title", 1)):
        found = survey_corpus(CorpusConfig(source=[str(path)], column=column))
        assert found.columns == columns and found.sample == [row[taken] for row in values]


@pytest.mark.parametrize(
    ("text", "pairs", "warning"),
    [
        (sentences(999), 100, "999 sentences are few; "),
        (sentences(1050), 99, "99 pairs of mine.csv are few; "),
        ([*sentences(1050), *["the same"] * 1100], 100, "1,099 of 2,150 rows are duplicates; "),
    ],
    ids=["few", "few pairs", "same"],
)
def test_what_will_hurt_is_said(tmp_path, text, pairs, warning):
    found = survey_of(tmp_path / "a.txt", text)
    (said,) = warnings(found, {"mine.csv": task(pairs)})
    assert said.startswith(warning)


# -- what is written -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "pairs", "teachers", "layers"),
    [
        (2, {}, [], None),
        (3000, PAIRS, [], 6),
        (10**6, {"data/dev.csv": task(300)}, [], 1),
        (2, PAIRS, ["A"], 1),
        (10**6, {}, ["A"], 6),
        (3000, PAIRS, ["A", "B/c: d"], None),
    ],
)
def test_what_is_written_loads_and_goes_together(tmp_path, encoder_of, count, pairs, teachers, layers):
    path = tmp_path / "raysed.yaml"
    made = written(survey(count), pairs, teachers, encoder_of(layers) if layers else BUNDLED)
    path.write_text(made.text)
    config = load_config(path)
    recipes = [recipe.text for recipe in check_settings(config)]
    assert config == made.config
    assert recipes == (["teachers-sed"] if teachers else ["base-whiten", "base-flow", "ct-sed-flow"])
    assert [teacher.path for teacher in config.teachers] == teachers
    assert config.encoder.pool_layers == (2 if layers == 6 and not teachers else 1)
    assert config.evaluation.dev == ("dev" if pairs else None)


@pytest.mark.parametrize("teachers", [[], ["A"]], ids=len)
def test_without_a_dev_task_no_labels_choose(teachers):
    config = written(survey(3000), PAIRS, teachers, has_dev=False).config
    assert config.evaluation.dev is None and len(config.evaluation.report_tasks()) == 2
    assert config.sed.checkpoint == ("best_on_held_out" if teachers else "last") and config.ct.copy in (None, "closest")


@pytest.mark.parametrize("count", [2, 300, 3000, 9000, 10**7])
@pytest.mark.parametrize("teachers", [[], ["A"]], ids=len)
def test_a_learner_gets_some_hundred_updates_wherever_there_is_text_for_them(count, teachers):
    config = written(survey(count), teachers=teachers).config
    rows = config.corpus.sentences or count
    updates = stages()["sed"].steps(config.sed, rows)
    assert updates <= 3200 and (updates >= 300 or config.sed.epochs == 20)
    assert config.sed.evaluate_every < updates or count == 2
    assert 200 <= config.ct.steps <= 1000 or teachers
    assert config.ct.steps >= 4 * config.members.evaluate_every or teachers


def test_a_draw_asks_for_no_more_than_was_seen():
    """So it cannot fail, whatever the rows that were not read hold."""
    for count, complete, drawn in (
        (MOST_SENTENCES, True, None),
        (150_000, True, MOST_SENTENCES),
        (150_000, False, MOST_SENTENCES),
        (60_000, False, 60_000),
    ):
        assert written(survey(count, complete=complete)).config.corpus.sentences == drawn


@pytest.mark.parametrize(
    ("tokens", "limit", "max_length", "characters"),
    [(22, 512, 75, None), (90, 512, 96, None), (700, 96, 88, 344), (700, 10**7, 464, 1837)],
)
def test_lengths_are_those_of_the_text_and_the_encoder(encoder_of, tokens, limit, max_length, characters):
    made = written(survey(5000, tokens), encoder=encoder_of(limit=limit))
    assert made.config.encoder.max_length == made.lengths.tokens == max_length
    assert made.config.corpus.passage_characters == made.lengths.passage_characters == characters
    assert f"# In a sample, {made.lengths}." in made.text


def test_sources_columns_and_names_are_the_users():
    source = ["data/a b/*.jsonl", "s3://bucket/x: y"]
    made = written(survey(3000), PAIRS, source=source, column="Body").config
    assert made.corpus.source == source and made.corpus.column == "Body"
    assert made.run == "a-b" and list(made.evaluation.tasks) == ["dev", "other/dev.csv"]
    first, second = made.evaluation.tasks.values()
    assert [first.source, second.source] == list(PAIRS) and first.score_range is second.score_range is None
    assert (first.aggregation, second.aggregation) == (None, "all")

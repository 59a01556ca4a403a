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
import yaml

from raysed import bundled
from raysed.config import CorpusConfig, EncoderConfig, load_config
from raysed.data.graded import StsTask
from raysed.plan.consistency import check_settings
from raysed.plan.draft import MOST_SENTENCES, SAMPLE, Draft, Survey, draft, survey_corpus, warnings
from raysed.registry import stages


@pytest.fixture
def write(tmp_path):
    def text_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return text_file


@pytest.fixture
def encoder_of(tmp_path) -> Callable[..., EncoderConfig]:
    """Makes encoders without weights that count tokens as the bundled one."""

    def encoder(layers: int = 6, limit: int = 512, **settings) -> EncoderConfig:
        path = tmp_path / "encoder"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(Path(bundled.__file__).parent / "encoder", path)
        for name, changes in [
            ("config.json", {"num_hidden_layers": layers, "max_position_embeddings": limit}),
            ("tokenizer_config.json", {"model_max_length": limit}),
        ]:
            known = json.loads((path / name).read_text())
            (path / name).write_text(json.dumps({**known, **changes}))
        return EncoderConfig(path=str(path), layers=1, **settings)

    return encoder


BUNDLED = EncoderConfig(layers=1)


def survey(count: int, tokens: int = 20, complete: bool = True, sample=None) -> Survey:
    sentence = " ".join(["the"] * (tokens - 2))  # a token each, between two special ones
    report = SimpleNamespace(usable=count, lines=count, too_long=0, duplicates=0)
    return Survey(["tickets.txt"], [], report, complete, sample or [sentence] * 10)


def task(pairs: int, subsets: int = 1) -> StsTask:
    columns = ["A cat."] * pairs, ["A dog."] * pairs, np.linspace(0.1, 0.9, pairs)
    return StsTask("", {str(subset): columns for subset in range(subsets)})


PAIRS = {"data/dev.csv": task(300), "other/dev.csv": task(150, 2)}


def written(
    found: Survey, pairs=None, teachers=(), encoder=BUNDLED, source=("data/tickets.txt",), column=None
) -> Draft:
    corpus = CorpusConfig(source=list(source), column=column)
    return draft(found, corpus, pairs or {}, teachers, encoder, "raysed.yaml")


# -- what the files hold ---------------------------------------------------------------------------------------------


def sentences(count: int) -> list[str]:
    return [f"Ticket {number} says that {'really ' * (number % 5)}nothing works." for number in range(count)]


def test_every_row_is_counted(write):
    text = sentences(2000)
    path = write("a.txt", "\n".join([*text, text[0], "", "x", "y" * 2001]) + "\n")
    found = survey_corpus(CorpusConfig(source=[path]))
    report = found.report
    assert (report.lines, report.usable, report.duplicates) == (2004, 2000, 1)
    assert (report.empty, report.too_short, report.too_long) == (1, 1, 1)
    assert found.complete and found.files == [path] and found.columns == []
    assert not survey_corpus(CorpusConfig(source=[path]), first=10).complete


def test_the_sample_is_spread_over_all_that_was_read(write):
    text = sentences(30_000)
    sample = survey_corpus(CorpusConfig(source=[write("a.txt", "\n".join(text))])).sample
    places = np.array([text.index(sentence) for sentence in sample[::100]])
    assert SAMPLE <= len(sample) <= 2 * SAMPLE
    assert (np.diff(places) == places[1]).all() and places[0] == 0 and places[-1] > 27_000


@pytest.mark.parametrize(("column", "taken"), [(None, 2), ("title", 1)])
@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_columns_are_those_of_the_file_and_sentences_those_of_one(write, tmp_path, kind, column, taken):
    columns = ["id", "title", "Sentence"]
    values = [[f"T{n}", f"No. {n}", f"The ticket of customer {n} is open."] for n in range(5)]
    separator = {"csv": ",", "tsv": "\t"}.get(kind)
    path = str(tmp_path / f"a.{kind}")
    if separator:
        write(f"a.{kind}", "\n".join(separator.join(row) for row in [columns, *values]))
    elif kind == "jsonl":
        write("a.jsonl", "\n".join(json.dumps(dict(zip(columns, row))) for row in values))
    else:
        pq.write_table(pa.table(dict(zip(columns, map(list, zip(*values))))), path)
    found = survey_corpus(CorpusConfig(source=[path], column=column))
    assert found.columns == columns and found.sample == [row[taken] for row in values]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (sentences(999), "999 sentences are few; "),
        ([*sentences(1050), *["y" * 2001] * 12], "12 of 1,062 rows are too long for sentences "),
        ([*sentences(1050), *["the same"] * 1100], "1,099 of 2,150 rows are duplicates, "),
        (
            [f"{line} {'really ' * 100}" for line in sentences(1050)],
            "100% of the sentences are longer than the encoder ",
        ),
    ],
    ids=["few", "long", "same", "cut"],
)
def test_what_will_hurt_is_said(write, text, warning):
    found = survey_corpus(CorpusConfig(source=[write("a.txt", "\n".join(text))]))
    (said,) = warnings(found, {"many.csv": task(100)}, written(found))
    assert said.startswith(warning)


def test_few_pairs_are_said_to_be_few():
    found = survey(3000)
    (said,) = warnings(found, {"few.csv": task(99)}, written(found))
    assert said.startswith("99 pairs of few.csv are few; ")


# -- what is written -------------------------------------------------------------------------------------------------


def test_half_of_a_teachers_layers_is_said_to_be_kept(encoder_of):
    encoder = encoder_of(layers=3, keep_layers="half")
    made = written(survey(3000), teachers=[encoder.path], encoder=encoder)
    assert made.config.encoder.keep_layers == "half" and "It keeps half of the layers of this teacher" in made.text


@pytest.mark.parametrize("count", [2, 3000, 10**6])
@pytest.mark.parametrize("pairs", [{}, {"data/dev.csv": task(300)}, PAIRS], ids=len)
@pytest.mark.parametrize("teachers", [[], ["A"], ["A", "B/c: d"]], ids=len)
@pytest.mark.parametrize("layers", [None, 6, 1], ids=["bundled", "six layers", "one layer"])
def test_what_is_written_loads_and_goes_together(tmp_path, encoder_of, count, pairs, teachers, layers):
    path = tmp_path / "raysed.yaml"
    made = written(survey(count), pairs, teachers, encoder_of(layers) if layers else BUNDLED)
    path.write_text(made.text)
    config = load_config(path)
    recipes = [recipe.text for recipe in check_settings(config)]
    assert config == made.config
    assert recipes == (["teachers-sed"] if teachers else ["base-whiten", "base-flow", "ct-sed-flow"])
    assert [teacher.path for teacher in config.teachers] == teachers
    assert config.encoder.layers == (2 if layers == 6 and not teachers else 1)
    assert config.evaluation.dev == ("dev" if pairs else "everyday-dev")
    lines = (line for line in made.text.splitlines() if str(tmp_path) not in line)
    assert max(map(len, lines)) <= 130


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


def test_a_draw_asks_for_no_more_than_was_seen():
    """So it cannot fail, whatever the rows that were not read hold."""
    assert written(survey(MOST_SENTENCES)).config.corpus.sentences is None
    assert written(survey(150_000)).config.corpus.sentences == MOST_SENTENCES
    assert written(survey(150_000, complete=False)).config.corpus.sentences == MOST_SENTENCES
    assert written(survey(60_000, complete=False)).config.corpus.sentences == 60_000


@pytest.mark.parametrize(
    ("tokens", "limit", "max_length"),
    [(22, 512, 24), (24, 512, 24), (5, 512, 16), (700, 512, 512), (700, 96, 96), (700, 10**7, 512)],
)
def test_the_length_leaves_one_sentence_in_a_hundred_longer(encoder_of, tokens, limit, max_length):
    found = survey(5000, tokens)
    made = written(found, encoder=encoder_of(limit=limit))
    assert made.config.encoder.max_length == max_length and set(made.tokens_N) == {tokens}
    is_cut = [text.startswith("100% of the sentences are longer") for text in warnings(found, {}, made)]
    assert is_cut == [True] * (tokens > max_length)


def test_lengths_are_of_the_distribution():
    sample = ["the " * (count - 2) for count in [10] * 980 + [30] * 15 + [90] * 5]
    made = written(survey(5000, sample=sample))
    assert made.config.encoder.max_length == 32 and np.mean(made.tokens_N > 32) == 0.005


def test_sources_columns_and_names_are_the_users():
    source = ["data/a b/*.jsonl", "s3://bucket/x: y"]
    config = written(survey(3000), PAIRS, source=source, column="Body").config
    assert config.corpus.source == source and config.corpus.column == "Body"
    assert config.run == "a-b" and list(config.evaluation.tasks) == ["dev", "other/dev.csv"]
    first, second = config.evaluation.tasks.values()
    assert [first.source, second.source] == list(PAIRS) and first.score_range is second.score_range is None
    assert (first.aggregation, second.aggregation) == (None, "all")


def test_every_setting_has_a_comment_above_it():
    """Of two that belong together, the first has it."""
    together = {"checkpoint_every", "batch_size", "decay", "patience"}
    for teachers, pairs in (([], {}), (["A"], PAIRS)):
        text = written(survey(150_000), pairs, teachers).text
        lines = text.splitlines()
        for place, line in enumerate(lines):
            key = line.strip().partition(":")[0]
            is_setting = line and not line.lstrip().startswith(("#", "- ")) and not line.endswith(":")
            if is_setting and not line.startswith("    ") and key not in together:
                assert lines[place - 1].lstrip().startswith("#"), line
        assert yaml.safe_load(text)

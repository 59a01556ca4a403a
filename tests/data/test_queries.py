"""Queries for texts: made from them, or given by users."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysed.config import CorpusConfig, SearchConfig
from raysed.data.corpus import CorpusReport, text_chunks
from raysed.data.queries import UNKNOWN, queries_of, roles_of
from raysed.errors import UserError

KINDS = ["titles", "crops"]
TEXT = "The Moon orbits the Earth once a month. Why does it always show the same face? Tides have slowed its turning."


def table_of(corpus: CorpusConfig, search: SearchConfig | None) -> tuple[list[tuple[str, int]], CorpusReport]:
    """All rows as text and what it is for, after a check of the ids."""
    report, rows, ids = CorpusReport(), [], []
    for some, texts, of in text_chunks(corpus, 0, report, search):
        ids += some.tolist()
        rows += zip(texts, of.tolist())
    assert ids == list(range(len(rows)))
    return rows, report


def as_jsonl(path, rows) -> CorpusConfig:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return CorpusConfig(source=str(path))


def test_each_kind_of_query():
    found = list(queries_of(SearchConfig(queries=KINDS), TEXT, "Astronomy > Moon"))
    assert [kind for kind, _ in found] == KINDS
    made = dict(found)
    assert made["titles"] == "Astronomy > Moon"
    assert 4 <= len(made["crops"].split()) <= 12
    assert not list(queries_of(SearchConfig(queries=KINDS), "Why?"))  # itself


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abcdef.?", min_size=1, max_size=6), max_size=60))
def test_a_crop_is_some_words_of_its_text_and_always_the_same(words):
    text = " ".join(words)
    crops = [crop for _, crop in queries_of(SearchConfig(queries=["crops"]), text)]
    assert crops == [crop for _, crop in queries_of(SearchConfig(queries=["crops"]), text)]
    assert all(crop in text and len(crop.split()) <= min(12, len(words) // 2) for crop in crops)
    assert bool(crops) <= (len(words) >= 8)


def test_queries_follow_their_texts_and_know_them(tmp_path):
    corpus = as_jsonl(tmp_path / "a.jsonl", [{"title": "Moon", "text": TEXT}, {"title": "Moon", "text": "Cheese."}])
    rows, report = table_of(corpus, SearchConfig(queries=KINDS))
    (crop,) = (query for _, query in queries_of(SearchConfig(queries=["crops"]), TEXT))
    assert rows == [(TEXT, 0), ("Cheese.", 1), ("Moon", 0), (crop, 0)]
    assert report.queries == {"titles": 1, "crops": 1} and report.kept == 2  # the second Moon is the same query
    assert "2 queries: 1 titles, 1 crops" in report.summary()
    ids, of = np.arange(4), np.array([of for _, of in rows])
    assert roles_of(ids, of) == ["document", "document", "query", "query"]


def test_users_own_queries(tmp_path):
    """From a column, one or several for a text; and from a file, for texts that are not known."""
    first = {"text": TEXT, "asked": ["why one face", " what slows\tthe Moon "]}
    corpus = as_jsonl(
        tmp_path / "a.jsonl",
        [first, {"text": "Cheese.", "asked": "what is it made of"}, {"text": "Sun.", "asked": None}],
    )
    (tmp_path / "log.txt").write_text("far side\n\nwhy one face\n")
    rows, report = table_of(corpus, SearchConfig(column="asked", source=str(tmp_path / "log.txt")))
    asked = [("why one face", 0), ("what slows the Moon", 0), ("what is it made of", 1), ("far side", UNKNOWN)]
    assert rows[3:] == asked and report.queries == {"own": 4}


def test_a_text_may_be_there_once_for_each_query(tmp_path):
    """Queries are kept where their text is a duplicate, or longer than they are allowed to be short."""
    rows = [{"text": "Moon rock.", "asked": query} for query in ("far", "near")] + [
        {"text": "Sun light.", "asked": "hot"}
    ]
    corpus = as_jsonl(tmp_path / "a.jsonl", rows).model_copy(update={"min_characters": 8})
    rows, report = table_of(corpus, SearchConfig(column="asked"))
    assert rows == [("Moon rock.", 0), ("Sun light.", 1), ("near", UNKNOWN), ("far", 0), ("hot", 1)]
    assert report.duplicates == 1 and report.queries == {"own": 3}


def test_a_title_need_not_be_valid_text(tmp_path):
    rows, _ = table_of(
        as_jsonl(tmp_path / "a.jsonl", [{"title": "a\ud83d", "text": TEXT}, {"text": "Sun."}]),
        SearchConfig(queries=["titles"]),
    )
    assert rows[-1] == ("a?", 0)


def test_of_a_long_line_only_the_passage_is_known_that_a_query_was_made_from(tmp_path):
    corpus = as_jsonl(tmp_path / "a.jsonl", [{"title": "Moon", "text": TEXT, "asked": "moon"}])
    corpus = corpus.model_copy(update={"passage_characters": 80})
    rows, _ = table_of(corpus, SearchConfig(queries=KINDS, column="asked"))
    (crop,) = (query for _, query in queries_of(SearchConfig(queries=["crops"]), TEXT[:78]))
    assert rows == [(TEXT[:78], 0), (TEXT[79:], 1), ("moon", UNKNOWN), ("Moon", UNKNOWN), (crop, 0)]


def test_a_draw_takes_the_queries_of_its_texts_along(tmp_path):
    texts = [{"title": f"title {i}", "text": f"text {i}"} for i in range(50)]
    corpus, search = as_jsonl(tmp_path / "a.jsonl", texts), SearchConfig(queries=["titles"])
    drawn = corpus.model_copy(update={"sentences": 9})
    rows, plain = table_of(drawn, search)[0], table_of(drawn, None)[0]
    assert rows[:9] == plain and len(rows) == 18
    assert all(rows[of][0] == query.replace("title", "text") for query, of in rows[9:])


@pytest.mark.parametrize(
    "search, rows, said",
    [
        ({"queries": ["titles"]}, [{"text": "Moon."}, {"text": "Sun."}], "no query could be made from the 2 texts of"),
        ({"queries": ["crops"]}, [{"text": TEXT}] * 9, "a.jsonl has only one text; training for search needs several"),
        ({"column": "asked"}, [{"text": "Moon."}], "columns sentence or text, and asked, are needed, found text"),
        (
            {"column": "asked"},
            [{"text": "Moon.", "asked": 3}],
            "a.jsonl, line 1: search.column must hold a text or a list",
        ),
        ({"source": "no.txt"}, [{"text": "Moon."}], "search.source"),
    ],
)
def test_queries_that_cannot_be(tmp_path, search, rows, said):
    with pytest.raises(UserError) as error:
        table_of(as_jsonl(tmp_path / "a.jsonl", rows), SearchConfig(**search))
    assert said in str(error.value)

"""Users' queries, which follow the corpus in its table."""

import json

import pytest

from raysed.config import CorpusConfig
from raysed.data.corpus import CorpusReport, query_chunks

LONG = "Why does the Moon always show the same face? Tides have slowed its turning."


@pytest.mark.parametrize("name", ["asked.txt", "asked.jsonl"])
def test_queries_are_cleaned_like_sentences_but_neither_cut_nor_drawn(tmp_path, name):
    file, lines = tmp_path / name, ["far side", "", " why\tnot ", "far side", LONG]
    file.write_text("\n".join(lines if name == "asked.txt" else [json.dumps({"query": line}) for line in lines]))
    config = CorpusConfig(queries=str(file), sentences=1, passage_characters=50, column="body")
    report = CorpusReport()
    assert [query for chunk in query_chunks(config, report) for query in chunk] == ["far side", "why not", LONG]
    assert report.summary() == "5 lines: 1 empty, 0 too short, 0 too long, 1 duplicates, 3 usable, 3 kept"

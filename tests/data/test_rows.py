"""The reader of rows itself: endings mean the same for every schema, memory is bounded, and other data have a place."""

import gzip
import json
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raysed.config import CorpusConfig
from raysed.data.corpus import CorpusReport, sentence_chunks
from raysed.data.rows import Schema, column_names, read, rows
from raysed.data.sources import local_file

DOCUMENTS = Schema(
    "retrieval.corpus",
    "documents",
    {("id",): [("_id",), ("id",)], ("text",): [("text",)]},
    "_id and text",
    optional={"title": "title"},
    text=("text", "title"),
)
JUDGEMENTS = Schema(
    "retrieval.qrels",
    "judgements",
    {("query", "document", "score"): [("query-id", "corpus-id", "score")]},
    "query-id, corpus-id and score",
)
LABELLED = Schema("tasks", "texts", {("text", "label"): [("text", "label")]}, "text and label", bare=("text", "label"))


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def corpus(path, **settings) -> list[str]:
    chunks = sentence_chunks(CorpusConfig(source=str(path), **settings), 0, CorpusReport())
    return [sentence for _, chunk in chunks for sentence in chunk]


def test_a_first_line_that_is_no_header_has_no_names_of_columns(tmp_path):
    """A survey asks for them."""
    for first in ("e" + "\u0301\u0323" * 100_000, "a carriage\rreturn"):
        assert column_names(local_file(write(tmp_path / "a.txt", f"{first}\nAnother one.\n"))) == [first]


def test_other_data_need_a_schema_only(tmp_path):
    """Objects that lack an optional field, a table of ids, and text with its label by place."""
    records = [{"_id": "d1", "title": "T", "text": "one"}, {"_id": "d2", "text": "two", "metadata": {}}]
    documents = write(tmp_path / "corpus.jsonl.gz", gzip.compress("\n\n".join(map(json.dumps, records)).encode()))
    found = read(local_file(documents), DOCUMENTS)
    assert found.columns == {"id": ["d1", "d2"], "text": ["one", "two"], "title": ["T", None]}
    falling = write(tmp_path / "falling.jsonl", "\n".join(map(json.dumps, reversed(records))))
    assert read(local_file(falling), DOCUMENTS).columns["title"] == [None, "T"]
    assert found.where(1) == f"{documents}, line 3" and found.texts("title") == ["T", ""]
    qrels = read(local_file(write(tmp_path / "test.tsv", "query-id\tcorpus-id\tscore\nq1\td1\t1\n")), JUDGEMENTS)
    assert qrels.columns == {"query": ["q1"], "document": ["d1"], "score": ["1"]}
    texts = read(local_file(write(tmp_path / "a.txt", "good film\t1\nbad film\t0\n")), LABELLED)
    assert texts.columns == {"text": ["good film", "bad film"], "label": ["1", "0"]}


def test_a_cell_may_be_long(tmp_path):
    text = "word " * 40_000
    assert corpus(write(tmp_path / "long.csv", f'id,text\n1,"{text}"\n'), passage_characters=10**6) == [text.strip()]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_the_header_of_a_corpus_shows_what_separates_columns(tmp_path, ending):
    """As for pairs; a single column is as the ending says."""
    tabs = write(tmp_path / f"tabs{ending}", 'id\ttext\n1\t"Go on, he said.\n')
    assert corpus(tabs) == ['"Go on, he said.']
    commas = write(tmp_path / f"commas{ending}", 'id,Text\n1,"One, two."\n')
    assert corpus(commas) == ["One, two."]
    one = write(tmp_path / f"one{ending}", 'text\n"Yes."\n')
    assert corpus(one) == ["Yes." if ending == ".csv" else '"Yes."']


@pytest.mark.parametrize("ending", [".txt", ".csv", ".jsonl", ".parquet"])
def test_blocks_are_bounded_whatever_the_format(tmp_path, ending):
    """Of a file of 7.5 MB no more than some blocks are in memory; Arrow's own are counted, too."""
    sentences = [f"This is sentence number {i} of a file that must not be held in memory." * 4 for i in range(25_000)]
    path = tmp_path / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table({"sentence": sentences}), path, row_group_size=2_500, use_dictionary=False)
    elif ending == ".jsonl":
        write(path, "".join(f'{{"sentence": "{sentence}"}}\n' for sentence in sentences))
    else:
        write(path, "\n".join([*([] if ending == ".txt" else ["sentence"]), *sentences]))
    schema = Schema("x", "sentences", {("s",): [("sentence",)]}, "sentence", bare=("s",))
    assert read(local_file(path), schema).columns["s"] == sentences
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        count, arrow = 0, 0
        for block in rows(local_file(path), schema):
            count, arrow = count + len(block), max(arrow, pa.total_allocated_bytes() - before)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 25_000 and peak < 5.5e6 and arrow < 5.5e6


@pytest.mark.parametrize("ending", [".txt.gz", ".csv.gz", ".jsonl.gz", ".parquet"])
def test_blocks_of_long_lines_are_bounded_by_their_size(tmp_path, ending):
    """A small file may stand for many gigabytes."""
    texts, path = ["word " * 180_000] * 90, tmp_path / f"a{ending}"
    if ending == ".parquet":
        pq.write_table(pa.table({"sentence": texts}), path)
    else:
        lines = [json.dumps({"sentence": text}) if "json" in ending else text for text in texts]
        write(path, gzip.compress("\n".join([*(["sentence"] if "csv" in ending else []), *lines]).encode(), 1))
    assert path.stat().st_size < 1e6
    schema = Schema("x", "sentences", {("s",): [("sentence",)]}, "sentence", bare=("s",))
    sizes = [sum(map(len, block.columns["s"])) for block in rows(local_file(path), schema)]
    assert sum(sizes) == 81_000_000 and max(sizes) < 18e6


def test_metadata_of_another_program_does_not_matter(tmp_path):
    features = b'{"info": {"features": {"text": {"names": 5}}}}'
    for metadata in (b"\xff", b"no json", b"[]", b'{"info": 5}', b'{"info": {"features": [1]}}', features):
        table = pa.table({"_id": ["d"], "text": ["a"]}).replace_schema_metadata({b"huggingface": metadata})
        pq.write_table(table, tmp_path / "a.parquet")
        assert read(local_file(tmp_path / "a.parquet"), DOCUMENTS).columns["text"] == ["a"]
